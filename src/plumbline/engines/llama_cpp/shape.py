"""Choose how the cells of llama.cpp's cache are divided among sequences, from the requests as they come.

Attention is fastest if each sequence has its own cells, because in a pool it visits the cells of all sequences for each
token. But then each sequence needs as many cells as the longest one. So the cache starts small and grows with the
requests: first in the length and number of its sequences, and into a pool if the memory does not suffice.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple

from plumbline.engines.request import RequestState

__all__ = ["CacheShape", "Shapes", "needed"]

_START_REQUESTS = 4
"""Requests that the first cache has room for."""
_START_LENGTH = 1024
"""Tokens of each of them."""
_GROWTH = 256
"""Tokens that a sequence may grow by before the shape changes; a quarter of its tokens if that is more."""
_SEQUENCES_PER_REQUEST = 2
"""Sequences for each running request, if there is room: half of them keep the prefixes of finished requests."""
_MIN_WITHOUT_POOL = 8
"""So many running requests are faster with own cells than more requests in a pool."""


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
        self._most = min(max_sequences, _SEQUENCES_PER_REQUEST * max_running)
        self._streams = streams
        self._step = step

    def first(self) -> CacheShape:
        """Return the shape of a cache that has no request yet."""
        return self._choose(_START_REQUESTS, min(_START_LENGTH, self._longest))

    def choose(self, states: Collection[RequestState]) -> CacheShape:
        """Return the shape for requests that run and wait; in a large cache it has room for twice as many."""
        return self._choose(max(_START_REQUESTS, len(states)), max(map(needed, states)))

    def _choose(self, count: int, length: int) -> CacheShape:
        count = min(count, self._most)
        exact = self._padded(length)
        wanted = _SEQUENCES_PER_REQUEST * (1 << (count - 1).bit_length())
        # Prefer a length rounded up to a power of two, so that long answers seldom change the shape. If not all
        # requests fit with it, take the exact length and fewer requests at a time.
        for cells, least in ((self._doubled(exact), count), (exact, min(count, _MIN_WITHOUT_POOL))):
            most = min(self.num_cells // cells, self._most)
            if self._streams and most >= least:
                return CacheShape(min(most, wanted), cells, streams=True)
        pool = min(max(self._longest, self.num_cells), self._longest * self._most)
        return CacheShape(self._most, pool, streams=False)

    def _padded(self, length: int) -> int:
        """Return the length rounded up to the cells that llama.cpp allocates."""
        return -(-length // self._step) * self._step

    def _doubled(self, length: int) -> int:
        """Return the length rounded up to a power of two steps, at most that of the longest sequence."""
        return min(self._step << (-(-length // self._step) - 1).bit_length(), self._padded(self._longest))


def needed(state: RequestState) -> int:
    """Return the cells that a request needs now, with room to grow."""
    return min(state.max_len, state.num_tokens + max(_GROWTH, state.num_tokens // 4))
