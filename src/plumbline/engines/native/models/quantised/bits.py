"""Unpack integers from the words of a checkpoint, and give inputs their scales and zero points."""

from __future__ import annotations

import torch
from torch import Tensor

from plumbline.engines.native.models.checkpoint import WeightsError
from plumbline.engines.native.models.stored import StoredWeight, Tensors

__all__ = ["places_of", "unpacked", "with_zeros"]


def unpacked(words: Tensor, bits: int) -> Tensor:
    """Unpack int32 words [N, words] to unsigned numbers of `bits`, int16 [N, words * 32 / bits], lowest bits first."""
    shifts = range(0, 32, bits)
    result = torch.empty(*words.shape, len(shifts), dtype=torch.int16)
    for index, shift in enumerate(shifts):
        result[..., index] = words >> shift & (1 << bits) - 1
    return result.flatten(1)


def places_of(tensors: Tensors, name: str, inputs: int, groups: int) -> Tensor:
    """Read the group of each input, int64 [in].

    Raises:
        WeightsError: there is no such tensor, or it names groups that do not exist.
    """
    places = tensors.take(name, (inputs,), types=(torch.int32, torch.int64)).long()
    if inputs and not 0 <= int(places.min()) <= int(places.max()) < groups:
        raise WeightsError(f"{name} names groups that do not exist: there are {groups}")
    return places


def with_zeros(
    levels: Tensor, zeros: Tensor | int, scales: Tensor, places: Tensor | None, group: int, bits: int
) -> StoredWeight:
    """Subtract zero points from levels, and keep groups as groups where inputs are in order.

    Args:
        levels: int16 [out, in], of so many bits; unsigned, or signed.
        zeros: int16 [out, groups], or the zero point of all.
        scales: [out, groups].
        places: the group of each input, [in]; None if they are in order.
        group: inputs of a group.
        bits: of a level, at most 8.
    """
    bits = 4 if bits <= 4 else 8
    order = torch.arange(levels.shape[1]) // group
    ordered = places is None or torch.equal(places, order)
    places = order if places is None else places
    signed = levels - (zeros if isinstance(zeros, int) else zeros[:, places])
    kept = _width(signed, bits)
    if kept == bits or not ordered or isinstance(zeros, int):
        signed = signed.to(torch.int8) if kept else signed
        return StoredWeight(signed, scales if ordered else scales[:, places], group if ordered else 1, kept)
    # A zero point that is not in the middle would take one more bit for the sign, so it is a shift instead.
    middle = 0 if _width(levels, bits) == bits else 1 << bits - 1
    shifts = (middle - zeros.float()) * scales.float()
    return StoredWeight((levels - middle).to(torch.int8), scales, group, bits, shifts)


def _width(levels: Tensor, bits: int) -> int:
    """Return 4 or 8, but at least `bits`, if signed integers of so many bits can be these levels, else 0."""
    low, high = (int(x) for x in torch.aminmax(levels)) if levels.numel() else (0, 0)
    widths = (width for width in (4, 8) if width >= bits)
    return next((width for width in widths if -(1 << width - 1) <= low <= high < 1 << width - 1), 0)
