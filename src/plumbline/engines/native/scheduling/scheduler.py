"""Schedule the tokens of each step from one token budget, without separate prefill and decode phases.

A step spends its budget in this order:

1. decodes: requests that need exactly one token, so that a long prompt never stalls a stream; with few of them, tokens
   that are proposed to follow are verified as well (`speculation.py`);
2. chunks: requests that need more (prefill, recomputation after a preemption), as far as the time allows (`pace.py`);
   beside a prompt that takes longer than half of it, up to half is kept for prompts that fit;
3. admissions: waiting requests in order of (priority, arrival), from the client with the fewest running ones first.

A request is admitted while the predicted peak of used blocks fits the pool (LightLLM's estimate, ASPLOS 2025). When the
prediction was wrong, the last request of the client with the most is preempted: it frees its blocks and recomputes
later. Its output does not change, because draws are keyed by (seed, position).
"""

from __future__ import annotations

from dataclasses import dataclass, field

from plumbline.engines.native.engine_config import EngineConfig
from plumbline.engines.native.scheduling.kv_blocks import BlockPool, block_content, root_hash
from plumbline.engines.native.scheduling.pace import PromptBudget, PromptPace, missing
from plumbline.engines.native.scheduling.snapshots import StateSnapshots
from plumbline.engines.native.scheduling.speculation import MOST_SPECULATING, NOTHING, Proposal, Speculator
from plumbline.engines.request import RequestState
from plumbline.engines.threaded.request_queues import RequestQueues

__all__ = ["Scheduled", "Scheduler", "StepPlan"]

_OUTPUT_AVERAGE_WEIGHT = 0.05
"""Weight of a finished request in the moving average of output lengths: about the last 20 requests count."""
_LOOKED_AT = 32
"""Waiting requests among which short prompts are looked for."""
_OUTPUT_SAFETY = 1.5
"""Admission expects outputs this many times as long as the average, because a preemption costs a recomputation."""


@dataclass(frozen=True, slots=True)
class Scheduled:
    """The tokens of one request in a step: `count` from position `start`; it draws if they reach its end."""

    state: RequestState
    start: int
    count: int
    draws: bool
    proposal: Proposal = NOTHING
    """The last of these tokens, if they are proposed; a token is drawn after each of them and before the first."""


@dataclass(frozen=True, slots=True)
class StepPlan:
    """The entries of one step. The first `num_decodes` compute one token each; those with proposals follow."""

    entries: list[Scheduled]
    num_decodes: int
    num_tokens: int
    prompt_units: float = 0.0
    """What the entries after the decodes cost, in the units of `PromptPace`."""
    scores: bool = False
    """Whether one of them wants the logprobs of its prompt."""
    preempted: list[RequestState] = field(default_factory=list)
    """Requests that lost their blocks (and their slot) while this plan was made."""


