"""Place requests in one pool of cells that all sequences use (`kv_unified`), where memory is scarce."""

from __future__ import annotations

from collections.abc import Collection, Iterable

import numpy as np
from numpy.typing import NDArray

from plumbline.engines.llama_cpp.placement import HeldSequence, PlacementLibrary, SharedSequence
from plumbline.engines.llama_cpp.sequences import Sequences
from plumbline.engines.request import RequestState

__all__ = ["Pool"]

_KEPT = 8192
"""Tokens that finished requests leave for others, all together; a longer sequence is kept alone."""

_ROOM = 32
"""Tokens of growth that each running request keeps when another one starts."""


class Pool:
    """Sequences that share cells: a shared beginning is stored once. See `Placement`.

    Args:
        cache: the cache.
        shares: whether requests may share what others have computed.
    """

    def __init__(self, cache: PlacementLibrary, *, shares: bool) -> None:
        self._cache = cache
        self._shares = shares
        self._sequences = Sequences(cache.shape.num_sequences)
        self._running: dict[str, tuple[int, RequestState]] = {}

    def start(self, state: RequestState) -> int:
        """Give a request a free sequence, with what the cache has of its tokens; return how many these are."""
        salt = state.request.cache_salt
        source, shared = -1, 0
        # Prompt logprobs need the logits of every prompt position, so such a request computes all of them.
        if self._shares and state.prompt_logprobs is None:
            running = [
                SharedSequence(sequence, other.token_ids, other.num_computed_tokens)
                for sequence, other in self._running.values()
            ]
            source, shared = self._sequences.longest_prefix(state.token_ids, salt, running)
        sequence = self._sequences.take(salt)
        while sequence is None:
            evicted = self._evict()
            assert evicted is not None, "fewer requests run than there are sequences"
            if evicted == source:
                source, shared = -1, 0
            sequence = self._sequences.take(salt)
        if shared:
            self._cache.copy(source, sequence, shared)
        self._running[state.request.request_id] = sequence, state
        return shared

    def leave(self, state: RequestState, *, keep: bool) -> None:
        """Free the sequence of a request, or keep its computed tokens for others."""
        sequence, _ = self._running.pop(state.request.request_id)
        if not keep or not self._shares or not state.num_computed_tokens:
            self._cache.remove(sequence)
            self._sequences.free(sequence)
            return
        self._sequences.keep(sequence, state.token_ids[: state.num_computed_tokens])
        # Attention looks at every used cell for every token, also at those of other sequences. Without a bound, a
        # decode of the pocket model took twice as long after 64 short requests.
        most = min(self._cache.max_model_len, max(_KEPT, state.num_computed_tokens))
        while self._sequences.num_kept_tokens > most:
            self._evict()

    def sequence(self, request_id: str) -> int:
        """Return the sequence of a running request."""
        return self._running[request_id][0]

    def prepare(self) -> None:
        """Do nothing: a batch may have any sequences."""

    def make_room(self) -> bool:
        """Drop the sequence that was kept longest; False if none is kept."""
        return self._evict() is not None

    def fits(self, states: Collection[RequestState]) -> bool:
        """Return whether the pool can hold these requests and some more tokens of each, if they share nothing."""
        return sum(state.num_tokens + _ROOM for state in states) <= self._cache.shape.num_cells

    def held(self) -> Iterable[HeldSequence]:
        """Return what the sequences hold, the most valuable first."""
        for sequence, state in self._running.values():
            tokens = state.token_ids[: state.num_computed_tokens]
            yield HeldSequence(sequence, tokens, state.request.cache_salt, state)
        yield from self._sequences.kept()

    def restore(self, held: HeldSequence, saved: NDArray[np.uint8] | None) -> bool:
        """Take over what a sequence held; see `Placement`."""
        if held.state is None and self._sequences.num_kept_tokens + len(held.token_ids) > _KEPT:
            return False
        sequence = self._sequences.take(held.salt)
        if sequence is None:
            return False
        if saved is not None and not self._cache.restore(sequence, saved):
            self._sequences.free(sequence)
            return False
        if held.state is None:
            self._sequences.keep(sequence, held.token_ids)
        else:
            self._running[held.state.request.request_id] = sequence, held.state
        return True

    def clear(self) -> None:
        """Forget everything, after the cache has been cleared."""
        self._running.clear()
        self._sequences.clear()

    def check_integrity(self) -> None:
        """Assert that each sequence is free, kept or of a running request."""
        self._sequences.check_integrity()

    def _evict(self) -> int | None:
        evicted = self._sequences.evict()
        if evicted is not None:
            self._cache.remove(evicted)
        return evicted
