"""Compute `narrow_linear` with Triton; the kernels of experts multiply with the same function.

Levels are widened in registers, tile by tile, and multiplied as the inputs' own type.
"""

from collections.abc import Iterator
from math import gcd

import torch
import torch.nn.functional as F
from torch import Tensor

from plumbline_kernels._backend import CompileCase, cdiv, check, jit, tl, tuning
from plumbline_kernels.narrow.tiles import SPLITS, num_splits, step_of
from plumbline_kernels.narrow.weight import NarrowWeight

__all__ = ["compile_cases", "launch", "narrow_dot", "num_splits", "step_of", "widen"]

_FEW_ROWS = 16
"""Up to so many rows take the tiles of decodes."""
_MANY_ROWS = 64
"""More rows are multiplied with a copy of the weight, which is faster from there on (H200)."""
_KINDS = ((8, False), (4, False), (8, True), (4, True))
"""Bits of levels, and whether they are floats."""


@jit
def _exact(
    levels,  # [OUT, bytes]
    BITS: tl.constexpr,
    FLOATS: tl.constexpr,
    DTYPE: tl.constexpr,
):
    """Return levels as numbers of a type, [OUT, inputs], without rounding.

    There is no conversion of e4m3 before sm_89 and none of e2m1. The bits of a narrow float, moved to their places in
    a wider one, are its number but for a power of two, the difference of the biases; subnormal ones, too. `mask` keeps
    the sign and these bits, as int16:

        from  to    shift right of 16 bits  mask     factor
        e2m1  bf16  6                       0x81C0   2^(127 - 1)
        e2m1  fp16  3                       0x8E00   2^(15 - 1)
        e4m3  bf16  4 (of 8 bits: left)     0x87F0   2^(127 - 7)
        e4m3  fp16  7 (of 8 bits: left)     0xBF80   2^(15 - 7)

    Integers of 4 bits are or'ed into the last bits of a float whose last bit counts 1, 128 in bf16 and 1,024 in fp16;
    that float, and the zero point of 8, are subtracted.
    """
    is_bf16: tl.constexpr = DTYPE.is_bf16()
    half: tl.constexpr = tl.bfloat16 if is_bf16 else tl.float16
    # Levels of e4m3 come as int8: what is left of the sign are copies of it.
    bits = levels.to(tl.int16)
    if BITS == 4:
        bits = tl.interleave(bits & 15, bits >> 4)
        if FLOATS:
            bits = ((bits << 12) >> (6 if is_bf16 else 3)) & (
                0x81C0 - 0x10000 if is_bf16 else 0x8E00 - 0x10000
            )
            numbers = bits.to(half, bitcast=True) * (2.0 ** (127 - 1) if is_bf16 else 2.0 ** (15 - 1))
        else:
            bits = bits | (0x4300 if is_bf16 else 0x6400)
            numbers = bits.to(half, bitcast=True) - (128.0 + 8.0 if is_bf16 else 1024.0 + 8.0)
    elif FLOATS:
        bits = (bits << (4 if is_bf16 else 7)) & (0x87F0 - 0x10000 if is_bf16 else 0xBF80 - 0x10000)
        numbers = bits.to(half, bitcast=True) * (2.0 ** (127 - 7) if is_bf16 else 2.0 ** (15 - 7))
    else:
        numbers = levels
    return numbers.to(DTYPE)


