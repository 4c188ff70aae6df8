"""Choose how the linear layers of a model are rounded.

`int4` has 5 bits a weight at most, scales and shifts included: 4 bits and a shift for each 32 inputs take as many. Of
Qwen2.5-Coder 0.5B the projections to queries, keys and values, 7 % of the weights, make a third of the distance to
bf16, and the shifts of the ones down save little. So where the former are few, they get 6 bits, which the latter pay.
"""

from __future__ import annotations

from typing import NamedTuple

from plumbline.engines.native.models.description import Attention, Dense, FeedForward, LayerDescription

__all__ = ["Rounding", "roundings"]


class Rounding(NamedTuple):
    """How a weight is rounded."""

    bits: int | None
    """See `load_model`."""
    shifted: bool = True
    """Whether groups of less than 8 bits have a shift."""


_FOUR = 4
_WIDE, _MORE = 6, 1.25
"""Bits of queries, keys and values, and what they take more a weight than 4 with shifts."""
_SHIFTS = 0.5
"""Bits a weight that shifts of groups of 32 take."""


def roundings(bits: int | None, layer: LayerDescription, hidden: int) -> tuple[Rounding, Rounding]:
    """Return how queries, keys and values of a layer are rounded, and the projections down of its feed-forward block.

    Args:
        bits: of the model.
        layer: the layer.
        hidden: the width of the model.
    """
    plain, mixer = Rounding(bits), layer.mixer
    if bits != _FOUR or not isinstance(mixer, Attention):
        return plain, plain
    merged = hidden * mixer.head_dim * (mixer.heads + 2 * mixer.written_heads)
    if _MORE * merged > _SHIFTS * hidden * _width(layer.feed_forward):
        return plain, plain
    return Rounding(_WIDE, shifted=False), Rounding(bits, shifted=False)


def _width(block: FeedForward | None) -> int:
    """Return the width of a feed-forward block, of all experts together."""
    if block is None or isinstance(block, Dense):
        return 0 if block is None else block.width
    return block.number * block.width
