"""Describe the tower of Gemma 4 and the tokens of an image."""

from __future__ import annotations

from dataclasses import dataclass

from plumbline.engines.native.models.vision.interface import Encode, Vision
from plumbline.engines.native.models.vision.layers import Activation
from plumbline.engines.native.models.vision.layout import ImageLayout

__all__ = ["BOUNDS", "LINEARS", "Gemma4Vision", "Tower"]

LINEARS = (
    *(f"self_attn.{name}_proj" for name in "qkvo"),
    *(f"mlp.{name}_proj" for name in ("gate", "up", "down")),
)
"""The linear layers of a layer."""
BOUNDS = ("input_min", "input_max", "output_min", "output_max")
"""What each of them may have beside its weight."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tower:
    """A transformer over patches, without a mask, with norms around each block; squares of its rows are averaged."""

    hidden_size: int
    width: int
    """Of feed-forward blocks."""
    layers: int
    heads: int
    head_dim: int
    """The first half of a head is rotated by column, the second one by line."""
    patch_size: int
    pool: int
    """Patches of a side of a square."""
    positions: int
    """Lines and columns that have an embedding."""
    activation: Activation
    eps: float
    theta: float
    """The base of the rotations."""
    clipped: bool
    """Whether inputs and outputs of linear layers are clipped to bounds of the checkpoint."""
    standardised: bool
    """Whether averages are shifted and scaled by numbers of the checkpoint."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Gemma4Vision(Vision):
    """How Gemma 4 reads images."""

    tower: Tower
    ends: tuple[int, int]
    """The tokens before and after an image."""

    @property
    def square(self) -> int:
        """Pixels of a side of what becomes a row."""
        return self.tower.patch_size * self.tower.pool

    def layout(self, height: int, width: int, encode: Encode) -> ImageLayout:
        """See `Vision.layout`."""
        count = (height // self.square) * (width // self.square)
        return ImageLayout.within(self.ends[:1], self.token, count, self.ends[1:])

    @property
    def unused(self) -> tuple[str, ...]:
        """See `Vision.unused`; bounds of a tower that does not clip are among them."""
        if self.tower.clipped:
            return ()
        layers = (f"vision_tower.encoder.layers.{index}." for index in range(self.tower.layers))
        return tuple(f"{layer}{name}.{bound}" for layer in layers for name in LINEARS for bound in BOUNDS)
