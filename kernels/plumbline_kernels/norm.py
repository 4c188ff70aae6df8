"""Compute the RMS norm, alone and fused with the residual add that precedes it.

`rms_norm(x) = x / sqrt(mean(x²) + eps) * weight`, with the sums in fp32.
"""

from collections.abc import Iterator

import torch
import torch.nn.functional as F
from torch import Tensor

from plumbline_kernels._backend import (
    FLOATS,
    CompileCase,
    check,
    jit,
    next_power_of_2,
    tl,
    tuning,
    use_triton,
)

__all__ = ["add_rms_norm", "rms_norm", "twice"]


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Normalise the rows of `x` [T, D] by their root mean square and scale them by `weight` [D]."""
    _check("rms_norm", x, weight)
    if use_triton(x):
        return _launch(x, None, weight, eps)
    return rms_norm_torch(x, twice(weight), eps)


def add_rms_norm(x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """Return (rms_norm(x + residual), x + residual); write the sum into `residual`.

    `x`, `residual` and both results are [T, D] of one dtype. The sum is rounded to that dtype before the norm, so the
    fused operation gives the same result as the two separate ones.
    """
    _check("add_rms_norm", x, weight)
    check(
        residual.shape == x.shape and residual.dtype == x.dtype,
        "add_rms_norm: residual must have the shape and dtype of x",
    )
    if use_triton(x):
        return _launch(x, residual, weight, eps), residual
    return add_rms_norm_torch(x, residual, twice(weight), eps)


def twice(weight: Tensor) -> Tensor:
    """Return the weight [D] repeated, [2 * D], as the torch implementations take it: they normalise (x, -x).

    A model computes it once per layer.
    """
    return torch.cat((weight, weight))


def add_rms_norm_torch(x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """Compute `add_rms_norm` in torch, with the weight from `twice`."""
    residual = residual.add_(x)
    return rms_norm_torch(residual, weight, eps), residual


def rms_norm_torch(x: Tensor, weight: Tensor | None, eps: float) -> Tensor:
    """Compute `rms_norm` in torch over the last dimension, with the weight from `twice` or none.

    The mean of (x, -x) is zero and its variance is mean(x²), so torch's fused layer norm of it is the RMS norm of x:
    one operation instead of the five that `F.rms_norm` decomposes into on CPU.
    `x` may be [T, heads, hd]; the result is a view with strided rows.
    """
    width = x.shape[-1]
    return F.layer_norm(torch.cat((x, -x), -1), (2 * width,), weight, None, eps).narrow(-1, 0, width)


@jit
def _rms_norm_kernel(
    x_ptr,  # [T, D]
    residual_ptr,  # [T, D], read and written if ADD
    weight_ptr,  # [D]
    out_ptr,  # [T, D], contiguous
    x_stride,
    residual_stride,
    width,
    eps,
    ADD: tl.constexpr,
    BLOCK: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    columns = tl.arange(0, BLOCK)
    mask = columns < width
    x = tl.load(x_ptr + row * x_stride + columns, mask=mask, other=0.0)
    if ADD:
        at = residual_ptr + row * residual_stride + columns
        total = x.to(tl.float32) + tl.load(at, mask=mask, other=0.0).to(tl.float32)
        x = total.to(x.dtype)
        tl.store(at, x, mask=mask)
    x = x.to(tl.float32)
    scale = tl.rsqrt(tl.sum(x * x, axis=0) / width + eps)
    weight = tl.load(weight_ptr + columns, mask=mask, other=0.0).to(tl.float32)
    out = x * scale * weight
    tl.store(out_ptr + row * width + columns, out.to(out_ptr.dtype.element_ty), mask=mask)


def _launch(x: Tensor, residual: Tensor | None, weight: Tensor, eps: float) -> Tensor:
    check(x.stride(1) == 1 and weight.is_contiguous(), "rms_norm: rows and weight must be contiguous")
    check(residual is None or residual.stride(1) == 1, "add_rms_norm: rows of residual must be contiguous")
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    if x.shape[0] == 0:
        return out
    _rms_norm_kernel[(x.shape[0],)](
        x,
        x if residual is None else residual,
        weight,
        out,
        x.stride(0),
        x.stride(0) if residual is None else residual.stride(0),
        x.shape[1],
        eps,
        ADD=residual is not None,
        BLOCK=next_power_of_2(x.shape[1]),
        num_warps=_num_warps(x.shape[1]),
    )
    return out


def _num_warps(width: int) -> int:
    """Return the warps per row; wide rows take more, because a program keeps its row in registers."""
    return max(4, min(16, next_power_of_2(width) // tuning("rms_norm")["columns_per_warp"]))


def _check(name: str, x: Tensor, weight: Tensor) -> None:
    check(x.dim() == 2 and x.dtype in FLOATS, f"{name}: x must be a 2-D float tensor")
    check(weight.shape == x.shape[1:], f"{name}: weight must have the width of x")


def compile_cases() -> Iterator[CompileCase]:
    """Yield the launches of a 0.5 B and an 8 B model, and the widest row."""
    for width in (896, 4096, 16384):
        for add in (False, True):
            yield CompileCase(
                f"rms_norm D={width} add={add}",
                _rms_norm_kernel,
                {
                    "x_ptr": "*bf16",
                    "residual_ptr": "*bf16",
                    "weight_ptr": "*bf16",
                    "out_ptr": "*bf16",
                    "x_stride": "i32",
                    "residual_stride": "i32",
                    "width": "i32",
                    "eps": "fp32",
                },
                {"ADD": add, "BLOCK": next_power_of_2(width)},
                {"num_warps": _num_warps(width)},
            )
