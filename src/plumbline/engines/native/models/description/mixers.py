"""Describe how a layer mixes tokens: attention, attention over latents, and nets that keep a state."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from plumbline.engines.native.models.description.unsupported import UnsupportedModelError

__all__ = ["Attention", "DeltaNet", "HeadNorm", "Latent", "Mixer", "Rope", "Selective", "ShortConv"]


Layout = Literal["apart", "by_key_head", "codegen"]
"""`by_key_head`: the queries of each key head, its key and its value. `codegen`: four blocks of heads, each with its
queries, values and keys."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rope:
    """The base of a rotary embedding and how its frequencies are scaled."""

    theta: float = 10000.0
    kind: str = "default"
    """`default`, `linear`, `dynamic`, `llama3`, `yarn`, `longrope` or `proportional`."""
    part: float = 1.0
    """The part of a head that is rotated; the rest passes as it is."""
    backwards: bool = False
    """Whether pairs turn the other way."""
    interleaved: bool = False
    """Whether neighbours are rotated together, and not the halves of a head."""
    axes: tuple[int, ...] = ()
    """The axis, 0 to 2, by whose position each pair is rotated, where a token of an image has three positions: of the
    image, of its row and of its column. Empty if each token has one."""
    temperature: float = 0.0
    """b, if queries at position p are multiplied by 1 + b * log(1 + floor((p + shift) / original_max_positions))."""
    temperature_shift: int = 0
    short_factors: tuple[float, ...] = ()
    """The divisors of frequencies with `longrope` in a context that is not longer than the original one."""
    long_factors: tuple[float, ...] = ()
    factor: float = 1.0
    original_max_positions: int = 0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    attention_factor: float | None = None
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    short_scale: float | None = None
    """The factor on cos and sin with `longrope` in a context not longer than the original one, where one is given."""
    long_scale: float | None = None
    mscale: float | None = None
    mscale_all_dim: float | None = None
    truncate: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class HeadNorm:
    """How query and key heads are normalised, with the kind, eps and offset of the model's norms."""

    weights: Literal["shared", "each", "none"] = "shared"
    """Whether all query heads share a weight, as all key heads do, or there is none."""
    whole: bool = False
    """Whether all query heads are normalised together, and all key heads; their weights are not shared then."""
    after_rope: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Attention:
    """A mixer: attention over the cache."""

    heads: int
    kv_heads: int
    """Key heads; each is shared by `heads / kv_heads` query heads."""
    head_dim: int
    rope: Rope | None = field(default_factory=Rope)
    qkv_bias: bool = False
    o_bias: bool = False
    layout: Layout = "apart"
    """How the rows of one projection of queries, keys and values are arranged; `apart` is one after the other."""
    clip: float | None = None
    """The largest size of a number of queries, keys and values, before norms and rotations."""
    head_norm: HeadNorm | None = None
    window: int | None = None
    """How many tokens a token attends to, itself included; None for all."""
    tiled: bool = False
    """Whether windows are side by side, so that a token attends to the tokens before it in its own one."""
    causal: bool = False
    """Whether a token attends to none after it, also where those of an image attend to each other in other layers."""
    softcap: float | None = None
    """c, if a score s becomes c * tanh(s / c)."""
    sinks: bool = False
    """Whether every query head has a score of one more key, whose value is zero."""
    value_norm: bool = False
    """Whether values are normalised, each head alone and without a weight; only with a norm of query and key heads."""
    values_are_keys: bool = False
    """Whether keys and values have one projection, before norms and rotations."""
    gated: bool = False
    """Whether results are multiplied by the sigmoid of a projection, which follows the queries of each head.

    It is a projection of its own where `Names.attention_gate` names it.
    """
    scores_scale: float | None = None
    """The factor on scores; None for 1 / sqrt(head_dim)."""
    keys_of: int | None = None
    """The layer whose keys and values it attends to; None for its own."""

    def __post_init__(self) -> None:
        """Check what the operations assume."""
        if self.heads % self.kv_heads:
            raise UnsupportedModelError("num_attention_heads must be a multiple of num_key_value_heads")
        if self.layout == "codegen" and self.heads % 4:
            raise UnsupportedModelError(
                "num_attention_heads must be a multiple of 4 in the layout of codegen"
            )
        if self.head_dim % 2:
            raise UnsupportedModelError("head_dim must be even")
        rope = self.rope
        if rope is None or rope.kind in ("default", "proportional"):
            return
        if (turned := int(self.head_dim * rope.part)) % 2:
            raise UnsupportedModelError(
                f"a rotation of {turned} numbers of a head is not supported with rope_type {rope.kind!r}"
            )

    @property
    def scale(self) -> float:
        """The factor on scores."""
        return float(self.head_dim**-0.5 if self.scores_scale is None else self.scores_scale)

    @property
    def cache_width(self) -> int:
        """The numbers that the cache keeps for a token."""
        return 2 * self.written_heads * self.head_dim

    @property
    def written_heads(self) -> int:
        """The key heads that it writes to the cache."""
        return self.kv_heads if self.keys_of is None else 0

    def num_weights(self, hidden_size: int) -> int:
        """Return the numbers in the projections."""
        queries = 3 if self.gated else 2
        return hidden_size * (queries * self.heads + 2 * self.written_heads) * self.head_dim


