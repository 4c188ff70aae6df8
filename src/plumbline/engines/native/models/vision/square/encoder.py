"""Run a tower and a projector over the pixels of one image, with one loop over its layers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from plumbline.engines.native.models.linear import Linear
from plumbline.engines.native.models.vision.interface import Fetch, UnwantedError
from plumbline.engines.native.models.vision.layers import ACTIVATIONS, Norm, attend, cut
from plumbline.engines.native.models.vision.square.description import (
    LlavaProjector,
    PoolingProjector,
    SquareVision,
    Tower,
)

__all__ = ["SquareEncoder"]


@dataclass(frozen=True, slots=True)
class _Layer:
    before_mixer: Norm
    qkv: Linear
    out: Linear
    before_feed_forward: Norm
    up: Linear
    down: Linear


class SquareEncoder:
    """The tower and the projector of a model. Stateless, so any thread may call it."""

    def __init__(self, vision: SquareVision, fetch: Fetch, dtype: torch.dtype) -> None:
        """Take the description, the weights that it asks for, and the type of the text."""
        self.vision = vision
        self._dtype = dtype
        tower, projector = vision.tower, vision.projector
        width, weights = tower.hidden_size, _Weights(tower, fetch)
        patch = 3 * tower.patch_size**2
        kernel = fetch(
            "vision_tower.embeddings.patch_embedding.weight", (width, 3, tower.patch_size, tower.patch_size)
        )
        bias = (
            fetch("vision_tower.embeddings.patch_embedding.bias", (width,))
            if tower.kind == "siglip"
            else None
        )
        self._patches = Linear(kernel.view(width, patch), bias)
        self._positions = fetch("vision_tower.embeddings.position_embedding.weight", (tower.positions, width))
        self._class: Tensor | None = None
        self._first_norm: Norm | None = None
        if tower.kind == "clip":
            self._class = fetch("vision_tower.embeddings.class_embedding", (width,))
            self._first_norm = weights.norm("pre_layrnorm")
        self._layers = [weights.layer(index) for index in range(vision.last_layer)]
        self._activation = ACTIVATIONS[tower.activation]
        self._project: Callable[[Mapping[int, Tensor]], Tensor]
        if isinstance(projector, PoolingProjector):
            self._project = _Pooling(vision, projector, weights, fetch)
        else:
            self._project = _TwoLayers(vision, projector, weights)

    @property
    def row_bytes(self) -> int:
        """See `VisionEncoder.row_bytes`."""
        return self.vision.hidden_size * self._dtype.itemsize

    @torch.inference_mode()
    def encode(self, pixels: Tensor, is_wanted: Callable[[], bool] = lambda: True) -> Tensor:
        """See `VisionEncoder.encode`."""
        tower = self.vision.tower
        x = self._embed(pixels.to(self._positions.device, self._positions.dtype))
        states = {0: x}
        for index, layer in enumerate(self._layers, 1):
            if not is_wanted():
                raise UnwantedError
            x = x + self._attend(layer.before_mixer(x), layer, tower)
            x = x + layer.down(self._activation(layer.up(layer.before_feed_forward(x))))
            states[index] = x
        return self._project(states).to(self._dtype)

    def _embed(self, pixels: Tensor) -> Tensor:
        """Return the rows before the first layer."""
        rows = self._patches(cut(pixels, self.vision.tower.patch_size))
        if self._class is not None:
            rows = torch.cat((self._class.unsqueeze(0), rows))
        rows = rows + self._positions
        return rows if self._first_norm is None else self._first_norm(rows)

    def _attend(self, x: Tensor, layer: _Layer, tower: Tower) -> Tensor:
        # [rows, 3, heads, head width]
        q, k, v = layer.qkv(x).view(len(x), 3, tower.heads, -1).unbind(1)
        return layer.out(attend(q, k, v))


class _Weights:
    """Fetch the weights of a tower's layers."""

    def __init__(self, tower: Tower, fetch: Fetch) -> None:
        self._tower, self._fetch = tower, fetch

    def norm(self, name: str) -> Norm:
        shape = (self._tower.hidden_size,)
        name = f"vision_tower.{name}"
        return Norm(self._fetch(f"{name}.weight", shape), self._fetch(f"{name}.bias", shape), self._tower.eps)

    def linear(self, name: str, outputs: int, inputs: int, *, bias: bool = True) -> Linear:
        weight = self._fetch(f"{name}.weight", (outputs, inputs))
        return Linear(weight, self._fetch(f"{name}.bias", (outputs,)) if bias else None)

    def layer(self, index: int) -> _Layer:
        tower = self._tower
        width, prefix = tower.hidden_size, f"encoder.layers.{index}"
        projections = [f"vision_tower.{prefix}.self_attn.{name}_proj" for name in "qkv"]
        weights = [self._fetch(f"{name}.weight", (width, width)) for name in projections]
        biases = [self._fetch(f"{name}.bias", (width,)) for name in projections]
        return _Layer(
            before_mixer=self.norm(f"{prefix}.layer_norm1"),
            qkv=Linear(torch.cat(weights), torch.cat(biases)),
            out=self.linear(f"vision_tower.{prefix}.self_attn.out_proj", width, width),
            before_feed_forward=self.norm(f"{prefix}.layer_norm2"),
            up=self.linear(f"vision_tower.{prefix}.mlp.fc1", tower.width, width),
            down=self.linear(f"vision_tower.{prefix}.mlp.fc2", width, tower.width),
        )


class _TwoLayers:
    """LLaVA's projector."""

    def __init__(self, vision: SquareVision, projector: LlavaProjector, weights: _Weights) -> None:
        size, inputs = vision.hidden_size, vision.tower.hidden_size * len(projector.layers)
        self._projector = projector
        self._first = weights.linear("multi_modal_projector.linear_1", size, inputs, bias=projector.bias)
        self._second = weights.linear("multi_modal_projector.linear_2", size, size, bias=projector.bias)
        self._between = ACTIVATIONS[projector.activation]

    def __call__(self, states: Mapping[int, Tensor]) -> Tensor:
        rows = torch.cat([states[index] for index in self._projector.layers], dim=-1)
        return self._second(self._between(self._first(rows[1:] if self._projector.drops_first else rows)))


class _Pooling:
    """Gemma's projector."""

    def __init__(
        self, vision: SquareVision, projector: PoolingProjector, weights: _Weights, fetch: Fetch
    ) -> None:
        width = vision.tower.hidden_size
        self._side, self._square, self._eps = vision.tower.side, projector.side, projector.eps
        self._last = weights.norm("post_layernorm")
        self._norm = fetch("multi_modal_projector.mm_soft_emb_norm.weight", (width,)).float() + 1.0
        projection = fetch("multi_modal_projector.mm_input_projection_weight", (width, vision.hidden_size))
        self._linear = Linear(projection.t().contiguous())

    def __call__(self, states: Mapping[int, Tensor]) -> Tensor:
        rows = self._last(states[max(states)])
        square = rows.t().reshape(1, -1, self._side, self._side)
        pooled = F.avg_pool2d(square, self._square).flatten(2)[0].t()
        normed = F.rms_norm(pooled.float(), self._norm.shape, self._norm, self._eps)
        return self._linear(normed.to(rows.dtype))
