"""Multiply rows with a weight of levels."""

import torch.nn.functional as F
from torch import Tensor

from plumbline_kernels._backend import FLOATS, check, use_triton
from plumbline_kernels.narrow import _exact, _triton
from plumbline_kernels.narrow.weight import NarrowWeight

__all__ = ["narrow_linear", "narrow_linear_torch"]


def narrow_linear(x: Tensor, weight: NarrowWeight, bias: Tensor | None = None, exact: bool = False) -> Tensor:
    """Return x @ weight.T + bias, [T, out], for x [T, in] and bias [out].

    With `exact`, a row has the same bits in any batch on a GPU.
    """
    check(x.dim() == 2 and x.dtype in FLOATS, "narrow_linear: x must be a 2-D float tensor")
    check(x.shape[1] == weight.inputs, "narrow_linear: x and the weight differ in width")
    if use_triton(x):
        return _exact.launch_exact(x, weight, bias) if exact else _triton.launch(x, weight, bias)
    return narrow_linear_torch(x, weight, bias)


def narrow_linear_torch(x: Tensor, weight: NarrowWeight, bias: Tensor | None = None) -> Tensor:
    """Compute `narrow_linear` with the dequantised weight."""
    return F.linear(x, weight.dequantised(x.dtype), bias)
