"""Compute the norms of a model's rows, alone and fused with the residual add that precedes them.

`rms_norm(x) = x / sqrt(mean(x²) + eps) * weight`, and `layer_norm` is the same of x - mean(x), plus a bias; the sums
are in fp32. Weights may be fp32 whatever the type of x is.
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

__all__ = ["add_layer_norm", "add_rms_norm", "layer_norm", "rms_norm", "twice"]


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Normalise the rows of `x` [T, D] by their root mean square and scale them by `weight` [D]."""
    _check("rms_norm", x, weight)
    if use_triton(x):
        return _launch(x, None, weight, None, eps, centred=False)
    return rms_norm_torch(x, twice(weight), eps)


def layer_norm(x: Tensor, weight: Tensor, bias: Tensor | None, eps: float) -> Tensor:
    """Normalise the rows of `x` [T, D] to mean 0 and variance 1; scale by `weight` and shift by `bias`, both [D]."""
    _check("layer_norm", x, weight, bias)
    if use_triton(x):
        return _launch(x, None, weight, bias, eps, centred=True)
    return layer_norm_torch(x, weight, bias, eps)


def add_rms_norm(
    x: Tensor, residual: Tensor, weight: Tensor, eps: float, factor: float = 1.0, scale: float = 1.0
) -> tuple[Tensor, Tensor]:
    """Return (rms_norm(sum), sum) of sum = scale * (residual + factor * x); write the sum into `residual`.

    `x`, `residual` and both results are [T, D] of one dtype. The sum is rounded to that dtype before the norm, so the
    fused operation gives the same result as the two separate ones.
    """
    _check_sum("add_rms_norm", x, residual, weight)
    if use_triton(x):
        return _launch(x, residual, weight, None, eps, centred=False, factor=factor, scale=scale), residual
    return add_rms_norm_torch(x, residual, twice(weight), eps, factor, scale)


def add_layer_norm(
    x: Tensor,
    residual: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    eps: float,
    factor: float = 1.0,
    scale: float = 1.0,
) -> tuple[Tensor, Tensor]:
    """Return (layer_norm(sum), sum) of sum = scale * (residual + factor * x); see `add_rms_norm`."""
    _check_sum("add_layer_norm", x, residual, weight, bias)
    if use_triton(x):
        return _launch(x, residual, weight, bias, eps, centred=True, factor=factor, scale=scale), residual
    residual = add_torch(x, residual, factor, scale)
    return layer_norm_torch(residual, weight, bias, eps), residual


def twice(weight: Tensor) -> Tensor:
    """Return the weight [D] repeated, [2 * D], as the torch implementations take it: they normalise (x, -x).

    A model computes it once per layer.
    """
    return torch.cat((weight, weight))


def add_rms_norm_torch(
    x: Tensor, residual: Tensor, weight: Tensor, eps: float, factor: float = 1.0, scale: float = 1.0
) -> tuple[Tensor, Tensor]:
    """Compute `add_rms_norm` in torch, with the weight from `twice`."""
    residual = add_torch(x, residual, factor, scale)
    return rms_norm_torch(residual, weight, eps), residual


def add_torch(x: Tensor, residual: Tensor, factor: float = 1.0, scale: float = 1.0) -> Tensor:
    """Add a factor times x to the residual, in place, and multiply the sum with a scale.

    torch's `alpha` would be rounded to a 16-bit type first.
    """
    residual = residual.add_(x if factor == 1.0 else x * factor)
    return residual if scale == 1.0 else residual.mul_(scale)


def rms_norm_torch(x: Tensor, weight: Tensor | None, eps: float) -> Tensor:
    """Compute `rms_norm` in torch over the last dimension, with the weight from `twice` or none.

    The mean of (x, -x) is zero and its variance is mean(x²), so torch's fused layer norm of it is the RMS norm of x:
    one operation instead of the five that `F.rms_norm` decomposes into on CPU.
    `x` may be [T, heads, hd]; the result is a view with strided rows.
    """
    width = x.shape[-1]
    return F.layer_norm(torch.cat((x, -x), -1), (2 * width,), weight, None, eps).narrow(-1, 0, width)


def layer_norm_torch(x: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float) -> Tensor:
    """Compute `layer_norm` in torch over the last dimension."""
    return F.layer_norm(x, (x.shape[-1],), weight, bias, eps)


