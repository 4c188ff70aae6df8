"""Compute what towers are made of: patches, activations, norms, rotations and attention."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

__all__ = ["ACTIVATIONS", "Activation", "Norm", "RmsNorm", "Rotation", "attend", "cut", "rotation"]

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
    """Turns pairs of a head's numbers, of which each half of the head has one."""

    cos: Tensor
    """[rows, 1, ..., head width]."""
    sin: Tensor

    def __call__(self, x: Tensor) -> Tensor:
        """Turn heads [rows, heads, ..., head width]; a part of a head with angles of its own counts as a head."""
        first, second = x.chunk(2, -1)
        return x * self.cos + torch.cat((-second, first), -1) * self.sin


def rotation(angles: Tensor, like: Tensor) -> Rotation:
    """Return the rotation by angles [rows, ..., head width / 2], in the type of another tensor."""
    both = torch.cat((angles, angles), -1).unsqueeze(1)
    return Rotation(both.cos().to(like.dtype), both.sin().to(like.dtype))


def attend(q: Tensor, k: Tensor, v: Tensor, scale: float | None = None) -> Tensor:
    """Return the attention of all rows to all, [rows, heads * head width], of [rows, heads, head width] each."""
    q, k, v = (x.transpose(0, 1).unsqueeze(0) for x in (q, k, v))
    mixed = F.scaled_dot_product_attention(q, k, v, scale=scale)
    return mixed[0].transpose(0, 1).flatten(1)


def cut(pixels: Tensor, size: int) -> Tensor:
    """Return the patches of pixels [colours, height, width], line by line, as rows [patches, colours * size * size].

    What is left at the right and at the bottom is left out.
    """
    lines, columns = (side // size for side in pixels.shape[1:])
    whole = pixels[:, : lines * size, : columns * size].reshape(-1, lines, size, columns, size)
    return whole.permute(1, 3, 0, 2, 4).reshape(lines * columns, -1)
