"""Define how requests are placed in llama.cpp's cache, and find the prefixes that they can share.

llama.cpp has two kinds of cache. `pool.Pool` uses one pool of cells for all sequences: it holds any mixture of lengths,
but attention looks at the used cells of all sequences for every token. `streams.Streams` gives each sequence cells of
its own: attention looks at those only, but each sequence needs room for the longest context.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple, Protocol

from plumbline.engines.request import RequestState

__all__ = ["Cache", "Placement", "Source", "longest_prefix"]

_WORTH = 16
"""Tokens that a shared beginning has at least; copying fewer costs more than computing them."""


class Cache(Protocol):
    """The methods of `library.Library` that a placement needs."""

    num_sequences: int
    num_cells: int
    max_model_len: int

    def copy(self, source: int, target: int, length: int) -> None:
        """All methods mirror `library.Library`."""
        ...

    def truncate(self, sequence: int, length: int) -> None: ...
    def remove(self, sequence: int) -> None: ...


class Placement(Protocol):
    """The sequences of a cache, for one thread."""

    def start(self, state: RequestState) -> int:
        """Give a request a sequence; return how many of its tokens the cache has already."""
        ...

    def leave(self, state: RequestState, *, keep: bool) -> None:
        """Take its sequence from a request; others may share its computed tokens if they are kept."""
        ...

    def sequence(self, request_id: str) -> int:
        """Return the sequence of a running request."""
        ...

    def prepare(self) -> None:
        """Bring the sequences into the order that llama.cpp needs for a batch."""
        ...

    def make_room(self) -> bool:
        """Drop what has been kept longest; False if that would give a running request no cells."""
        ...

    def fits(self, states: Iterable[RequestState]) -> bool:
        """Return whether the cache can hold these requests, and some more tokens of each."""
        ...

    def clear(self) -> None:
        """Forget everything, after the cache has been cleared."""
        ...

    def check_integrity(self) -> None:
        """Assert that each sequence is in one state."""
        ...


class Source(NamedTuple):
    """A sequence that can share its beginning."""

    sequence: int
    token_ids: Sequence[int]
    num_computed: int
    """How many of its tokens the cache has."""


def longest_prefix(token_ids: Sequence[int], sources: Iterable[Source]) -> tuple[int, int]:
    """Find the sequence that shares the longest beginning with a prompt.

    Returns the sequence and the number of tokens, at most all but one, because the last one must be computed;
    (-1, 0) if none is worth it.
    """
    best, most = -1, _WORTH - 1
    limit = len(token_ids) - 1
    for source in sources:
        length = min(source.num_computed, limit)
        # Most candidates differ early or agree to the end, so try for more than the best so far at once.
        if length <= most or source.token_ids[: most + 1] != token_ids[: most + 1]:
            continue
        best, most = source.sequence, _common(source.token_ids, token_ids, most + 1, length)
    return (best, most) if best >= 0 else (-1, 0)


def _common(left: Sequence[int], right: Sequence[int], known: int, limit: int) -> int:
    """Return how many tokens two sequences share at the beginning, from `known` to `limit`, by halving."""
    low, high = known, limit
    while low < high:
        middle = (low + high + 1) // 2
        if left[low:middle] == right[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low
