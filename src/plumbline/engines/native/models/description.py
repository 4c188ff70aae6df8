"""Describe a model: the shapes and the arithmetic of every layer, as frozen values.

A family (`families/`) writes a description from a `config.json`, the loader fetches the weights that it asks for, and
one loop (`transformer.py`) runs it. Equal parts of a description are equal values, so layers may share what is derived
from them, such as rotary tables.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal

import torch

from plumbline.engines.native.models.names import Names
from plumbline.engines.native.models.stored import StoredFormat

__all__ = [
    "Activation",
    "Attention",
    "DeltaNet",
    "Dense",
    "Experts",
    "HeadNorm",
    "Latent",
    "LayerDescription",
    "ModelDescription",
    "Norm",
    "Placement",
    "Rope",
    "Router",
    "UnsupportedModelError",
]

Activation = Literal["silu", "gelu_tanh", "swiglu_oss", "relu2"]
Placement = Literal["before", "after", "both", "parallel"]


class UnsupportedModelError(ValueError):
    """The model needs something that the engine does not support; the message names the field or the part."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rope:
    """The base of a rotary embedding and how its frequencies are scaled."""

    theta: float = 10000.0
    kind: str = "default"
    """`default`, `linear`, `llama3`, `yarn`, `longrope` or `proportional`."""
    part: float = 1.0
    """The part of a head that is rotated; the rest passes as it is."""
    interleaved: bool = False
    """Whether neighbours are rotated together, and not the halves of a head."""
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
    mscale: float | None = None
    mscale_all_dim: float | None = None
    truncate: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Norm:
    """The norm of a model's rows: x / sqrt(mean(x²) + eps) * weight, of x - mean(x) if it is a layer norm."""

    kind: Literal["rms", "layer"] = "rms"
    eps: float = 1e-6
    bias: bool = False
    offset: float = 0.0
    """What is added to the weights of the checkpoint."""


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
    head_norm: HeadNorm | None = None
    window: int | None = None
    """How many tokens a token attends to, itself included; None for all."""
    tiled: bool = False
    """Whether windows are side by side, so that a token attends to the tokens before it in its own one."""
    softcap: float | None = None
    """c, if a score s becomes c * tanh(s / c)."""
    sinks: bool = False
    """Whether every query head has a score of one more key, whose value is zero."""
    value_norm: bool = False
    """Whether values are normalised, each head alone and without a weight; only with a norm of query and key heads."""
    values_are_keys: bool = False
    """Whether the projection of keys is that of values, too, before norms and rotations."""
    gated: bool = False
    """Whether results are multiplied by the sigmoid of a projection, which follows the queries of each head."""
    scores_scale: float | None = None
    """The factor on scores; None for 1 / sqrt(head_dim)."""
    keys_of: int | None = None
    """The layer whose keys and values it attends to; None for its own."""

    def __post_init__(self) -> None:
        """Check what the operations assume."""
        if self.heads % self.kv_heads:
            raise UnsupportedModelError("num_attention_heads must be a multiple of num_key_value_heads")
        if self.head_dim % 2:
            raise UnsupportedModelError("head_dim must be even")

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
        """The numbers that the cache keeps for a token: keys are values, too."""
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
    state_space: bool = False
    """Whether it is a state space of Mamba 2: no corrections, gates before the norm, values added to results."""
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


def _check_activation(activation: Activation, gated: bool) -> None:
    known = {"silu", "gelu_tanh", "swiglu_oss"} if gated else {"gelu_tanh", "relu2"}
    if activation not in known:
        kind = "with" if gated else "without"
        raise UnsupportedModelError(f"activation {activation!r} {kind} a gate is not supported")


@dataclass(frozen=True, slots=True, kw_only=True)
class Dense:
    """A feed-forward block that every token takes: down(activation(gate) * up), or down(activation(up))."""

    width: int
    activation: Activation = "silu"
    gated: bool = True
    bias: bool = False

    def __post_init__(self) -> None:
        """Check what the operations assume."""
        _check_activation(self.activation, self.gated)

    @property
    def active_width(self) -> int:
        """The width of what a token takes."""
        return self.width


