"""Hold the weights of a model, as the loader found them."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from plumbline.engines.native.models.linear import Linear

__all__ = ["AttentionWeights", "DenseWeights", "LayerWeights", "ModelWeights"]


@dataclass(slots=True)
class AttentionWeights:
    """The weights of an attention; q, k and v are one projection."""

    qkv: Linear
    o: Linear
    head_norms: tuple[Tensor, Tensor] | None
    """The norm weights of q and k, if heads are normalised."""


@dataclass(slots=True)
class DenseWeights:
    """The weights of a dense feed-forward block; gate and up are one projection."""

    gate_up: Linear
    down: Linear


@dataclass(slots=True)
class LayerWeights:
    """The weights of one layer."""

    before_mixer: Tensor
    mixer: AttentionWeights
    before_feed_forward: Tensor
    feed_forward: DenseWeights


@dataclass(slots=True)
class ModelWeights:
    """The weights of a model."""

    embedding: Tensor
    layers: list[LayerWeights]
    norm: Tensor
    head: Linear
