"""Compute the rotary table: cos and sin of every position, with scaled frequencies."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from plumbline.engines.native.models.description import Rope

__all__ = ["rope_table"]


def rope_table(rope: Rope, head_dim: int, max_positions: int) -> Tensor:
    """Return fp32 [max_positions, head_dim]: cos in the first half of each row, sin in the second."""
    frequencies, scale = _frequencies(rope, head_dim)
    angles = torch.outer(torch.arange(max_positions, dtype=torch.float32), frequencies)
    return torch.cat((angles.cos(), angles.sin()), dim=1).mul_(scale)


def _frequencies(rope: Rope, head_dim: int) -> tuple[Tensor, float]:
    """Return the angle per position of each pair, fp32 [head_dim / 2], and the factor on cos and sin."""
    exponents = torch.arange(0, head_dim, 2, dtype=torch.float32) / head_dim
    base = 1.0 / rope.theta**exponents
    match rope.kind:
        case "linear":
            return base / rope.factor, 1.0
        case "llama3":
            return _llama3(rope, base), 1.0
        case "yarn":
            return _yarn(rope, base, head_dim), _yarn_attention_factor(rope)
        case _:
            return base, 1.0


def _llama3(rope: Rope, base: Tensor) -> Tensor:
    """Scale frequencies as Llama 3: keep short wavelengths, stretch long ones by the factor, blend in between."""
    wavelength = 2 * math.pi / base
    length = rope.original_max_positions
    blend = (length / wavelength - rope.low_freq_factor) / (rope.high_freq_factor - rope.low_freq_factor)
    stretched = base / rope.factor
    medium = (1 - blend) * stretched + blend * base
    result = torch.where(wavelength > length / rope.low_freq_factor, stretched, medium)
    return torch.where(wavelength < length / rope.high_freq_factor, base, result)


def _yarn(rope: Rope, base: Tensor, head_dim: int) -> Tensor:
    """Scale frequencies as YaRN: keep dimensions that turn often in the original length, stretch the others."""

    def dimension(rotations: float) -> float:
        """Return the dimension that makes this many rotations over the original length."""
        ratio = rope.original_max_positions / (rotations * 2 * math.pi)
        return head_dim * math.log(ratio) / (2 * math.log(rope.theta))

    low, high = dimension(rope.beta_fast), dimension(rope.beta_slow)
    if rope.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, head_dim - 1)
    ramp = (torch.arange(head_dim // 2, dtype=torch.float32) - low) / max(high - low, 0.001)
    keep = 1 - ramp.clamp_(0, 1)
    return base / rope.factor * (1 - keep) + base * keep


def _yarn_attention_factor(rope: Rope) -> float:
    if rope.attention_factor is not None:
        return rope.attention_factor

    def stretch(mscale: float) -> float:
        return 1.0 if rope.factor <= 1 else 0.1 * mscale * math.log(rope.factor) + 1.0

    if rope.mscale and rope.mscale_all_dim:
        return stretch(rope.mscale) / stretch(rope.mscale_all_dim)
    return stretch(1.0)
