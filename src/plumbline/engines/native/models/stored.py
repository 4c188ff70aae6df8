"""Define what a format of quantised weights gives the loader; the formats are in `quantised/`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Protocol

import torch
from torch import Tensor

__all__ = ["Grid", "StoredFormat", "StoredWeight", "Tensors", "dense"]

_ROWS = 8192
"""That are dequantised at a time."""
_SMALLEST_GROUP = 16
"""Of the compiled kernels of a CPU."""


@dataclass(frozen=True, slots=True)
class Grid:
    """The numbers that a weight may have: levels of so many bits, times the scale of their group, and shifted."""

    bits: int
    """8, 6, 5 or 4; of floats 8 or 4."""
    scales: Tensor
    """fp32 [out, groups]."""
    shifts: Tensor | None = None
    """fp32 [out, groups], added to the numbers of a group."""
    floats: bool = False
    """Whether levels are floats, e4m3 or e2m1, else signed integers."""

    @property
    def integers(self) -> Grid | None:
        """The same numbers as integers, or a grid of integers that has all of them; None if 8 bits have not enough."""
        if not self.floats:
            return self
        # Twice the numbers of e2m1 are whole, 12 at most.
        return Grid(5, self.scales / 2) if self.bits == 4 else None

    def by_groups(self, count: int) -> Grid:
        """Cut the groups of a matrix, so that there are so many."""
        times = count // self.scales.shape[1]
        shifts = None if self.shifts is None else self.shifts.repeat_interleave(times, 1)
        return replace(self, scales=self.scales.repeat_interleave(times, 1), shifts=shifts)

    def in_order(self, rows: Tensor) -> Grid:
        """Bring the outputs of a matrix into the order of `rows`, int64 [out]."""
        return replace(
            self, scales=self.scales[rows], shifts=None if self.shifts is None else self.shifts[rows]
        )


@dataclass(frozen=True, slots=True)
class StoredWeight:
    """A quantised weight [out, in]: levels times scales, and shifted."""

    levels: Tensor
    """[out, in], of a type that fp32 contains."""
    scales: Tensor
    """[out, groups]."""
    group: int
    """Inputs that share a scale; the last group may have fewer."""
    bits: int = 0
    """8, 6, 5 or 4 if the levels are signed integers of so many bits; 8 or 4 with `floats`, e4m3 or e2m1."""
    shifts: Tensor | None = None
    """fp32 [out, groups], added to the numbers of a group."""
    floats: bool = False

    def dequantised(self, dtype: torch.dtype) -> Tensor:
        """Return the weight in a type."""
        result = torch.empty(self.levels.shape, dtype=dtype, device=self.levels.device)
        # Some rows at a time: an embedding of 262,144 tokens would be a gigabyte of floats.
        for first in range(0, len(result), _ROWS):
            rows = slice(first, first + _ROWS)
            scales = self.scales[rows].float().repeat_interleave(self.group, 1)[:, : self.levels.shape[1]]
            part = scales.mul_(self.levels[rows].float())
            if self.shifts is not None:
                part += self.shifts[rows].repeat_interleave(self.group, 1)[:, : self.levels.shape[1]]
            result[rows] = part
        return result

    @property
    def integers(self) -> Tensor:
        """The levels as those of the grid's `integers`, int8."""
        return (self.levels.float() * 2 if self.floats else self.levels).to(torch.int8)

    @property
    def grid(self) -> Grid | None:
        """The grid of the weight, if kernels can keep it."""
        inputs = self.levels.shape[-1]
        if not self.bits or inputs % self.group or self.group % _SMALLEST_GROUP:
            return None
        return Grid(self.bits, self.scales.float(), self.shifts, self.floats)


def dense(weight: Tensor | StoredWeight, dtype: torch.dtype, device: torch.device) -> Tensor:
    """Return a weight in a type, on a device."""
    whole = weight if isinstance(weight, Tensor) else weight.dequantised(dtype)
    return whole.to(device, dtype)


class Tensors(Protocol):
    """The tensors of a checkpoint, as they are stored."""

    def has(self, name: str) -> bool:
        """Return whether there is such a tensor."""

    def take(self, name: str, *shapes: tuple[int, ...], types: tuple[torch.dtype, ...]) -> Tensor:
        """Read a tensor that has one of the shapes and one of the types.

        Raises:
            WeightsError: there is no such tensor, or it has another shape or type.
        """

    def ignore_zeros(self, name: str) -> None:
        """Accept that a tensor is not used, if there is one, and it is zero."""


class StoredFormat(Protocol):
    """A format of quantised weights: it reads matrices, or tensors of all experts."""

    def read(self, tensors: Tensors, name: str, shape: tuple[int, int]) -> StoredWeight | None:
        """Read the weight [out, in] with this name, or return None if it is stored as it is.

        Raises:
            WeightsError: its tensors do not fit.
        """
        return None

    def read_stack(
        self, tensors: Tensors, name: str, shape: tuple[int, int, int], turned: bool
    ) -> Iterator[StoredWeight] | None:
        """Read the weights [out, in] of all experts, or return None if their tensor is stored as it is.

        Each is unpacked when it is asked for: together they would be wider than the rest of the model.

        Args:
            tensors: of the checkpoint.
            name: of the tensor.
            shape: number of experts, outputs, inputs.
            turned: whether a plain tensor would be [E, in, out], and not [E, out, in].

        Raises:
            WeightsError: its tensors do not fit.
        """
        return None
