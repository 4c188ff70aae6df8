"""Multiply with weights that are kept in 8 or 4 bits: integers (W8A16, W4A16), or floats (e4m3 and e2m1, MXFP4).

A weight [out, in] is levels times the scale of their group of inputs, and shifted. A decode step reads every weight
once, so half or a quarter of the bytes is up to twice or four times the speed on a GPU. Levels are exact in the inputs'
own type, so tiles of one group are multiplied as they are and the products scaled; sums are fp32.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise, repeat
from math import gcd

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
    "step_of",
]

_FEW_ROWS = 16
"""Up to so many rows take the tiles of decodes."""
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
        torch.stack([each.levels for each in matrices]),
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
    levels = torch.cat([_levels(*part, bits, floats) for part in parts])
    if floats and bits == 8:
        is_nan = (levels.view(torch.uint8) & 127) == 127
        scales = torch.where(is_nan.view(len(weight), groups, -1).any(-1), float("nan"), scales)
    by_groups = [None if part is None else part.t().contiguous() for part in (scales, shifts)]
    assert by_groups[0] is not None
    return NarrowWeight(levels, by_groups[0], by_groups[1], bits, floats)


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
def _exact(
    levels,  # [OUT, bytes]
    BITS: tl.constexpr,
    FLOATS: tl.constexpr,
    DTYPE: tl.constexpr,
):
    """Return levels as numbers of a type, [OUT, inputs], without rounding.

    There is no conversion of e4m3 before sm_89 and none of e2m1. The bits of a narrow float, moved to their places in
    a wider one, are its number but for a power of two; subnormal ones, too. Bits below those of 128 or 1,024 add their
    number to that.
    """
    is_bf16: tl.constexpr = DTYPE.is_bf16()
    half: tl.constexpr = tl.bfloat16 if is_bf16 else tl.float16
    # Levels of e4m3 come as int8: what is left of the sign are copies of it.
    bits = levels.to(tl.int16)
    if BITS == 4:
        bits = tl.interleave(bits & 15, bits >> 4)
        if FLOATS:
            bits = ((bits << 12) >> (6 if is_bf16 else 3)) & (-0x7E40 if is_bf16 else -0x7200)
            numbers = bits.to(half, bitcast=True) * (2.0**126 if is_bf16 else 2.0**14)
        else:
            bits = bits | (0x4300 if is_bf16 else 0x6400)
            numbers = bits.to(half, bitcast=True) - (136.0 if is_bf16 else 1032.0)
    elif FLOATS:
        bits = (bits << (4 if is_bf16 else 7)) & (-0x7810 if is_bf16 else -0x4080)
        numbers = bits.to(half, bitcast=True) * (2.0**120 if is_bf16 else 2.0**8)
    else:
        numbers = levels
    return numbers.to(DTYPE)


@jit
def narrow_dot(
    rows,  # pointers to the first number of each row of x, [BLOCK_M]
    row_mask,
    levels_ptr,  # of a matrix: int8 [OUT, IN], or uint8 [OUT, IN / 2] of 4 bits
    scales_ptr,  # [groups, OUT]
    shifts_ptr,  # [groups, OUT], read if SHIFTED
    column,  # [BLOCK_N]
    column_mask,
    inputs,
    outputs,
    group,  # inputs that share a scale
    BITS: tl.constexpr,
    FLOATS: tl.constexpr,
    SHIFTED: tl.constexpr,
    STEP: tl.constexpr,  # inputs of a tile that surely share a scale; 0 if all do
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,  # of inputs
):
    """Return the products of rows with some outputs of a matrix, fp32 [BLOCK_M, BLOCK_N]."""
    each: tl.constexpr = 8 // BITS
    width = inputs // each
    acc = tl.zeros([BLOCK_M, BLOCK_N], dtype=tl.float32)
    matrix = levels_ptr + column[:, None].to(tl.int64) * width
    for start in range(0, inputs, BLOCK_K):
        k = start + tl.arange(0, BLOCK_K)
        at = start // each + tl.arange(0, BLOCK_K // each)
        x = tl.load(rows[:, None] + k[None, :], mask=row_mask[:, None] & (k < inputs)[None, :], other=0.0)
        levels = tl.load(matrix + at[None, :], mask=column_mask[:, None] & (at < width)[None, :], other=0)
        weight = _exact(levels, BITS, FLOATS, x.dtype)
        if STEP:
            parts: tl.constexpr = BLOCK_K // STEP
            place = start + tl.arange(0, parts) * STEP
            factors = (place // group)[None, :] * outputs + column[:, None]
            mask = column_mask[:, None] & (place < inputs)[None, :]
            scale = tl.load(scales_ptr + factors, mask=mask, other=0.0)[:, :, None]
            weight = tl.reshape(weight, [BLOCK_N, parts, STEP])
            if SHIFTED or scale.dtype != x.dtype:
                weight = weight.to(tl.float32) * scale.to(tl.float32)
            else:
                # A product of two such numbers is rounded once either way.
                weight = weight * scale
            if SHIFTED:
                weight += tl.load(shifts_ptr + factors, mask=mask, other=0.0)[:, :, None].to(tl.float32)
            weight = tl.reshape(weight.to(x.dtype), [BLOCK_N, BLOCK_K])
            acc = tl.dot(x, weight.T, acc, input_precision="ieee")
        else:
            factor = start // group * outputs + column
            scale = tl.load(scales_ptr + factor, mask=column_mask, other=0.0).to(tl.float32)
            acc += tl.dot(x, weight.T, input_precision="ieee") * scale[None, :]
            if SHIFTED:
                shift = tl.load(shifts_ptr + factor, mask=column_mask, other=0.0).to(tl.float32)
                acc += tl.sum(x.to(tl.float32), 1)[:, None] * shift[None, :]
    return acc


def step_of(weight: NarrowWeight, block_k: int) -> int:
    """Return `STEP` of `narrow_dot` for tiles of so many inputs."""
    groups = weight.scales.shape[-2]
    shared = gcd(weight.inputs // groups, block_k)
    return 0 if groups == 1 or shared == block_k else shared


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
    group,
    BITS: tl.constexpr,
    FLOATS: tl.constexpr,
    SHIFTED: tl.constexpr,
    STEP: tl.constexpr,
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
        inputs, outputs, group, BITS, FLOATS, SHIFTED, STEP, BLOCK_M, BLOCK_N, BLOCK_K,
    )  # fmt: skip
    if BIAS:
        acc += tl.load(bias_ptr + column, mask=column_mask, other=0.0).to(tl.float32)[None, :]
    out = out_ptr + row[:, None].to(tl.int64) * outputs + column[None, :]
    tl.store(out, acc.to(out_ptr.dtype.element_ty), mask=row_mask[:, None] & column_mask[None, :])


def _launch(x: Tensor, weight: NarrowWeight, bias: Tensor | None) -> Tensor:
    check(x.stride(1) == 1, "narrow_linear: rows of x must be contiguous")
    tokens, inputs = x.shape
    groups, outputs = weight.scales.shape
    config = tuning("narrow_decode" if tokens <= _FEW_ROWS else "narrow_prefill")
    out = torch.empty(tokens, outputs, dtype=x.dtype, device=x.device)
    if tokens:
        _linear_kernel[(cdiv(tokens, config["block_m"]), cdiv(outputs, config["block_n"]))](
            x,
            weight.bytes,
            weight.scales,
            weight.scales if weight.shifts is None else weight.shifts,
            out if bias is None else bias,
            out,
            tokens,
            x.stride(0),
            inputs,
            outputs,
            inputs // groups,
            BITS=weight.bits,
            FLOATS=weight.floats,
            SHIFTED=weight.shifts is not None,
            STEP=step_of(weight, config["block_k"]),
            BIAS=bias is not None,
            BLOCK_M=config["block_m"],
            BLOCK_N=config["block_n"],
            BLOCK_K=config["block_k"],
            num_warps=config["num_warps"],
            num_stages=config["num_stages"],
        )
    return out


def compile_cases() -> Iterator[CompileCase]:
    """Yield decodes and prompts with all kinds of levels; integers are shifted, 4 bits have several groups a tile."""
    for kind, instruction in (("decode", "mma.sync"), ("prefill", "wgmma")):
        config = tuning(f"narrow_{kind}")
        for bits, floats in ((8, False), (4, False), (8, True), (4, True)):
            yield CompileCase(
                f"narrow {kind} bits={bits}{' floats' if floats else ''}",
                _linear_kernel,
                {"x_ptr": "*bf16", "levels_ptr": "*i8" if bits == 8 else "*u8", "scales_ptr": "*bf16"}
                | {"shifts_ptr": "*bf16", "bias_ptr": "*bf16", "out_ptr": "*bf16"}
                | dict.fromkeys(("tokens", "x_stride", "inputs", "outputs", "group"), "i32"),
                {
                    "BITS": bits,
                    "FLOATS": floats,
                    "SHIFTED": not floats,
                    "STEP": 32 if bits == 4 else 0,
                    "BIAS": True,
                    "BLOCK_M": config["block_m"],
                    "BLOCK_N": config["block_n"],
                    "BLOCK_K": config["block_k"],
                },
                config,
                (instruction,),
            )
