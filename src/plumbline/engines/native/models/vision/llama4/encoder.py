"""Run the tower of Llama 4 over the tiles of one image, one after the other, with one loop over its layers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from plumbline.engines.native.models.linear import Linear
from plumbline.engines.native.models.vision.interface import Fetch, UnwantedError
from plumbline.engines.native.models.vision.layers import Norm, Rotation, attend, cut, rotation
from plumbline.engines.native.models.vision.llama4.description import Llama4Vision, Tower

__all__ = ["Llama4Encoder"]

_EPS = 1e-5


@dataclass(frozen=True, slots=True)
class _Layer:
    before_mixer: Norm
    qkv: Linear
    out: Linear
    before_feed_forward: Norm
    up: Linear
    down: Linear


class Llama4Encoder:
    """The tower and the projection of Llama 4. Stateless, so any thread may call it."""

    def __init__(self, vision: Llama4Vision, fetch: Fetch, dtype: torch.dtype) -> None:
        """Take the description, the weights that it asks for, and the type of the text."""
        self.vision = vision
        self._dtype = dtype
        tower = vision.tower
        width = tower.hidden_size
        weights = _Weights(tower, fetch)
        self._patches = weights.linear("patch_embedding.linear", width, 3 * tower.patch_size**2, bias=False)
        self._class = fetch("vision_tower.class_embedding", (width,)).unsqueeze(0)
        self._positions = fetch("vision_tower.positional_embedding_vlm", (tower.side**2 + 1, width))
        self._first_norm = weights.norm("layernorm_pre")
        self._layers = [weights.layer(index) for index in range(tower.layers)]
        self._last_norm = weights.norm("layernorm_post")
        adapter = tower.adapter
        self._first = weights.linear("vision_adapter.mlp.fc1", adapter, tower.width, bias=False)
        self._second = weights.linear("vision_adapter.mlp.fc2", adapter, adapter, bias=False)
        name = "multi_modal_projector.linear_1.weight"
        self._project = Linear(fetch(name, (vision.hidden_size, adapter)))

    @property
    def row_bytes(self) -> int:
        """See `VisionEncoder.row_bytes`."""
        return self.vision.hidden_size * self._dtype.itemsize

    @torch.inference_mode()
    def encode(self, pixels: Tensor, is_wanted: Callable[[], bool] = lambda: True) -> Tensor:
        """See `VisionEncoder.encode`; the rows of the whole image are the last ones."""
        pixels = pixels.to(self._positions.device, self._positions.dtype)
        turn = _rotation(self.vision.tower, self._positions)
        rows = [self._rows(tile, turn, is_wanted) for tile in self._tiles(pixels)]
        return torch.cat(rows).to(self._dtype)

    def _tiles(self, pixels: Tensor) -> Iterator[Tensor]:
        size = self.vision.tower.image_size
        lines, columns = self.vision.grid(*pixels.shape[1:])
        for line in range(lines):
            for column in range(columns):
                yield pixels[:, line * size : (line + 1) * size, column * size : (column + 1) * size]
        yield pixels[:, :size, columns * size :]

    def _rows(self, tile: Tensor, turn: Rotation, is_wanted: Callable[[], bool]) -> Tensor:
        tower = self.vision.tower
        x = torch.cat((self._patches(cut(tile, tower.patch_size)), self._class)) + self._positions
        x = self._first_norm(x)
        for layer in self._layers:
            if not is_wanted():
                raise UnwantedError
            # [rows, 3, heads, head width]
            q, k, v = layer.qkv(layer.before_mixer(x)).view(len(x), 3, tower.heads, -1).unbind(1)
            x = x + layer.out(attend(turn(q), turn(k), v))
            x = x + layer.down(F.gelu(layer.up(layer.before_feed_forward(x))))
        squares, side = tower.side // tower.merge, tower.merge
        merged = self._last_norm(x)[:-1].view(squares, side, squares, side, -1).permute(0, 2, 1, 3, 4)
        adapted = F.gelu(self._first(merged.reshape(squares**2, -1)))
        return self._project(F.gelu(self._second(adapted)))


class _Weights:
    """Fetch the weights of a tower."""

    def __init__(self, tower: Tower, fetch: Fetch) -> None:
        self._tower, self._fetch = tower, fetch

    def norm(self, name: str) -> Norm:
        shape = (self._tower.hidden_size,)
        name = f"vision_tower.{name}"
        return Norm(self._fetch(f"{name}.weight", shape), self._fetch(f"{name}.bias", shape), _EPS)

    def linear(self, name: str, outputs: int, inputs: int, *, bias: bool = True) -> Linear:
        name = f"vision_tower.{name}"
        weight = self._fetch(f"{name}.weight", (outputs, inputs))
        return Linear(weight, self._fetch(f"{name}.bias", (outputs,)) if bias else None)

    def layer(self, index: int) -> _Layer:
        tower, prefix = self._tower, f"model.layers.{index}"
        width = tower.hidden_size
        return _Layer(
            before_mixer=self.norm(f"{prefix}.input_layernorm"),
            qkv=self._qkv(f"vision_tower.{prefix}.self_attn"),
            out=self.linear(f"{prefix}.self_attn.o_proj", width, width),
            before_feed_forward=self.norm(f"{prefix}.post_attention_layernorm"),
            up=self.linear(f"{prefix}.mlp.fc1", tower.width, width),
            down=self.linear(f"{prefix}.mlp.fc2", width, tower.width),
        )

    def _qkv(self, name: str) -> Linear:
        width, heads = self._tower.hidden_size, self._tower.heads
        weights = [self._fetch(f"{name}.{each}_proj.weight", (width, width)) for each in "qkv"]
        biases = [self._fetch(f"{name}.{each}_proj.bias", (width,)) for each in "qkv"]
        # Neighbours are rotated together in the checkpoint, and halves here; scores do not depend on the order.
        for each in (weights, biases):
            each[:2] = [x.view(heads, -1, 2, *x.shape[1:]).transpose(1, 2).reshape(x.shape) for x in each[:2]]
        return Linear(torch.cat(weights), torch.cat(biases))


def _rotation(tower: Tower, like: Tensor) -> Rotation:
    """Return the rotation of the patches of a tile: half of the pairs by column, the others by line, both from 1."""
    half = tower.hidden_size // tower.heads // 2
    rates = tower.theta ** -(torch.arange(0, half, 2, dtype=torch.float32, device=like.device) / half)
    numbers = torch.arange(1, tower.side + 1, device=like.device)
    column, line = numbers.repeat(tower.side), numbers.repeat_interleave(tower.side)
    angles = torch.cat((torch.outer(column, rates), torch.outer(line, rates)), -1)
    # The class token is not rotated.
    return rotation(F.pad(angles, (0, 0, 0, 1)), like)
