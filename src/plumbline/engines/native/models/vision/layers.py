"""Compute what towers are made of: activations, norms, rotations and attention."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

__all__ = ["ACTIVATIONS", "Activation", "LayerNorm", "RmsNorm", "Rotation", "attend", "rotation"]

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
class LayerNorm:
    """A layer norm with a bias."""

    weight: Tensor
    bias: Tensor
    eps: float

    def __call__(self, x: Tensor) -> Tensor:
        """Normalise rows."""
        return F.layer_norm(x, self.weight.shape, self.weight, self.bias, self.eps)


@dataclass(frozen=True, slots=True)
class RmsNorm:
    """A norm by the root of the mean square, in fp32."""

    weight: Tensor | None
    eps: float

    def __call__(self, x: Tensor) -> Tensor:
        """Normalise rows."""
        weight = None if self.weight is None else self.weight.float()
        return F.rms_norm(x.float(), x.shape[-1:], weight, self.eps).to(x.dtype)


@dataclass(frozen=True, slots=True)
class Rotation:
    """Turns pairs of a head's numbers, of which each half of the head has one; or so each part of a head."""

    cos: Tensor
    """[rows, 1, head width], or [rows, 1, parts, width of a part]."""
    sin: Tensor

    def __call__(self, x: Tensor) -> Tensor:
        """Turn heads [rows, heads, head width]."""
        parts = x.view(*x.shape[:2], *self.cos.shape[2:])
        first, second = parts.chunk(2, -1)
        return (parts * self.cos + torch.cat((-second, first), -1) * self.sin).view(x.shape)


def rotation(angles: Tensor, dtype: torch.dtype) -> Rotation:
    """Return the rotation by angles [rows, head width / 2], or [rows, parts, width of a part / 2]."""
    both = torch.cat((angles, angles), -1).unsqueeze(1)
    return Rotation(both.cos().to(dtype), both.sin().to(dtype))


def attend(q: Tensor, k: Tensor, v: Tensor, scale: float | None = None) -> Tensor:
    """Return the attention of all rows to all, [rows, heads * head width], of [rows, heads, head width] each."""
    q, k, v = (x.transpose(0, 1).unsqueeze(0) for x in (q, k, v))
    mixed = F.scaled_dot_product_attention(q, k, v, scale=scale)
    return mixed[0].transpose(0, 1).flatten(1)
