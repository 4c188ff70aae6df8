"""Define how requests are placed in llama.cpp's cache, and find the prefixes that they can share.

llama.cpp has two kinds of cache. `pool.Pool` uses one pool of cells for all sequences: it holds any mixture of lengths,
but attention looks at the used cells of all sequences for every token. `streams.Streams` gives each sequence cells of
its own: attention looks at those only, but each sequence needs room for the longest of them (`shape.py`).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from plumbline.engines.llama_cpp.shape import CacheShape
from plumbline.engines.request import RequestState

__all__ = ["HeldSequence", "Placement", "PlacementLibrary", "SharedSequence", "longest_prefix"]

WORTH = 16
"""Tokens that a shared beginning has at least; copying fewer costs more than computing them."""


class PlacementLibrary(Protocol):
    """The methods of `library.Library` that a placement needs."""

    max_model_len: int
    shape: CacheShape

    def copy(self, source: int, target: int, length: int) -> None:
        """All methods mirror `library.Library`."""
        ...

    def truncate(self, sequence: int, length: int) -> None: ...
    def remove(self, sequence: int) -> None: ...
    def restore(self, sequence: int, saved: NDArray[np.uint8]) -> bool: ...


class HeldSequence(NamedTuple):
    """What a sequence holds: tokens of a running request, or of a finished one for others to share."""

    sequence: int
    token_ids: list[int]
    """The computed tokens."""
    salt: str | None
    state: RequestState | None
    """The request, if it runs."""


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

    def fits(self, states: Collection[RequestState]) -> bool:
        """Return whether the cache can hold these requests, and some more tokens of each."""
        ...

    def held(self) -> Iterable[HeldSequence]:
        """Return what the sequences hold, the most valuable first: running requests, then what was used last."""
        ...

    def restore(self, held: HeldSequence, saved: NDArray[np.uint8] | None) -> bool:
        """Take over what a sequence held before the cache was divided anew; False if there is no room.

        Args:
            held: what it held; its number may change.
            saved: its keys and values, from `Library.save`; None if it has computed nothing.
        """
        ...

    def clear(self) -> None:
        """Forget everything, after the cache has been cleared."""
        ...

    def check_integrity(self) -> None:
        """Assert that each sequence is in one state."""
        ...


class SharedSequence(NamedTuple):
    """A sequence that can share its beginning."""

    sequence: int
    token_ids: Sequence[int]
    num_computed: int
    """How many of its tokens the cache has."""


def longest_prefix(
    token_ids: Sequence[int], sources: Iterable[SharedSequence], worth: int = WORTH
) -> tuple[int, int]:
    """Find the sequence that shares the longest beginning with a prompt.

    Returns the sequence and the number of tokens, at most all but one, because the last one must be computed;
    (-1, 0) if none shares `worth` tokens.
    """
    best, most = -1, worth - 1
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
