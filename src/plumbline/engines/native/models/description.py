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

__all__ = [
    "Activation",
    "Attention",
    "Dense",
    "LayerDescription",
    "ModelDescription",
    "Norm",
    "Rope",
    "UnsupportedModelError",
]

Activation = Literal["silu"]


class UnsupportedModelError(ValueError):
    """The model needs something that the engine does not support; the message names the field or the part."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rope:
    """The base of a rotary embedding and how its frequencies are scaled."""

    theta: float = 10000.0
    kind: str = "default"
    """`default`, `linear`, `llama3` or `yarn`."""
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
    """The RMS norm of a model's rows."""

    eps: float = 1e-6


@dataclass(frozen=True, slots=True, kw_only=True)
class Attention:
    """A mixer: attention over the cache."""

    heads: int
    kv_heads: int
    """Key heads; each is shared by `heads / kv_heads` query heads."""
    head_dim: int
    rope: Rope = field(default_factory=Rope)
    qkv_bias: bool = False
    o_bias: bool = False
    head_norm: bool = False
    """Whether every query and key head is normalised before the rotation."""
    window: int | None = None
    """How many tokens a token attends to, itself included; None for all."""

    def __post_init__(self) -> None:
        """Check what the operations assume."""
        if self.heads % self.kv_heads:
            raise UnsupportedModelError("num_attention_heads must be a multiple of num_key_value_heads")
        if self.head_dim % 2:
            raise UnsupportedModelError("head_dim must be even")

    @property
    def scale(self) -> float:
        """The factor on the scores."""
        return float(self.head_dim**-0.5)


@dataclass(frozen=True, slots=True, kw_only=True)
class Dense:
    """A feed-forward block that every token takes: down(activation(gate) * up)."""

    width: int
    activation: Activation = "silu"
    bias: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerDescription:
    """One layer."""

    mixer: Attention
    feed_forward: Dense


@dataclass(frozen=True, kw_only=True)
class ModelDescription:
    """A decoder-only language model."""

    model_type: str
    vocab_size: int
    hidden_size: int
    layers: tuple[LayerDescription, ...]
    norm: Norm = field(default_factory=Norm)
    tied: bool = False
    """Whether the output layer has the weights of the embedding."""
    context_length: int = 2048
    """The longest sequence that the model was made for, in tokens."""
    dtype: torch.dtype = torch.float32
    eos_token_ids: frozenset[int] = frozenset()
    names: Names = field(default_factory=Names)

    @cached_property
    def cache_width(self) -> int:
        """The numbers that the cache keeps for a token, over all layers."""
        return sum(2 * layer.mixer.kv_heads * layer.mixer.head_dim for layer in self.layers)
