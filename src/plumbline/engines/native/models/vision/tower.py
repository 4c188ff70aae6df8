"""Run a tower and its projector over the pixels of one image, with one loop over its layers."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from plumbline.engines.native.models.linear import Linear
from plumbline.engines.native.models.vision.description import Tower
from plumbline.engines.native.models.vision.grid import PatchGrid
from plumbline.engines.native.models.vision.interface import UnwantedError, Vision
from plumbline.engines.native.models.vision.layers import (
    ACTIVATIONS,
    LayerNorm,
    RmsNorm,
    Rotation,
    attend,
    rotation,
)
from plumbline.engines.native.models.vision.weights import Fetch, TowerLayer, TowerWeights

__all__ = ["TowerEncoder"]

_BLOCK = 2048
"""Patches that are computed at once. Before each block the encoder asks whether the image is wanted, because a layer of
the largest image takes minutes on a CPU."""


class TowerEncoder:
    """Implement `VisionEncoder` with a description."""

    def __init__(self, vision: Vision, fetch: Fetch, dtype: torch.dtype) -> None:
        """Take the description, the weights that it asks for, and the type of the text."""
        self.vision = vision
        self._dtype = dtype
        tower, names, weights = vision.tower, vision.tower.names, TowerWeights(vision.tower, fetch)
        width = tower.hidden_size
        kernel = weights.patch_kernel()
        self._device, self._type = kernel.device, kernel.dtype
        self._patches = Linear(kernel, fetch(f"{names.patches}.bias", (width,)) if tower.patch_bias else None)
        self._positions = weights.positions()
        self._class = fetch(names.class_row, (width,)).unsqueeze(0) if tower.class_row else None
        self._first_norm: LayerNorm | RmsNorm | None = (
            weights.norm(names.first_norm) if names.first_norm else None
        )
        self._read = vision.projector.layers_read(tower)
        self._layers = [weights.layer(index) for index in range(max(self._read))]
        self._activation = ACTIVATIONS[tower.activation]
        self._plain_norm = RmsNorm(None, tower.eps)
        self._project = vision.projector.load(tower, vision.hidden_size, weights)

    @property
    def row_bytes(self) -> int:
        """See `VisionEncoder.row_bytes`."""
        return self.vision.hidden_size * (1 + self.vision.text_layers) * self._dtype.itemsize

    @torch.inference_mode()
    def encode(self, pixels: Tensor, is_wanted: Callable[[], bool] = lambda: True) -> Tensor:
        """See `VisionEncoder.encode`."""
        pixels = pixels.to(self._device)
        pixels = (2 * (pixels - 0.5) if self.vision.tower.from_zero else pixels).to(self._type)
        rows = [self._rows(tile, is_wanted) for tile in self.vision.tiles(pixels)]
        return torch.cat(rows).to(self._dtype)

    def _rows(self, pixels: Tensor, is_wanted: Callable[[], bool]) -> Tensor:
        """Return the rows of one tile."""
        tower = self.vision.tower
        grid = PatchGrid.of(tower, pixels)
        x = self._embedded(pixels, grid)
        turn = None if tower.rotation is None else _rotation(tower, grid, x)
        states = {0: x} if 0 in self._read else {}
        for index, layer in enumerate(self._layers):
            whole = tower.windows is None or index in tower.windows.full_layers
            (mixed,) = layer.out(self._attended(layer, x, turn, None if whole else grid, is_wanted))
            x = x + (mixed if layer.after_mixer is None else layer.after_mixer(mixed))
            x = torch.cat([self._fed(layer, rows, is_wanted) for rows in torch.split(x, _BLOCK)])
            if index + 1 in self._read:
                states[index + 1] = x
        return self._project(states, grid)

    def _embedded(self, pixels: Tensor, grid: PatchGrid) -> Tensor:
        """Return the rows before the first layer."""
        tower, table = self.vision.tower, self._positions
        x = self._patches(grid.cut(pixels))
        if self._class is not None:
            x = torch.cat((self._class, x) if tower.class_row == "first" else (x, self._class))
        if table is not None and tower.positions == "each":
            x = x + table
        elif table is not None and tower.positions == "axes":
            lines, columns = grid.shape
            x = x + (table[1, :lines].unsqueeze(1) + table[0, :columns]).flatten(0, 1)
        elif table is not None:
            x = x + grid.stretched(table).to(x.dtype)
        return x if self._first_norm is None else self._first_norm(x)

    def _attended(
        self,
        layer: TowerLayer,
        x: Tensor,
        turn: Rotation | None,
        windows: PatchGrid | None,
        is_wanted: Callable[[], bool],
    ) -> Tensor:
        """Return the attention of rows to all of the image, or to those of their window."""
        _ask(is_wanted)
        tower = self.vision.tower
        # [rows, heads, head width] each
        q, k, v = (part.view(len(x), tower.heads, -1) for part in layer.qkv(layer.before_mixer(x)))
        if layer.q_norm is not None and layer.k_norm is not None:
            q, k = layer.q_norm(q), layer.k_norm(k)
        if tower.value_norm:
            v = self._plain_norm(v)
        if turn is not None:
            q, k = turn(q).to(v.dtype), turn(k).to(v.dtype)
        if windows is not None:
            return windows.attend(q, k, v)
        mixed: list[Tensor] = []
        for rows in torch.split(q, _BLOCK):
            if mixed:
                _ask(is_wanted)
            mixed.append(attend(rows, k, v, tower.scores_scale))
        return torch.cat(mixed)

    def _fed(self, layer: TowerLayer, x: Tensor, is_wanted: Callable[[], bool]) -> Tensor:
        """Return rows with what the feed-forward block adds to them."""
        _ask(is_wanted)
        first, *rest = layer.up(layer.before_feed_forward(x))
        activated = self._activation(first)
        (fed,) = layer.down(activated * rest[0] if rest else activated)
        return x + (fed if layer.after_feed_forward is None else layer.after_feed_forward(fed))


def _ask(is_wanted: Callable[[], bool]) -> None:
    if not is_wanted():
        raise UnwantedError


def _rotation(tower: Tower, grid: PatchGrid, like: Tensor) -> Rotation:
    """Return the rotation of the patches of an image; a class token is not rotated."""
    kind = tower.rotation
    assert kind is not None
    width = tower.head_dim if kind.alternating else tower.head_dim // 2
    rates = kind.theta ** -(torch.arange(0, width, 2, dtype=torch.float32, device=like.device) / width)
    line, column = (place + kind.start for place in grid.places(like.device))
    by_line, by_column = (rates[::2], rates[1::2]) if kind.alternating else (rates, rates)
    both = [torch.outer(line, by_line), torch.outer(column, by_column)]
    if kind.columns_first:
        both.reverse()
    angles = torch.stack(both, 1) if kind.apart else torch.cat(both, -1)
    if tower.class_row == "last":
        angles = F.pad(angles, (0, 0, 0, 1))
    return rotation(angles, torch.float32 if kind.exact else like.dtype)