@dataclass(frozen=True, slots=True, kw_only=True)
class Router:
    """How tokens choose their experts, and what the experts' results are multiplied by."""

    top_k: int
    scores: Literal["softmax", "sigmoid", "softmax_of_chosen"] = "softmax"
    """The softmax of all logits, their sigmoids, or the softmax of the chosen ones."""
    bias: bool = False
    correction: bool = False
    """Whether a bias is added to scores for the choice alone."""
    groups: int = 1
    """Experts are in so many groups, of which the best `chosen_groups` may be chosen from."""
    chosen_groups: int = 1
    groups_by_two: bool = True
    """Whether a group is as good as its two best experts together, and not as its best one."""
    normalised: bool = True
    """Whether the weights of a token are divided by their sum."""
    floor: float = 0.0
    """The least divisor of weights."""
    scale: float = 1.0
    """A factor on weights."""
    of_inputs: bool = False
    """Whether weights multiply what experts take, and not what they return."""
    by_expert: bool = False
    """Whether weights are multiplied by a number of the checkpoint for each expert."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Experts:
    """A feed-forward block of gated experts, of which a token takes a few, and shared ones, which every token takes."""

    number: int
    width: int
    router: Router
    activation: Activation = "silu"
    bias: bool = False
    shared: Dense | None = None
    shared_gate: bool = False
    """Whether the shared experts' result is multiplied by the sigmoid of a projection of the input."""
    apart: bool = False
    """Whether router and experts read the residual stream by norms of their own, and results have norms (Gemma 4)."""

    def __post_init__(self) -> None:
        """Check what the operations assume."""
        _check_activation(self.activation, gated=True)
        router = self.router
        if not 0 < router.top_k <= self.number:
            raise UnsupportedModelError(
                "num_experts_per_tok must be at least 1 and at most the number of experts"
            )
        if self.number % router.groups or not 0 < router.chosen_groups <= router.groups:
            raise UnsupportedModelError(
                "n_group must divide the number of experts, and topk_group be at most n_group"
            )
        if router.top_k > self.number // router.groups * router.chosen_groups:
            raise UnsupportedModelError(
                "num_experts_per_tok must be at most the experts of topk_group groups"
            )

    @property
    def active_width(self) -> int:
        """The width of what a token takes."""
        return self.router.top_k * self.width + (0 if self.shared is None else self.shared.width)


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerDescription:
    """One layer."""

    mixer: Attention | Latent | DeltaNet
    feed_forward: Dense | Experts
    scaled: bool = False
    """Whether the residual stream is multiplied by a number of the checkpoint after the layer."""
    norms: Placement = "before"
    """Where norms are: before each block, after it, both, or once before both blocks, which get the same input."""


@dataclass(frozen=True, kw_only=True)
class ModelDescription:
    """A decoder-only language model."""

    model_type: str
    vocab_size: int
    hidden_size: int
    layers: tuple[LayerDescription, ...]
    norm: Norm = field(default_factory=Norm)
    head_bias: bool = False
    """Whether the output layer has a bias."""
    tied: bool = False
    """Whether the output layer has the weights of the embedding."""
    embedding_scale: float = 1.0
    """A factor on embeddings, rounded to the model's type."""
    token_inputs: int = 0
    """The width of what a token's second embedding gives to each layer besides (Gemma 4 E2B and E4B); 0 for none."""
    residual_scale: float = 1.0
    """A factor on what a block adds to the residual stream."""
    logits_scale: float = 1.0
    logits_softcap: float | None = None
    """c, if a logit x becomes c * tanh(x / c), after the scale."""
    context_length: int = 2048
    """The longest sequence that the model was made for, in tokens."""
    is_text_of_more: bool = False
    """Whether the checkpoint is that of a model of images and text, of which this is the text."""
    dtype: torch.dtype = torch.float32
    eos_token_ids: frozenset[int] = frozenset()
    names: Names = field(default_factory=Names)
    stored: StoredFormat | None = None
    """The format of quantised weights, if the checkpoint has any."""

    @cached_property
    def cache_width(self) -> int:
        """The numbers that the cache keeps for a token, over all layers."""
        return sum(layer.mixer.cache_width for layer in self.layers)

    def state_bytes(self, itemsize: int) -> int:
        """Return the bytes of the states of one sequence, over all layers, with weights of so many bytes each."""
        return sum(
            layer.mixer.state_bytes(itemsize) for layer in self.layers if isinstance(layer.mixer, DeltaNet)
        )
