"""Run the steps of the native engine: schedule, forward, sample, return chunks.

The core is synchronous, so tests drive it directly. Its clock decides only how prompts are cut into steps (`pace.py`).
`plumbline.engines.threaded.threaded_engine` runs it on a thread.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Sequence

import msgspec
import numpy as np

from plumbline.engines.constraints.grammar import Matcher
from plumbline.engines.filters.processors import RequestProcessors
from plumbline.engines.native.cuda import device_works
from plumbline.engines.native.engine_config import EngineConfig
from plumbline.engines.native.runner import Drawn, Runner
from plumbline.engines.native.scheduling.pace import PromptPace
from plumbline.engines.native.scheduling.scheduler import Scheduled, Scheduler, StepPlan
from plumbline.engines.native.scheduling.snapshots import StateSnapshots
from plumbline.engines.native.scheduling.speculation import Speculator
from plumbline.engines.native.slots import Slots
from plumbline.engines.request import PlacedAdapter, PlacedImage, RequestState
from plumbline.engines.sampling.masks import MaskWorker
from plumbline.engines.sampling.rows import upload
from plumbline.engines.sampling.sampler import TokensInFlight
from plumbline.engines.threaded.request_core import RequestCore
from plumbline.port.engine import EngineStats, GenerateRequest, TokenLogprob
from plumbline_kernels._backend import compiled_since, num_compiled

__all__ = ["EngineCore"]

_log = logging.getLogger("plumbline.engines")


class EngineCore(RequestCore):
    """Schedule requests onto a runner. One thread owns it."""

    def __init__(
        self,
        config: EngineConfig,
        runner: Runner,
        eos_token_ids: frozenset[int],
        clock: Callable[[], float] = time.perf_counter,
        texts: Sequence[bytes] = (),
        placeholders: frozenset[int] = frozenset(),
    ) -> None:
        """Take what a step needs.

        Args:
            config: the limits.
            runner: computes.
            eos_token_ids: the model's ends of sequence.
            clock: returns seconds.
            texts: the bytes of each token, for better proposals.
            placeholders: the tokens of images, which are never proposed.
        """
        self._pace = PromptPace(runner.attention_share)
        self._clock = clock
        snapshots = None
        if runner.has_states and config.num_snapshots and config.enable_prefix_caching:
            snapshots = StateSnapshots(config.max_num_seqs, config.num_snapshots, config.block_size)
        elif runner.has_states:
            config = msgspec.structs.replace(config, enable_prefix_caching=False)
        # A state cannot go back to where a proposal was wrong. On a GPU last bits depend on the batch in any case,
        # unless it is exact, so a token that is verified is as good as one that is drawn alone.
        verifies = runner.is_exact or runner.device.type == "cuda"
        speculates = config.speculation and verifies and not runner.has_states
        speculator = Speculator(runner.vocab_size, texts, clock, placeholders) if speculates else None
        self.scheduler = Scheduler(config, self._pace, speculator, snapshots)
        super().__init__(self.scheduler, eos_token_ids=eos_token_ids, max_model_len=config.max_model_len)
        self.config = config
        self._runner = runner
        self._slots = Slots(config, runner.device)
        self._masks = MaskWorker(runner.vocab_size)
        self.adapters: dict[str, PlacedAdapter] = {}
        """The adapters that requests name, by their names."""
        self._compiled = 0
        """Variants that the thread had compiled before the step."""
        self.late_variants = 0
        """Variants of kernels that steps compiled: a request waited for each."""
        self._launched: tuple[StepPlan, TokensInFlight] | None = None
        """The step that the device computes while the host is behind."""

    def add(
        self,
        request: GenerateRequest,
        matcher: Matcher | None = None,
        images: tuple[PlacedImage, ...] = (),
        processors: RequestProcessors | None = None,
    ) -> None:
        """Take a request that has been checked; its adapter must be in `adapters`."""
        super().add(request, matcher, images, processors)
        if request.adapter is not None:
            self._states[request.request_id].adapter = self.adapters[request.adapter]

    def _step(self) -> None:
        """Plan a step and run it; while the device computes plain decodes, launch those that follow them.

        The host is a step behind the device then: it knows the tokens of a step when the next one has been launched.
        """
        began, self._compiled = self._clock(), num_compiled()
        launched, self._launched = self._launched, None
        # If all requests of a step have left, a failure of it must not end another one.
        if launched is not None and any(entry.state.slot >= 0 for entry in launched[0].entries):
            plan, tokens = launched
            self._launched = self._follow(plan, tokens)
            drawn = tokens.wait()
            self._settle(plan, Drawn(drawn, [None] * len(drawn)))
            self._count(plan, began)
            return
        plan = self.scheduler.plan()
        self._release(plan.preempted)
        if not plan.entries:
            self._late.wait(self.scheduler.running)
            return
        for entry in plan.entries:
            if entry.state.slot < 0:
                self._slots.assign(entry.state)
                self._runner.admit(entry.state)
                if entry.state.snapshot is not None:
                    self._runner.copy_state(entry.state.snapshot, entry.state.slot)
        inputs = self._slots.stage(plan)
        if self._runner.can_launch(inputs):
            self._launched = plan, self._runner.launch(inputs, self._slots)
            return
        self._masks.start(inputs.draw_states, inputs.draw_masks)
        self._runner.forward(inputs)
        self._settle(plan, self._runner.sample(inputs, self._slots, self._masks.wait()))
        awaited = bool(inputs.draw_states or inputs.prompt_rows)
        if not awaited and not self._pace.knows(plan.scores):
            # Wait for it once, else all of a long prompt would be cut as if nothing were known.
            awaited = device_works(inputs.token_ids.device)
        self._count(plan, began, awaited=awaited or inputs.token_ids.device.type == "cpu")

    def _follow(self, plan: StepPlan, tokens: TokensInFlight) -> tuple[StepPlan, TokensInFlight] | None:
        """Launch the decodes that follow those of a step, if nothing must be known before."""
        following = self.scheduler.follow(plan)
        if following is None:
            return None
        last, going = tokens.token_ids, {id(entry.state) for entry in following.entries}
        if len(going) < len(plan.entries):
            rows = [row for row, entry in enumerate(plan.entries) if id(entry.state) in going]
            last = last[upload(np.array(rows), last.device)]
        inputs = self._slots.stage(following, last)
        return following, self._runner.launch(inputs, self._slots)

    def _count(self, plan: StepPlan, began: float, *, awaited: bool = True) -> None:
        """Count a step, and learn from its time; see `PromptPace.observe`."""
        self.num_steps += 1
        seconds = self._clock() - began
        if late := compiled_since(self._compiled):
            # Such a step says nothing of the steps after it.
            self.late_variants += len(late)
            names = ", ".join(sorted(set(late)))
            _log.warning("a step compiled kernels, and its requests waited %.1f s: %s", seconds, names)
            return
        self._pace.observe(plan.prompt_units, plan.scores, seconds, awaited=awaited)
        if self.scheduler.speculator is not None and not plan.prompt_units:
            num_requests = len(plan.entries)
            self.scheduler.speculator.row_cost.observe(num_requests, plan.num_tokens - num_requests, seconds)

    def stats(self) -> EngineStats:
        """See `RequestCore.stats`."""
        return msgspec.structs.replace(super().stats(), late_variants=self.late_variants)

    def has_lost_device(self) -> bool:
        """See `RequestCore.has_lost_device`."""
        return not device_works(self._runner.device)

    def check_integrity(self) -> None:
        """Assert that every block is free, or in as many block tables as its reference count."""
        super().check_integrity()
        self.scheduler.check_integrity()

    def _settle(self, plan: StepPlan, drawn: Drawn) -> None:
        for state, position, entries in drawn.prompt_logprobs:
            # After a preemption or a pause tokens are computed again, in other chunks: some logprobs are already known.
            if state.prompt_logprobs is not None:
                state.prompt_logprobs.extend(entries[len(state.prompt_logprobs) - position :])
        slots: list[int] = []
        last_tokens: list[int] = []
        draws = zip(drawn.token_ids.tolist(), drawn.logprobs, strict=True)
        for entry in plan.entries:
            state = entry.state
            drawn_here = [next(draws) for _ in range(1 + len(entry.proposal.tokens))] if entry.draws else []
            if state.slot < 0:  # It has ended or paused since the launch.
                continue
            if not entry.proposal.tokens:
                self.scheduler.advance(entry)
            if (row := self.scheduler.snapshot(entry)) is not None:
                self._runner.copy_state(state.slot, row)
            if not entry.draws:
                continue
            token = self._take_draws(entry, drawn_here)
            if state.finish_reason is None:
                slots.append(state.slot)
                last_tokens.append(token)
            else:
                self._end([state])
        self._slots.set_last_tokens(np.array(slots, dtype=np.int64), np.array(last_tokens, dtype=np.int64))

    def _take_draws(self, entry: Scheduled, draws: list[tuple[int, TokenLogprob | None]]) -> int:
        """Take the drawn tokens up to the first that was proposed otherwise; returns the last one."""
        state = entry.state
        proposed = entry.proposal.tokens
        accepted = 0
        for token, logprob in draws:
            self._take(state, token, logprob)
            if state.finish_reason is not None or accepted == len(proposed):
                break
            if token != proposed[accepted]:
                break
            accepted += 1
        if proposed:
            self.scheduler.advance(entry, wrong=len(proposed) - accepted)
            self.scheduler.verified(entry, accepted)
        return token

    def _release(self, states: Collection[RequestState]) -> None:
        """Free the slots; the scheduler has freed the blocks."""
        for state in states:
            if state.slot >= 0:
                self._runner.release(state.slot)
                self._slots.release(state)

    def _recover(self, states: Collection[RequestState]) -> None:
        """Free the slots and forget the prefix cache: its blocks may be half written."""
        self._launched = None
        self._release(states)
        self.scheduler.reset_cache()
        self.scheduler.check_integrity()

    def _cache_usage(self) -> float:
        return self.scheduler.pool.num_used / self.scheduler.pool.num_blocks
