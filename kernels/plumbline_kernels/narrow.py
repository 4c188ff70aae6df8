"""Multiply with weights that are kept as integers of 8 or 4 bits (W8A16, W4A16).

A weight [out, in] is integers times the scale of their group of inputs, and shifted. A decode step reads every weight
once, so half or a quarter of the bytes is up to twice or four times the speed on a GPU. Weights are widened in
registers, tile by tile, and multiplied as the inputs' own type; sums are fp32.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import repeat

import torch
import torch.nn.functional as F
from torch import Tensor

from plumbline_kernels._backend import FLOATS, CompileCase, cdiv, check, jit, tl, tuning, use_triton

__all__ = [
    "NarrowWeight",
    "compile_cases",
    "narrow_dot",
    "narrow_linear",
    "narrow_linear_torch",
    "pack_narrow",
    "stack_narrow",
]

_FEW_ROWS = 16
"""Up to so many rows take the tiles of decodes."""
_PACKED = 1 << 24
"""Numbers that are rounded at a time: the fp32 copies of a whole output layer would take more than the model."""


@dataclass(frozen=True, slots=True)
class NarrowWeight:
    """A weight [out, in] as integers, or a stack of such [E, out, in]."""

    levels: Tensor
    """int8 [..., out, in]; of 4 bits uint8 [..., out, in / 2]: byte j has inputs 2 j (low half) and 2 j + 1."""
    scales: Tensor
    """fp32 [..., out, groups]."""
    shifts: Tensor | None
    """fp32 [..., out, groups], added to the numbers of a group."""
    bits: int

    @property
    def inputs(self) -> int:
        """The width of what is multiplied with it."""
        return self.levels.shape[-1] * (8 // self.bits)

    @property
    def shape(self) -> tuple[int, ...]:
        """That of the weight."""
        return (*self.levels.shape[:-1], self.inputs)

    def is_like(self, other: "NarrowWeight") -> bool:
        """Return whether both can be matrices of one stack."""
        alike = (self.bits, self.shape, self.scales.shape) == (other.bits, other.shape, other.scales.shape)
        return alike and (self.shifts is None) == (other.shifts is None)

    def matrix(self, index: int) -> "NarrowWeight":
        """Return a matrix of a stack."""
        shifts = None if self.shifts is None else self.shifts[index]
        return NarrowWeight(self.levels[index], self.scales[index], shifts, self.bits)

    def dequantised(self, dtype: torch.dtype) -> Tensor:
        """Return the weight in a type."""
        levels = self.levels
        if self.bits == 4:
            halves = torch.stack((levels & 15, levels >> 4), -1).flatten(-2).to(torch.int8)
            levels = torch.where(halves > 7, halves - 16, halves)
        group = self.inputs // self.scales.shape[-1]
        weight = levels.float() * self.scales.repeat_interleave(group, -1)
        if self.shifts is not None:
            weight += self.shifts.repeat_interleave(group, -1)
        return weight.to(dtype)


def stack_narrow(matrices: Sequence[NarrowWeight]) -> NarrowWeight:
    """Stack matrices that are alike."""
    shifts = [each.shifts for each in matrices if each.shifts is not None]
    return NarrowWeight(
        torch.stack([each.levels for each in matrices]),
        torch.stack([each.scales for each in matrices]),
        torch.stack(shifts) if shifts else None,
        matrices[0].bits,
    )


def pack_narrow(weight: Tensor, bits: int, scales: Tensor, shifts: Tensor | None = None) -> NarrowWeight:
    """Round a weight to integers, on its device.

    Args:
        weight: [out, in]; one in fp32 that comes from such integers gives them back, and one in bf16 may be a step off
            where shifts are large.
        bits: 8 or 4.
        scales: fp32 [out, groups], on any device: checkpoints keep theirs on the CPU. Groups are equally long.
        shifts: fp32 [out, groups], like scales.
    """
    check(bits in (4, 8), "pack_narrow: bits must be 4 or 8")
    inputs, groups = weight.shape[1], scales.shape[1]
    check(inputs % groups == 0 and inputs % 2 == 0, "pack_narrow: groups must be equally long")
    scales = scales.to(weight.device, torch.float32).contiguous()
    if shifts is not None:
        shifts = shifts.to(weight.device, torch.float32).contiguous()
    count = max(1, _PACKED // inputs)
    moved = repeat(None) if shifts is None else torch.split(shifts, count)
    parts = zip(torch.split(weight, count), torch.split(scales, count), moved, strict=False)
    levels = torch.cat([_levels(*part, bits) for part in parts])
    return NarrowWeight(levels, scales, shifts, bits)


def _levels(weight: Tensor, scales: Tensor, shifts: Tensor | None, bits: int) -> Tensor:
    """Return `NarrowWeight.levels` of some rows."""
    group = weight.shape[1] // scales.shape[1]
    plain = weight.float()
    if shifts is not None:
        plain = plain - shifts.repeat_interleave(group, 1)
    divisors = torch.where(scales == 0, 1.0, scales).repeat_interleave(group, 1)
    most = (1 << bits - 1) - 1
    levels = (plain / divisors).round_().clamp_(-most - 1, most).to(torch.int8)
    if bits == 8:
        return levels
    halves = levels.view(torch.uint8) & 15
    return halves[:, ::2] | halves[:, 1::2] << 4


def narrow_linear(x: Tensor, weight: NarrowWeight, bias: Tensor | None = None) -> Tensor:
    """Return x @ weight.T + bias, [T, out], for x [T, in] and bias [out]."""
    check(x.dim() == 2 and x.dtype in FLOATS, "narrow_linear: x must be a 2-D float tensor")
    check(x.shape[1] == weight.inputs, "narrow_linear: x and the weight differ in width")
    if use_triton(x):
        return _launch(x, weight, bias)
    return narrow_linear_torch(x, weight, bias)


def narrow_linear_torch(x: Tensor, weight: NarrowWeight, bias: Tensor | None = None) -> Tensor:
    """Compute `narrow_linear` with the dequantised weight."""
    return F.linear(x, weight.dequantised(x.dtype), bias)


@jit
def narrow_dot(
    rows,  # pointers to the first number of each row of x, [BLOCK_M]
    row_mask,
    levels_ptr,  # of a matrix: int8 [OUT, IN], or uint8 [OUT, IN / 2] with PAIRS
    scales_ptr,  # fp32 [OUT, groups]
    shifts_ptr,  # fp32 [OUT, groups], read if SHIFTED
    column,  # [BLOCK_N]
    column_mask,
    inputs,
    groups,
    group,  # inputs that share a scale
    PAIRS: tl.constexpr,
    SHIFTED: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,  # of levels, so twice as many inputs with PAIRS
):
    """Return the products of rows with some outputs of a matrix, fp32 [BLOCK_M, BLOCK_N]."""
    each: tl.constexpr = 2 if PAIRS else 1
    width = inputs // each
    acc = tl.zeros([BLOCK_M, BLOCK_N], dtype=tl.float32)
    for start in range(0, width, BLOCK_K):
        k = start + tl.arange(0, BLOCK_K)
        k_mask = k < width
        both = k_mask[:, None] & column_mask[None, :]
        levels = tl.load(levels_ptr + column[None, :].to(tl.int64) * width + k[:, None], mask=both, other=0)
        for part in tl.static_range(each):
            place = k * each + part
            x = tl.load(rows[:, None] + place[None, :], mask=row_mask[:, None] & k_mask[None, :], other=0.0)
            if PAIRS:
                half = ((levels >> (4 * part)) & 15).to(tl.int32)
                half = tl.where(half > 7, half - 16, half)
                weight = half.to(tl.float32)
            else:
                weight = levels.to(tl.float32)
            at = column[None, :] * groups + (place // group)[:, None]
            weight *= tl.load(scales_ptr + at, mask=both, other=0.0)
            if SHIFTED:
                weight += tl.load(shifts_ptr + at, mask=both, other=0.0)
            acc += tl.dot(x, weight.to(x.dtype), input_precision="ieee")
    return acc


@jit
def _linear_kernel(
    x_ptr,  # [T, IN]
    levels_ptr,  # see `narrow_dot`
    scales_ptr,
    shifts_ptr,
    bias_ptr,  # [OUT], read if BIAS
    out_ptr,  # [T, OUT], contiguous
    tokens,
    x_stride,
    inputs,
    outputs,
    groups,
    group,
    PAIRS: tl.constexpr,
    SHIFTED: tl.constexpr,
    BIAS: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
):
    row = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    column = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    row_mask = row < tokens
    column_mask = column < outputs
    acc = narrow_dot(
        x_ptr + row.to(tl.int64) * x_stride, row_mask, levels_ptr, scales_ptr, shifts_ptr, column, column_mask,
        inputs, groups, group, PAIRS, SHIFTED, BLOCK_M, BLOCK_N, BLOCK_K,
    )  # fmt: skip
    if BIAS:
        acc += tl.load(bias_ptr + column, mask=column_mask, other=0.0).to(tl.float32)[None, :]
    out = out_ptr + row[:, None].to(tl.int64) * outputs + column[None, :]
    tl.store(out, acc.to(out_ptr.dtype.element_ty), mask=row_mask[:, None] & column_mask[None, :])


def _launch(x: Tensor, weight: NarrowWeight, bias: Tensor | None) -> Tensor:
    check(x.stride(1) == 1, "narrow_linear: rows of x must be contiguous")
    tokens, inputs = x.shape
    outputs, groups = weight.scales.shape
    config = tuning("narrow_decode" if tokens <= _FEW_ROWS else "narrow_prefill")
    out = torch.empty(tokens, outputs, dtype=x.dtype, device=x.device)
    if tokens:
        _linear_kernel[(cdiv(tokens, config["block_m"]), cdiv(outputs, config["block_n"]))](
            x,
            weight.levels,
            weight.scales,
            weight.scales if weight.shifts is None else weight.shifts,
            out if bias is None else bias,
            out,
            tokens,
            x.stride(0),
            inputs,
            outputs,
            groups,
            inputs // groups,
            PAIRS=weight.bits == 4,
            SHIFTED=weight.shifts is not None,
            BIAS=bias is not None,
            BLOCK_M=config["block_m"],
            BLOCK_N=config["block_n"],
            BLOCK_K=config["block_k"],
            num_warps=config["num_warps"],
            num_stages=config["num_stages"],
        )
    return out


def compile_cases() -> Iterator[CompileCase]:
    """Yield decodes and prompts with both widths, with shifts and bias."""
    for kind, instruction in (("decode", "mma.sync"), ("prefill", "wgmma")):
        config = tuning(f"narrow_{kind}")
        for bits in (8, 4):
            yield CompileCase(
                f"narrow {kind} bits={bits}",
                _linear_kernel,
                {"x_ptr": "*bf16", "levels_ptr": "*i8" if bits == 8 else "*u8", "scales_ptr": "*fp32"}
                | {"shifts_ptr": "*fp32", "bias_ptr": "*bf16", "out_ptr": "*bf16"}
                | dict.fromkeys(("tokens", "x_stride", "inputs", "outputs", "groups", "group"), "i32"),
                {
                    "PAIRS": bits == 4,
                    "SHIFTED": True,
                    "BIAS": True,
                    "BLOCK_M": config["block_m"],
                    "BLOCK_N": config["block_n"],
                    "BLOCK_K": config["block_k"],
                },
                config,
                (instruction,),
            )
