"""Run the steps of the native engine: schedule, forward, sample, return chunks.

The core is synchronous and has no clock, so tests drive it directly and runs are reproducible.
`plumbline.engines.threaded` runs it on a thread.
"""

from __future__ import annotations

import numpy as np

from plumbline.engines.chunks import drawn_chunk
from plumbline.engines.constraints.grammar import Matcher
from plumbline.engines.native.config import EngineConfig
from plumbline.engines.native.runner import Drawn, Runner
from plumbline.engines.native.scheduler import Scheduler, StepPlan
from plumbline.engines.native.slots import Slots
from plumbline.engines.port import EngineStats, GenerateRequest, TokenChunk, TokenLogprob
from plumbline.engines.request import RequestState
from plumbline.engines.sampling.masks import MaskWorker
from plumbline.engines.threaded import Output

__all__ = ["EngineCore"]


class EngineCore:
    """Schedule requests onto a runner. One thread owns it."""

    def __init__(self, config: EngineConfig, runner: Runner, eos_token_ids: frozenset[int]) -> None:
        self.config = config
        self.scheduler = Scheduler(config)
        self._runner = runner
        self._slots = Slots(config, runner.device)
        self._masks = MaskWorker(runner.vocab_size)
        self._eos_token_ids = eos_token_ids
        self._states: dict[str, RequestState] = {}
        self._arrivals = 0
        self.num_steps = 0
        self.prompt_tokens = 0
        self.generation_tokens = 0

    @property
    def has_work(self) -> bool:
        """Whether a request runs or waits; paused ones do neither."""
        return self.scheduler.has_work

    def add(self, request: GenerateRequest, matcher: Matcher | None = None) -> None:
        """Take a request that the port has checked, with the matcher of its grammar if it has one."""
        self._arrivals += 1
        state = RequestState(
            request,
            arrival=self._arrivals,
            eos_token_ids=self._eos_token_ids,
            max_model_len=self.config.max_model_len,
            matcher=matcher,
        )
        self._states[request.request_id] = state
        self.scheduler.add(state)

    def abort(self, request_id: str) -> list[Output]:
        """End a request now; unknown ids, such as that of a request that has just finished, are ignored."""
        state = self._states.get(request_id)
        if state is None:
            return []
        state.finish_reason = "abort"
        self._finish(state)
        self.scheduler.check_integrity()
        return [(request_id, TokenChunk(finish_reason="abort"))]

    def pause(self, request_id: str) -> None:
        """Take a request out of the steps and free its blocks and slot, as a preemption does."""
        state = self._states.get(request_id)
        if state is not None and self.scheduler.pause(state):
            self._drop_slot(state)

    def resume(self, request_id: str) -> None:
        """Queue a paused request again; it recomputes what the prefix cache no longer has."""
        state = self._states.get(request_id)
        if state is not None:
            self.scheduler.resume(state)

    def fail_all(self, error: str) -> list[Output]:
        """End every request with an error after a step has failed, and free all blocks."""
        outputs: list[Output] = []
        for request_id, state in list(self._states.items()):
            state.finish_reason = "error"
            self._finish(state)
            outputs.append((request_id, TokenChunk(finish_reason="error", error=error)))
        self.scheduler.pool.reset_cache()  # The failed step may have left blocks half written.
        self.scheduler.check_integrity()
        return outputs

    def step(self) -> list[Output]:
        """Plan a step, run it and return its chunks."""
        plan = self.scheduler.plan()
        for state in plan.preempted:
            self._drop_slot(state)
        if not plan.entries:
            return []
        for entry in plan.entries:
            if entry.state.slot < 0:
                self._slots.assign(entry.state)
                self._runner.admit(entry.state)
        inputs = self._slots.stage(plan)
        self._masks.start(inputs.draw_states)
        self._runner.forward(inputs)
        outputs = self._settle(plan, self._runner.sample(inputs, self._slots, self._masks.wait()))
        self.num_steps += 1
        return outputs

    def check_integrity(self) -> None:
        """Assert that every block is free or in exactly the block tables that its reference count says."""
        self.scheduler.check_integrity()

    def stats(self) -> EngineStats:
        """Return the counters, read without a lock: they may be one step apart."""
        scheduler = self.scheduler
        return EngineStats(
            alive=True,
            seconds_since_step=0.0,
            num_running=len(scheduler.running),
            num_waiting=len(scheduler.waiting),
            kv_cache_usage=scheduler.pool.num_used / scheduler.pool.num_blocks,
            num_preemptions=scheduler.num_preemptions,
            prefix_cache_queries=scheduler.prefix_queries,
            prefix_cache_hits=scheduler.prefix_hits,
            prompt_tokens=self.prompt_tokens,
            generation_tokens=self.generation_tokens,
            num_steps=self.num_steps,
        )

    def _settle(self, plan: StepPlan, drawn: Drawn) -> list[Output]:
        for state, position, entries in drawn.prompt_logprobs:
            # After a preemption a chunk is computed again, and its logprobs are already known.
            if state.prompt_logprobs is not None and len(state.prompt_logprobs) == position:
                state.prompt_logprobs.extend(entries)
        outputs: list[Output] = []
        slots: list[int] = []
        last_tokens: list[int] = []
        draws = zip(drawn.token_ids.tolist(), drawn.logprobs, strict=True)
        for entry in plan.entries:
            state = entry.state
            self.scheduler.advance(entry)
            if not entry.draws:
                continue
            token, logprob = next(draws)
            outputs.append((state.request.request_id, self._take(state, token, logprob)))
            if state.finish_reason is None:
                slots.append(state.slot)
                last_tokens.append(token)
            else:
                self._finish(state)
        self._slots.set_last_tokens(np.array(slots, dtype=np.int64), np.array(last_tokens, dtype=np.int64))
        return outputs

    def _take(self, state: RequestState, token: int, logprob: TokenLogprob | None) -> TokenChunk:
        """Append a drawn token and count it."""
        if state.num_output_tokens == 0:
            self.prompt_tokens += state.num_prompt_tokens
        chunk = drawn_chunk(state, token, logprob)
        self.generation_tokens += len(chunk.token_ids)
        return chunk

    def _drop_slot(self, state: RequestState) -> None:
        if state.slot >= 0:
            self._runner.release(state.slot)
            self._slots.release(state)

    def _finish(self, state: RequestState) -> None:
        self._drop_slot(state)
        self.scheduler.remove(state)
        del self._states[state.request.request_id]
