"""Describe the tokens that stand for an image in a prompt, and which of them its rows replace."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from torch import Tensor

__all__ = ["ImageLayout", "Part"]


class Part(NamedTuple):
    """Neighbouring tokens of an image that its rows replace."""

    first: int
    """The index of the first one among the tokens of the image."""
    row: int
    """The row that replaces it."""
    num_rows: int
    grid: tuple[int, int] | None = None
    """Its rows and columns if the text rotates by them."""

    def of(self, rows: Tensor) -> Tensor:
        """Return the part's rows of all of an image's."""
        return rows[self.row : self.row + self.num_rows]


@dataclass(frozen=True, slots=True)
class ImageLayout:
    """The tokens of an image, in the place of its placeholder."""

    token_ids: tuple[int, ...]
    parts: tuple[Part, ...]
    """In order; tokens between them, such as ends of lines, keep their embeddings."""

    @classmethod
    def within(cls, before: tuple[int, ...], token: int, count: int, after: tuple[int, ...]) -> ImageLayout:
        """Return `count` times a token, which rows replace, between others."""
        return cls((*before, *[token] * count, *after), (Part(len(before), 0, count),))

    @classmethod
    def of_grid(cls, token: int, rows: int, columns: int) -> ImageLayout:
        """Return a token for each square of a grid by which the text rotates."""
        return cls((token,) * (rows * columns), (Part(0, 0, rows * columns, (rows, columns)),))

    @property
    def num_rows(self) -> int:
        """How many rows an image becomes."""
        return sum(part.num_rows for part in self.parts)
