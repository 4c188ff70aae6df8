"""Run Pixtral's tower and a projector over the pixels of one image, with one loop over its layers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from plumbline.engines.native.models.linear import Linear
from plumbline.engines.native.models.vision.interface import Fetch, UnwantedError
from plumbline.engines.native.models.vision.layers import (
    ACTIVATIONS,
    RmsNorm,
    Rotation,
    attend,
    cut,
    rotation,
)
from plumbline.engines.native.models.vision.pixtral.description import PixtralVision, Tower

__all__ = ["PixtralEncoder"]

_EPS = 1e-5


@dataclass(frozen=True, slots=True)
class _Layer:
    before_mixer: RmsNorm
    qkv: Linear
    out: Linear
    before_feed_forward: RmsNorm
    gate_up: Linear
    down: Linear


class PixtralEncoder:
    """The tower and the projector of a model. Stateless, so any thread may call it."""

    def __init__(self, vision: PixtralVision, fetch: Fetch, dtype: torch.dtype) -> None:
        """Take the description, the weights that it asks for, and the type of the text."""
        self.vision = vision
        self._dtype = dtype
        tower, projector = vision.tower, vision.projector
        width, patch = tower.hidden_size, tower.patch_size
        kernel = fetch("vision_tower.patch_conv.weight", (width, 3, patch, patch))
        self._device, self._kind = kernel.device, kernel.dtype
        self._patches = Linear(kernel.view(width, -1))
        self._first_norm = RmsNorm(fetch("vision_tower.ln_pre.weight", (width,)), _EPS)
        self._layers = [_layer(tower, fetch, index) for index in range(max(projector.layers))]
        self._activation = ACTIVATIONS[tower.activation]
        self._project = _Projection(vision, fetch)

    @property
    def row_bytes(self) -> int:
        """See `VisionEncoder.row_bytes`."""
        return self.vision.hidden_size * self._dtype.itemsize

    @torch.inference_mode()
    def encode(self, pixels: Tensor, is_wanted: Callable[[], bool] = lambda: True) -> Tensor:
        """See `VisionEncoder.encode`."""
        tower = self.vision.tower
        lines, columns = (side // tower.patch_size for side in pixels.shape[1:])
        x = self._first_norm(self._patches(cut(pixels.to(self._device, self._kind), tower.patch_size)))
        turn = _rotation(tower, lines, columns, x)
        states = {0: x}
        for index, layer in enumerate(self._layers, 1):
            if not is_wanted():
                raise UnwantedError
            x = x + self._attend(layer.before_mixer(x), layer, turn)
            gate, up = layer.gate_up(layer.before_feed_forward(x)).chunk(2, -1)
            x = x + layer.down(self._activation(gate) * up)
            if index in self.vision.projector.layers:
                states[index] = x
        rows = torch.cat([states[index] for index in self.vision.projector.layers], -1)
        return self._project(rows.view(lines, columns, -1)).to(self._dtype)

    def _attend(self, x: Tensor, layer: _Layer, turn: Rotation) -> Tensor:
        # [3, rows, heads, head width]
        q, k, v = layer.qkv(x).view(len(x), 3, self.vision.tower.heads, -1).unbind(1)
        return layer.out(attend(turn(q), turn(k), v))


def _layer(tower: Tower, fetch: Fetch, index: int) -> _Layer:
    width, prefix = tower.hidden_size, f"vision_tower.transformer.layers.{index}"

    def stacked(names: tuple[str, ...], outputs: int, inputs: int) -> Linear:
        weights = [fetch(f"{prefix}.{name}_proj.weight", (outputs, inputs)) for name in names]
        return Linear(torch.cat(weights))

    return _Layer(
        before_mixer=RmsNorm(fetch(f"{prefix}.attention_norm.weight", (width,)), _EPS),
        qkv=stacked(("attention.q", "attention.k", "attention.v"), width, width),
        out=stacked(("attention.o",), width, width),
        before_feed_forward=RmsNorm(fetch(f"{prefix}.ffn_norm.weight", (width,)), _EPS),
        gate_up=stacked(("feed_forward.gate", "feed_forward.up"), tower.width, width),
        down=stacked(("feed_forward.down",), width, tower.width),
    )


def _rotation(tower: Tower, lines: int, columns: int, like: Tensor) -> Rotation:
    """Return the rotation of the patches of an image: lines have the even frequencies, columns the odd ones."""
    width = tower.hidden_size // tower.heads
    rates = tower.theta ** -(torch.arange(0, width, 2, dtype=torch.float32, device=like.device) / width)
    line = torch.arange(lines, device=like.device).repeat_interleave(columns)
    column = torch.arange(columns, device=like.device).repeat(lines)
    return rotation(torch.cat((torch.outer(line, rates[::2]), torch.outer(column, rates[1::2])), -1), like)


class _Projection:
    """A projector over rows [lines, columns, width] of patches."""

    def __init__(self, vision: PixtralVision, fetch: Fetch) -> None:
        projector, width, size = vision.projector, vision.tower.hidden_size, vision.hidden_size
        self._side = projector.merge
        self._norm: RmsNorm | None = None
        self._merger: Linear | None = None
        if projector.merger_eps is not None:
            self._norm = RmsNorm(fetch("multi_modal_projector.norm.weight", (width,)), projector.merger_eps)
            name = "multi_modal_projector.patch_merger.merging_layer.weight"
            self._merger = Linear(fetch(name, (width, width * self._side**2)))

        def linear(number: int, inputs: int) -> Linear:
            name = f"multi_modal_projector.linear_{number}"
            bias = fetch(f"{name}.bias", (size,)) if projector.bias else None
            return Linear(fetch(f"{name}.weight", (size, inputs)), bias)

        self._first = linear(1, width * len(projector.layers))
        self._second = linear(2, size)
        self._between = ACTIVATIONS[projector.activation]

    def __call__(self, x: Tensor) -> Tensor:
        if self._norm is not None and self._merger is not None:
            lines, columns, width = x.shape
            side = self._side
            squares = self._norm(x).view(lines // side, side, columns // side, side, width)
            x = self._merger(squares.permute(0, 2, 4, 1, 3).reshape(-1, width * side**2))
        return self._second(self._between(self._first(x.flatten(0, -2))))
