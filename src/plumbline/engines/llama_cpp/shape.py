"""Choose how the cells of llama.cpp's cache are divided among sequences, from the requests as they come.

Attention is cheapest where each sequence has cells of its own, because in a pool it looks at the cells of all sequences
for every token. But each sequence then needs room for the longest one. So the cache begins small, its sequences become
longer and more numerous as requests need it, and a pool is what remains where the memory does not suffice for that.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple

from plumbline.engines.request import RequestState

__all__ = ["CacheShape", "Shapes", "needed"]

_FIRST = 4
"""Requests that the cache is made for at first."""
_FIRST_LENGTH = 1024
"""Tokens of each."""
_ROOM = 256
"""Tokens of growth that a sequence has, or a quarter of its tokens, unless its request ends before."""
_KEPT = 2
"""Sequences for each request that runs, if there is room: half of them hold what finished requests have computed."""
_ENOUGH = 8
"""Requests that run at a time, with which sequences of their own are better than a pool that holds more requests."""


class CacheShape(NamedTuple):
    """How the cells of a cache are divided."""

    num_sequences: int
    length: int
    """Cells of each sequence; of all together in a pool."""
    streams: bool
    """Whether each sequence has cells of its own, which llama.cpp calls streams."""

    @property
    def num_cells(self) -> int:
        """Return the cells of all sequences."""
        return self.num_sequences * self.length if self.streams else self.length

    def holds(self, states: Collection[RequestState]) -> bool:
        """Return whether each of these requests can have a sequence of its own with room to grow."""
        return len(states) <= self.num_sequences and all(needed(state) <= self.length for state in states)


class Shapes:
    """The shapes that a cache may have.

    Args:
        num_cells: cells that the memory holds.
        max_model_len: tokens of a sequence.
        max_running: requests that run at a time.
        max_sequences: the most sequences that llama.cpp can have.
        streams: whether sequences can have cells of their own.
        step: cells by which sequences differ in length.
    """

    def __init__(
        self,
        *,
        num_cells: int,
        max_model_len: int,
        max_running: int,
        max_sequences: int,
        streams: bool = True,
        step: int = 256,
    ) -> None:
        self.num_cells = num_cells
        self._longest = max_model_len
        self._most = min(max_sequences, _KEPT * max_running)
        self._streams = streams
        self._step = step

    def first(self) -> CacheShape:
        """Return the shape of a cache that has no request yet."""
        return self._choose(_FIRST, min(_FIRST_LENGTH, self._longest))

    def choose(self, states: Collection[RequestState]) -> CacheShape:
        """Return the shape for requests that run and wait; in a large cache it has room for twice as many."""
        return self._choose(max(_FIRST, len(states)), max(map(needed, states)))

    def _choose(self, count: int, length: int) -> CacheShape:
        count = min(count, self._most)
        exact = self._padded(length)
        # Twice the length at each step, so that long answers seldom change the shape, but only where there is room.
        for cells, least in ((self._doubled(exact), count), (exact, min(count, _ENOUGH))):
            most = min(self.num_cells // cells, self._most)
            if self._streams and most >= least:
                wanted = _KEPT * (1 << (count - 1).bit_length())
                return CacheShape(min(most, wanted), cells, streams=True)
        pool = min(max(self._longest, self.num_cells), self._longest * self._most)
        return CacheShape(self._most, pool, streams=False)

    def _padded(self, length: int) -> int:
        """Return the cells that llama.cpp takes for a sequence."""
        return -(-length // self._step) * self._step

    def _doubled(self, length: int) -> int:
        return min(self._step << (-(-length // self._step) - 1).bit_length(), self._padded(self._longest))


def needed(state: RequestState) -> int:
    """Return the cells that a request needs for a while."""
    return min(state.max_len, state.num_tokens + max(_ROOM, state.num_tokens // 4))
