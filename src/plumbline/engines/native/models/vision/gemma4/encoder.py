"""Run the tower of Gemma 4 over the pixels of one image, with one loop over its layers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from plumbline.engines.native.models.linear import Linear
from plumbline.engines.native.models.vision.gemma4.description import BOUNDS, Gemma4Vision, Tower
from plumbline.engines.native.models.vision.interface import Fetch, UnwantedError
from plumbline.engines.native.models.vision.layers import (
    ACTIVATIONS,
    RmsNorm,
    Rotation,
    attend,
    cut,
    rotation,
)

__all__ = ["Gemma4Encoder"]


@dataclass(frozen=True, slots=True)
class _Clipped:
    """A linear layer with bounds of its inputs and outputs, if it has any."""

    linear: Linear
    bounds: tuple[float, float, float, float] | None

    def __call__(self, x: Tensor) -> Tensor:
        if self.bounds is None:
            return self.linear(x)
        least_in, most_in, least_out, most_out = self.bounds
        return self.linear(x.clamp(least_in, most_in)).clamp(least_out, most_out)


@dataclass(frozen=True, slots=True)
class _Layer:
    before_mixer: RmsNorm
    q: _Clipped
    k: _Clipped
    v: _Clipped
    q_norm: RmsNorm
    k_norm: RmsNorm
    out: _Clipped
    after_mixer: RmsNorm
    before_feed_forward: RmsNorm
    gate: _Clipped
    up: _Clipped
    down: _Clipped
    after_feed_forward: RmsNorm


class Gemma4Encoder:
    """The tower and the projection of Gemma 4. Stateless, so any thread may call it."""

    def __init__(self, vision: Gemma4Vision, fetch: Fetch, dtype: torch.dtype) -> None:
        """Take the description, the weights that it asks for, and the type of the text."""
        self.vision = vision
        self._dtype = dtype
        tower = vision.tower
        width, patch = tower.hidden_size, tower.patch_size
        kernel = fetch("vision_tower.patch_embedder.input_proj.weight", (width, 3 * patch**2))
        # The colours of a pixel are neighbours in the checkpoint.
        self._patches = Linear(kernel.view(width, patch, patch, 3).permute(0, 3, 1, 2).reshape(width, -1))
        table = fetch("vision_tower.patch_embedder.position_embedding_table", (2, tower.positions, width))
        self._columns, self._lines = table.view(2, tower.positions, width)
        self._layers = [_layer(tower, fetch, index) for index in range(tower.layers)]
        self._plain_norm = RmsNorm(None, tower.eps)
        self._activation = ACTIVATIONS[tower.activation]
        self._standard: tuple[Tensor, Tensor] | None = None
        if tower.standardised:
            names = ("vision_tower.std_bias", "vision_tower.std_scale")
            shift, scale = (fetch(name, (width,)).float() for name in names)
            self._standard = shift, scale
        self._project = Linear(fetch("embed_vision.embedding_projection.weight", (vision.hidden_size, width)))

    @property
    def row_bytes(self) -> int:
        """See `VisionEncoder.row_bytes`."""
        return self.vision.hidden_size * self._dtype.itemsize

    @torch.inference_mode()
    def encode(self, pixels: Tensor, is_wanted: Callable[[], bool] = lambda: True) -> Tensor:
        """See `VisionEncoder.encode`; pixels are from 0 to 1."""
        tower = self.vision.tower
        lines, columns = (side // tower.patch_size for side in pixels.shape[1:])
        table = self._lines
        patches = cut(2 * (pixels.to(table.device) - 0.5), tower.patch_size)
        places = table[:lines].unsqueeze(1) + self._columns[:columns]
        x = self._patches(patches.to(table.dtype)) + places.flatten(0, 1)
        turn = _rotation(tower, lines, columns, x)
        for layer in self._layers:
            if not is_wanted():
                raise UnwantedError
            x = x + layer.after_mixer(self._attend(layer.before_mixer(x), layer, turn))
            inputs = layer.before_feed_forward(x)
            fed = layer.down(self._activation(layer.gate(inputs)) * layer.up(inputs))
            x = x + layer.after_feed_forward(fed)
        pooled = self._pooled(x.view(lines, columns, -1)).to(x.dtype)
        return self._project(self._plain_norm(pooled)).to(self._dtype)

    def _attend(self, x: Tensor, layer: _Layer, turn: Rotation) -> Tensor:
        tower = self.vision.tower
        q, k, v = (each(x).view(len(x), tower.heads, tower.head_dim) for each in (layer.q, layer.k, layer.v))
        q, k = (_turned(turn, each) for each in (layer.q_norm(q), layer.k_norm(k)))
        return layer.out(attend(q, k, self._plain_norm(v), scale=1.0))

    def _pooled(self, x: Tensor) -> Tensor:
        """Return the averages of squares of [lines, columns, width], in fp32: fp16 has no numbers so large."""
        tower = self.vision.tower
        averages = F.avg_pool2d(x.float().permute(2, 0, 1), tower.pool).flatten(1).t()
        rows: Tensor = averages.to(x.dtype).float() * tower.hidden_size**0.5
        if self._standard is None:
            return rows
        shift, scale = self._standard
        return (rows - shift) * scale


def _layer(tower: Tower, fetch: Fetch, index: int) -> _Layer:
    width, inner, prefix = (
        tower.hidden_size,
        tower.heads * tower.head_dim,
        f"vision_tower.encoder.layers.{index}",
    )

    def norm(name: str, size: int = width) -> RmsNorm:
        return RmsNorm(fetch(f"{prefix}.{name}.weight", (size,)), tower.eps)

    def linear(name: str, outputs: int, inputs: int) -> _Clipped:
        name = f"{prefix}.{name}_proj"
        weight = Linear(fetch(f"{name}.linear.weight", (outputs, inputs)))
        if not tower.clipped:
            return _Clipped(weight, None)
        least_in, most_in, least_out, most_out = (float(fetch(f"{name}.{bound}", (1,))) for bound in BOUNDS)
        return _Clipped(weight, (least_in, most_in, least_out, most_out))

    return _Layer(
        before_mixer=norm("input_layernorm"),
        q=linear("self_attn.q", inner, width),
        k=linear("self_attn.k", inner, width),
        v=linear("self_attn.v", inner, width),
        q_norm=norm("self_attn.q_norm", tower.head_dim),
        k_norm=norm("self_attn.k_norm", tower.head_dim),
        out=linear("self_attn.o", width, inner),
        after_mixer=norm("post_attention_layernorm"),
        before_feed_forward=norm("pre_feedforward_layernorm"),
        gate=linear("mlp.gate", tower.width, width),
        up=linear("mlp.up", tower.width, width),
        down=linear("mlp.down", width, tower.width),
        after_feed_forward=norm("post_feedforward_layernorm"),
    )


def _turned(turn: Rotation, x: Tensor) -> Tensor:
    """Turn the two halves of heads [rows, heads, head width]."""
    return turn(x.view(*x.shape[:2], 2, -1)).flatten(-2)


def _rotation(tower: Tower, lines: int, columns: int, like: Tensor) -> Rotation:
    """Return the rotations of the two halves of heads: by column, and by line."""
    half = tower.head_dim // 2
    rates = tower.theta ** -(torch.arange(0, half, 2, dtype=torch.float32, device=like.device) / half)
    line = torch.arange(lines, device=like.device).repeat_interleave(columns)
    column = torch.arange(columns, device=like.device).repeat(lines)
    return rotation(torch.stack((column, line), -1).unsqueeze(-1) * rates, like)
