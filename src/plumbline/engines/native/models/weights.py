"""Hold the weights of a model, as the loader found them."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from plumbline.engines.native.models.description import Activation
from plumbline.engines.native.models.linear import Linear
from plumbline_kernels.cpu.library import PackedWeight
from plumbline_kernels.experts import Routing
from plumbline_kernels.narrow import NarrowWeight

__all__ = [
    "AttentionWeights",
    "DeltaWeights",
    "DenseWeights",
    "ExpertNormWeights",
    "ExpertsWeights",
    "LatentWeights",
    "LayerWeights",
    "LinearPlace",
    "ModelWeights",
    "NormWeights",
    "SelectiveWeights",
    "ShortConvWeights",
    "Stack",
    "TokenGateWeights",
    "TokenInputWeights",
]


@dataclass(slots=True)
class NormWeights:
    """The weights of a norm, fp32 [D], with the offset of its description added."""

    weight: Tensor
    bias: Tensor | None = None


@dataclass(slots=True)
class AttentionWeights:
    """The weights of an attention; q, k and v are one projection."""

    qkv: Linear
    o: Linear
    head_norms: Tensor | None
    """fp32 [H + KV, head_dim], if heads are normalised."""
    sinks: Tensor | None
    """fp32 [H]."""


@dataclass(slots=True)
class LatentWeights:
    """The weights of latent attention."""

    q_a: Linear | None
    q_a_norm: NormWeights | None
    q: Linear
    """The second projection of queries, or the only one."""
    kv: Linear
    kv_norm: NormWeights
    keys: Tensor | list[Linear]
    """The key projection of each head, [H, key_dim, rank], or packed for compiled kernels."""
    values: Tensor | list[Linear]
    """The value projection of each head, [H, rank, value_dim], or packed."""
    o: Linear


@dataclass(slots=True)
class DeltaWeights:
    """The weights of a delta net."""

    project: Linear
    """To queries, keys and values, gates of results, strengths and decays."""
    conv: Tensor
    """fp32 [channels, taps]."""
    rates: Tensor
    """fp32 [value_heads], positive."""
    shifts: Tensor
    """fp32 [value_heads]."""
    norm: Tensor | None
    """fp32 [value_dim], or of a state space [value_heads * value_dim]."""
    o: Linear
    conv_bias: Tensor | None = None
    """fp32 [channels]."""
    skip: Tensor | None = None
    """fp32 [value_heads], of a state space: the factors on values that are added to results."""


@dataclass(slots=True)
class ShortConvWeights:
    """The weights of a short convolution."""

    project: Linear
    """To gates of inputs, gates of results and inputs."""
    conv: Tensor
    """fp32 [width, taps]."""
    conv_bias: Tensor | None
    """fp32 [width]."""
    o: Linear


@dataclass(slots=True)
class SelectiveWeights:
    """The weights of a state space of Mamba 1."""

    project: Linear
    """To inputs and gates of results."""
    conv: Tensor
    """fp32 [width, taps]."""
    conv_bias: Tensor | None
    """fp32 [width]."""
    select: Linear
    """From convolved inputs to steps of a low rank, what is written and what reads."""
    steps: Linear
    """To the steps of channels."""
    shifts: Tensor
    """fp32 [width], added to steps."""
    rates: Tensor
    """fp32 [width, state_dim], positive."""
    skip: Tensor
    """fp32 [width]."""
    norms: tuple[Tensor, Tensor, Tensor]
    """fp32 weights of the norms of steps, of what is written and of what reads."""
    eps: float
    o: Linear


@dataclass(slots=True)
class DenseWeights:
    """The weights of a dense feed-forward block; gate and up are one projection, or there is up alone."""

    gate_up: Linear
    down: Linear
    activation: Activation
    gated: bool
    curve: Tensor | None = None
    """fp32 [4], of `xielu`: the factors on squares and on exponentials, that on x, and the largest exponent."""


@dataclass(slots=True)
class Stack:
    """One projection of all experts, as the Triton kernels take it."""

    weight: Tensor | NarrowWeight
    """[E, out, in]."""
    bias: Tensor | None
    """[E, out]."""


@dataclass(slots=True)
class ExpertNormWeights:
    """The norms of experts that read the residual stream, and those of the results of a block."""

    router: NormWeights
    before: NormWeights
    after: NormWeights
    after_shared: NormWeights


@dataclass(slots=True)
class TokenInputWeights:
    """The weights that make the inputs of all layers from a token's second embedding and its first one."""

    embedding: Tensor
    """[V, layers * width]."""
    projection: Linear
    norm: NormWeights
    """fp32 [width]."""


@dataclass(slots=True)
class TokenGateWeights:
    """The weights that add such an input to the residual stream of a layer."""

    gate: Linear
    up: Linear
    after: NormWeights


@dataclass(slots=True)
class ExpertsWeights:
    """The weights of a block of experts."""

    routing: Routing
    router: Linear
    """fp32, because near logits decide."""
    correction: Tensor | None
    """fp32 [E]."""
    gate_up: list[Linear] | Stack
    down: list[Linear] | Stack
    activation: Activation
    gated: bool
    shared: DenseWeights | None
    shared_gate: Tensor | None
    """fp32 [D]."""
    factors: Tensor | None = None
    """fp32 [E], on the weights of tokens."""
    norms: ExpertNormWeights | None = None
    shared_scale: float = 1.0


@dataclass(slots=True)
class LayerWeights:
    """The weights of one layer, without the norms that its description does not have."""

    mixer: AttentionWeights | LatentWeights | DeltaWeights | ShortConvWeights | SelectiveWeights
    feed_forward: DenseWeights | ExpertsWeights | None
    before_mixer: NormWeights | None
    after_mixer: NormWeights | None
    before_feed_forward: NormWeights | None
    after_feed_forward: NormWeights | None
    scale: float
    """The factor on the residual stream after the layer."""
    token: TokenGateWeights | None = None


@dataclass(frozen=True, slots=True)
class LinearPlace:
    """A linear layer of a model, and the projections of a checkpoint that it was made from."""

    layer: Linear
    names: tuple[str, ...]
    """Without `.weight`; several projections of the same input are stacked along their outputs."""
    widths: tuple[int, ...]
    """The outputs of each."""
    inputs: int
    rows: Tensor | None
    """int64 [out]: the order of the rows; None if they are as in the checkpoint."""
    factors: Tensor | None = None
    """fp32 [out]: what the rows in the order of the checkpoint are multiplied by; None for 1."""


@dataclass(slots=True)
class ModelWeights:
    """The weights of a model."""

    embedding: Tensor | PackedWeight
    """[V, D]; with compiled kernels it may be packed, and then be the output layer's."""
    layers: list[LayerWeights]
    norm: NormWeights
    head: Linear
    places: list[LinearPlace]
    """The linear layers that adapters may change."""
    dtype: torch.dtype
    device: torch.device
    token_inputs: TokenInputWeights | None = None
    positions: Tensor | None = None
    """[positions, D], added to embeddings."""
    embedding_norm: NormWeights | None = None