class Scheduler(RequestQueues):
    """Own the block pool besides the queues, and plan steps. Not thread-safe: the engine thread owns it."""

    def __init__(
        self,
        config: EngineConfig,
        pace: PromptPace | None = None,
        speculator: Speculator | None = None,
        snapshots: StateSnapshots | None = None,
    ) -> None:
        """Take the limits, and what there is of the rest.

        Without a pace the time of a step is not bounded, without a speculator nothing proposed. A model with states has
        snapshots, if it has a prefix cache.
        """
        super().__init__()
        self.config = config
        self.speculator = speculator
        self._snapshots = snapshots
        self._pace = pace
        self._prompts = PromptBudget(pace, 0, streams=False)
        """Of the step that is planned."""
        self.pool = BlockPool(
            config.num_blocks, config.block_size, enable_caching=config.enable_prefix_caching
        )
        self._mean_output = float(config.expected_output_len)
        self._lacked_blocks = False

    def pause(self, state: RequestState) -> bool:
        """Keep a request out of plans and free what it holds; returns False if it is paused already."""
        paused = super().pause(state)
        if paused:
            self._release(state)
            self._forget(state)
        return paused

    def preempt(self, state: RequestState) -> None:
        """Let a running request wait again, and free its blocks."""
        super().preempt(state)
        self._release(state)

    def plan(self) -> StepPlan:
        """Spend the budget of one step. It is empty only if no request runs or waits but those that sit out."""
        entries: list[Scheduled] = []
        preempted: list[RequestState] = []
        self._make_room(preempted)
        speculating: list[Scheduled] = []
        budget = self._plan_decodes(entries, speculating, preempted, self.config.max_num_batched_tokens)
        num_decodes = len(entries)
        entries += speculating
        prompts = self._prompts = PromptBudget(self._pace, budget, streams=bool(entries))
        self._keep_for_short()
        budget = self._plan_chunks(entries, preempted, budget)
        if not preempted:
            budget = self._admit(entries, budget)
        spent = self.config.max_num_batched_tokens - budget
        return StepPlan(entries, num_decodes, spent, prompts.units, prompts.scores, preempted)

    def follow(self, plan: StepPlan) -> StepPlan | None:
        """Plan the decodes after those of a step whose tokens are not known yet.

        Requests that end with that step at the latest are left out. Of the others one may end by its token; what is
        computed for it then is lost.

        Returns:
            None if the tokens must be known first: some were proposed or may be proposed after them, a request may be
            admitted or preempted, all end, or blocks are missing.
        """
        running = [entry for entry in plan.entries if entry.state.slot >= 0]
        going = [entry for entry in running if entry.state.num_tokens + 1 < entry.state.max_len]
        if len(running) != len(self.running) or not going:
            return None
        if self.waiting and (len(going) < len(running) or self._would_move()):
            return None
        if (speculator := self._speculates(len(running))) is not None and any(
            entry.proposal.tokens or speculator.may_propose(entry.state) for entry in running
        ):
            return None
        if not all(self._grow(entry.state, 2) for entry in going):
            return None
        entries = [Scheduled(entry.state, entry.start + 1, 1, draws=True) for entry in going]
        return StepPlan(entries, len(entries), len(entries))

    def _would_move(self) -> bool:
        """Return whether a plan might admit a waiting request now, or preempt another one for it."""
        if self.surplus(max(self._prompts.half, 1)) is not None:
            return True
        return len(self.running) < self.config.max_num_seqs and self._fits(self._candidate())

    def advance(self, entry: Scheduled, wrong: int = 0) -> None:
        """Record the computed tokens of an entry, but the `wrong` last ones, and hash the blocks that became full."""
        state = entry.state
        state.num_computed_tokens = entry.start + entry.count - wrong
        size = self.config.block_size
        full = state.num_computed_tokens // size
        hashes = state.block_hashes
        while len(hashes) < full:
            index = len(hashes)
            parent = hashes[-1] if hashes else root_hash(state.request.cache_salt, _adapter(state))
            tokens = block_content(state.token_ids, index * size, size, state.images)
            hashes.append(self.pool.remember(state.block_ids[index], parent, tokens))

    def snapshot(self, entry: Scheduled) -> int | None:
        """Return the row to copy the state of a request to after a recorded entry; None if no copy is wanted."""
        return None if self._snapshots is None else self._snapshots.keep(entry.state)

    def verified(self, entry: Scheduled, accepted: int) -> None:
        """Record how many proposed tokens of an entry were right; the request has the drawn tokens by now."""
        assert self.speculator is not None
        self.speculator.observe(entry.state, entry.proposal, accepted)

    def remove(self, state: RequestState) -> None:
        """Forget a request and free its blocks, whichever queue it is in."""
        super().remove(state)
        self._forget(state)
        self._release(state)
        if state.finish_reason in ("stop", "length"):
            self._mean_output += _OUTPUT_AVERAGE_WEIGHT * (state.num_output_tokens - self._mean_output)

    def reset_cache(self) -> None:
        """Forget every cached prefix. Used blocks stay in use."""
        self.pool.reset_cache()
        if self._snapshots is not None:
            self._snapshots.clear()

    def check_integrity(self) -> None:
        """Assert that the pool's counts match the block tables of all requests.

        Raises:
            RuntimeError: a block was lost or is counted twice.
        """
        every = (*self.running, *self.waiting, *self.paused, *self.held_back)
        self.pool.check_integrity([state.block_ids for state in every])

    def _make_room(self, preempted: list[RequestState]) -> None:
        """Preempt the request that should leave its place to one that waits for a place or blocks; see `fairness`."""
        if not self.waiting or not (self._lacked_blocks or len(self.running) >= self.config.max_num_seqs):
            return
        victim = self.surplus(max(self._prompts.half, 1))
        if victim is not None:
            self._lacked_blocks = False
            self._preempt(victim, preempted)

    def _plan_decodes(
        self,
        entries: list[Scheduled],
        speculating: list[Scheduled],
        preempted: list[RequestState],
        budget: int,
    ) -> int:
        """Give one token to each request that needs one, and those that are proposed to some; returns the budget left.

        A preempted request is this one or a later one, so it is never one that has got its token in this step.
        """
        # All running requests have a token before one has more, and prompts have as much as the proposals.
        spare = (budget - len(self.running)) // 2
        # A request that waits for its mask costs the step nothing.
        num_present = sum(not state.is_late for state in self.running)
        speculates = self._speculates(num_present) is not None
        position = 0
        while position < len(self.running):
            state = self.running[position]
            num_tokens = state.num_tokens
            if num_tokens - state.num_computed_tokens == 1 and budget > 0 and not state.is_late:
                while not self._grow(state, 1):
                    victim = self.last_of_most(position)
                    self._preempt(victim, preempted)
                    if victim is state:
                        position -= 1  # The next one has its place in the list.
                        break
                else:
                    proposal = NOTHING
                    if speculates and num_tokens >= state.next_proposal:
                        proposal = self._propose(state, spare, num_present)
                    count = 1 + len(proposal.tokens)
                    entry = Scheduled(state, num_tokens - 1, count, draws=True, proposal=proposal)
                    (speculating if count > 1 else entries).append(entry)
                    spare -= count - 1
                    budget -= count
            position += 1
        return budget

    def _speculates(self, num_present: int) -> Speculator | None:
        return self.speculator if num_present <= MOST_SPECULATING else None

    def _propose(self, state: RequestState, most: int, num_present: int) -> Proposal:
        """Return up to `most` tokens that may follow a request's, with blocks for them."""
        assert self.speculator is not None
        # One token is drawn in any case, and no more than the request may have.
        most = min(most, state.max_len - state.num_tokens - 1)
        proposal = self.speculator.propose(state, most, num_present)
        if not proposal.tokens or self._grow(state, 1 + len(proposal.tokens)):
            return proposal
        return proposal.cut(0)

    def _forget(self, state: RequestState) -> None:
        if self.speculator is not None:
            self.speculator.forget(state)

    def _keep_for_short(self) -> None:
        """Keep tokens of the step for short prompts, which would else wait until a long one is computed."""
        half = self._prompts.half
        if any(missing(state) > max(half, 1) for state in self.running):
            short = [state for state in self.running if 1 < missing(state) <= half]
            if len(self.running) < self.config.max_num_seqs and not self._lacked_blocks:
                short += self._short_waiting()
            self._prompts.keep(short)

    def _short_waiting(self) -> list[RequestState]:
        """Return waiting requests with short prompts, of no later priority than any that runs."""
        last = self.running[-1].request.priority if self.running else 0
        looked_at = self.waiting[:_LOOKED_AT]
        return [
            state
            for state in looked_at
            if missing(state) <= self._prompts.half and state.request.priority <= last
        ]

    def _candidate(self) -> RequestState:
        """Return the waiting request to admit next; only a short one gets what is kept for short ones."""
        state = self.fairest()
        if self._prompts.kept and missing(state) > self._prompts.half and (short := self._short_waiting()):
            return self.fairest(short)
        return state

    def _plan_chunks(self, entries: list[Scheduled], preempted: list[RequestState], budget: int) -> int:
        """Give chunks to requests that need more than one token; returns the budget left.

        Chunks wait for blocks rather than preempt a decode. Only when nothing else could be scheduled is a later
        request preempted, so every step makes progress.
        """
        position = 0
        while position < len(self.running) and budget > 0:
            state = self.running[position]
            needed = state.num_tokens - state.num_computed_tokens
            if needed > 1 and not state.is_late:  # It computes again what it had before a preemption.
                count = self._affordable(state, state.num_computed_tokens, budget)
                if count == 0:
                    break
                grown = self._grow(state, count)
                while not grown and not entries and self.running[-1] is not state:
                    self._preempt(self.last_of_most(position + 1), preempted)
                    grown = self._grow(state, count)
                if grown:
                    self._prompts.spend(state, state.num_computed_tokens, count)
                    entries.append(Scheduled(state, state.num_computed_tokens, count, draws=count == needed))
                    budget -= count
            position += 1
        return budget

    def _admit(self, entries: list[Scheduled], budget: int) -> int:
        """Move waiting requests to running while they fit; returns the budget left."""
        self._lacked_blocks = False
        while self.waiting and budget > 0 and len(self.running) < self.config.max_num_seqs:
            state = self._candidate()
            if state.is_late:
                break
            # Prompt logprobs need the logits of every prompt position, so such a request computes all of them.
            hit: tuple[list[int], list[bytes]] = ([], [])
            if state.prompt_logprobs is None:
                salt = state.request.cache_salt
                hit = self.pool.match_prefix(state.token_ids, salt, _adapter(state), state.images)
            if self._snapshots is not None:
                known = self._snapshots.begin(state, hit[1])
                hit = hit[0][:known], hit[1][:known]
            blocks, hashes = hit
            cached = len(blocks) * self.config.block_size
            if self.running and not self._fits(state):
                self._lacked_blocks = True
                break
            needed = state.num_tokens - cached
            count = self._affordable(state, cached, budget)
            if count == 0:
                break
            self.pool.acquire(blocks)
            state.block_ids, state.block_hashes = blocks, hashes
            state.num_computed_tokens = cached
            if not self._grow(state, count):
                self._release(state)
                self._lacked_blocks = True
                break
            self.start(state, cached)
            self._prompts.spend(state, cached, count)
            entries.append(Scheduled(state, cached, count, draws=count == needed))
            budget -= count
        return budget

    def _affordable(self, state: RequestState, start: int, budget: int) -> int:
        """Return how many tokens of a prompt from `start` the step computes; the entry draws if they are all."""
        count = self._prompts.affordable(state, start, budget)
        return count if self._snapshots is None else self._snapshots.cut(state, start, count)

    def _fits(self, candidate: RequestState) -> bool:
        """Return whether the predicted peak of used tokens fits the pool if this request is admitted.

        Let r_1 >= r_2 >= ... be the remaining outputs. When the i-th request ends, the first i use
        sum(used_1..i) + i * r_i tokens. The largest of these sums is the peak.
        """
        size = self.config.block_size
        rows = sorted(
            ((self._remaining(state), state.num_tokens) for state in (*self.running, candidate)), reverse=True
        )
        peak = total = 0
        for index, (remaining, used) in enumerate(rows, start=1):
            total += used
            # On average half of a request's last block stays unused.
            peak = max(peak, total + index * (remaining + size // 2))
        return peak <= self.config.num_blocks * size

    def _remaining(self, state: RequestState) -> int:
        """Predict how many more tokens a request generates."""
        expected = max(self._mean_output * _OUTPUT_SAFETY - state.num_output_tokens, self.config.block_size)
        return min(state.max_len - state.num_tokens, int(expected))

    def _grow(self, state: RequestState, count: int) -> bool:
        """Allocate blocks for the next `count` tokens; returns False and changes nothing if there are too few."""
        needed = -(-(state.num_computed_tokens + count) // self.config.block_size) - len(state.block_ids)
        if needed <= 0:
            return True
        blocks = self.pool.allocate(needed)
        if blocks is None:
            return False
        state.block_ids.extend(blocks)
        return True

    def _preempt(self, state: RequestState, preempted: list[RequestState]) -> None:
        self.preempt(state)
        preempted.append(state)

    def _release(self, state: RequestState) -> None:
        self.pool.free(state.block_ids)
        state.block_ids = []
        state.block_hashes = []
        state.num_computed_tokens = 0


def _adapter(state: RequestState) -> int:
    """Return the number of a request's adapter, 0 for none."""
    return 0 if state.adapter is None else state.adapter.number
