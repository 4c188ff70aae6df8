"""Hold weights as levels of 8 or 4 bits, and round others to such levels."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise, repeat

import torch
from torch import Tensor

from plumbline_kernels._backend import check

__all__ = ["NarrowWeight", "pack_narrow", "stack_narrow"]

_PACKED = 1 << 24
"""Numbers that are rounded at a time: the fp32 copies of a whole output layer would take more than the model."""
_E2M1 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
"""The numbers of the lower three bits of a float of 4 bits; the fourth is the sign."""
_MOST_E4M3 = 448.0


@dataclass(frozen=True, slots=True)
class NarrowWeight:
    """A weight [out, in] as levels of 8 or 4 bits, or a stack of such [E, out, in]."""

    levels: Tensor
    """int8 or e4m3 [..., out, in]; of 4 bits uint8 [..., out, in / 2]: byte j has inputs 2 j (low half) and 2 j + 1,
    as e2m1 or as the integer and 8.
    """
    scales: Tensor
    """[..., groups, out], so that tiles read them together; of a type of 16 bits if it holds all of them."""
    shifts: Tensor | None
    """Like scales, added to the numbers of a group."""
    bits: int
    floats: bool = False
    """Whether levels are e4m3 (8 bits) or e2m1 (4 bits), else integers."""

    def __post_init__(self) -> None:
        """Refuse scales by outputs."""
        check(
            self.scales.shape[-1] == self.levels.shape[-2], "NarrowWeight: scales must be [..., groups, out]"
        )

    @property
    def inputs(self) -> int:
        """The width of what is multiplied with it."""
        return self.levels.shape[-1] * (8 // self.bits)

    @property
    def bytes(self) -> Tensor:
        """Levels as kernels read them."""
        return self.levels.view(torch.int8) if self.floats and self.bits == 8 else self.levels

    @property
    def shape(self) -> tuple[int, ...]:
        """That of the weight."""
        return (*self.levels.shape[:-1], self.inputs)

    def is_like(self, other: "NarrowWeight") -> bool:
        """Return whether both can be matrices of one stack."""
        ours, theirs = ((w.bits, w.floats, w.shape, w.scales.shape) for w in (self, other))
        return ours == theirs

    def matrix(self, index: int) -> "NarrowWeight":
        """Return a matrix of a stack."""
        shifts = None if self.shifts is None else self.shifts[index]
        return NarrowWeight(self.levels[index], self.scales[index], shifts, self.bits, self.floats)

    def dequantised(self, dtype: torch.dtype) -> Tensor:
        """Return the weight in a type."""
        levels = self.levels
        if self.bits == 4:
            halves = torch.stack((levels & 15, levels >> 4), -1).flatten(-2)
            if self.floats:
                table = torch.tensor((*_E2M1, *(-number for number in _E2M1)), device=levels.device)
                levels = table[halves.int()]
            else:
                levels = halves.to(torch.int8) - 8
        weight = levels.float() * self._of_inputs(self.scales)
        if self.shifts is not None:
            weight += self._of_inputs(self.shifts)
        return weight.to(dtype)

    def _of_inputs(self, factors: Tensor) -> Tensor:
        """Return scales or shifts as fp32 [..., out, in]."""
        return factors.float().transpose(-1, -2).repeat_interleave(self.inputs // factors.shape[-2], -1)


def stack_narrow(matrices: Sequence[NarrowWeight]) -> NarrowWeight:
    """Stack matrices that are alike; if some have shifts, those of the others are 0."""
    shifts = None
    if any(each.shifts is not None for each in matrices):
        shifts = torch.stack(
            [torch.zeros_like(each.scales) if each.shifts is None else each.shifts for each in matrices]
        )
    return NarrowWeight(
        _joined(torch.stack, [each.levels for each in matrices]),
        torch.stack([each.scales for each in matrices]),
        shifts,
        matrices[0].bits,
        matrices[0].floats,
    )


def pack_narrow(
    weight: Tensor, bits: int, scales: Tensor, shifts: Tensor | None = None, floats: bool = False
) -> NarrowWeight:
    """Round a weight to levels, on its device.

    Args:
        weight: [out, in]; one in fp32 that comes from such levels gives them back, and one in bf16 may be a step off
            where shifts are large.
        bits: 8 or 4.
        scales: fp32 [out, groups], on any device: checkpoints keep theirs on the CPU. Groups are equally long.
        shifts: fp32 [out, groups], like scales.
        floats: whether levels are e4m3 or e2m1. A NaN among e4m3 makes the scale of its group NaN, and so the results
            of its output, as it does: kernels need not look for it.
    """
    check(bits in (4, 8), "pack_narrow: bits must be 4 or 8")
    inputs, groups = weight.shape[1], scales.shape[1]
    check(inputs % groups == 0 and inputs % 2 == 0, "pack_narrow: groups must be equally long")
    scales = _narrowest(scales, weight)
    if shifts is not None:
        shifts = _narrowest(shifts, weight)
    count = max(1, _PACKED // inputs)
    moved = repeat(None) if shifts is None else torch.split(shifts, count)
    parts = zip(torch.split(weight, count), torch.split(scales, count), moved, strict=False)
    levels = _joined(torch.cat, [_levels(*part, bits, floats) for part in parts])
    if floats and bits == 8:
        is_nan = (levels.view(torch.uint8) & 127) == 127
        scales = torch.where(is_nan.view(len(weight), groups, -1).any(-1), float("nan"), scales)
    by_groups = [None if part is None else part.t().contiguous() for part in (scales, shifts)]
    assert by_groups[0] is not None
    return NarrowWeight(levels, by_groups[0], by_groups[1], bits, floats)


def _joined(join: Callable[[list[Tensor]], Tensor], levels: list[Tensor]) -> Tensor:
    """Join levels as bytes: floats of 8 bits are not joined on every device."""
    return join([each.view(torch.uint8) for each in levels]).view(levels[0].dtype)


def _narrowest(factors: Tensor, weight: Tensor) -> Tensor:
    """Move the factors of groups to their weight, in a type of 16 bits if it holds all of them."""
    plain = factors.float()
    kinds = (
        (torch.float16, torch.bfloat16) if weight.dtype == torch.float16 else (torch.bfloat16, torch.float16)
    )
    kind = next((kind for kind in kinds if torch.equal(plain.to(kind).float(), plain)), torch.float32)
    return plain.to(weight.device, kind)


def _levels(weight: Tensor, scales: Tensor, shifts: Tensor | None, bits: int, floats: bool) -> Tensor:
    """Return `NarrowWeight.levels` of some rows."""
    group = weight.shape[1] // scales.shape[1]
    plain = weight.float()
    if shifts is not None:
        plain = plain - shifts.float().repeat_interleave(group, 1)
    scales = scales.float()
    levels = plain / torch.where(scales == 0, 1.0, scales).repeat_interleave(group, 1)
    if floats and bits == 8:
        return levels.clamp_(-_MOST_E4M3, _MOST_E4M3).to(torch.float8_e4m3fn)
    if floats:
        borders = [(low + high) / 2 for low, high in pairwise(_E2M1)]
        found = torch.bucketize(levels.abs(), torch.tensor(borders, device=levels.device), out_int32=True)
        halves = found.to(torch.uint8) | (levels < 0).to(torch.uint8) << 3
    else:
        most = (1 << bits - 1) - 1
        levels = levels.round_().clamp_(-most - 1, most).to(torch.int8)
        if bits == 8:
            return levels
        halves = (levels + 8).view(torch.uint8)
    return halves[:, ::2] | halves[:, 1::2] << 4
