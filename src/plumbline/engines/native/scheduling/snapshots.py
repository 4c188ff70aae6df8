"""Cache the states of prompt beginnings, so that models with delta nets or state spaces have a prefix cache.

Keys and values are kept for each token, so a later request can continue after any block. A state is known only where a
chunk of a prompt ends. Chunks are cut at two places, and the states there are copied to rows that no request uses:

* after the last whole block of a prompt, where the next turn of a conversation continues;
* after the cached blocks that a prompt shares with earlier ones, such as a system prompt (Marconi, arXiv 2411.19379).

When all rows are taken, the next state replaces the least recently used one.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

from plumbline.engines.request import RequestState

__all__ = ["StateSnapshots"]

LEAST = 256
"""The first token at which a chunk may be cut: for shorter prompts one more step would take longer than it saves."""


class StateSnapshots:
    """Find the row with the state after a block, by the hash of the block.

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
            state: receives the row with the state of its beginning, and the ends of chunks whose states are wanted.
            hashes: of the cached blocks at its beginning.

        Returns:
            How many of these blocks are used: there is a state after the last of them.
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
        """Return how many of `count` tokens from `start` to compute, so that the chunk ends where a state is wanted."""
        return next((end - start for end in state.snapshot_ends if start < end < start + count), count)

    def keep(self, state: RequestState) -> int | None:
        """Return the row to copy the state after the computed tokens to; None if it is unwanted or known."""
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
