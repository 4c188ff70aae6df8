"""Run requests on llama.cpp: plan a batch of their tokens, compute it, draw with the shared sampler.

A step spends its budget of tokens first on decodes, so that a long prompt never stalls a stream, then on chunks of
prompts, then on waiting requests in their order. Half of what decodes leave is kept for short prompts, which would wait
until a long one is computed. The cache is divided anew where the requests need it (`shape.py`).
When it is full, kept sequences go first, then the last request in order waits again and is computed anew; draws are
keyed by (seed, position), so preemption does not change the output.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from plumbline.engines.llama_cpp.library import Status
from plumbline.engines.llama_cpp.placement import Placement
from plumbline.engines.llama_cpp.placement import PlacementLibrary as Cells
from plumbline.engines.llama_cpp.pool import Pool
from plumbline.engines.llama_cpp.shape import CacheShape, Shapes
from plumbline.engines.llama_cpp.streams import Streams
from plumbline.engines.request import RequestState
from plumbline.engines.sampling.logprobs import logprob_rows
from plumbline.engines.sampling.masks import MaskWorker
from plumbline.engines.sampling.rows import SamplingRows
from plumbline.engines.sampling.sampler import Sampler
from plumbline.engines.threaded.request_core import RequestCore
from plumbline.engines.threaded.request_queues import RequestQueues

__all__ = ["LlamaCppCore"]

_SCORED = 64
"""Most tokens in a batch with prompt logprobs, over all prompts: each costs a row of logits."""
_LOOKED_AT = 64
"""Waiting requests among which short prompts are looked for."""
_MOVED = 16
"""Tokens that are moved to another shape of the cache in the time that one takes to compute, at least."""


class CoreLibrary(Cells, Protocol):
    """The methods of `library.Library` that the core needs."""

    vocab_size: int
    max_batch: int
    max_running: int
    shapes: Shapes
    eos_token_ids: frozenset[int]
    can_share: bool

    def decode(
        self, token_ids: list[int], positions: list[int], sequences: list[int], wanted: list[bool]
    ) -> Status:
        """All methods mirror `library.Library`."""
        ...

    def reshape(self, shape: CacheShape) -> None: ...
    def save(self, sequence: int, length: int) -> NDArray[np.uint8] | None: ...
    def logits(self, count: int) -> NDArray[np.float32]: ...
    def clear(self) -> None: ...


@dataclass(frozen=True, slots=True)
class _Entry:
    """The tokens of one request in a batch: `count` from `start`."""

    state: RequestState
    start: int
    count: int

    @property
    def draws(self) -> bool:
        """Whether they reach the end, so that a token is drawn."""
        return self.start + self.count == self.state.num_tokens

    @property
    def scores(self) -> bool:
        """Whether the logprobs of its tokens are wanted."""
        return self.state.prompt_logprobs is not None and self.start < self.state.num_prompt_tokens


class _Budget:
    """The tokens that a batch may still take, and its entries."""

    def __init__(self, tokens: int) -> None:
        self.tokens = tokens
        self.kept = 0
        """How many of them are kept for short prompts."""
        self.entries: list[_Entry] = []
        self._scored = _SCORED

    def spend(self, state: RequestState, *, is_long: bool = False) -> None:
        """Add as many of a request's tokens as fit; if none fits, the request waits for the next batch."""
        room = self.tokens - self.kept if is_long else self.tokens
        entry = _Entry(state, state.num_computed_tokens, min(_missing(state), room))
        if entry.scores:
            entry = replace(entry, count=min(entry.count, self._scored))
            self._scored -= entry.count
        if entry.count:
            self.entries.append(entry)
            self.tokens -= entry.count
            if not is_long:
                self.kept = max(0, self.kept - entry.count)


