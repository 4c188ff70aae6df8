"""Describe Pixtral's tower, its projectors and the tokens of an image, which has lines of any number and length."""

from __future__ import annotations

from dataclasses import dataclass

from plumbline.engines.native.models.vision.interface import Encode, Vision
from plumbline.engines.native.models.vision.layers import Activation
from plumbline.engines.native.models.vision.layout import ImageLayout, Part

__all__ = ["BREAK", "END", "PixtralVision", "Projector", "Tower"]

BREAK, END = "[IMG_BREAK]", "[IMG_END]"
"""The tokens after each line of an image, and after the last one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tower:
    """A transformer over patches in lines, without a mask, whose heads are rotated by line and column."""

    hidden_size: int
    width: int
    """Of feed-forward blocks."""
    layers: int
    heads: int
    patch_size: int
    activation: Activation
    theta: float
    """The base of the rotation."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Projector:
    """Two linear layers; those of Mistral 3 follow a norm and a layer that merges squares of patches."""

    layers: tuple[int, ...]
    """The layers of the tower whose results it reads, side by side: 0 for the embedded patches."""
    merge: int
    """Patches of a side of a square."""
    merger_eps: float | None
    """Of the norm before patches are merged; None for no norm and no merger."""
    activation: Activation
    bias: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class PixtralVision(Vision):
    """How a model reads images with Pixtral's tower."""

    tower: Tower
    projector: Projector

    @property
    def square(self) -> int:
        """Pixels of a side of what becomes a row."""
        return self.tower.patch_size * self.projector.merge

    def layout(self, height: int, width: int, encode: Encode) -> ImageLayout:
        """See `Vision.layout`."""
        lines, columns = height // self.square, width // self.square
        end_of_line, tokens, parts = encode(BREAK), list[int](), []
        for line in range(lines):
            parts.append(Part(len(tokens), line * columns, columns))
            tokens += [self.token] * columns
            tokens += end_of_line if line < lines - 1 else encode(END)
        return ImageLayout(tuple(tokens), tuple(parts))

    @property
    def unused(self) -> tuple[str, ...]:
        """See `Vision.unused`."""
        later = range(max(self.projector.layers), self.tower.layers)
        return tuple(f"vision_tower.transformer.layers.{index}." for index in later)