@dataclass(frozen=True, slots=True, kw_only=True)
class Latent:
    """A mixer: attention over one latent for the keys and values of all heads, and one rotated key."""

    heads: int
    rank: int
    """The width of a latent."""
    key_dim: int
    """The part of a query that is compared with a latent's projection."""
    rope_dim: int
    """The part that is compared with the rotated key."""
    value_dim: int
    rope: Rope
    scale: float
    query_rank: int | None = None
    """The width between the two projections of queries; None for one projection."""
    bias: bool = False
    """Whether the first projections of queries and of latents have a bias."""
    eps: float = 1e-6
    """Of the norms of latents, and of queries between their projections."""

    @property
    def head_dim(self) -> int:
        """The width of a query over the cache."""
        return self.rank + self.rope_dim

    @property
    def cache_width(self) -> int:
        """The numbers that the cache keeps for a token: keys are also values."""
        return self.head_dim

    @property
    def over_cache(self) -> Attention:
        """The attention over the cache, of queries that are multiplied with the key projections."""
        return Attention(
            heads=self.heads, kv_heads=1, head_dim=self.head_dim, rope=None, scores_scale=self.scale
        )

    def num_weights(self, hidden_size: int) -> int:
        """Return the numbers in the projections."""
        queries = self.heads * (self.key_dim + self.rope_dim)
        first = hidden_size if self.query_rank is None else self.query_rank
        latents = self.rank * self.heads * (self.key_dim + self.value_dim)
        through = 0 if self.query_rank is None else self.query_rank
        return (
            hidden_size * (through + self.head_dim + self.heads * self.value_dim) + first * queries + latents
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class DeltaNet:
    """A mixer: a gated delta net (arXiv 2412.06464), which keeps a state of one size for a sequence of any length."""

    key_heads: int
    value_heads: int
    key_dim: int
    value_dim: int
    taps: int
    """The tokens that the convolution of queries, keys and values takes, the token itself included."""
    by_key_head: bool = False
    """Whether the rows of the projections are grouped by key head, as in Qwen3-Next."""
    tiled: bool = False
    """Whether value head h has the key head h % key_heads, as in GGUF files, and not h // (value_heads / key_heads)."""
    state_space: bool = False
    """Whether it is a state space of Mamba 2: no corrections, gates before the norm, values added to results."""
    strength: float = 1.0
    """The largest strength of a correction; 2 lets states change their sign."""
    row_scales: tuple[float, ...] = ()
    """Factors on the gates, values, keys, queries and steps of a state space's projection, if it has some."""
    normed: bool = True
    """Whether results are normalised; only state spaces may do without."""
    conv_bias: bool = False
    bias: bool = False
    """Whether projections have a bias; only of state spaces."""
    eps: float = 1e-6
    """Of the norm of results."""
    rope: None = None

    def __post_init__(self) -> None:
        """Check what the operations assume."""
        if self.value_heads % self.key_heads:
            raise UnsupportedModelError("linear_num_value_heads must be a multiple of linear_num_key_heads")
        if self.taps < 2:
            raise UnsupportedModelError("linear_conv_kernel_dim must be at least 2")

    @property
    def channels(self) -> int:
        """The width of queries, keys and values together."""
        return 2 * self.key_heads * self.key_dim + self.values

    @property
    def values(self) -> int:
        """The width of values."""
        return self.value_heads * self.value_dim

    @property
    def heads(self) -> int:
        """The heads whose tokens attend to others: none, so a token costs the same after any number of tokens."""
        return 0

    @property
    def head_dim(self) -> int:
        """The widest head."""
        return max(self.key_dim, self.value_dim)

    @property
    def cache_width(self) -> int:
        """The numbers that the cache keeps for a token: none."""
        return 0

    def state_bytes(self, itemsize: int) -> int:
        """Return the bytes that a sequence takes, with weights of so many bytes each."""
        return self.channels * (self.taps - 1) * itemsize + self.values * self.key_dim * 4

    def num_weights(self, hidden_size: int) -> int:
        """Return the numbers in the projections."""
        return hidden_size * (self.channels + 2 * self.values + self.gates)

    @property
    def gates(self) -> int:
        """The width of strengths and decays, which are one projection in a state space."""
        return self.value_heads if self.state_space else 2 * self.value_heads


class _ChannelsAlone:
    """A mixer without attention, in which each channel is computed by itself."""

    __slots__ = ()

    @property
    def heads(self) -> int:
        """The heads whose tokens attend to others: none."""
        return 0

    @property
    def head_dim(self) -> int:
        """The width of a head: each channel is alone."""
        return 1

    @property
    def cache_width(self) -> int:
        """The numbers that the cache keeps for a token: none."""
        return 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ShortConv(_ChannelsAlone):
    """A mixer: a gated convolution of a few taps for each channel alone (LFM2), which keeps its last inputs."""

    width: int
    """Channels, as many as the model has."""
    taps: int
    """The tokens that the convolution takes, the token itself included."""
    bias: bool = False
    """Whether projections and the convolution have a bias."""
    rope: None = None

    def __post_init__(self) -> None:
        """Check what the operations assume."""
        if self.taps < 2:
            raise UnsupportedModelError("conv_L_cache must be at least 2")

    def state_bytes(self, itemsize: int) -> int:
        """Return the bytes that a sequence takes, with weights of so many bytes each."""
        return self.width * (self.taps - 1) * itemsize

    def num_weights(self, hidden_size: int) -> int:
        """Return the numbers in the projections."""
        return 4 * hidden_size * self.width


@dataclass(frozen=True, slots=True, kw_only=True)
class Selective(_ChannelsAlone):
    """A mixer: a state space of Mamba 1 (arXiv 2312.00752); each channel has a state and decays of its own."""

    width: int
    """Channels."""
    state_dim: int
    """The numbers that each channel keeps."""
    step_rank: int
    """The width between the two projections of steps."""
    taps: int
    """The tokens that the convolution takes, the token itself included."""
    conv_bias: bool = True
    bias: bool = False
    """Whether the first and the last projection have a bias."""
    eps: float = 1e-6
    """Of the norms of steps, of what is written and of what reads."""
    rope: None = None

    def __post_init__(self) -> None:
        """Check what the operations assume."""
        if self.taps < 2:
            raise UnsupportedModelError("mamba_d_conv must be at least 2")

    def state_bytes(self, itemsize: int) -> int:
        """Return the bytes that a sequence takes, with weights of so many bytes each."""
        return self.width * ((self.taps - 1) * itemsize + 4 * self.state_dim)

    def num_weights(self, hidden_size: int) -> int:
        """Return the numbers in the projections."""
        return self.width * (3 * hidden_size + 2 * self.step_rank + 2 * self.state_dim)


Mixer = Attention | Latent | DeltaNet | ShortConv | Selective