class LlamaCppCore(RequestCore):
    """Schedule requests onto llama.cpp. One thread owns it.

    Args:
        cache: the model and its cache.
        shares_prefixes: whether requests may share what others have computed.
    """

    def __init__(self, cache: CoreLibrary, *, shares_prefixes: bool = True) -> None:
        super().__init__(
            RequestQueues(), eos_token_ids=cache.eos_token_ids, max_model_len=cache.max_model_len
        )
        self._cache = cache
        self._shares = shares_prefixes and cache.can_share
        self._places = self._placement()
        self._num_due = 0
        """Tokens to compute or share before the cache is divided anew for requests that wait."""
        self._lacked_cells = False
        """Whether the cache had no room for the next request."""
        self._sampler = Sampler(cache.vocab_size, torch.device("cpu"))
        self._rows = SamplingRows(cache.max_running)
        self._masks = MaskWorker(cache.vocab_size)

    def check_integrity(self) -> None:
        """Assert that each sequence of the cache is in one state."""
        super().check_integrity()
        self._places.check_integrity()

    def _step(self) -> None:
        """Compute the next batch, and draw for the requests whose tokens it completes."""
        self._divide()
        admits = True
        while True:
            entries = self._plan(admits)
            if not entries:
                self._late.wait(self.queues.running)
                return
            self._places.prepare()
            entries.sort(key=self._sequence)
            drawing = [entry.state for entry in entries if entry.draws]
            self._masks.start(drawing)
            if self._decode(entries) == "done":
                break
            self._masks.wait()
            self._make_room()
            admits = False
        self.num_steps += 1
        self._num_due -= sum(entry.count for entry in entries)
        self._settle(entries, drawing)

    # Dividing the cache

    def _placement(self) -> Placement:
        place = Streams if self._cache.shape.streams else Pool
        return place(self._cache, shares=self._shares)

    def _divide(self) -> None:
        """Divide the cache anew where requests need it: at once for one that runs, later for one that waits."""
        running, waiting, shape = self.queues.running, self.queues.waiting, self._cache.shape
        overflows = shape.streams and any(state.num_tokens > shape.length for state in running)
        if not overflows and (not waiting or (running and self._num_due > 0)):
            return
        states = [*running, *waiting][: self._cache.max_running]
        wanted = self._cache.shapes.choose(states)
        suits = wanted.streams == shape.streams and (
            not wanted.streams or shape.holds(states[: wanted.num_sequences])
        )
        if overflows or not suits:
            self._reshape(wanted)

    def _reshape(self, wanted: CacheShape) -> None:
        """Divide the cache anew, and move what it holds, as far as the memory holds both."""
        room = self._cache.shapes.num_cells - wanted.num_cells
        saved = []
        for held in self._places.held():
            room -= len(held.token_ids)
            cells = None
            if held.token_ids and room >= 0:
                cells = self._cache.save(held.sequence, len(held.token_ids))
            saved.append((held, cells))
        self._cache.reshape(wanted)
        self._places = self._placement()
        self._num_due = 0
        for held, cells in saved:
            moved = (cells is not None or not held.token_ids) and self._places.restore(held, cells)
            self._num_due += len(held.token_ids) // (_MOVED if moved else 1)
            if held.state is not None and not moved:
                self.queues.preempt(held.state)
                self._drop_slot(held.state)
                held.state.num_computed_tokens = 0

    # Planning

    def _plan(self, admits: bool) -> list[_Entry]:
        budget = _Budget(self._cache.max_batch)
        running, waiting = self.queues.running, self.queues.waiting
        if admits and (self._lacked_cells or len(running) >= self._cache.max_running):
            self._lacked_cells = (
                False  # Until the next one has been looked at, or each step takes another place.
            )
            self._make_way(self._cache.max_batch // 2)
        prompts = [state for state in running if _missing(state) > 1 and not state.is_late]
        for state in running:
            if _missing(state) == 1 and not state.is_late:
                budget.spend(state)
        admits = admits and len(running) < self._cache.max_running
        short = [*filter(self._is_short, prompts), *(self._short_waiting() if admits else ())]
        budget.kept = min(budget.tokens // 2, sum(map(_missing, short)))
        for state in sorted(prompts, key=self._is_short):  # Long ones first, with what is not kept.
            budget.spend(state, is_long=not self._is_short(state))
        while admits and budget.tokens and waiting and len(running) < self._cache.max_running:
            state = self._candidate(only_short=budget.tokens <= budget.kept)
            if state.is_late:
                break
            self._lacked_cells = bool(running) and not self._places.fits([*running, state])
            if self._lacked_cells:
                break
            is_long = not self._is_short(state)
            self._start(state)
            budget.spend(state, is_long=is_long)
        return budget.entries

    def _is_short(self, state: RequestState) -> bool:
        return _missing(state) <= self._cache.max_batch // 2

    def _short_waiting(self) -> list[RequestState]:
        """Return waiting requests with short prompts, of no later priority than the first."""
        waiting = self.queues.waiting[:_LOOKED_AT]
        return [
            state
            for state in waiting
            if self._is_short(state) and state.request.priority == waiting[0].request.priority
        ]

    def _candidate(self, *, only_short: bool) -> RequestState:
        """Return the waiting request to admit next: a short one, if there is any, where all that is left is kept."""
        state = self.queues.fairest()
        if only_short and not self._is_short(state) and (short := self._short_waiting()):
            return self.queues.fairest(short)
        return state

    def _start(self, state: RequestState) -> None:
        """Give a request a slot and a sequence, with what the cache has of its tokens."""
        state.num_computed_tokens = self._places.start(state)
        self._num_due -= state.num_computed_tokens
        self.queues.start(state, state.num_computed_tokens)
        self._rows.assign(state)
        self._sampler.admit(state)

    def _make_room(self) -> None:
        """Free cells: what was kept longest, else the last request of the client with the most, which waits again."""
        if self._places.make_room():
            return
        if len(self.queues.running) < 2:
            raise RuntimeError("the cache cannot hold one sequence")
        state = self.queues.last_of_most(1)
        self.queues.preempt(state)
        self._leave(state, keep=False)

    def _leave(self, state: RequestState, *, keep: bool) -> None:
        """Take slot and sequence from a request; others may share its tokens if they are kept."""
        self._drop_slot(state)
        self._places.leave(state, keep=keep)
        state.num_computed_tokens = 0

    def _drop_slot(self, state: RequestState) -> None:
        self._sampler.release(state.slot)
        self._rows.release(state)

    def _release(self, states: Collection[RequestState]) -> None:
        for state in states:
            if state.slot >= 0:
                self._leave(state, keep=True)

    def _recover(self, states: Collection[RequestState]) -> None:
        """Free the slots, and clear the cache, which may hold half a batch."""
        for state in states:
            if state.slot >= 0:
                self._drop_slot(state)
        self._cache.clear()
        self._places.clear()

    def _cache_usage(self) -> float:
        # The engine thread may end a request meanwhile, so this is a copy.
        used = sum(state.num_computed_tokens for state in list(self.queues.running))
        return min(1.0, used / self._cache.shapes.num_cells)

    # Computing

    def _decode(self, entries: list[_Entry]) -> Status:
        tokens: list[int] = []
        positions: list[int] = []
        sequences: list[int] = []
        wanted: list[bool] = []
        for entry in entries:
            end = entry.start + entry.count
            tokens += entry.state.token_ids[entry.start : end]
            positions += range(entry.start, end)
            sequences += [self._sequence(entry)] * entry.count
            wanted += [entry.scores] * (entry.count - 1) + [entry.scores or entry.draws]
        return self._cache.decode(tokens, positions, sequences, wanted)

    def _sequence(self, entry: _Entry) -> int:
        return self._places.sequence(entry.state.request.request_id)

    def _settle(self, entries: list[_Entry], drawing: list[RequestState]) -> None:
        """Read the logits of a batch: score prompts, draw, and make the chunks."""
        counts = [entry.count if entry.scores else int(entry.draws) for entry in entries]
        logits = self._cache.logits(sum(counts)) if any(counts) else np.zeros((0, 1), np.float32)
        draw_rows: list[int] = []
        row = 0
        for entry, count in zip(entries, counts, strict=True):
            entry.state.num_computed_tokens = entry.start + entry.count
            if entry.scores:
                _score(entry, logits[row : row + count])
            row += count
            if entry.draws:
                draw_rows.append(row - 1)
        masks = self._masks.wait()
        if not drawing:
            return
        slots = np.fromiter((state.slot for state in drawing), np.int64, len(drawing))
        # A copy: the sampler overwrites its rows, and the next batch overwrites the rows of llama.cpp.
        rows = torch.from_numpy(logits[draw_rows])
        token_ids, logprobs = self._sampler.draw(rows, drawing, slots, self._rows, masks)
        for state, token, logprob in zip(drawing, token_ids.tolist(), logprobs, strict=True):
            self._take(state, token, logprob)
            if state.finish_reason is not None:
                self._end([state])


def _missing(state: RequestState) -> int:
    return state.num_tokens - state.num_computed_tokens


def _score(entry: _Entry, logits: NDArray[np.float32]) -> None:
    """Append the logprobs of the prompt tokens after each token of an entry, unless they are known from before."""
    state = entry.state
    if state.prompt_logprobs is None:
        return
    # After a preemption or a pause tokens are computed again, in other chunks.
    known = len(state.prompt_logprobs)
    following = state.token_ids[known : min(entry.start + entry.count + 1, state.num_prompt_tokens)]
    if not following:
        return
    first = known - 1 - entry.start
    normalised = torch.log_softmax(torch.from_numpy(logits[first : first + len(following)].copy()), dim=-1)
    tops = [state.sampling.prompt_logprobs or 0] * len(following)
    state.prompt_logprobs += logprob_rows(normalised, torch.tensor(following), tops, ranks=True)
