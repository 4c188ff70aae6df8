"""Project the rows of a tower to rows of the text."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from plumbline.engines.native.models.linear import Linear
from plumbline.engines.native.models.vision.description import Tower
from plumbline.engines.native.models.vision.grid import PatchGrid
from plumbline.engines.native.models.vision.layers import ACTIVATIONS, Activation, RmsNorm
from plumbline.engines.native.models.vision.weights import TowerWeights

__all__ = ["Averages", "Mergers", "PoolingProjector", "Project", "Projector", "Shuffle", "TwoLayers"]

Project = Callable[[Mapping[int, Tensor], PatchGrid], Tensor]
"""Map the results of layers by their number, 0 for the embedded patches, to rows of the text."""


class Projector(ABC):
    """The description of a projector."""

    __slots__ = ()

    def layers_read(self, tower: Tower) -> tuple[int, ...]:
        """Return the layers whose results it reads: 0 stands for the embedded patches."""
        return (tower.layers,)

    @abstractmethod
    def load(self, tower: Tower, hidden_size: int, weights: TowerWeights) -> Project:
        """Fetch its weights; `hidden_size` is the width of the text."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TwoLayers(Projector):
    """Two linear layers over the results of one or several layers, side by side, as in LLaVA.

    Those of Mistral 3 follow a norm and a layer that merges squares of patches.
    """

    layers: tuple[int, ...]
    drops_first: bool = False
    """Whether the first row, CLIP's class token, is left out."""
    activation: Activation
    bias: bool
    merge: int = 1
    """Patches of a side of a square."""
    merger_eps: float | None = None
    """Of the norm before patches are merged; None for no norm and no merger."""

    def layers_read(self, tower: Tower) -> tuple[int, ...]:
        """See `Projector.layers_read`."""
        return self.layers

    def load(self, tower: Tower, hidden_size: int, weights: TowerWeights) -> Project:
        """See `Projector.load`."""
        width, side, prefix = tower.hidden_size, self.merge, "multi_modal_projector"
        merged: Callable[[Tensor, PatchGrid], Tensor] | None = None
        if self.merger_eps is not None:
            norm = RmsNorm(weights.fetch(f"{prefix}.norm.weight", (width,)), self.merger_eps)
            merger = weights.linear(f"{prefix}.patch_merger.merging_layer", width, width * side**2)

            def merged(x: Tensor, grid: PatchGrid) -> Tensor:
                lines, columns = (count // side for count in grid.shape)
                squares = norm(x).view(lines, side, columns, side, width).permute(0, 2, 4, 1, 3)
                return merger(squares.reshape(-1, width * side**2))

        first = weights.linear(f"{prefix}.linear_1", hidden_size, width * len(self.layers), bias=self.bias)
        second = weights.linear(f"{prefix}.linear_2", hidden_size, hidden_size, bias=self.bias)
        between = ACTIVATIONS[self.activation]

        def project(states: Mapping[int, Tensor], grid: PatchGrid) -> Tensor:
            x = torch.cat([states[index] for index in self.layers], -1)
            x = x[1:] if self.drops_first else x
            return second(between(first(x if merged is None else merged(x, grid))))

        return project


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolingProjector(Projector):
    """Gemma 3's: squares of the tower's last rows are averaged, normalised and projected once."""

    side: int
    """Patches of a side of a square."""

    def load(self, tower: Tower, hidden_size: int, weights: TowerWeights) -> Project:
        """See `Projector.load`."""
        width, prefix = tower.hidden_size, "multi_modal_projector"
        last = weights.norm("vision_tower.post_layernorm")
        norm = weights.fetch(f"{prefix}.mm_soft_emb_norm.weight", (width,)).float() + 1.0
        projection = weights.fetch(f"{prefix}.mm_input_projection_weight", (width, hidden_size))
        linear = Linear(projection.t().contiguous())

        def project(states: Mapping[int, Tensor], grid: PatchGrid) -> Tensor:
            rows = last(states[tower.layers])
            square = rows.t().reshape(1, -1, *grid.shape)
            pooled = F.avg_pool2d(square, self.side).flatten(2)[0].t()
            return linear(F.rms_norm(pooled.float(), norm.shape, norm, tower.eps).to(rows.dtype))

        return project


@dataclass(frozen=True, slots=True, kw_only=True)
class Averages(Projector):
    """Gemma 4's: squares of the last rows are averaged, scaled, normalised without a weight and projected once."""

    side: int
    """Patches of a side of a square."""
    standardised: bool
    """Whether averages are shifted and scaled by numbers of the checkpoint."""

    def load(self, tower: Tower, hidden_size: int, weights: TowerWeights) -> Project:
        """See `Projector.load`."""
        width = tower.hidden_size
        standard = [
            weights.fetch(f"vision_tower.{name}", (width,)).float()
            for name in ("std_bias", "std_scale")
            if self.standardised
        ]
        linear = weights.linear("embed_vision.embedding_projection", hidden_size, width)

        def project(states: Mapping[int, Tensor], grid: PatchGrid) -> Tensor:
            x = states[tower.layers]
            # In fp32: fp16 has no numbers so large.
            square = x.view(*grid.shape, -1).float().permute(2, 0, 1)
            averages = F.avg_pool2d(square, self.side).flatten(1).t()
            rows = averages.to(x.dtype).float() * width**0.5
            if standard:
                rows = (rows - standard[0]) * standard[1]
            return linear(RmsNorm(None, tower.eps)(rows.to(x.dtype)))

        return project


@dataclass(frozen=True, slots=True, kw_only=True)
class Shuffle(Projector):
    """Llama 4's: the patches of a square become one row of its adapter, which is projected once."""

    side: int
    """Patches of a side of a square."""
    width: int
    """Of the two layers of the adapter."""

    def load(self, tower: Tower, hidden_size: int, weights: TowerWeights) -> Project:
        """See `Projector.load`."""
        last, side, adapter = (
            weights.norm("vision_tower.layernorm_post"),
            self.side,
            "vision_tower.vision_adapter",
        )
        first = weights.linear(f"{adapter}.mlp.fc1", self.width, tower.width)
        second = weights.linear(f"{adapter}.mlp.fc2", self.width, self.width)
        linear = weights.linear("multi_modal_projector.linear_1", hidden_size, self.width)

        def project(states: Mapping[int, Tensor], grid: PatchGrid) -> Tensor:
            lines, columns = (count // side for count in grid.shape)
            rows = last(states[tower.layers])[:-1]
            squares = rows.view(lines, side, columns, side, -1).permute(0, 2, 1, 3, 4)
            return linear(F.gelu(second(F.gelu(first(squares.reshape(lines * columns, -1))))))

        return project


@dataclass(frozen=True, slots=True, kw_only=True)
class Mergers(Projector):
    """Qwen's: two layers over the patches of each square, of the last rows and of those of further layers."""

    further: tuple[int, ...] = ()
    """The layers, counted from 0, whose results are merged as well, for a layer of the text each."""
    norm: str = "ln_q"
    """Names of tensors."""
    first: str = "mlp.0"
    second: str = "mlp.2"

    def layers_read(self, tower: Tower) -> tuple[int, ...]:
        """See `Projector.layers_read`."""
        return (*(index + 1 for index in self.further), tower.layers)

    def load(self, tower: Tower, hidden_size: int, weights: TowerWeights) -> Project:
        """See `Projector.load`."""
        merged = tower.merge**2
        width = tower.hidden_size * merged

        def merger(prefix: str, *, by_patch: bool) -> Callable[[Tensor], Tensor]:
            norm = weights.norm(f"{prefix}.{self.norm}", tower.hidden_size if by_patch else width)
            first = weights.linear(f"{prefix}.{self.first}", width, width, bias=True)
            second = weights.linear(f"{prefix}.{self.second}", hidden_size, width, bias=True)

            def merge(x: Tensor) -> Tensor:
                rows = (norm(x) if by_patch else x).reshape(len(x) // merged, -1)
                return second(F.gelu(first(rows if by_patch else norm(rows))))

            return merge

        last = merger("visual.merger", by_patch=True)
        deep = [
            merger(f"visual.deepstack_merger_list.{index}", by_patch=False)
            for index in range(len(self.further))
        ]

        def project(states: Mapping[int, Tensor], grid: PatchGrid) -> Tensor:
            parts = [merge(states[index + 1]) for merge, index in zip(deep, self.further, strict=True)]
            return grid.in_order(torch.cat((last(states[tower.layers]), *parts), -1))

        return project
