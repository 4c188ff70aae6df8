"""Compute the rotary table: cos and sin of every position, with scaled frequencies."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from plumbline.engines.native.models.description import Rope, UnsupportedModelError

__all__ = ["RopeTable", "head_order", "rope_table", "rotated_dims", "sinusoids", "temperatures"]


@dataclass(frozen=True, slots=True)
class RopeTable:
    """The rotary table of layers that have the same rotation."""

    rows: Tensor
    """`rope_table`, fp32 [positions + spare, head_dim]: the spare rows are those of `turn`."""
    temperatures: Tensor | None
    """The factors of `temperatures`."""
    axes: Tensor | None
    """int64 [head_dim], the axis of each column; None if all have one position."""

    @classmethod
    def of(cls, rope: Rope, head_dim: int, positions: int, spare: int, device: torch.device) -> RopeTable:
        """Compute a table for so many positions, with spare rows if positions have several axes."""
        rows, axes = rope_table(rope, head_dim, positions), None
        if rope.axes:
            rows = torch.cat((rows, rows.new_zeros(spare, head_dim)))
            unturned = [0] * (head_dim // 2 - len(rope.axes))
            axes = torch.tensor([*rope.axes, *unturned] * 2, device=device)
        factors = temperatures(rope, positions)
        return cls(rows.to(device), None if factors is None else factors.to(device), axes)

    def turn(self, positions: int, tokens: Tensor) -> None:
        """Write the rows of tokens with a position on each axis, int64 [3, M], behind the first `positions` rows."""
        if self.axes is not None:
            turned = self.rows.gather(0, tokens[self.axes].t())
            self.rows[positions : positions + len(turned)] = turned


def rope_table(rope: Rope, head_dim: int, max_positions: int) -> Tensor:
    """Return fp32 [max_positions, head_dim]: cos in the first half of each row, sin in the second.

    The first pairs of a head are those that are rotated (`head_order`); the others have cos 1 and sin 0.
    """
    frequencies, scale = _frequencies(rope, rotated_dims(rope, head_dim), head_dim, max_positions)
    angles = torch.outer(torch.arange(max_positions, dtype=torch.float32), frequencies)
    unturned = max_positions, head_dim // 2 - len(frequencies)
    cos = torch.cat((angles.cos().mul_(scale), torch.ones(unturned)), 1)
    return torch.cat((cos, angles.sin().mul_(scale), torch.zeros(unturned)), 1)


def sinusoids(positions: int, width: int) -> Tensor:
    """Return embeddings of positions, fp32 [positions, width]: sines in the first half of each row, then cosines."""
    pairs = width // 2
    frequencies = torch.exp(torch.arange(pairs, dtype=torch.float32) * -(math.log(10000) / (pairs - 1)))
    angles = torch.outer(torch.arange(positions, dtype=torch.float32), frequencies)
    return torch.cat((angles.sin(), angles.cos(), torch.zeros(positions, width % 2)), 1)


def temperatures(rope: Rope, max_positions: int) -> Tensor | None:
    """Return the factors on queries by position, fp32 [max_positions], or None if all are 1."""
    if not rope.temperature:
        return None
    positions = torch.arange(max_positions, dtype=torch.float32) + rope.temperature_shift
    steps = positions / rope.original_max_positions
    return 1 + rope.temperature * torch.log1p(steps.floor())


def rotated_dims(rope: Rope, head_dim: int) -> int:
    """Return how many numbers of a head are rotated; `proportional` has frequencies of zero for the others."""
    if rope.kind == "proportional":
        return head_dim
    # An odd number has one more, as in transformers, which rotates pairs.
    return 2 * -(-int(head_dim * rope.part) // 2)


def head_order(rope: Rope | None, head_dim: int) -> Tensor | None:
    """Return the order of a head's rows in which pair i of the rotation is (i, i + head_dim / 2), int64 [head_dim].

    Scores do not depend on the order, as long as queries and keys have the same one. So interleaved and partial
    rotations become the rotation of halves once the rows of q and k are permuted. None if they need not be.
    """
    if rope is None:
        return None
    dims = rotated_dims(rope, head_dim)
    rows = torch.arange(dims)
    first, second = (rows[::2], rows[1::2]) if rope.interleaved else rows.chunk(2)
    if rope.backwards:
        first, second = second, first
    rest = torch.arange(dims, head_dim).chunk(2) if dims < head_dim else (rows[:0], rows[:0])
    order = torch.cat((first, rest[0], second, rest[1]))
    return None if torch.equal(order, torch.arange(head_dim)) else order


def _frequencies(rope: Rope, dims: int, head_dim: int, max_positions: int) -> tuple[Tensor, float]:
    """Return the angle per position of each pair, fp32 [dims / 2], and the factor on cos and sin."""
    divisor = dims if rope.kind == "proportional" else int(head_dim * rope.part)
    exponents = torch.arange(0, dims, 2, dtype=torch.float32) / divisor
    base = 1.0 / rope.theta**exponents
    match rope.kind:
        case "linear":
            return base / rope.factor, 1.0
        case "llama3":
            return _llama3(rope, base), 1.0
        case "yarn":
            return _yarn(rope, base, dims), _yarn_attention_factor(rope)
        case "longrope":
            is_long = max_positions > rope.original_max_positions
            factors = rope.long_factors if is_long else rope.short_factors
            if len(factors) != len(base):
                name = "long_factor" if is_long else "short_factor"
                raise UnsupportedModelError(
                    f"{name} of rope_parameters must have {len(base)} numbers, not {len(factors)}"
                )
            scale = rope.long_scale if is_long else rope.short_scale
            return base / torch.tensor(factors), scale or _longrope_attention_factor(rope)
        case "dynamic":
            if max_positions > rope.original_max_positions:
                raise UnsupportedModelError(
                    f"a rotation of type 'dynamic' is supported up to {rope.original_max_positions} positions, beyond "
                    "which it depends on the length of each text; lower --max-model-len"
                )
            return base, 1.0
        case "proportional":
            turned = int(rope.part * head_dim // 2)
            return torch.where(torch.arange(dims // 2) < turned, base / rope.factor, 0.0), 1.0
        case _:
            return base, 1.0


def _longrope_attention_factor(rope: Rope) -> float:
    if rope.attention_factor is not None:
        return rope.attention_factor
    return (
        1.0
        if rope.factor <= 1
        else math.sqrt(1 + math.log(rope.factor) / math.log(rope.original_max_positions))
    )


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
