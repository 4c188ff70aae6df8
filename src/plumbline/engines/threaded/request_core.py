"""Run the life cycle of requests, which is the same in every core: add, pause, resume, finish, abort, recover.

    add ──► waiting ──► running ──► finished
               ▲  preempt  │ │
               ├───────────┘ │ pause
               └── paused ◄──┘
                 resume

A core adds the memory that a running request holds, and the step.
"""

from __future__ import annotations

import math
import time
from abc import ABC, abstractmethod
from collections.abc import Collection

from plumbline.engines.constraints.grammar import Matcher
from plumbline.engines.filters.processors import RequestProcessors
from plumbline.engines.request import PlacedImage, RequestState
from plumbline.engines.sampling.late_masks import LateMasks
from plumbline.engines.threaded.request_queues import RequestQueues
from plumbline.engines.threaded.trials import Trials
from plumbline.port.engine import EngineStats, GenerateRequest, TokenChunk, TokenLogprob

__all__ = ["Output", "RequestCore"]

Output = tuple[str, TokenChunk]
"""A request id and the next chunk of that request."""


_LONG_TOKEN = 0.001
"""Seconds; a token advances ordinary grammars within a tenth of it."""
_NO_TOKEN = "the model computed no number for any next token (NaN): its weights or its type of numbers may be at fault"


class RequestCore(ABC):
    """The synchronous part of an engine. One thread owns it; other threads only call `stats`.

    Args:
        queues: the requests.
        eos_token_ids: the model's ends of sequence.
        max_model_len: the longest sequence, in tokens.
    """

    def __init__(self, queues: RequestQueues, *, eos_token_ids: frozenset[int], max_model_len: int) -> None:
        self.queues = queues
        self._trials = Trials(queues)
        self._eos_token_ids = eos_token_ids
        self._max_model_len = max_model_len
        self._states: dict[str, RequestState] = {}
        self._late = LateMasks()
        self._constrained: dict[int, RequestState] = {}
        """The requests with a matcher that have taken tokens in this step."""
        self._arrivals = 0
        self._outputs: list[Output] = []
        """The chunks of the step so far, kept if it raises: the last chunk of a request may be among them."""
        self.num_steps = 0
        self.prompt_tokens = 0
        self.generation_tokens = 0

    @property
    def has_work(self) -> bool:
        """Whether a step would compute something."""
        return self.queues.has_work

    def add(
        self,
        request: GenerateRequest,
        matcher: Matcher | None = None,
        images: tuple[PlacedImage, ...] = (),
        processors: RequestProcessors | None = None,
    ) -> None:
        """Take a request that has been checked, with the matcher of its grammar, its images and its processors."""
        self._arrivals += 1
        state = RequestState(
            request,
            arrival=self._arrivals,
            eos_token_ids=self._eos_token_ids,
            max_model_len=self._max_model_len,
            matcher=matcher,
            images=images,
            processors=processors,
        )
        self._states[request.request_id] = state
        self.queues.add(state)

    def abort(self, request_id: str) -> list[Output]:
        """End a request now; unknown ids are ignored, such as the id of a request that has just finished."""
        state = self._states.get(request_id)
        if state is None:
            return []
        state.finish_reason = "abort"
        self._end([state])
        self.check_integrity()
        return [(request_id, TokenChunk(finish_reason="abort"))]

    def abort_unbegun(self, request_id: str) -> list[Output]:
        """End a request that waits and was never computed; others are left alone."""
        state = self._states.get(request_id)
        never_ran = state is not None and state in self.queues.waiting and not state.queued_seconds
        return self.abort(request_id) if never_ran else []

    def pause(self, request_id: str) -> None:
        """Compute nothing for a request until `resume`, and leave its place to others; unknown ids are ignored."""
        state = self._states.get(request_id)
        if state is not None and self.queues.pause(state):
            self._release([state])

    def resume(self, request_id: str) -> None:
        """Queue a paused request again, at the place of its arrival; other ids are ignored."""
        state = self._states.get(request_id)
        if state is not None:
            self.queues.resume(state)

    def step(self) -> list[Output]:
        """Compute the next tokens; if this raises, `recover` must follow."""
        self._trials.before_step()
        self._step()
        for state in self._constrained.values():
            self._late.follow(state)
        self._constrained.clear()
        passed = self._trials.after_step()
        if passed is not None:
            self._preempt(passed)
        return self._pop_outputs()

    def recover(self, error: str) -> list[Output]:
        """Go on after a step that raised; also returns the chunks of that step.

        The request that makes steps fail ends with the error. If it is not known yet, the requests are computed again
        one at a time; their answers stay as they are.
        """
        outputs = self._pop_outputs()
        self._constrained.clear()
        ended = {request_id for request_id, chunk in outputs if chunk.finish_reason is not None}
        queues = self.queues
        # The first waiting request is also a suspect: admitting it may be what failed.
        suspects = [*queues.running, *queues.waiting[:1]]
        suspects = [state for state in suspects if state.request.request_id not in ended]
        if len(suspects) == 1:
            (state,) = suspects
            state.finish_reason = "error"
            outputs.append((state.request.request_id, TokenChunk(finish_reason="error", error=error)))
            ended.add(state.request.request_id)
        known = [*self._states.values()]
        for state in known:
            if state.request.request_id in ended:
                queues.remove(state)
                del self._states[state.request.request_id]
            elif state in queues.running:
                queues.preempt(state)
                state.num_computed_tokens = 0
        self._recover(known)
        self._trials.begin(suspects if len(suspects) > 1 else ())
        return outputs

    def check_integrity(self) -> None:
        """Assert that every request is in one queue; cores also check their memory. Called when idle."""
        queues = self.queues
        every = (*queues.running, *queues.waiting, *queues.paused, *queues.held_back)
        queued = [state.request.request_id for state in every]
        assert sorted(queued) == sorted(self._states), (queued, list(self._states))

    def stats(self) -> EngineStats:
        """Return the counters, read without a lock: they may be one step apart. `ThreadedEngine` adds its own."""
        queues = self.queues
        return EngineStats(
            alive=True,
            seconds_since_step=0.0,
            num_running=len(queues.running),
            num_waiting=len(queues.waiting) + len(queues.held_back),
            kv_cache_usage=self._cache_usage(),
            num_preemptions=queues.num_preemptions,
            prefix_cache_queries=queues.prefix_queries,
            prefix_cache_hits=queues.prefix_hits,
            prompt_tokens=self.prompt_tokens,
            generation_tokens=self.generation_tokens,
            num_steps=self.num_steps,
        )

    def has_lost_device(self) -> bool:
        """Return whether the device computes nothing any more for this process; asked after a step that raised."""
        return False

    @abstractmethod
    def _step(self) -> None:
        """Compute the next tokens, and `_take` each."""

    def _take(self, state: RequestState, token: int, logprob: TokenLogprob | None) -> None:
        """Append a drawn token, count it and emit its chunk; `_end` must follow if `state.finish_reason` is set.

        A negative token says that none could be drawn, because the logits are NaN: the request ends with an error.
        """
        if token < 0:
            state.finish_reason = "error"
            self._outputs.append(
                (state.request.request_id, TokenChunk(finish_reason="error", error=_NO_TOKEN))
            )
            return
        if state.num_output_tokens == 0:
            self.prompt_tokens += state.num_prompt_tokens
        began = 0.0 if state.matcher is None else time.perf_counter()
        state.drew = state.drew or time.perf_counter()
        chunk = _drawn_chunk(state, token, logprob)
        self.generation_tokens += len(chunk.token_ids)
        self._outputs.append((state.request.request_id, chunk))
        if state.matcher is not None:
            self._constrained[id(state)] = state
            took = time.perf_counter() - began
            if took > _LONG_TOKEN and any(
                each.matcher is None or not each.matcher.may_be_slow for each in self.queues.running
            ):
                self._late.rest(took)

    def _pop_outputs(self) -> list[Output]:
        outputs, self._outputs = self._outputs, []
        return outputs

    def _end(self, states: Collection[RequestState]) -> None:
        """Release what requests hold that have finished, and forget them."""
        # In this order, so that `recover` knows of them if the release raises.
        self._release(states)
        for state in states:
            self.queues.remove(state)
            del self._states[state.request.request_id]

    def _preempt(self, state: RequestState) -> None:
        """Let a running request wait again; it is computed anew."""
        self.queues.preempt(state)
        self._release([state])
        state.num_computed_tokens = 0

    def _make_way(self, long: float = math.inf) -> None:
        """Let the request wait again that should leave its place to the next waiting one, if there is one.

        Args:
            long: see `RequestQueues.surplus`.
        """
        if (state := self.queues.surplus(long)) is not None:
            self._preempt(state)

    @abstractmethod
    def _release(self, states: Collection[RequestState]) -> None:
        """Free what requests hold that do not run any more; those that never ran hold nothing."""

    def _recover(self, states: Collection[RequestState]) -> None:
        """Free what the requests held when a step failed, which may be half written."""
        self._release(states)

    def _cache_usage(self) -> float:
        """Return which part of the KV cache is used, 0 to 1."""
        return 0.0


