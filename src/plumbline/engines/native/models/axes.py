"""Compute the rotary positions of tokens where those of an image have three axes (Qwen-VL).

A token of text has one position. The tokens of an image have the position of the image, that plus their row, and that
plus their column; a `Rope` says which pairs of a head rotate by which. After an image of R rows and C columns the text
goes on max(R, C) positions later, not R * C. So the positions of text after images are shifted by a constant, and only
tokens of images need more than one position.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from plumbline.engines.request import PlacedImage, RequestState

__all__ = ["AxisPositions", "axis_positions"]


def axis_positions(images: Sequence[PlacedImage], start: int, count: int) -> NDArray[np.int64]:
    """Return the positions of `count` tokens of a sequence from token `start` on each axis, int64 [3, count].

    Args:
        images: of the sequence, in order; those without a grid count as text.
        start: the first token.
        count: how many.
    """
    tokens = np.arange(start, start + count, dtype=np.int64)
    found = np.tile(tokens, (3, 1))
    shift = 0
    for image in images:
        if image.grid is None:
            continue
        first = max(image.start, start)
        inside = slice(first - start, max(image.end, start) - start)
        row, column = np.divmod(tokens[inside] - image.start, image.grid[1])
        found[:, inside] = image.start - shift
        found[1, inside] += row
        found[2, inside] += column
        shift += _shortened(image)
        found[:, inside.stop :] = tokens[inside.stop :] - shift
    return found


def _shortened(image: PlacedImage) -> int:
    """Return how many positions fewer than tokens an image takes."""
    return 0 if image.grid is None else len(image.rows) - max(image.grid)


class AxisPositions:
    """Store the shift of positions and the end of the last image of each running request, by slot."""

    def __init__(self, num_slots: int) -> None:
        self._shifts = np.zeros(num_slots, dtype=np.int64)
        """Subtracted from positions after all images."""
        self._ends = np.zeros(num_slots, dtype=np.int64)
        """The position after the last image."""
        self._has_grids = False
        """Whether any request so far had an image with a grid."""

    def assign(self, state: RequestState) -> None:
        """Store the images of a request that has got a slot."""
        grids = [image for image in state.images if image.grid is not None]
        self._has_grids = self._has_grids or bool(grids)
        self._shifts[state.slot] = sum(map(_shortened, grids))
        self._ends[state.slot] = grids[-1].end if grids else 0

    def turned(
        self,
        states: Sequence[RequestState],
        query_start: NDArray[np.int32],
        slots: NDArray[np.int64],
        positions: NDArray[np.int64],
    ) -> tuple[NDArray[np.int64], NDArray[np.int64] | None]:
        """Return the rotary positions of a step's tokens, where -1 - i stands for column i of the second result.

        Args:
            states: the requests of the step.
            query_start: int32 [requests + 1], the first token of each.
            slots: int64 [tokens], the slot of each token.
            positions: int64 [tokens], the position of each token in its sequence.

        Returns:
            int64 [tokens], and int64 [3, M] with the positions on each axis of tokens that have several; None if none
            has.
        """
        if not self._has_grids:
            return positions, None
        found = positions - self._shifts[slots]
        firsts = query_start[:-1]
        several: list[NDArray[np.int64]] = []
        number = 0
        for index in np.nonzero(positions[firsts] < self._ends[slots[firsts]])[0].tolist():
            first, stop = int(query_start[index]), int(query_start[index + 1])
            axes = axis_positions(states[index].images, int(positions[first]), stop - first)
            found[first:stop] = axes[0]
            places = np.nonzero((axes != axes[0]).any(0))[0]
            found[first + places] = np.arange(-1 - number, -1 - number - len(places), -1)
            several.append(axes[:, places])
            number += len(places)
        return found, np.concatenate(several, axis=1) if number else None
