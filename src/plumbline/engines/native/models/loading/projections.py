"""Merge projections of the same input, with their grids, and bring their rows into the order of the operations."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from plumbline.engines.native.models.description import Attention, DeltaNet, UnsupportedModelError
from plumbline.engines.native.models.linear import Linear
from plumbline.engines.native.models.loading.rounding import Rounding
from plumbline.engines.native.models.stored import Grid, StoredWeight, dense
from plumbline_kernels.cpu.library import Library

__all__ = [
    "build_linear",
    "gates_last",
    "in_order",
    "merge",
    "merge_stored",
    "merged_rows",
    "parts_of_heads",
    "parts_of_state_space",
    "scaled",
]


def gates_last(shape: Attention, order: Tensor | None) -> Tensor:
    """Return the order of a gated attention's rows: queries, keys, values, gates; int64 [out].

    Args:
        shape: of the attention. In the checkpoint the gate of each head follows its queries.
        order: the order of queries, keys and values among themselves; None as they are.
    """
    q_width, kv_width = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
    both = torch.arange(2 * q_width).view(shape.heads, 2, shape.head_dim)
    plain = torch.cat((both[:, 0].flatten(), torch.arange(2 * kv_width) + 2 * q_width))
    return torch.cat((plain if order is None else plain[order], both[:, 1].flatten()))


def merged_rows(shape: Attention) -> Tensor:
    """Return the order of the rows of a merged projection: queries, keys, values; int64 [out]."""
    queries, dim = shape.heads // shape.kv_heads, shape.head_dim
    if shape.layout == "by_key_head":
        groups = torch.arange((queries + 2) * shape.kv_heads * dim).view(shape.kv_heads, -1)
        parts = torch.split(groups, [queries * dim, dim, dim], 1)
    else:
        q, v, k = torch.arange(3 * shape.heads * dim).view(4, 3, -1).unbind(1)
        parts = q, k, v
    return torch.cat([part.flatten() for part in parts])


def parts_of_heads(shape: DeltaNet) -> Tensor:
    """Return the order of the rows of a delta net that are grouped by key head in the checkpoint, int64 [out].

    Each key head has its query, its key, its values and their gates in one projection, and the strengths and decays of
    its values in another one.
    """
    group = shape.value_heads // shape.key_heads
    sizes = [shape.key_dim, shape.key_dim, group * shape.value_dim, group * shape.value_dim]
    width = shape.channels + shape.values
    first = torch.split(torch.arange(width).view(shape.key_heads, -1), sizes, 1)
    second = torch.split((torch.arange(2 * shape.value_heads) + width).view(shape.key_heads, -1), group, 1)
    return torch.cat([part.flatten() for part in (*first, *second)])


def parts_of_state_space(shape: DeltaNet) -> tuple[Tensor, Tensor]:
    """Return the order of the rows of a state space's projection, int64 [out], and that of its channels.

    The checkpoint has gates, x, B, C and steps; a delta net's operations take C, B, x, gates and steps.
    """
    keys = shape.key_heads * shape.key_dim
    parts = torch.split(torch.arange(shape.channels), [shape.values, keys, keys])
    channels = torch.cat(parts[::-1])
    gates, steps = torch.arange(shape.values), torch.arange(shape.gates) + shape.values + shape.channels
    return torch.cat((channels + shape.values, gates, steps)), channels


def merge(tensors: list[Tensor]) -> Tensor:
    """Stack tensors along their outputs."""
    return tensors[0] if len(tensors) == 1 else torch.cat(tensors)


def merge_stored(
    parts: list[Tensor | StoredWeight],
    dtype: torch.dtype,
    device: torch.device,
    bits: int | None,
    *,
    levels: bool,
) -> tuple[Tensor, Grid | None]:
    """Stack weights of the same input along their outputs, and their grids.

    Args:
        parts: the weights.
        dtype: of a whole weight.
        device: of a whole weight.
        bits: see `build_linear`.
        levels: whether to return the levels of a grid of integers, int8, that is kept, and not the whole weight.
    """
    grid = _merge_grids([None if isinstance(part, Tensor) else part.grid for part in parts])
    if levels and grid is not None and (integers := grid.integers) is not None and _keeps(integers, bits):
        return merge([part.integers for part in parts if not isinstance(part, Tensor)]), integers
    if grid is not None and grid.bits in (5, 6):  # Other kernels have 4 and 8.
        grid = replace(grid, bits=8)
    return merge([dense(part, dtype, device) for part in parts]), grid


def _keeps(grid: Grid, bits: int | None) -> bool:
    """Return whether a grid has no more than the bits that are wanted."""
    return bits is None or 0 < grid.bits <= bits


def _merge_grids(grids: list[Grid | None]) -> Grid | None:
    """Stack the grids of projections of the same input.

    Returns:
        None if one has none, if groups do not fit into each other, or if levels are of several kinds.
    """
    found = [grid for grid in grids if grid is not None]
    most = max((grid.scales.shape[1] for grid in found), default=1)
    kinds = {(grid.floats, grid.bits if grid.floats else 0) for grid in found}
    if len(found) < len(grids) or len(kinds) > 1 or any(most % grid.scales.shape[1] for grid in found):
        return None
    finer = [grid.by_groups(most) for grid in found]
    shifts = None
    if any(grid.shifts is not None for grid in finer):
        shifts = merge(
            [torch.zeros_like(grid.scales) if grid.shifts is None else grid.shifts for grid in finer]
        )
    # A grid of 4 bits is also one of 8.
    bits = max(grid.bits for grid in found)
    return Grid(bits, merge([grid.scales for grid in finer]), shifts, found[0].floats)


def in_order(
    weight: Tensor, bias: Tensor | None, grid: Grid | None, rows: Tensor
) -> tuple[Tensor, Tensor | None, Grid | None]:
    """Bring the outputs of a linear layer into the order of `rows`, int64 [out]."""
    return (
        weight[rows],
        None if bias is None else bias[rows],
        None if grid is None else grid.in_order(rows),
    )


def scaled(
    weight: Tensor, bias: Tensor | None, grid: Grid | None, factors: Tensor
) -> tuple[Tensor, Tensor | None, None]:
    """Multiply the outputs of a linear layer by factors, fp32 [out].

    Raises:
        UnsupportedModelError: the weight is quantised.
    """
    if grid is not None:
        raise UnsupportedModelError("quantised weights with factors on their rows are not supported")
    kind = weight.dtype
    weight = (weight.float() * factors.unsqueeze(1)).to(kind)
    return weight, None if bias is None else (bias.float() * factors).to(kind), None


def build_linear(
    weight: Tensor, bias: Tensor | None, grid: Grid | None, library: Library | None, rounding: Rounding
) -> Linear:
    """Build a linear layer; with narrow weights for kernels, one on a grid keeps it if bits are None or enough."""
    bits, shifted = rounding
    if grid is not None and library is not None:
        grid = grid.integers
    if grid is not None and _keeps(grid, bits):
        return Linear(weight, bias, library, grid.bits, grid.scales, grid.shifts, grid.floats)
    return Linear(weight, bias, library, bits or 0, shifted=shifted)