def _drawn_chunk(state: RequestState, token: int, logprob: TokenLogprob | None) -> TokenChunk:
    """Append a drawn token to a request and return its chunk; the first one also carries the facts of the prompt.

    `state.finish_reason` is set if it is the last.
    """
    first = state.num_output_tokens == 0
    token_ids: tuple[int, ...] = ()
    logprobs: tuple[TokenLogprob, ...] | None = None
    if state.max_len == state.num_prompt_tokens:
        # `max_tokens=0` asks for the prompt's logprobs alone: the draw is not part of the answer.
        state.finish_reason = "length"
    else:
        state.append(token)
        token_ids = (token,)
        logprobs = None if logprob is None else (logprob,)
    if state.finish_reason == "error":
        refused = state.processors is None or not state.processors.failed
        return TokenChunk(finish_reason="error", error=state.error, refused=refused)
    hidden: tuple[float, ...] = ()
    if state.hidden_state is not None and state.finish_reason is not None:
        hidden = tuple(state.hidden_state.tolist())
    if not first:
        return TokenChunk(
            token_ids=token_ids,
            logprobs=logprobs,
            finish_reason=state.finish_reason,
            hidden_state=hidden,
        )
    return TokenChunk(
        token_ids=token_ids,
        logprobs=logprobs,
        finish_reason=state.finish_reason,
        hidden_state=hidden,
        num_cached_tokens=state.num_cached_tokens,
        queued_seconds=state.queued_seconds,
        prompt_logprobs=None if state.prompt_logprobs is None else tuple(state.prompt_logprobs),
    )
