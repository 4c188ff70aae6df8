"""Which tokens the next step computes: one token budget and no phases.

Every running request has computed some of its tokens and wants the rest; a step hands out tokens of one budget: first
to requests that need exactly one (decodes, so that a long prompt never stalls a stream), then to those that need more
(prefill chunks, recomputation), then to waiting requests in order of (priority, arrival).

Admission looks ahead (LightLLM's estimate, ASPLOS 2025): a request is let in while the predicted peak of held blocks
fits the pool. The prediction can be wrong, so preemption is the backstop: the last request in order gives its blocks
back and recomputes later, which changes no token of its output because draws are keyed by (seed, position).
"""

from __future__ import annotations

from bisect import insort
from dataclasses import dataclass, field

from plumbline.engines.native.config import EngineConfig
from plumbline.engines.native.kv_blocks import BlockPool, root_hash
from plumbline.engines.request import RequestState

__all__ = ["Scheduled", "Scheduler", "StepPlan"]


@dataclass(frozen=True, slots=True)
class Scheduled:
    """One request's share of a step: `count` tokens from position `start`; `draws` if they reach its end."""

    state: RequestState
    start: int
    count: int
    draws: bool


@dataclass(frozen=True, slots=True)
class StepPlan:
    """What one step does. The first `num_decodes` entries compute one token each."""

    entries: list[Scheduled]
    num_decodes: int
    num_tokens: int
    preempted: list[RequestState] = field(default_factory=list)
    """Requests that lost their blocks (and their slot) while this plan was made."""


