"""RMS normalisation, alone and fused with the residual add that precedes it.

`rms_norm(x) = x / sqrt(mean(x²) + eps) * weight`, computed in fp32 and rounded once to the dtype of `x`.
"""

from __future__ import annotations

from functools import lru_cache

import torch
from torch import Tensor

from plumbline_kernels._backend import FLOATS, check, use_triton

__all__ = ["add_rms_norm", "rms_norm"]


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Normalise the rows of `x` [T, D] by their root mean square and scale them by `weight` [D]."""
    _check("rms_norm", x, weight)
    if use_triton(x):
        raise NotImplementedError
    return rms_norm_torch(x, weight, eps)


def add_rms_norm(x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """Return (rms_norm(x + residual), x + residual); the sum may be written into `residual`.

    All of `x`, `residual` and the results are [T, D] of one dtype.
    """
    _check("add_rms_norm", x, weight)
    check(residual.shape == x.shape and residual.dtype == x.dtype, "add_rms_norm: residual must be like x")
    if use_triton(x):
        raise NotImplementedError
    residual = residual.add_(x)
    return rms_norm_torch(residual, weight, eps), residual


def rms_norm_torch(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """The twin; also used over the last dimension of [T, heads, head_dim].

    Four small operations instead of `F.rms_norm`, which decomposes into more on CPU: with n the row's 2-norm,
    sqrt(mean(x²) + eps) is hypot(n / sqrt(D), sqrt(eps)).
    """
    rms = torch.linalg.vector_norm(x, dim=-1, keepdim=True, dtype=torch.float32)
    rms = rms.mul_(x.shape[-1] ** -0.5).hypot_(_sqrt(eps))
    normed = torch.div(x, rms)
    if x.dtype == torch.float32:
        return normed.mul_(weight)
    return normed.mul_(weight).to(x.dtype)


@lru_cache(maxsize=64)
def _sqrt(eps: float) -> Tensor:
    return torch.tensor(eps**0.5, dtype=torch.float32)


def _check(name: str, x: Tensor, weight: Tensor) -> None:
    check(x.dim() == 2 and x.dtype in FLOATS, f"{name}: x must be a 2-D float tensor")
    check(weight.shape == x.shape[1:], f"{name}: weight must have the width of x")
