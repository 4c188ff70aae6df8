"""Compute the tokens of requests with a transformers model.

A prompt is computed alone. Then its request joins a padded batch, if the model's cache allows that; else a step
computes one token for each request, one after the other.
"""

from __future__ import annotations

import inspect
import logging
from bisect import insort
from typing import Any, NamedTuple

import torch
from torch import Tensor

from plumbline.engines.chunks import drawn_chunk
from plumbline.engines.constraints.grammar import Matcher
from plumbline.engines.fairness import fairest
from plumbline.engines.port import (
    EngineInfo,
    EngineStats,
    GenerateRequest,
    TokenChunk,
)
from plumbline.engines.request import RequestState
from plumbline.engines.sampling.logprobs import logprob_rows
from plumbline.engines.threaded import Output
from plumbline.engines.transformers.draw import draw, prompt_logprobs
from plumbline.engines.transformers.padded_batch import PaddedBatch, token_bytes
from plumbline.engines.transformers.vision import MediaReader

__all__ = ["TransformersCore"]

_log = logging.getLogger("plumbline.engines.transformers")


class TransformersCore:
    """Run requests; a step computes one token for each of them, for those in the batch at once."""

    def __init__(
        self,
        hf_model: Any,
        info: EngineInfo,
        max_num_running: int,
        cache_bytes: int,
        media: MediaReader | None = None,
    ) -> None:
        self._model = hf_model.eval()
        self._media = media
        self._info = info
        self._max_num_running = max_num_running
        self._cache_bytes = cache_bytes
        self._token_bytes = 0
        """Bytes of a token in the cache, known after the first prompt."""
        self._keeps_logits = "logits_to_keep" in inspect.signature(hf_model.forward).parameters
        self._waiting: list[RequestState] = []
        self._running: dict[str, RequestState] = {}
        """In order of their start."""
        self._batch = PaddedBatch(hf_model)
        self._caches: dict[str, _Held] = {}
        """The caches of running requests that are not in the batch."""
        self._paused: dict[str, RequestState] = {}
        self._arrivals = 0
        self._prompt_tokens = 0
        self._generation_tokens = 0
        self._num_steps = 0
        self._num_preemptions = 0

    @property
    def has_work(self) -> bool:
        """Whether a request runs or waits; paused ones do neither."""
        return bool(self._running or self._waiting)

    def add(self, request: GenerateRequest, matcher: Matcher | None = None) -> None:
        """Take a request that has been checked."""
        self._arrivals += 1
        state = RequestState(
            request,
            arrival=self._arrivals,
            eos_token_ids=self._info.eos_token_ids,
            max_model_len=self._info.max_model_len,
            matcher=matcher,
        )
        insort(self._waiting, state, key=lambda waiting: waiting.key)

    def abort(self, request_id: str) -> list[Output]:
        """End a request before its next token."""
        left = [state for state in self._waiting if state.request.request_id != request_id]
        known = self._stop(request_id) is not None or len(left) < len(self._waiting)
        known = self._paused.pop(request_id, None) is not None or known
        self._waiting = left
        return [(request_id, TokenChunk(finish_reason="abort"))] if known else []

    def fail_all(self, error: str) -> list[Output]:
        """End every request with an error."""
        ids = [*self._running, *self._paused, *(state.request.request_id for state in self._waiting)]
        self._batch.leave(set(self._running))
        self._running.clear()
        self._caches.clear()
        self._paused.clear()
        self._waiting.clear()
        return [(request_id, TokenChunk(finish_reason="error", error=error)) for request_id in ids]

    def _stop(self, request_id: str) -> RequestState | None:
        """Take a request out of the steps and drop its cache; None if it does not run."""
        state = self._running.pop(request_id, None)
        if state is not None and self._caches.pop(request_id, None) is None:
            self._batch.leave({request_id})
        return state

    def pause(self, request_id: str) -> None:
        """Take a request out of the steps and drop its cache."""
        state = self._stop(request_id)
        if state is None:
            state = next((s for s in self._waiting if s.request.request_id == request_id), None)
            if state is not None:
                self._waiting.remove(state)
        if state is not None:
            self._paused[request_id] = state

    def resume(self, request_id: str) -> None:
        """Queue a paused request again; its whole sequence is computed anew."""
        state = self._paused.pop(request_id, None)
        if state is not None:
            insort(self._waiting, state, key=lambda waiting: waiting.key)

    def check_integrity(self) -> None:
        """Do nothing: requests share no blocks that could be lost."""

    def stats(self) -> EngineStats:
        """Return the counters; there is no paged cache, so the block counters are zero."""
        return EngineStats(
            alive=True,
            seconds_since_step=0.0,
            num_running=len(self._running),
            num_waiting=len(self._waiting),
            kv_cache_usage=0.0,
            num_preemptions=self._num_preemptions,
            prefix_cache_queries=0,
            prefix_cache_hits=0,
            prompt_tokens=self._prompt_tokens,
            generation_tokens=self._generation_tokens,
            num_steps=self._num_steps,
        )

    def step(self) -> list[Output]:
        """Compute one token for each running request; a prompt that fails does not affect the others."""
        outputs: list[Output] = []
        self._make_room()
        if self._batch.rows:
            outputs += self._advance_batch()
        for request_id, state in list(self._running.items()):
            if request_id in self._caches:
                outputs.append(self._advance_alone(state))
        if self._waiting and len(self._running) < self._max_num_running:
            # One prompt a step, so that the streams of others do not wait for several.
            state = self._waiting[index := fairest(self._waiting, [*self._running.values()])]
            if not self._running or self._fits([*self._running.values(), state]):
                del self._waiting[index]
                self._running[state.request.request_id] = state
                outputs.append(self._advance_alone(state))
        return outputs

    def _fits(self, states: list[RequestState]) -> bool:
        """Tell whether the caches of requests are within the bound, padded to the longest, for another 16 tokens."""
        longest = max(state.num_tokens for state in states) + 16
        return len(states) * longest * self._token_bytes <= self._cache_bytes

    def _make_room(self) -> None:
        """Let the newest requests wait again until the others fit; they are computed anew when they go on."""
        while len(self._running) > 1 and not self._fits([*self._running.values()]):
            state = self._stop(next(reversed(self._running)))
            if state is not None:
                self._num_preemptions += 1
                insort(self._waiting, state, key=lambda waiting: waiting.key)

    def _advance_batch(self) -> list[Output]:
        rows = [*self._batch.rows]
        with torch.inference_mode():
            logits = self._batch.forward()
            self._num_steps += 1
            chunks = [self._drawn(state, logits[i : i + 1]) for i, state in enumerate(rows)]
        outputs = [(state.request.request_id, chunk) for state, chunk in zip(rows, chunks, strict=True)]
        ended = {request_id for request_id, chunk in outputs if chunk.finish_reason is not None}
        self._batch.leave(ended)
        for request_id in ended:
            del self._running[request_id]
        return outputs

    def _advance_alone(self, state: RequestState) -> Output:
        request_id = state.request.request_id
        try:
            chunk, held = self._computed(state, self._caches.pop(request_id, None))
        except Exception:
            _log.exception("a step failed")
            chunk, held = (
                TokenChunk(finish_reason="error", error="The engine failed while it computed this request."),
                _Held(None),
            )
        if chunk.finish_reason is not None:
            del self._running[request_id]
        else:
            self._token_bytes = self._token_bytes or token_bytes(held.cache)
            if not self._batch.join(state, held.cache, held.offset):
                self._caches[request_id] = held
        return request_id, chunk

    @torch.inference_mode()
    def _computed(self, state: RequestState, held: _Held | None) -> tuple[TokenChunk, _Held]:
        """Compute a request's next token by itself; returns its chunk and its cache for the next step."""
        sampling = state.sampling
        first = state.num_output_tokens == 0
        scores_prompt = first and sampling.prompt_logprobs is not None
        if state.request.media is not None and (held is None or held.cache is None):
            output, offset = self._read_media(state, scores_prompt=scores_prompt)
        else:
            cache, offset = (None, 0) if held is None else held
            token_ids = state.token_ids if cache is None else state.token_ids[-1:]
            output = self._forward(token_ids, cache, scores_prompt, self._positions(state, cache, offset))
        logits: Tensor = output.logits[0] if scores_prompt else output.logits[0, -1:]
        logits = logits.float()
        self._num_steps += 1
        if first:
            self._prompt_tokens += state.num_prompt_tokens
            if scores_prompt and state.prompt_logprobs is not None:
                state.prompt_logprobs[1:] = prompt_logprobs(state, logits)
        # Models without such a cache recompute the whole sequence at every step.
        return self._drawn(state, logits[-1:]), _Held(getattr(output, "past_key_values", None), offset)

    def _read_media(self, state: RequestState, *, scores_prompt: bool) -> tuple[Any, int]:
        """Compute a prompt with images or videos, and what a preempted request has drawn since.

        Returns the output of the model and the offset of later positions.
        """
        assert self._media is not None
        assert state.request.media is not None
        prompt = state.token_ids[: state.num_prompt_tokens]
        ids = torch.tensor([prompt], device=self._model.device)
        inputs = self._media.inputs(state.request.media, ids)
        output = self._forward(prompt, None, scores_prompt, inputs.arguments)
        drawn = state.token_ids[state.num_prompt_tokens :]
        if drawn:
            # A drawn token may be a placeholder, which would be taken for an image together with the prompt.
            cache = output.past_key_values
            output = self._forward(drawn, cache, False, self._positions(state, cache, inputs.offset))
        return output, inputs.offset

    def _positions(self, state: RequestState, cache: Any, offset: int) -> dict[str, Tensor]:
        """Return the positions of the tokens behind a cache, for models that would compute them with a stale offset."""
        if cache is None or self._media is None or not self._media.has_own_positions:
            return {}
        start = int(cache.get_seq_length())
        places = torch.arange(start, state.num_tokens, device=self._model.device) + offset
        return {"position_ids": places.unsqueeze(0)}

    def _forward(
        self, token_ids: list[int], cache: Any, scores_prompt: bool, arguments: dict[str, Tensor]
    ) -> Any:
        extra = {"logits_to_keep": 1} if self._keeps_logits and not scores_prompt else {}
        return self._model(
            input_ids=torch.tensor([token_ids], device=self._model.device),
            past_key_values=cache,
            use_cache=True,
            **extra,
            **arguments,
        )

    def _drawn(self, state: RequestState, raw: Tensor) -> TokenChunk:
        """Draw the next token of a request from raw logits fp32 [1, V]."""
        wanted = state.sampling.logprobs
        token = draw(state, raw)
        entry = None
        if wanted is not None:
            chosen = torch.tensor([token], device=raw.device)
            further = [state.sampling.logprob_token_ids]
            (entry,) = logprob_rows(torch.log_softmax(raw, dim=-1), chosen, [wanted], further=further)
        chunk = drawn_chunk(state, token, entry)
        self._generation_tokens += len(chunk.token_ids)
        return chunk


class _Held(NamedTuple):
    """What a request needs for its next token when it is not in the batch."""

    cache: Any
    """None for models that have no such cache."""
    offset: int = 0
    """What its positions differ by from the indices of its tokens."""