@jit
def _norm_kernel(
    x_ptr,  # [T, D]
    residual_ptr,  # [T, D], read and written if ADD
    weight_ptr,  # [D]
    bias_ptr,  # [D], read if BIAS
    out_ptr,  # [T, D]
    x_stride,
    residual_stride,
    out_stride,
    width,
    eps,
    factor,  # on x in the sum
    scale_sum,
    ADD: tl.constexpr,
    CENTRED: tl.constexpr,
    BIAS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    columns = tl.arange(0, BLOCK)
    mask = columns < width
    x = tl.load(x_ptr + row * x_stride + columns, mask=mask, other=0.0)
    if ADD:
        at = residual_ptr + row * residual_stride + columns
        total = (x.to(tl.float32) * factor + tl.load(at, mask=mask, other=0.0).to(tl.float32)) * scale_sum
        x = total.to(x.dtype)
        tl.store(at, x, mask=mask)
    x = x.to(tl.float32)
    if CENTRED:
        x = tl.where(mask, x - tl.sum(x, axis=0) / width, 0.0)
    scale = tl.rsqrt(tl.sum(x * x, axis=0) / width + eps)
    out = x * scale * tl.load(weight_ptr + columns, mask=mask, other=0.0).to(tl.float32)
    if BIAS:
        out += tl.load(bias_ptr + columns, mask=mask, other=0.0).to(tl.float32)
    tl.store(out_ptr + row * out_stride + columns, out.to(out_ptr.dtype.element_ty), mask=mask)


def _launch(
    x: Tensor,
    residual: Tensor | None,
    weight: Tensor,
    bias: Tensor | None,
    eps: float,
    *,
    centred: bool,
    factor: float = 1.0,
    scale: float = 1.0,
    out: Tensor | None = None,
) -> Tensor:
    check(x.stride(1) == 1 and weight.is_contiguous(), "norm: rows and weight must be contiguous")
    check(residual is None or residual.stride(1) == 1, "norm: rows of residual must be contiguous")
    check(bias is None or bias.is_contiguous(), "norm: bias must be contiguous")
    if out is None:
        out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    if x.shape[0] == 0:
        return out
    _norm_kernel[(x.shape[0],)](
        x,
        x if residual is None else residual,
        weight,
        weight if bias is None else bias,
        out,
        x.stride(0),
        x.stride(0) if residual is None else residual.stride(0),
        out.stride(0),
        x.shape[1],
        eps,
        factor,
        scale,
        ADD=residual is not None,
        CENTRED=centred,
        BIAS=bias is not None,
        BLOCK=next_power_of_2(x.shape[1]),
        num_warps=_num_warps(x.shape[1]),
    )
    return out


def normalise_parts(x: Tensor, weights: Tensor, parts: tuple[int, ...], eps: float) -> None:
    """Normalise runs of columns of x [T, D] in place, each by its own RMS; those after the last part stay.

    Args:
        x: on a GPU.
        weights: [sum(parts), width], a row for each group of `width` columns.
        parts: how many groups each run has.
        eps: of the norms.
    """
    first, width = 0, weights.shape[1]
    for count in parts:
        columns = x[:, first * width : (first + count) * width]
        weight = weights[first : first + count].flatten()
        _launch(columns, None, weight, None, eps, centred=False, out=columns)
        first += count


def _num_warps(width: int) -> int:
    """Return the warps per row; wide rows take more, because a program keeps its row in registers."""
    return max(4, min(16, next_power_of_2(width) // tuning("rms_norm")["columns_per_warp"]))


def _check(name: str, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> None:
    check(x.dim() == 2 and x.dtype in FLOATS, f"{name}: x must be a 2-D float tensor")
    check(weight.shape == x.shape[1:], f"{name}: weight must have the width of x")
    check(bias is None or bias.shape == x.shape[1:], f"{name}: bias must have the width of x")


def _check_sum(name: str, x: Tensor, residual: Tensor, weight: Tensor, bias: Tensor | None = None) -> None:
    _check(name, x, weight, bias)
    check(
        residual.shape == x.shape and residual.dtype == x.dtype,
        f"{name}: residual must have the shape and dtype of x",
    )


def compile_cases() -> Iterator[CompileCase]:
    """Yield the launches of a 0.5 B and an 8 B model, and the widest row."""
    pointers = {f"{name}_ptr": "*bf16" for name in ("x", "residual", "out")}
    weights = {"weight_ptr": "*fp32", "bias_ptr": "*fp32"}
    scalars = dict.fromkeys(("x_stride", "residual_stride", "out_stride", "width"), "i32")
    for width in (896, 4096, 16384):
        for add in (False, True):
            for centred in (False, True):
                yield CompileCase(
                    f"norm D={width} add={add} centred={centred}",
                    _norm_kernel,
                    pointers | weights | scalars | {"eps": "fp32", "factor": "fp32", "scale_sum": "fp32"},
                    {"ADD": add, "CENTRED": centred, "BIAS": centred, "BLOCK": next_power_of_2(width)},
                    {"num_warps": _num_warps(width)},
                )
