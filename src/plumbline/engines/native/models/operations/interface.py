"""Name the operations of a forward pass, and what they take besides tensors."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from plumbline.engines.native.models.description import Activation, Attention, DeltaNet, Latent, Norm
from plumbline.engines.native.models.linear import Linear
from plumbline.engines.native.models.weights import (
    DeltaWeights,
    ExpertsWeights,
    SelectiveWeights,
    ShortConvWeights,
    TokenInputWeights,
)
from plumbline_kernels.attention import AttentionBatch, RowSelection
from plumbline_kernels.cpu.library import PackedWeight
from plumbline_kernels.delta import DeltaShape
from plumbline_kernels.rope_kv import HeadNorms

__all__ = [
    "Backend",
    "DeltaHeads",
    "Heads",
    "KVCache",
    "LatentHeads",
    "Loop",
    "Operations",
    "PreparedNorm",
    "TokenInputs",
]

KVCache = tuple[Tensor, Tensor]
"""Keys and values of a layer, each [num_blocks, block_size, KV, head_dim]; or the states of a delta net's sequences:
their last inputs [rows, channels, taps - 1] (compiled kernels lay a row out the other way round), and fp32 [rows, HV,
key_dim, value_dim]."""


@dataclass(frozen=True, slots=True)
class PreparedNorm:
    """A norm, with its weights as a backend prepares them."""

    norm: Norm
    weight: Tensor
    """fp32 [D], or [2 D] in the form of `twice`."""
    bias: Tensor | None


@dataclass(frozen=True, slots=True)
class Heads:
    """An attention, with what its operations need besides the projections."""

    attention: Attention
    cos_sin: Tensor | None
    """The table of `rope_table`; None without a rotation."""
    temperature: Tensor | None
    """The factors of `temperatures`."""
    norms: HeadNorms | None
    sinks: Tensor | None
    rank: int | None = None
    """Of latents, which are values and the first part of keys; None for keys and values apart."""


@dataclass(frozen=True, slots=True)
class LatentHeads:
    """A latent attention, with what its operations need besides the projections."""

    latent: Latent
    cos_sin: Tensor
    """The table of `rope_table`, as wide as the rotated key."""
    norm: PreparedNorm
    """Of latents."""
    keys: Tensor | list[Linear]
    """See `LatentWeights`."""
    values: Tensor | list[Linear]


@dataclass(frozen=True, slots=True)
class TokenInputs:
    """What makes the inputs of all layers from the tokens' second embeddings."""

    weights: TokenInputWeights
    norm: PreparedNorm
    factor: float
    """On the second embeddings, rounded to the model's type."""


@dataclass(frozen=True, slots=True)
class DeltaHeads:
    """A delta net, with what its operations need."""

    net: DeltaNet
    shape: DeltaShape
    weights: DeltaWeights


