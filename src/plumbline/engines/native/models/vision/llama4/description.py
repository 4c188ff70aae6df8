"""Describe the tower of Llama 4 and the tokens of an image, which has tiles and is a tile itself."""

from __future__ import annotations

from dataclasses import dataclass

from plumbline.engines.native.models.vision.interface import Encode, Vision
from plumbline.engines.native.models.vision.layout import ImageLayout, Part

__all__ = ["IMAGE", "Llama4Vision", "Tower"]

IMAGE = "<|image|>"
"""An image in a prompt; among its tokens, the tile that shows all of it."""
_START, _END = "<|image_start|>", "<|image_end|>"
_BESIDE, _BELOW = "<|tile_x_separator|>", "<|tile_y_separator|>"
"""Between the tiles of a line, and after each line."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tower:
    """A transformer over the patches of a tile and a class token after them; heads are rotated by column and line."""

    hidden_size: int
    width: int
    """Of feed-forward blocks."""
    layers: int
    heads: int
    image_size: int
    """Pixels of a side of a tile."""
    patch_size: int
    merge: int
    """Patches of a side of a square, which become one row."""
    adapter: int
    """The width of the two layers after the tower."""
    theta: float
    """The base of the rotation."""

    @property
    def side(self) -> int:
        """Patches of a side of a tile."""
        return self.image_size // self.patch_size

    @property
    def rows(self) -> int:
        """Rows of a tile in the text."""
        return (self.side // self.merge) ** 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Llama4Vision(Vision):
    """How Llama 4 reads images.

    The pixels of an image with several tiles have one more column of tiles, whose first one is the whole image.
    """

    tower: Tower

    def grid(self, height: int, width: int) -> tuple[int, int]:
        """Return the lines and columns of tiles beside the one of the whole image, of pixels of this size."""
        size = self.tower.image_size
        columns = width // size - 1
        return (height // size if columns else 0), columns

    def layout(self, height: int, width: int, encode: Encode) -> ImageLayout:
        """See `Vision.layout`."""
        lines, columns = self.grid(height, width)
        tokens, parts, rows = [*encode(_START)], list[Part](), self.tower.rows
        for number in range(lines * columns + 1):
            if number == lines * columns:
                tokens += encode(IMAGE)
            parts.append(Part(len(tokens), number * rows, rows))
            tokens += [self.token] * rows
            if number < lines * columns:
                tokens += encode(_BELOW if (number + 1) % columns == 0 else _BESIDE)
        return ImageLayout((*tokens, *encode(_END)), tuple(parts))

    @property
    def unused(self) -> tuple[str, ...]:
        """See `Vision.unused`."""
        return ()
