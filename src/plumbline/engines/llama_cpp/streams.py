"""Place requests where each sequence has cells of its own, which llama.cpp calls streams.

llama.cpp computes sequences together only if their numbers follow each other; a gap costs another pass over the
weights. So the running requests are kept in one window of the numbers: a new one fills a gap or comes to an end of the
window, and a gap that is left before a step takes the request from the end. A copy between streams moves all cells of
one, which costs far less than to compute a few tokens again.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from plumbline.engines.llama_cpp.placement import (
    WORTH,
    HeldSequence,
    PlacementLibrary,
    SharedSequence,
    longest_prefix,
)
from plumbline.engines.request import RequestState

__all__ = ["Streams"]

_COPIED = 128
"""Cells that are copied in the time that one token takes to compute, at least: the pocket model and one of 155 M."""


class _Kept(NamedTuple):
    """The computed tokens of a finished request."""

    token_ids: list[int]
    salt: str | None
    used: int
    """When it was left or shared last, by a counter."""


class Streams:
    """Sequences with cells of their own. See `Placement`.

    Args:
        cache: the cache.
        shares: whether requests may share what others have computed.
    """

    def __init__(self, cache: PlacementLibrary, *, shares: bool) -> None:
        self._cache = cache
        self._shares = shares
        self._held: list[RequestState | _Kept | None] = [None] * cache.shape.num_sequences
        self._running: dict[str, int] = {}
        self._clock = 0

    def start(self, state: RequestState) -> int:
        """Give a request a sequence next to the running ones; return how many of its tokens the cache has already."""
        source, shared = -1, 0
        # Prompt logprobs need the logits of every prompt position, so such a request computes all of them.
        if self._shares and state.prompt_logprobs is None:
            worth = max(WORTH, self._cache.shape.length // _COPIED)
            source, shared = longest_prefix(state.token_ids, self._sources(state.request.cache_salt), worth)
        self._touch(source)
        target = min(self._open(), key=lambda sequence: (sequence != source, *self._worth(sequence)))
        if target == source:
            self._cache.truncate(target, shared)
        else:
            self._put_aside(target, but=source)
            if shared:
                self._cache.copy(source, target, shared)
        self._held[target] = state
        self._running[state.request.request_id] = target
        return shared

    def leave(self, state: RequestState, *, keep: bool) -> None:
        """Free the sequence of a request, or keep its computed tokens for others."""
        sequence = self._running.pop(state.request.request_id)
        if not keep or not self._shares or not state.num_computed_tokens:
            self._drop(sequence)
            return
        kept = state.token_ids[: state.num_computed_tokens]
        self._held[sequence] = _Kept(kept, state.request.cache_salt, 0)
        self._touch(sequence)

    def sequence(self, request_id: str) -> int:
        """Return the sequence of a running request."""
        return self._running[request_id]

    def prepare(self) -> None:
        """Move requests from the end of the window into its gaps."""
        for gap in self._gaps():
            last = max(self._running.values())
            if last < gap:
                return
            state = self._held[last]
            assert isinstance(state, RequestState)
            self._put_aside(gap)
            if state.num_computed_tokens:
                self._cache.copy(last, gap, state.num_computed_tokens)
            self._held[gap] = state
            self._running[state.request.request_id] = gap
            self._drop(last)

    def make_room(self) -> bool:
        """Return False: no request needs the cells of others."""
        return False

    def fits(self, states: Collection[RequestState]) -> bool:
        """Return whether each request can have a sequence, and the sequences are long enough."""
        return self._cache.shape.holds(states)

    def held(self) -> Iterable[HeldSequence]:
        """Return what the sequences hold, the most valuable first."""
        for request_id, sequence in self._running.items():
            state = self._held[sequence]
            assert isinstance(state, RequestState), request_id
            tokens = state.token_ids[: state.num_computed_tokens]
            yield HeldSequence(sequence, tokens, state.request.cache_salt, state)
        kept = [
            (held.used, number, held) for number, held in enumerate(self._held) if isinstance(held, _Kept)
        ]
        for _, sequence, held in sorted(kept, reverse=True):
            yield HeldSequence(sequence, held.token_ids, held.salt, None)

    def restore(self, held: HeldSequence, saved: NDArray[np.uint8] | None) -> bool:
        """Take over what a sequence held; see `Placement`."""
        if None not in self._held or len(held.token_ids) > self._cache.shape.length:
            return False
        sequence = self._held.index(None)
        if saved is not None and not self._cache.restore(sequence, saved):
            return False
        if held.state is None:
            # What comes later was used earlier.
            self._held[sequence] = _Kept(held.token_ids, held.salt, -sequence)
        else:
            self._held[sequence] = held.state
            self._running[held.state.request.request_id] = sequence
        return True

    def clear(self) -> None:
        """Forget everything, after the cache has been cleared."""
        self._held = [None] * len(self._held)
        self._running.clear()

    def check_integrity(self) -> None:
        """Assert that each running request has its sequence, and no other has."""
        running = {
            held.request.request_id: sequence
            for sequence, held in enumerate(self._held)
            if isinstance(held, RequestState)
        }
        assert running == self._running, (running, self._running)

    def _sources(self, salt: str | None) -> Iterable[SharedSequence]:
        """Yield what requests of this salt have computed."""
        for sequence, held in enumerate(self._held):
            if isinstance(held, _Kept) and held.salt == salt:
                yield SharedSequence(sequence, held.token_ids, len(held.token_ids))
            elif isinstance(held, RequestState) and held.request.cache_salt == salt:
                yield SharedSequence(sequence, held.token_ids, held.num_computed_tokens)

    def _gaps(self) -> list[int]:
        """Return the sequences between running ones that do not run."""
        numbers = self._running.values()
        return sorted(set(range(min(numbers), max(numbers))) - set(numbers)) if numbers else []

    def _open(self) -> Iterable[int]:
        """Return the sequences that a new request may take: any, a gap, or one next to the window."""
        if not self._running:
            return range(len(self._held))
        numbers = self._running.values()
        adjacent = (min(numbers) - 1, max(numbers) + 1)
        return self._gaps() or [sequence for sequence in adjacent if 0 <= sequence < len(self._held)]

    def _worth(self, sequence: int) -> tuple[bool, int]:
        """Return a key by which an empty sequence comes first, then what was used longest ago."""
        held = self._held[sequence]
        return (True, held.used) if isinstance(held, _Kept) else (False, 0)

    def _touch(self, sequence: int) -> None:
        """Note that a kept sequence is used now."""
        self._clock += 1
        if sequence >= 0 and isinstance(held := self._held[sequence], _Kept):
            self._held[sequence] = held._replace(used=self._clock)

    def _put_aside(self, sequence: int, but: int = -1) -> None:
        """Empty a sequence that does not run; what is kept there goes where it replaces nothing used later."""
        held = self._held[sequence]
        if isinstance(held, _Kept):
            others = [
                other
                for other, its in enumerate(self._held)
                if other not in (sequence, but) and not isinstance(its, RequestState)
            ]
            target = min(others, key=self._worth, default=sequence)
            if self._worth(target) < self._worth(sequence):
                self._drop(target)
                self._cache.copy(sequence, target, len(held.token_ids))
                self._held[target] = held
        self._drop(sequence)

    def _drop(self, sequence: int) -> None:
        self._cache.remove(sequence)
        self._held[sequence] = None