@jit
def _widened(
    levels,  # [BLOCK_N, bytes], of inputs from `start` on
    scales_ptr,  # see `narrow_dot`, and so below
    shifts_ptr,
    column,
    column_mask,
    start,
    inputs,
    outputs,
    group,
    BITS: tl.constexpr,
    FLOATS: tl.constexpr,
    SHIFTED: tl.constexpr,
    STEP: tl.constexpr,
    DTYPE: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
):
    """Return a tile of the weight in a type, [BLOCK_N, BLOCK_K]."""
    parts: tl.constexpr = BLOCK_K // STEP
    place = start + tl.arange(0, parts) * STEP
    factors = (place // group)[None, :] * outputs + column[:, None]
    mask = column_mask[:, None] & (place < inputs)[None, :]
    scale = tl.load(scales_ptr + factors, mask=mask, other=0.0)[:, :, None]
    weight = tl.reshape(_exact(levels, BITS, FLOATS, DTYPE), [BLOCK_N, parts, STEP])
    if SHIFTED or scale.dtype != DTYPE:
        weight = weight.to(tl.float32) * scale.to(tl.float32)
    else:
        # A product of two such numbers is rounded once either way.
        weight = weight * scale
    if SHIFTED:
        weight += tl.load(shifts_ptr + factors, mask=mask, other=0.0)[:, :, None].to(tl.float32)
    return tl.reshape(weight.to(DTYPE), [BLOCK_N, BLOCK_K])


@jit
def _dot(x, weight, acc, LEFT: tl.constexpr):
    if LEFT:
        acc = tl.dot(weight, x.T, acc, input_precision="ieee")
    else:
        acc = tl.dot(x, weight.T, acc, input_precision="ieee")
    return acc


@jit
def narrow_dot(
    rows,  # pointers to the first number of each row of x, [BLOCK_M]
    row_mask,
    levels_ptr,  # of a matrix: int8 [OUT, IN], or uint8 [OUT, IN / 2] of 4 bits
    scales_ptr,  # [groups, OUT]
    shifts_ptr,  # [groups, OUT], read if SHIFTED
    column,  # [BLOCK_N]
    column_mask,
    first,  # of the inputs that are taken, a multiple of BLOCK_K
    last,  # behind them
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
    # Many rows take wgmma, whose left operand may be in registers: the widened weight is not written to shared memory.
    LEFT: tl.constexpr = BLOCK_M >= 64
    acc = tl.zeros([BLOCK_N, BLOCK_M] if LEFT else [BLOCK_M, BLOCK_N], dtype=tl.float32)
    matrix = levels_ptr + column[:, None].to(tl.int64) * width
    for start in range(first, last, BLOCK_K):
        k = start + tl.arange(0, BLOCK_K)
        at = start // each + tl.arange(0, BLOCK_K // each)
        x = tl.load(rows[:, None] + k[None, :], mask=row_mask[:, None] & (k < inputs)[None, :], other=0.0)
        levels = tl.load(matrix + at[None, :], mask=column_mask[:, None] & (at < width)[None, :], other=0)
        if STEP:
            weight = _widened(
                levels, scales_ptr, shifts_ptr, column, column_mask, start, inputs, outputs, group,
                BITS, FLOATS, SHIFTED, STEP, x.dtype, BLOCK_N, BLOCK_K,
            )  # fmt: skip
            acc = _dot(x, weight, acc, LEFT)
        else:
            factor = start // group * outputs + column
            scale = tl.load(scales_ptr + factor, mask=column_mask, other=0.0).to(tl.float32)
            weight = _exact(levels, BITS, FLOATS, x.dtype)
            acc += _dot(x, weight, tl.zeros_like(acc), LEFT) * (scale[:, None] if LEFT else scale[None, :])
            if SHIFTED:
                shift = tl.load(shifts_ptr + factor, mask=column_mask, other=0.0).to(tl.float32)
                total = tl.sum(x.to(tl.float32), 1)
                acc += shift[:, None] * total[None, :] if LEFT else total[:, None] * shift[None, :]
    return acc.T if LEFT else acc


@jit
def _linear_kernel(
    x_ptr,  # [T, IN]
    levels_ptr,  # see `narrow_dot`
    scales_ptr,
    shifts_ptr,
    bias_ptr,  # [OUT], read if BIAS
    out_ptr,  # [T, OUT], or fp32 [splits, T, OUT], contiguous
    tokens,
    x_stride,
    share,  # inputs of a split
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
    split = tl.program_id(2)
    row_mask = row < tokens
    column_mask = column < outputs
    acc = narrow_dot(
        x_ptr + row.to(tl.int64) * x_stride, row_mask, levels_ptr, scales_ptr, shifts_ptr, column, column_mask,
        split * share, tl.minimum((split + 1) * share, inputs), inputs, outputs, group,
        BITS, FLOATS, SHIFTED, STEP, BLOCK_M, BLOCK_N, BLOCK_K,
    )  # fmt: skip
    if BIAS:
        acc += tl.load(bias_ptr + column, mask=column_mask, other=0.0).to(tl.float32)[None, :]
    out = out_ptr + (split.to(tl.int64) * tokens + row[:, None]) * outputs + column[None, :]
    tl.store(out, acc.to(out_ptr.dtype.element_ty), mask=row_mask[:, None] & column_mask[None, :])


@jit
def _join_kernel(
    parts_ptr,  # fp32 [SPLITS, T, OUT]
    bias_ptr,  # [OUT], read if BIAS
    out_ptr,  # [T, OUT]
    tokens,
    outputs,
    BIAS: tl.constexpr,
    SPLITS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    numbers = tokens * outputs
    mask = at < numbers
    total = tl.zeros([BLOCK], dtype=tl.float32)
    for split in tl.static_range(SPLITS):
        total += tl.load(parts_ptr + split * numbers + at, mask=mask, other=0.0)
    if BIAS:
        total += tl.load(bias_ptr + at % outputs, mask=mask, other=0.0).to(tl.float32)
    tl.store(out_ptr + at, total.to(out_ptr.dtype.element_ty), mask=mask)


@jit
def _widen_kernel(
    levels_ptr,  # see `narrow_dot`
    scales_ptr,
    shifts_ptr,
    out_ptr,  # [OUT, IN], contiguous
    inputs,
    outputs,
    group,
    BITS: tl.constexpr,
    FLOATS: tl.constexpr,
    SHIFTED: tl.constexpr,
    STEP: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
):
    each: tl.constexpr = 8 // BITS
    width = inputs // each
    start = tl.program_id(0) * BLOCK_K
    column = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    column_mask = column < outputs
    at = start // each + tl.arange(0, BLOCK_K // each)
    row = column[:, None].to(tl.int64)
    levels = tl.load(
        levels_ptr + row * width + at[None, :], mask=column_mask[:, None] & (at < width)[None, :], other=0
    )
    weight = _widened(
        levels, scales_ptr, shifts_ptr, column, column_mask, start, inputs, outputs, group,
        BITS, FLOATS, SHIFTED, STEP, out_ptr.dtype.element_ty, BLOCK_N, BLOCK_K,
    )  # fmt: skip
    k = start + tl.arange(0, BLOCK_K)
    tl.store(out_ptr + row * inputs + k[None, :], weight, mask=column_mask[:, None] & (k < inputs)[None, :])


def launch(x: Tensor, weight: NarrowWeight, bias: Tensor | None) -> Tensor:
    """Compute `narrow_linear`; for many rows cuBLAS is faster, also with the copy of the weight that it needs."""
    if len(x) > _MANY_ROWS:
        return F.linear(x, widen(weight, x.dtype), bias)
    check(x.stride(1) == 1, "narrow_linear: rows of x must be contiguous")
    tokens, inputs = x.shape
    groups, outputs = weight.scales.shape
    config = tuning("narrow_decode" if tokens <= _FEW_ROWS else "narrow_prefill")
    out = torch.empty(tokens, outputs, dtype=x.dtype, device=x.device)
    if not tokens:
        return out
    grid, tiles = (
        (cdiv(tokens, config["block_m"]), cdiv(outputs, config["block_n"])),
        cdiv(inputs, config["block_k"]),
    )
    splits = num_splits(grid[0] * grid[1], tiles)
    parts = out if splits == 1 else torch.empty((splits, *out.shape), dtype=torch.float32, device=x.device)
    biased = bias is not None and splits == 1
    _linear_kernel[(*grid, splits)](
        x,
        weight.bytes,
        weight.scales,
        weight.scales if weight.shifts is None else weight.shifts,
        bias if biased else out,
        parts,
        tokens,
        x.stride(0),
        cdiv(tiles, splits) * config["block_k"],
        inputs,
        outputs,
        inputs // groups,
        BITS=weight.bits,
        FLOATS=weight.floats,
        SHIFTED=weight.shifts is not None,
        STEP=step_of(weight, config["block_k"]),
        BIAS=biased,
        BLOCK_M=config["block_m"],
        BLOCK_N=config["block_n"],
        BLOCK_K=config["block_k"],
        num_warps=config["num_warps"],
        num_stages=config["num_stages"],
    )
    if splits > 1:
        join = tuning("narrow_join")
        _join_kernel[(cdiv(out.numel(), join["block"]),)](
            parts,
            out if bias is None else bias,
            out,
            tokens,
            outputs,
            BIAS=bias is not None,
            SPLITS=splits,
            BLOCK=join["block"],
            num_warps=join["num_warps"],
        )
    return out


def widen(weight: NarrowWeight, dtype: torch.dtype) -> Tensor:
    """Return a matrix in a type, [out, in]."""
    outputs, inputs = weight.shape
    config = tuning("narrow_widen")
    group = inputs // weight.scales.shape[-2]
    out = torch.empty(outputs, inputs, dtype=dtype, device=weight.levels.device)
    _widen_kernel[(cdiv(inputs, config["block_k"]), cdiv(outputs, config["block_n"]))](
        weight.bytes,
        weight.scales,
        weight.scales if weight.shifts is None else weight.shifts,
        out,
        inputs,
        outputs,
        group,
        BITS=weight.bits,
        FLOATS=weight.floats,
        SHIFTED=weight.shifts is not None,
        STEP=gcd(group, config["block_k"]),
        BLOCK_N=config["block_n"],
        BLOCK_K=config["block_k"],
        num_warps=config["num_warps"],
    )
    return out


def compile_cases() -> Iterator[CompileCase]:
    """Yield decodes, prompts and copies with all kinds of levels; integers are shifted, 4 bits have groups of 32."""
    for kind, instruction in (("decode", "mma.sync"), ("prefill", "wgmma")):
        config = tuning(f"narrow_{kind}")
        for bits, floats in _KINDS:
            yield CompileCase(
                f"narrow {kind} bits={bits}{' floats' if floats else ''}",
                _linear_kernel,
                {"x_ptr": "*bf16", "levels_ptr": "*i8" if bits == 8 else "*u8", "scales_ptr": "*bf16"}
                | {"shifts_ptr": "*bf16", "bias_ptr": "*bf16", "out_ptr": "*bf16"}
                | dict.fromkeys(("tokens", "x_stride", "share", "inputs", "outputs", "group"), "i32"),
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
    yield CompileCase(
        "narrow join",
        _join_kernel,
        {"parts_ptr": "*fp32", "bias_ptr": "*bf16", "out_ptr": "*bf16", "tokens": "i32", "outputs": "i32"},
        {"BIAS": True, "SPLITS": SPLITS[-1], "BLOCK": tuning("narrow_join")["block"]},
        tuning("narrow_join"),
    )
    config = tuning("narrow_widen")
    for bits, floats in _KINDS:
        yield CompileCase(
            f"narrow widen bits={bits}{' floats' if floats else ''}",
            _widen_kernel,
            {
                "levels_ptr": "*i8" if bits == 8 else "*u8",
                "scales_ptr": "*bf16",
                "shifts_ptr": "*bf16",
                "out_ptr": "*bf16",
            }
            | dict.fromkeys(("inputs", "outputs", "group"), "i32"),
            {
                "BITS": bits,
                "FLOATS": floats,
                "SHIFTED": not floats,
                "STEP": 32,
                "BLOCK_N": config["block_n"],
                "BLOCK_K": config["block_k"],
            },
            config,
        )
