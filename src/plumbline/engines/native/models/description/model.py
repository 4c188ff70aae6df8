"""Describe the layers of a model, and the model."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal

import torch

from plumbline.engines.native.models.description.feed_forward import FeedForward
from plumbline.engines.native.models.description.mixers import DeltaNet, Mixer, Selective, ShortConv
from plumbline.engines.native.models.names import Names
from plumbline.engines.native.models.stored import StoredFormat

__all__ = ["LayerDescription", "ModelDescription", "Norm", "Placement", "Positions"]

Placement = Literal["before", "after", "both", "parallel", "parallel_two", "three"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Norm:
    """The norm of a model's rows: x / sqrt(mean(x²) + eps) * weight, of x - mean(x) if it is a layer norm."""

    kind: Literal["rms", "layer"] = "rms"
    eps: float = 1e-6
    bias: bool = False
    offset: float = 0.0
    """What is added to the weights of the checkpoint."""
    weights: bool = True
    """Whether the checkpoint has weights; without, they are 1."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Positions:
    """The embeddings of positions, which are added to those of tokens."""

    number: int
    """The positions that the model has."""
    offset: int = 0
    """The row of position 0 in the checkpoint's table."""
    computed: bool = False
    """Whether they are sines and cosines of a position, and the checkpoint has none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerDescription:
    """One layer."""

    mixer: Mixer
    feed_forward: FeedForward | None
    """None for a layer that only mixes."""
    numbers: tuple[int, int] | None = None
    """Those of the two blocks among the checkpoint's layers, where each block is a layer; None for the layer's own."""
    again: bool = False
    """Whether it reads what the layer before it read, which has no feed-forward block, and not the sum after that."""
    mixer_scale: float = 1.0
    """A factor on the mixer's result."""
    scaled: bool = False
    """Whether the residual stream is multiplied by a number of the checkpoint after the layer."""
    norms: Placement = "before"
    """Where norms are: before each block, after it, both, or once before both blocks, which get the same input.

    With `parallel_two` both blocks read what the layer got, each by a norm of its own; with `three` there is one before
    each block, and one after the second.
    """


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
    embedding_norm: bool = False
    """Whether embeddings have a norm."""
    positions: Positions | None = None
    token_inputs: int = 0
    """The width of what a token's second embedding gives to each layer besides (Gemma 4 E2B and E4B); 0 for none."""
    residual_scale: float = 1.0
    """A factor on what a block adds to the residual stream."""
    logits_scale: float = 1.0
    logits_softcap: float | None = None
    """c, if a logit x becomes c * tanh(x / c), after the scale."""
    context_length: int = 2048
    """The longest sequence that the model was made for, in tokens."""
    longest: int | None = None
    """The longest sequence that the model can be run for, if there is such a limit."""
    longest_field: str = ""
    """The field of the config that sets it."""
    is_text_of_more: bool = False
    """Whether this is the language model in the checkpoint of a vision-language model."""
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
            layer.mixer.state_bytes(itemsize)
            for layer in self.layers
            if isinstance(layer.mixer, DeltaNet | ShortConv | Selective)
        )
