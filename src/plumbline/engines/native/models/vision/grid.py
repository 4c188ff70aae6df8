"""Order the patches of an image by lines, squares or windows, and compute their positions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from plumbline.engines.native.models.vision.description import Tower

__all__ = ["PatchGrid"]


class _Group(NamedTuple):
    """Neighbouring windows with the same number of patches."""

    patches: int
    """Of all windows together."""
    of_window: int


@dataclass(frozen=True, slots=True)
class PatchGrid:
    """The patches of an image, square after square; with windows, those of a window are neighbours."""

    merge: int
    patch_size: int
    lines: int
    """Squares of the image from top to bottom; what is left at the bottom and at the right is left out."""
    columns: int
    order: Tensor | None
    """int64 [squares]: the squares line by line, in the order of windows; None without windows."""
    groups: tuple[_Group, ...]

    @classmethod
    def of(cls, tower: Tower, pixels: Tensor) -> PatchGrid:
        """Return that of pixels [3, height, width]."""
        lines, columns = (side // tower.square for side in pixels.shape[1:])
        if tower.windows is None:
            return cls(tower.merge, tower.patch_size, lines, columns, None, ())
        side = tower.windows.side
        line, column = torch.arange(lines) // side, torch.arange(columns) // side
        window = (line[:, None] * (columns // side + 1) + column).flatten()
        sizes = window.bincount()[window]
        # Windows of one size are neighbours, so that a call computes the attention of all of them.
        order = torch.argsort(sizes * (int(window.max()) + 1) + window, stable=True)
        groups = tuple(
            _Group(count * tower.merge**2, size * tower.merge**2)
            for size, count in enumerate(sizes.bincount().tolist())
            if count
        )
        return cls(tower.merge, tower.patch_size, lines, columns, order, groups)

    @property
    def shape(self) -> tuple[int, int]:
        """The lines and columns of patches."""
        return self.lines * self.merge, self.columns * self.merge

    def cut(self, pixels: Tensor) -> Tensor:
        """Return the patches of pixels [3, height, width] as rows [patches, 3 * patch_size * patch_size]."""
        size, (lines, columns) = self.patch_size, self.shape
        whole = pixels[:, : lines * size, : columns * size].reshape(3, lines, size, columns, size)
        return self._by_square(whole.permute(1, 3, 0, 2, 4).flatten(2))

    def places(self, device: torch.device) -> tuple[Tensor, Tensor]:
        """Return the line and the column of each patch, int64 [patches]."""
        lines, columns = self.shape
        line, column = torch.arange(lines, device=device), torch.arange(columns, device=device)
        both = torch.stack((line[:, None].expand(lines, columns), column.expand(lines, columns)), -1)
        of_lines, of_columns = self._by_square(both).unbind(1)
        return of_lines, of_columns

    def stretched(self, table: Tensor) -> Tensor:
        """Return a table [side, side, width] of positions stretched over the image, as rows [patches, width].

        The corners of the table are those of the image, and numbers between are interpolated along both sides.
        """
        for axis, length in enumerate(self.shape):
            side = table.shape[axis]
            place = torch.arange(length, dtype=torch.float32, device=table.device) * (side - 1)
            place = place / max(length - 1, 1)
            low = place.long()
            part = (place - low).view((-1, 1, 1) if axis == 0 else (-1, 1))
            high = (low + 1).clamp(max=side - 1)
            table = table.index_select(axis, low).lerp_(table.index_select(axis, high), part)
        return self._by_square(table)

    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Return the attention of patches to those of their window; all are [patches, heads, head width]."""
        counts = [group.patches for group in self.groups]
        parts = zip(self.groups, *(torch.split(x, counts) for x in (q, k, v)), strict=True)
        return torch.cat([_within(group.of_window, *part) for group, *part in parts])

    def in_order(self, rows: Tensor) -> Tensor:
        """Return a row [width] for each square, line by line."""
        if self.order is None:
            return rows
        return torch.empty_like(rows).index_copy_(0, self.order.to(rows.device), rows)

    def _by_square(self, patches: Tensor) -> Tensor:
        """Return patches [lines, columns, width] of the image as rows [patches, width]."""
        side, width = self.merge, patches.shape[2]
        squares = patches.reshape(self.lines, side, self.columns, side, width).transpose(1, 2)
        squares = squares.reshape(-1, side * side, width)
        if self.order is not None:
            squares = squares[self.order.to(squares.device)]
        return squares.flatten(0, 1)


def _within(patches: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Return the attention within windows of so many patches each, [patches of all, heads * head width]."""
    q, k, v = (x.view(-1, patches, *x.shape[1:]).transpose(1, 2) for x in (q, k, v))
    found = F.scaled_dot_product_attention(q, k, v)
    return found.transpose(1, 2).flatten(2).flatten(0, 1)