class Operations(Protocol):
    """The operations of one step. T are its tokens, D the width, H and KV the query and key heads."""

    def embed(self, table: Tensor | PackedWeight, factor: float) -> Tensor:
        """Return the rows of `table` [V, D] of the step's tokens, times a factor, [T, D]."""
        ...

    def place(self, residual: Tensor, table: Tensor) -> Tensor:
        """Add to embeddings [T, D], which may be overwritten, the rows of `table` of the tokens' positions."""
        ...

    def norm_embedded(self, residual: Tensor, norm: PreparedNorm) -> Tensor:
        """Return the norm of embeddings [T, D], which may be overwritten and are the residual from now on."""
        ...

    def clip(self, x: Tensor, size: float) -> Tensor:
        """Return x, which may be overwritten, with its numbers between -size and size."""
        ...

    def give(self, residual: Tensor, part: int) -> Tensor:
        """Add a part of the given rows to the residual [T, D] of their tokens, which may be overwritten."""
        ...

    def norm(self, x: Tensor, norm: PreparedNorm) -> Tensor:
        """Return the norm of x [T, D]."""
        ...

    def add(self, x: Tensor, residual: Tensor, factor: float, scale: float) -> Tensor:
        """Return scale * (residual + factor * x), both [T, D]; the residual may be overwritten."""
        ...

    def add_norm(
        self, x: Tensor, residual: Tensor, norm: PreparedNorm, factor: float, scale: float
    ) -> tuple[Tensor, Tensor]:
        """Return the norm of scale * (residual + factor * x), and that sum; both [T, D]."""
        ...

    def linear(self, x: Tensor, layer: Linear) -> Tensor:
        """Map x [T, in] to [T, out], and add what the adapters of the tokens add."""
        ...

    def rope_kv_write(self, qkv: Tensor, cache: KVCache, heads: Heads) -> Tensor:
        """Rotate q and k of qkv [T, (H + 2 KV) * head_dim], write k and v to the cache, return q."""
        ...

    def select(
        self, q: Tensor, residual: Tensor, x: Tensor, gate: Tensor | None = None
    ) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
        """Keep the tokens whose results are wanted; the operations after this one compute no others."""
        ...

    def attend(self, q: Tensor, cache: KVCache, heads: Heads) -> Tensor:
        """Return the attention of q over the cache, [T, H * head_dim]."""
        ...

    def gate(self, attended: Tensor, gate: Tensor) -> Tensor:
        """Return attended * sigmoid(gate), both [T, H * head_dim]."""
        ...

    def delta(self, projected: Tensor, states: KVCache, heads: DeltaHeads) -> Tensor:
        """Run a delta net on [T, channels + values + 2 HV] and its states; returns [T, HV * value_dim]."""
        ...

    def short_conv(self, projected: Tensor, states: KVCache, weights: ShortConvWeights) -> Tensor:
        """Run a short convolution on gates, gates and inputs [T, 3 D] and its states; returns [T, D]."""
        ...

    def selective(self, projected: Tensor, states: KVCache, weights: SelectiveWeights) -> Tensor:
        """Run a state space of Mamba 1 on inputs and gates [T, 2 W] and its states; returns [T, W]."""
        ...

    def latent_write(self, q: Tensor, kv: Tensor, cache: KVCache, heads: LatentHeads) -> Tensor:
        """Write latents and keys of kv [T, rank + rope] to the cache; return queries over it, [T, H, rank + rope]."""
        ...

    def latent_values(self, attended: Tensor, heads: LatentHeads) -> Tensor:
        """Map sums of what the cache has, or of its latents alone, [T, H * width], to values [T, H * value]."""
        ...

    def activate(self, x: Tensor, activation: Activation, gated: bool, curve: Tensor | None = None) -> Tensor:
        """Return activation(gate) * up of [T, 2 * width], or activation(x) of [T, width]; `curve` is for xielu."""
        ...

    def experts(
        self, x: Tensor, weights: ExpertsWeights, shared: Tensor | None, asked: Tensor | None = None
    ) -> Tensor:
        """Return the experts' results for x [T, D], and the result of shared experts times its gate, added up.

        The router chooses by `asked` [T, D], or by x.
        """
        ...

    def rotate(self, q: Tensor, heads: Heads) -> Tensor:
        """Normalise and rotate q [T, H * head_dim] of a layer that writes no keys; returns [T, H, head_dim]."""
        ...

    def token_inputs(self, embedded: Tensor, inputs: TokenInputs) -> Tensor:
        """Return the inputs of all layers, [T, layers, width], of tokens with these embeddings [T, D]."""
        ...

    def gated_inputs(self, gate: Tensor, given: Tensor) -> Tensor:
        """Return gelu(gate) * given, both [T, width]."""
        ...


Loop = Callable[[Operations, list[KVCache]], Tensor]
"""The loop over layers: returns the last result."""


class Backend(Protocol):
    """Prepare the weights of a model, and run its loop over the operations of each step."""

    def norm(self, norm: Norm, weight: Tensor, bias: Tensor | None) -> PreparedNorm:
        """Prepare the weights of a norm, fp32 [D], once per model."""
        ...

    def run(
        self,
        loop: Loop,
        token_ids: Tensor,
        batch: AttentionBatch,
        caches: list[KVCache],
        selection: RowSelection | None,
        given: Tensor | None = None,
    ) -> Tensor:
        """Run a step: int64 [T] token ids to hidden states [R, D] of the selected tokens (None: of all).

        Token -1 - i has row i of `given` [G, D] as its embedding, which is not scaled. Wider rows [G, (1 + parts) * D]
        have what later layers add to it (`Operations.give`).
        """
        ...
