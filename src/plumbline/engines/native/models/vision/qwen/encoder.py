"""Run a tower of Qwen-VL and its mergers over the pixels of one image, with one loop over its layers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from plumbline.engines.native.models.linear import Linear
from plumbline.engines.native.models.vision.interface import Fetch, UnwantedError
from plumbline.engines.native.models.vision.layers import (
    ACTIVATIONS,
    Norm,
    RmsNorm,
    Rotation,
    attend,
    rotation,
)
from plumbline.engines.native.models.vision.qwen.description import QwenVision
from plumbline.engines.native.models.vision.qwen.squares import Squares

__all__ = ["QwenEncoder"]

_EPS = 1e-6
_BLOCK = 2048
"""Patches that are computed at once. Before each block the encoder asks whether the image is wanted, because a layer of
the largest image takes minutes on a CPU."""


@dataclass(frozen=True, slots=True)
class _Layer:
    before_mixer: Norm | RmsNorm
    qkv: Linear
    out: Linear
    before_feed_forward: Norm | RmsNorm
    up: Linear
    """The gate and the layer itself, if there is a gate."""
    down: Linear


class QwenEncoder:
    """The tower and the mergers of a model. Stateless, so any thread may call it."""

    def __init__(self, vision: QwenVision, fetch: Fetch, dtype: torch.dtype) -> None:
        """Take the description, the weights that it asks for, and the type of the text."""
        self.vision = vision
        self._dtype = dtype
        tower, weights = vision.tower, _Weights(vision, fetch)
        kernel = weights.patch_kernel()
        self._device, self._type = kernel.device, kernel.dtype
        bias = fetch("visual.patch_embed.proj.bias", (tower.hidden_size,)) if tower.patch_bias else None
        self._patches = Linear(kernel, bias)
        self._positions: Tensor | None = None
        if side := tower.positions:
            table = fetch("visual.pos_embed.weight", (side**2, tower.hidden_size))
            self._positions = table.view(side, side, -1).float()
        self._layers = [weights.layer(index) for index in range(tower.layers)]
        self._activation = ACTIVATIONS[tower.activation]
        self._merge = weights.merger("visual.merger", first=True)
        self._further = {
            layer: weights.merger(f"visual.deepstack_merger_list.{index}", first=False)
            for index, layer in enumerate(tower.further)
        }

    @property
    def row_bytes(self) -> int:
        """See `VisionEncoder.row_bytes`."""
        return self.vision.hidden_size * (1 + self.vision.text_layers) * self._dtype.itemsize

    @torch.inference_mode()
    def encode(self, pixels: Tensor, is_wanted: Callable[[], bool] = lambda: True) -> Tensor:
        """See `VisionEncoder.encode`."""
        tower = self.vision.tower
        squares = Squares.of(tower, pixels)
        x = self._patches(squares.cut(pixels.to(self._device, self._type)))
        if self._positions is not None:
            x = x + squares.stretched(self._positions).to(x.dtype)
        turn = rotation(squares.angles(tower, x.device), torch.empty(0))
        further = []
        for index, layer in enumerate(self._layers):
            whole = tower.windows is None or index in tower.windows.full_layers
            mixed = self._attend(layer, x, turn, None if whole else squares, is_wanted)
            x = x + layer.out(mixed)
            x = torch.cat([self._fed(layer, rows, is_wanted) for rows in torch.split(x, _BLOCK)])
            if index in self._further:
                further.append(self._further[index](x))
        rows = torch.cat((self._merge(x), *further), -1)
        return squares.in_order(rows).to(self._dtype)

    def _attend(
        self, layer: _Layer, x: Tensor, turn: Rotation, windows: Squares | None, is_wanted: Callable[[], bool]
    ) -> Tensor:
        """Return the attention of rows to all of the image, or to those of their window."""
        _ask(is_wanted)
        normed = layer.before_mixer(x)
        # [rows, heads, head width] each
        q, k, v = layer.qkv(normed).view(len(x), 3, self.vision.tower.heads, -1).unbind(1)
        q, k = turn(q).to(v.dtype), turn(k).to(v.dtype)
        if windows is not None:
            return windows.attend(q, k, v)
        mixed = []
        for rows in torch.split(q, _BLOCK):
            _ask(is_wanted)
            mixed.append(attend(rows, k, v))
        return torch.cat(mixed)

    def _fed(self, layer: _Layer, x: Tensor, is_wanted: Callable[[], bool]) -> Tensor:
        """Return rows with what the feed-forward block adds to them."""
        _ask(is_wanted)
        up = layer.up(layer.before_feed_forward(x))
        if len(self.vision.tower.names.up) == 2:
            gate, up = up.chunk(2, -1)
            return x + layer.down(self._activation(gate) * up)
        return x + layer.down(self._activation(up))


def _ask(is_wanted: Callable[[], bool]) -> None:
    if not is_wanted():
        raise UnwantedError


class _Merger:
    """Two linear layers over the patches of a square, side by side; the norm is over patches or over the square."""

    def __init__(
        self, norm: Norm | RmsNorm, first: Linear, second: Linear, *, merged: int, by_patch: bool
    ) -> None:
        self._norm, self._first, self._second = norm, first, second
        self._merged, self._by_patch = merged, by_patch

    def __call__(self, x: Tensor) -> Tensor:
        rows = (self._norm(x) if self._by_patch else x).reshape(len(x) // self._merged, -1)
        rows = rows if self._by_patch else self._norm(rows)
        return self._second(ACTIVATIONS["gelu"](self._first(rows)))


class _Weights:
    """Fetch the weights of a tower."""

    def __init__(self, vision: QwenVision, fetch: Fetch) -> None:
        self._vision, self._tower, self._fetch = vision, vision.tower, fetch

    def norm(self, name: str, width: int) -> Norm | RmsNorm:
        weight = self._fetch(f"{name}.weight", (width,))
        if self._tower.rms:
            return RmsNorm(weight, _EPS)
        return Norm(weight, self._fetch(f"{name}.bias", (width,)), _EPS)

    def linear(self, names: tuple[str, ...], outputs: int, inputs: int) -> Linear:
        weights = [self._fetch(f"{name}.weight", (outputs, inputs)) for name in names]
        biases = [self._fetch(f"{name}.bias", (outputs,)) for name in names]
        return Linear(torch.cat(weights), torch.cat(biases))

    def patch_kernel(self) -> Tensor:
        """Return the embedding of patches: all frames of an image are equal, so their weights are added up."""
        tower = self._tower
        shape = (tower.hidden_size, 3, tower.frames, tower.patch_size, tower.patch_size)
        kernel = self._fetch("visual.patch_embed.proj.weight", shape)
        return kernel.float().sum(2).to(kernel.dtype).flatten(1)

    def layer(self, index: int) -> _Layer:
        tower, prefix = self._tower, f"visual.blocks.{index}"
        width, names = tower.hidden_size, tower.names
        return _Layer(
            before_mixer=self.norm(f"{prefix}.norm1", width),
            qkv=self.linear((f"{prefix}.attn.qkv",), 3 * width, width),
            out=self.linear((f"{prefix}.attn.proj",), width, width),
            before_feed_forward=self.norm(f"{prefix}.norm2", width),
            up=self.linear(tuple(f"{prefix}.{name}" for name in names.up), tower.width, width),
            down=self.linear((f"{prefix}.{names.down}",), width, tower.width),
        )

    def merger(self, prefix: str, *, first: bool) -> _Merger:
        """Fetch the merger of the last rows, whose norm is over patches, or one of further parts."""
        tower, names = self._tower, self._tower.names
        merged = tower.merge**2
        width = tower.hidden_size * merged
        return _Merger(
            self.norm(f"{prefix}.{names.norm}", tower.hidden_size if first else width),
            self.linear((f"{prefix}.{names.first}",), width, width),
            self.linear((f"{prefix}.{names.second}",), self._vision.hidden_size, width),
            merged=merged,
            by_patch=first,
        )
