"""Compute the tokens of requests with a transformers model.

A prompt is computed alone. Then its request joins a padded batch, if the model's cache allows that; else a step
computes one token for each request, one after the other.
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import Collection
from typing import Any, NamedTuple

import torch
from torch import Tensor

from plumbline.engines.request import RequestState
from plumbline.engines.sampling.logprobs import logprob_rows
from plumbline.engines.threaded.request_core import RequestCore
from plumbline.engines.threaded.request_queues import RequestQueues
from plumbline.engines.transformers.draw import draw, prompt_logprobs
from plumbline.engines.transformers.padded_batch import PaddedBatch, token_bytes
from plumbline.engines.transformers.vision import VisionReader
from plumbline.port.engine import EngineInfo, TokenChunk, TokenLogprob

__all__ = ["TransformersCore"]

_log = logging.getLogger("plumbline.engines.transformers")


class TransformersCore(RequestCore):
    """Run requests; a step computes one token for each of them, for those in the batch at once."""

    def __init__(
        self,
        hf_model: Any,
        info: EngineInfo,
        max_num_running: int,
        cache_bytes: int,
        media: VisionReader | None = None,
    ) -> None:
        super().__init__(RequestQueues(), eos_token_ids=info.eos_token_ids, max_model_len=info.max_model_len)
        self._model = hf_model.eval()
        self._media = media
        self._max_num_running = max_num_running
        self._cache_bytes = cache_bytes
        self._lacked_room = False
        """Whether the bound on caches had no room for the next request."""
        self._token_bytes = 0
        """Bytes of a token in the cache, known after the first prompt."""
        self._keeps_logits = "logits_to_keep" in inspect.signature(hf_model.forward).parameters
        self._batch = PaddedBatch(hf_model)
        self._caches: dict[str, _Held] = {}
        """The caches of running requests that are not in the batch."""

    def _step(self) -> None:
        """Compute one token for each running request; a prompt that fails does not affect the others."""
        running, waiting = self.queues.running, self.queues.waiting
        self._make_room()
        self._separate()
        if not self._batch.rows and not waiting and all(state.is_late for state in running):
            self._late.wait(running)
            return
        if self._batch.rows:
            self._advance_batch()
        for state in [*running]:
            if state.request.request_id in self._caches and not state.is_late:
                self._advance_alone(state)
        if waiting and len(running) < self._max_num_running:
            # One prompt a step, so that the streams of others do not wait for several.
            state = self.queues.fairest()
            self._lacked_room = bool(running) and not self._fits([*running, state])
            if not state.is_late and not self._lacked_room:
                self.queues.start(state)
                self._advance_alone(state)

    def _separate(self) -> None:
        """Take the requests that sit out from the batch; they join it again with their next token."""
        late = [state for state in self._batch.rows if state.is_late]
        for state in late:
            self._caches[state.request.request_id] = _Held(*self._batch.part(state))
        self._batch.leave({state.request.request_id for state in late})

    def _fits(self, states: list[RequestState]) -> bool:
        """Return whether the caches of requests are within the bound, padded to the longest, for another 16 tokens."""
        longest = max(state.num_tokens for state in states) + 16
        return len(states) * longest * self._token_bytes <= self._cache_bytes

    def _make_room(self) -> None:
        """Let requests wait again until the others fit, and one whose place another client should have.

        They are computed anew when they go on.
        """
        running = self.queues.running
        while len(running) > 1 and not self._fits(running):
            self._preempt(self.queues.last_of_most(1))
        if self._lacked_room or len(running) >= self._max_num_running:
            self._lacked_room = False  # The next one may be another one, or none.
            self._make_way()

    def _release(self, states: Collection[RequestState]) -> None:
        """Drop the caches."""
        ids = {state.request.request_id for state in states}
        for request_id in ids & self._caches.keys():
            del self._caches[request_id]
        self._batch.leave(ids)

    def _advance_batch(self) -> None:
        rows = [*self._batch.rows]
        with torch.inference_mode():
            logits = self._batch.forward()
            self.num_steps += 1
            for i, state in enumerate(rows):
                self._draw(state, logits[i : i + 1])
        self._end([state for state in rows if state.finish_reason is not None])

    def _advance_alone(self, state: RequestState) -> None:
        request_id = state.request.request_id
        try:
            held = self._compute(state, self._caches.pop(request_id, None))
        except Exception:
            _log.exception("a step failed")
            state.finish_reason = "error"
            error = "The engine failed while it computed this request."
            self._outputs.append((request_id, TokenChunk(finish_reason="error", error=error)))
            held = _Held(None)
        if state.finish_reason is not None:
            self._end([state])
        else:
            self._token_bytes = self._token_bytes or token_bytes(held.cache)
            if not self._batch.join(state, held.cache, held.offset):
                self._caches[request_id] = held

    @torch.inference_mode()
    def _compute(self, state: RequestState, held: _Held | None) -> _Held:
        """Compute a request's next token by itself; returns its cache for the next step."""
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
        self.num_steps += 1
        if scores_prompt and state.prompt_logprobs is not None:
            state.prompt_logprobs[1:] = prompt_logprobs(state, logits)
        # Models without such a cache recompute the whole sequence at every step.
        self._draw(state, logits[-1:])
        return _Held(getattr(output, "past_key_values", None), offset)

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
        """Return the positions of the tokens after a cache, for models that would compute them with a stale offset."""
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

    def _draw(self, state: RequestState, raw: Tensor) -> None:
        """Draw the next token of a request from raw logits fp32 [1, V]."""
        wanted = state.sampling.logprobs
        token = draw(state, raw)
        entry: TokenLogprob | None = None
        if wanted is not None:
            chosen = torch.tensor([token], device=raw.device)
            further = [state.sampling.logprob_token_ids]
            (entry,) = logprob_rows(torch.log_softmax(raw, dim=-1), chosen, [wanted], further=further)
        self._take(state, token, entry)


class _Held(NamedTuple):
    """The state of a request outside the batch, for its next token."""

    cache: Any
    """None for models that have no such cache."""
    offset: int = 0
    """The offset between its positions and the indices of its tokens."""
