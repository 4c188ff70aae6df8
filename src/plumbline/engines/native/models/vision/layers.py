"""Compute what all towers are made of: activations and norms."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

__all__ = ["ACTIVATIONS", "Activation", "Norm"]

Activation = Literal["gelu", "gelu_tanh", "quick_gelu", "silu"]
"""The activations of towers and projectors."""


def _quick_gelu(x: Tensor) -> Tensor:
    return x * torch.sigmoid(1.702 * x)


ACTIVATIONS: dict[Activation, Callable[[Tensor], Tensor]] = {
    "gelu": F.gelu,
    "gelu_tanh": partial(F.gelu, approximate="tanh"),
    "quick_gelu": _quick_gelu,
    "silu": F.silu,
}


@dataclass(frozen=True, slots=True)
class Norm:
    """A layer norm with a bias."""

    weight: Tensor
    bias: Tensor
    eps: float

    def __call__(self, x: Tensor) -> Tensor:
        """Normalise rows."""
        return F.layer_norm(x, self.weight.shape, self.weight, self.bias, self.eps)