class Scheduler:
    """Owns the queues and the block pool. Not thread-safe: the engine thread owns it."""

    def __init__(self, config: EngineConfig) -> None:
        self.config = config
        self.pool = BlockPool(
            config.num_blocks, config.block_size, enable_caching=config.enable_prefix_caching
        )
        self.running: list[RequestState] = []
        self.waiting: list[RequestState] = []
        self.num_preemptions = 0
        self.prefix_queries = 0
        self.prefix_hits = 0
        self._mean_output = float(config.expected_output_len)

    @property
    def has_work(self) -> bool:
        """Something runs or waits."""
        return bool(self.running or self.waiting)

    def add(self, state: RequestState) -> None:
        """Put a request into the waiting queue."""
        insort(self.waiting, state, key=_key)

    def plan(self) -> StepPlan:
        """Hand out the budget of one step. An empty plan with work left cannot happen: one request always fits."""
        budget = self.config.max_num_batched_tokens
        preempted: list[RequestState] = []
        entries: list[Scheduled] = []

        # Decodes. The victim of a preemption is the last in order, so it never is one that already got its token.
        position = 0
        while position < len(self.running):
            state = self.running[position]
            if state.num_tokens - state.num_computed_tokens == 1 and budget > 0:
                while not self._grow(state, 1):
                    victim = self.running[-1]
                    self._preempt(victim, preempted)
                    if victim is state:
                        break
                else:
                    entries.append(Scheduled(state, state.num_computed_tokens, 1, draws=True))
                    budget -= 1
            position += 1
        num_decodes = len(entries)

        # Chunks of the rest. They wait for blocks rather than preempt a decode; only when nothing at all could be
        # scheduled does the last in order make room, so there is always progress.
        position = 0
        while position < len(self.running) and budget > 0:
            state = self.running[position]
            wanted = state.num_tokens - state.num_computed_tokens
            if wanted > 1:
                count = min(wanted, budget)
                grown = self._grow(state, count)
                while not grown and not entries and self.running[-1] is not state:
                    self._preempt(self.running[-1], preempted)
                    grown = self._grow(state, count)
                if grown:
                    entries.append(Scheduled(state, state.num_computed_tokens, count, draws=count == wanted))
                    budget -= count
            position += 1

        if not preempted:
            budget = self._admit(entries, budget)
        return StepPlan(entries, num_decodes, self.config.max_num_batched_tokens - budget, preempted)

    def advance(self, entry: Scheduled) -> None:
        """Book the computed tokens of an entry and remember the blocks that became full."""
        state = entry.state
        state.num_computed_tokens = entry.start + entry.count
        size = self.config.block_size
        full = state.num_computed_tokens // size
        hashes = state.block_hashes
        while len(hashes) < full:
            index = len(hashes)
            parent = hashes[-1] if hashes else root_hash(state.request.cache_salt)
            tokens = state.token_ids[index * size : (index + 1) * size]
            hashes.append(self.pool.remember(state.block_ids[index], parent, tokens))

    def remove(self, state: RequestState) -> None:
        """Take a request out of its queue and free its blocks, whatever it was doing."""
        if state in self.running:
            self.running.remove(state)
        elif state in self.waiting:
            self.waiting.remove(state)
        self._release(state)
        if state.finish_reason in ("stop", "length"):
            self._mean_output += 0.05 * (state.num_output_tokens - self._mean_output)

    def check_integrity(self) -> None:
        """Assert the pool's books against the block tables of all requests.

        Raises:
            RuntimeError: a block was lost or is held twice.
        """
        self.pool.check_integrity([state.block_ids for state in (*self.running, *self.waiting)])

    def _admit(self, entries: list[Scheduled], budget: int) -> int:
        while self.waiting and budget > 0 and len(self.running) < self.config.max_num_seqs:
            state = self.waiting[0]
            # Prompt logprobs need the logits of every prompt position, so such a request computes all of them.
            hit: tuple[list[int], list[bytes]] = ([], [])
            if state.prompt_logprobs is None:
                hit = self.pool.match_prefix(state.token_ids, state.request.cache_salt)
            blocks, hashes = hit
            cached = len(blocks) * self.config.block_size
            if self.running and not self._fits(state):
                break
            self.pool.hold(blocks)
            state.block_ids, state.block_hashes = blocks, hashes
            state.num_computed_tokens = cached
            wanted = state.num_tokens - cached
            count = min(wanted, budget)
            if not self._grow(state, count):
                self._release(state)
                break
            if not state.started:
                state.started = True
                state.num_cached_tokens = cached
                self.prefix_queries += state.num_tokens
                self.prefix_hits += cached
            self.waiting.pop(0)
            insort(self.running, state, key=_key)
            entries.append(Scheduled(state, cached, count, draws=count == wanted))
            budget -= count
        return budget

    def _fits(self, candidate: RequestState) -> bool:
        """Whether the predicted peak of held tokens fits the pool with this request let in.

        If requests end in order of their remaining output r_1 >= r_2 >= ..., then at the moment when the i-th ends the
        first i hold sum(held_1..i) + i * r_i tokens. The largest of these is the peak.
        """
        size = self.config.block_size
        rows = sorted(
            ((self._remaining(state), state.num_tokens) for state in (*self.running, candidate)), reverse=True
        )
        peak = held = 0
        for index, (remaining, used) in enumerate(rows, start=1):
            held += used
            # Half a block of slack a request is the mean of what its last block leaves unused.
            peak = max(peak, held + index * (remaining + size // 2))
        return peak <= self.config.num_blocks * size

    def _remaining(self, state: RequestState) -> int:
        expected = max(self._mean_output * 1.5 - state.num_output_tokens, self.config.block_size)
        return min(state.max_len - state.num_tokens, int(expected))

    def _grow(self, state: RequestState, count: int) -> bool:
        """Give the request the blocks for its next `count` tokens; False (and nothing changed) if there are none."""
        needed = -(-(state.num_computed_tokens + count) // self.config.block_size) - len(state.block_ids)
        if needed <= 0:
            return True
        blocks = self.pool.allocate(needed)
        if blocks is None:
            return False
        state.block_ids.extend(blocks)
        return True

    def _preempt(self, state: RequestState, preempted: list[RequestState]) -> None:
        self.running.remove(state)
        self._release(state)
        insort(self.waiting, state, key=_key)
        preempted.append(state)
        self.num_preemptions += 1

    def _release(self, state: RequestState) -> None:
        self.pool.free(state.block_ids)
        state.block_ids = []
        state.block_hashes = []
        state.num_computed_tokens = 0


def _key(state: RequestState) -> tuple[int, int]:
    return state.key
