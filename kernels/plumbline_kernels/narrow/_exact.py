"""Compute `narrow_linear` with the same bits for a row in any batch (Triton).

Both ways multiply the weight as it is in the inputs' own type, in one chain over the inputs (see `product`): a few rows
with tiles that are widened in registers, more with a widened copy.
"""

from collections.abc import Iterator
from math import gcd

import torch
from torch import Tensor

from plumbline_kernels._backend import CompileCase, cdiv, check, jit, tl, tuning
from plumbline_kernels.narrow._triton import _KINDS, _widened, widen
from plumbline_kernels.narrow.weight import NarrowWeight
from plumbline_kernels.product import product

__all__ = ["compile_cases", "launch_exact"]

_FEW_ROWS = 64
"""More rows are multiplied with a copy of the weight, which is read again and again."""


@jit
def _exact_kernel(
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
    each: tl.constexpr = 8 // BITS
    width = inputs // each
    row = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    column = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    row_mask = row < tokens
    column_mask = column < outputs
    matrix = levels_ptr + column[:, None].to(tl.int64) * width
    acc = tl.zeros([BLOCK_M, BLOCK_N], dtype=tl.float32)
    for start in range(0, inputs, BLOCK_K):
        k = start + tl.arange(0, BLOCK_K)
        at = start // each + tl.arange(0, BLOCK_K // each)
        x_at = x_ptr + row[:, None].to(tl.int64) * x_stride + k[None, :]
        x = tl.load(x_at, mask=row_mask[:, None] & (k < inputs)[None, :], other=0.0)
        levels = tl.load(matrix + at[None, :], mask=column_mask[:, None] & (at < width)[None, :], other=0)
        weight = _widened(
            levels, scales_ptr, shifts_ptr, column, column_mask, start, inputs, outputs, group,
            BITS, FLOATS, SHIFTED, STEP, x.dtype, BLOCK_N, BLOCK_K,
        )  # fmt: skip
        acc = tl.dot(x, weight.T, acc, input_precision="ieee")
    if BIAS:
        acc += tl.load(bias_ptr + column, mask=column_mask, other=0.0).to(tl.float32)[None, :]
    out = out_ptr + row[:, None].to(tl.int64) * outputs + column[None, :]
    tl.store(out, acc.to(out_ptr.dtype.element_ty), mask=row_mask[:, None] & column_mask[None, :])


def launch_exact(x: Tensor, weight: NarrowWeight, bias: Tensor | None) -> Tensor:
    """Compute `narrow_linear`."""
    if len(x) > _FEW_ROWS:
        return product(x, widen(weight, x.dtype), bias)
    check(x.stride(1) == 1, "narrow_linear: rows of x must be contiguous")
    tokens, inputs = x.shape
    groups, outputs = weight.scales.shape
    config = tuning("narrow_exact")
    out = torch.empty(tokens, outputs, dtype=x.dtype, device=x.device)
    if not tokens:
        return out
    _exact_kernel[(cdiv(tokens, config["block_m"]), cdiv(outputs, config["block_n"]))](
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
        STEP=gcd(inputs // groups, config["block_k"]),
        BIAS=bias is not None,
        BLOCK_M=config["block_m"],
        BLOCK_N=config["block_n"],
        BLOCK_K=config["block_k"],
        num_warps=config["num_warps"],
        num_stages=config["num_stages"],
    )
    return out


def compile_cases() -> Iterator[CompileCase]:
    """Yield all kinds of levels; integers are shifted, 4 bits have groups of 32."""
    config = tuning("narrow_exact")
    for bits, floats in _KINDS:
        yield CompileCase(
            f"narrow exact bits={bits}{' floats' if floats else ''}",
            _exact_kernel,
            {"x_ptr": "*bf16", "levels_ptr": "*i8" if bits == 8 else "*u8", "scales_ptr": "*bf16"}
            | {"shifts_ptr": "*bf16", "bias_ptr": "*bf16", "out_ptr": "*bf16"}
            | dict.fromkeys(("tokens", "x_stride", "inputs", "outputs", "group"), "i32"),
            {
                "BITS": bits,
                "FLOATS": floats,
                "SHIFTED": not floats,
                "STEP": 32 if bits == 4 else config["block_k"],
                "BIAS": True,
                "BLOCK_M": config["block_m"],
                "BLOCK_N": config["block_n"],
                "BLOCK_K": config["block_k"],
            },
            config,
            ("wgmma",),
        )
