"""Fetch the weights of a tower's layers and of its projector."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import zip_longest

import torch
from torch import Tensor

from plumbline.engines.native.models.linear import Linear
from plumbline.engines.native.models.vision.description import Tower
from plumbline.engines.native.models.vision.layers import LayerNorm, RmsNorm

__all__ = ["BOUNDS", "Fetch", "TowerLayer", "TowerWeights"]

Fetch = Callable[[str, tuple[int, ...]], Tensor]
"""Return a tensor by its name and shape, in the type that the tower runs in."""
BOUNDS = ("input_min", "input_max", "output_min", "output_max")
"""What a clipped linear layer has beside its weight."""
_Rows = Callable[[Tensor], Tensor]
"""Map rows to rows."""
_Parts = Callable[[Tensor], Sequence[Tensor]]
"""Map rows with linear layers, each to its own."""


@dataclass(frozen=True, slots=True)
class TowerLayer:
    """The weights of a layer."""

    before_mixer: _Rows
    qkv: _Parts
    q_norm: _Rows | None
    k_norm: _Rows | None
    out: _Parts
    after_mixer: _Rows | None
    before_feed_forward: _Rows
    up: _Parts
    """The gate and the layer itself, if there is a gate."""
    down: _Parts
    after_feed_forward: _Rows | None


@dataclass(frozen=True, slots=True)
class _Clipped:
    """A linear layer with bounds of its inputs and outputs."""

    linear: _Rows
    bounds: list[float]

    def __call__(self, x: Tensor) -> Tensor:
        least_in, most_in, least_out, most_out = self.bounds
        return self.linear(x.clamp(least_in, most_in)).clamp(least_out, most_out)


class TowerWeights:
    """Fetch the weights of a tower and of a projector."""

    def __init__(self, tower: Tower, fetch: Fetch) -> None:
        self._tower, self.fetch = tower, fetch

    def norm(self, name: str, width: int | None = None) -> LayerNorm | RmsNorm:
        """Fetch a norm of the tower's kind, as wide as the tower by default."""
        shape, eps = (width or self._tower.hidden_size,), self._tower.eps
        weight = self.fetch(f"{name}.weight", shape)
        return (
            RmsNorm(weight, eps)
            if self._tower.rms
            else LayerNorm(weight, self.fetch(f"{name}.bias", shape), eps)
        )

    def linear(self, name: str, outputs: int, inputs: int, *, bias: bool = False) -> Linear:
        """Fetch a linear layer."""
        weight = self.fetch(f"{name}.weight", (outputs, inputs))
        return Linear(weight, self.fetch(f"{name}.bias", (outputs,)) if bias else None)

    def patch_kernel(self) -> Tensor:
        """Fetch what embeds patches, [width, 3 * patch_size * patch_size]."""
        tower = self._tower
        width, size, name = tower.hidden_size, tower.patch_size, f"{tower.names.patches}.weight"
        if tower.patch_kernel == "conv":
            frames = () if tower.frames is None else (tower.frames,)
            kernel = self.fetch(name, (width, 3, *frames, size, size))
            # All frames of an image are equal, so their weights are added up.
            return (kernel.float().sum(2).to(kernel.dtype) if frames else kernel).flatten(1)
        kernel = self.fetch(name, (width, 3 * size**2))
        if tower.patch_kernel == "linear":
            return kernel
        return kernel.view(width, size, size, 3).permute(0, 3, 1, 2).reshape(width, -1)

    def positions(self) -> Tensor | None:
        """Fetch the table of positions: [rows, width], [2, rows, width] or [side, side, width]."""
        tower = self._tower
        if tower.positions is None:
            return None
        count, name = tower.num_positions, tower.names.positions
        if tower.positions == "axes":
            return self.fetch(name, (2, count, tower.hidden_size))
        if tower.positions == "each":
            return self.fetch(name, (count, tower.hidden_size))
        return self.fetch(name, (count**2, tower.hidden_size)).view(count, count, -1).float()

    def layer(self, index: int) -> TowerLayer:
        """Fetch a layer."""
        tower, names = self._tower, self._tower.names
        prefix, width, inner = names.layer.format(index), tower.hidden_size, tower.heads * tower.head_dim

        def norm(name: str, size: int = width) -> LayerNorm | RmsNorm | None:
            return self.norm(prefix + name, size) if name else None

        qkv = tuple(prefix + name for name in names.qkv)
        return TowerLayer(
            before_mixer=self.norm(prefix + names.before_mixer),
            qkv=self._linears(qkv, 3 * inner // len(qkv), width, parts=3, turned=2),
            q_norm=norm(names.q_norm, tower.head_dim),
            k_norm=norm(names.k_norm, tower.head_dim),
            out=self._linears((prefix + names.out,), width, inner),
            after_mixer=norm(names.after_mixer),
            before_feed_forward=self.norm(prefix + names.before_feed_forward),
            up=self._linears(tuple(prefix + name for name in names.up), tower.width, width, len(names.up)),
            down=self._linears((prefix + names.down,), width, tower.width),
            after_feed_forward=norm(names.after_feed_forward),
        )

    def _linears(
        self, names: tuple[str, ...], outputs: int, inputs: int, parts: int = 1, turned: int = 0
    ) -> _Parts:
        """Fetch linear layers of the same inputs, of which the first ones return heads that are rotated."""
        tower = self._tower
        weights = [self.fetch(f"{name}.{tower.names.weight}", (outputs, inputs)) for name in names]
        biases = [self.fetch(f"{name}.bias", (outputs,)) for name in names if tower.bias]
        if not tower.packed:
            apart: list[_Rows] = [Linear(weight, bias) for weight, bias in zip_longest(weights, biases)]
            if tower.clipped:
                bounds = [[float(self.fetch(f"{name}.{bound}", (1,))) for bound in BOUNDS] for name in names]
                apart = [_Clipped(layer, each) for layer, each in zip(apart, bounds, strict=True)]
            return lambda x: [layer(x) for layer in apart]
        if tower.rotation is not None and tower.rotation.neighbours:
            # Scores do not depend on the order of a head's numbers.
            for each in (weights, biases):
                each[:turned] = [
                    x.view(tower.heads, -1, 2, *x.shape[1:]).transpose(1, 2).reshape(x.shape)
                    for x in each[:turned]
                ]
        linear = Linear(torch.cat(weights), torch.cat(biases) if biases else None)
        return lambda x: linear(x).chunk(parts, -1)
