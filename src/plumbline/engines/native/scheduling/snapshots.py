"""Keep the states of prompts' beginnings, so that models whose layers keep one have a prefix cache.

Keys and values are kept for each token, so a later request goes on behind any block. A state is known where a chunk of
a prompt ends, and nowhere else. Chunks are cut at two places, whose states are copied to rows that requests do not use:

* behind the last whole block of a prompt, where the next turn of a conversation goes on;
* where the blocks end that other prompts have left, such as those of a system prompt (Marconi, arXiv 2411.19379).

The least recently used row is taken for the next state.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

from plumbline.engines.request import RequestState

__all__ = ["StateSnapshots"]

LEAST = 256
"""Tokens before a place where a chunk is cut: a step more would take longer than it saves for a short prompt."""


class StateSnapshots:
    """Know which rows have the states behind which blocks.

    Args:
        first: the first row.
        count: rows.
        block_size: tokens of a block.
    """

    def __init__(self, first: int, count: int, block_size: int) -> None:
        self._size = block_size
        self._free = list(range(first, first + count))
        self._rows: OrderedDict[bytes, int] = OrderedDict()
        """By the hash of the block before the state, the least recently used first."""

    def __len__(self) -> int:
        """How many states are kept."""
        return len(self._rows)

    def begin(self, state: RequestState, hashes: Sequence[bytes]) -> int:
        """Prepare a request for its first chunk.

        Args:
            state: gets the row of its beginning's state, and the ends of chunks whose states are wanted.
            hashes: of the cached blocks at its beginning.

        Returns:
            How many of these blocks have a state behind the last one.
        """
        known = next((n for n in range(len(hashes), 0, -1) if hashes[n - 1] in self._rows), 0)
        state.snapshot = self._used(hashes[known - 1]) if known else None
        ends = {len(hashes) * self._size, (state.num_tokens - 1) // self._size * self._size}
        least = max(LEAST, known * self._size + 1)
        state.snapshot_ends = tuple(
            sorted(end for end in ends if end >= least and not _within_whole(state, end))
        )
        return known

    def cut(self, state: RequestState, start: int, count: int) -> int:
        """Return how many of `count` tokens from `start` are computed before a state is copied."""
        return next((end - start for end in state.snapshot_ends if start < end < start + count), count)

    def keep(self, state: RequestState) -> int | None:
        """Return the row for the state of a request behind its computed tokens, if it is wanted and not known."""
        if state.num_computed_tokens not in state.snapshot_ends:
            return None
        name = state.block_hashes[-1]
        if name in self._rows:
            self._used(name)
            return None
        row = self._free.pop() if self._free else self._rows.popitem(last=False)[1]
        self._rows[name] = row
        return row

    def clear(self) -> None:
        """Forget all states."""
        self._free += self._rows.values()
        self._rows.clear()

    def _used(self, name: bytes) -> int:
        self._rows.move_to_end(name)
        return self._rows[name]


def _within_whole(state: RequestState, place: int) -> bool:
    """Return whether a place is within an image that one step must compute."""
    return any(image.whole and image.start < place < image.end for image in state.images)
