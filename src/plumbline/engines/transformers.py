"""The reference engine: any causal language model of Hugging Face transformers behind the port.

Plain and right rather than fast: every request has its own key-value cache, a pass over the running requests computes
one token for each, one after the other, and nothing is shared between them. That makes it the oracle for our own
engine, and the way to serve a model that our own does not know.
"""

from __future__ import annotations

import asyncio
import heapq
import inspect
import logging
import queue
import threading
import time
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from plumbline.engine.api import (
    EngineClosedError,
    EngineFullError,
    EngineInfo,
    EngineStats,
    GenerateRequest,
    RefusedRequestError,
    TokenChunk,
    TokenLogprob,
)
from plumbline.engine.request import RequestState
from plumbline.engine.sampler import logprob_rows
from plumbline_kernels.sampling import apply_penalties, sample

__all__ = ["TransformersEngine"]

_log = logging.getLogger("plumbline.engines.transformers")

_FEATURES = frozenset(
    {
        "allowed_token_ids",
        "frequency_penalty",
        "ignore_eos",
        "logit_bias",
        "logprobs",
        "min_p",
        "min_tokens",
        "presence_penalty",
        "prompt_logprobs",
        "repetition_penalty",
        "stop_token_ids",
        "top_k",
    }
)

Output = tuple[str, TokenChunk]


class TransformersEngine:
    """A worker thread around a transformers model. Create it, `await start()`, then `generate` from that event loop."""

    def __init__(
        self,
        hf_model: Any,
        *,
        model: str,
        max_model_len: int | None = None,
        max_num_running: int = 8,
        max_num_waiting: int = 256,
    ) -> None:
        """Serve `hf_model`, a `PreTrainedModel` with a language modelling head, under the name `model`."""
        self._model = hf_model.eval()
        config = hf_model.config.get_text_config()
        self._info = EngineInfo(
            name="transformers",
            model=model,
            vocab_size=config.vocab_size,
            max_model_len=max_model_len or getattr(config, "max_position_embeddings", None) or 4096,
            eos_token_ids=_eos_token_ids(hf_model),
            features=_FEATURES,
        )
        self._max_num_running = max_num_running
        self._max_in_flight = max_num_running + max_num_waiting
        self._keeps_logits = "logits_to_keep" in inspect.signature(hf_model.forward).parameters
        self._inbox: queue.SimpleQueue[GenerateRequest | str | None] = queue.SimpleQueue()
        self._streams: dict[str, asyncio.Queue[TokenChunk]] = {}
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._closed = False
        # What follows belongs to the worker thread; `stats` only reads it.
        self._waiting: list[tuple[tuple[int, int], RequestState]] = []
        self._running: dict[str, tuple[RequestState, Any]] = {}
        self._arrivals = 0
        self._prompt_tokens = 0
        self._generation_tokens = 0
        self._num_steps = 0
        self._busy_since: float | None = None

    @classmethod
    def from_folder(
        cls,
        folder: Path,
        *,
        model: str,
        dtype: torch.dtype | None = None,
        device: torch.device | str = "cpu",
        max_num_waiting: int = 256,
    ) -> TransformersEngine:
        """Load a model folder; `dtype` None takes the one of its config."""
        from transformers import AutoModelForCausalLM

        hf_model = AutoModelForCausalLM.from_pretrained(
            folder, dtype=dtype if dtype is not None else "auto", local_files_only=True
        )
        return cls(hf_model.to(device), model=model, max_num_waiting=max_num_waiting)

    @property
    def info(self) -> EngineInfo:
        """The engine's fixed facts."""
        return self._info

    async def start(self) -> None:
        """Start the worker thread; the model is loaded already."""
        self._loop = asyncio.get_running_loop()
        self._thread = threading.Thread(target=self._run, name="transformers-engine", daemon=True)
        self._thread.start()

    async def stop(self) -> None:
        """End the thread after its current step; requests in flight get an abort. Idempotent."""
        self._closed = True
        thread, self._thread = self._thread, None
        if thread is not None:
            self._inbox.put(None)
            await asyncio.to_thread(thread.join)
        for stream in self._streams.values():
            stream.put_nowait(TokenChunk(finish_reason="abort"))
        self._streams.clear()

    async def generate(self, request: GenerateRequest) -> AsyncGenerator[TokenChunk, None]:
        """Continue a sequence; see `plumbline.engine.api.Engine.generate`."""
        if self._closed or self._thread is None:
            raise EngineClosedError("The engine is shutting down.")
        if len(self._streams) >= self._max_in_flight:
            raise EngineFullError(f"{len(self._streams)} requests are in flight, which is the limit.")
        self._check(request)
        stream: asyncio.Queue[TokenChunk] = asyncio.Queue()
        self._streams[request.request_id] = stream
        self._inbox.put(request)
        finished = False
        try:
            while not finished:
                chunk = await stream.get()
                finished = chunk.finish_reason is not None
                yield chunk
        finally:
            self._streams.pop(request.request_id, None)
            if not finished:
                self._inbox.put(request.request_id)

    def abort(self, request_id: str) -> None:
        """End a request before its next token."""
        self._inbox.put(request_id)

    def stats(self) -> EngineStats:
        """A snapshot; there is no paged cache, so what concerns blocks is zero."""
        busy_since, thread = self._busy_since, self._thread
        return EngineStats(
            alive=thread is not None and thread.is_alive(),
            seconds_since_step=0.0 if busy_since is None else max(0.0, time.monotonic() - busy_since),
            num_running=len(self._running),
            num_waiting=len(self._waiting) + self._inbox.qsize(),
            kv_cache_usage=0.0,
            num_preemptions=0,
            prefix_cache_queries=0,
            prefix_cache_hits=0,
            prompt_tokens=self._prompt_tokens,
            generation_tokens=self._generation_tokens,
            num_steps=self._num_steps,
        )

    def _check(self, request: GenerateRequest) -> None:
        """Refuse what could not be computed."""
        prompt, vocab_size = request.prompt_token_ids, self._info.vocab_size
        if request.request_id in self._streams:
            raise RefusedRequestError(f"request id {request.request_id!r} is in flight already")
        if not prompt:
            raise RefusedRequestError("the prompt has no tokens")
        if min(prompt) < 0 or max(prompt) >= vocab_size:
            raise RefusedRequestError(f"prompt token ids must be in [0, {vocab_size})")
        room = self._info.max_model_len - len(prompt)
        if room < 0 or (room == 0 and request.sampling.max_tokens != 0):
            raise RefusedRequestError(
                f"the prompt has {len(prompt)} tokens; the limit is {self._info.max_model_len}"
            )
        for name in ("logit_bias", "allowed_token_ids", "stop_token_ids"):
            ids = getattr(request.sampling, name)
            if ids and (min(ids) < 0 or max(ids) >= vocab_size):
                raise RefusedRequestError(f"{name} has a token id outside [0, {vocab_size})", param=name)
        if request.sampling.allowed_token_ids is not None and not request.sampling.allowed_token_ids:
            raise RefusedRequestError(
                "allowed_token_ids must name at least one token", param="allowed_token_ids"
            )

    def _run(self) -> None:
        """The worker thread: take messages, then compute one token for each running request."""
        while self._drain():
            while self._waiting and len(self._running) < self._max_num_running:
                state = heapq.heappop(self._waiting)[1]
                self._running[state.request.request_id] = (state, None)
            outputs = []
            for request_id, (state, cache) in list(self._running.items()):
                try:
                    chunk, cache = self._step(state, cache)
                except Exception:
                    _log.exception("a step failed")
                    chunk = TokenChunk(
                        finish_reason="error", error="The engine failed while it computed this request."
                    )
                outputs.append((request_id, chunk))
                if chunk.finish_reason is None:
                    self._running[request_id] = (state, cache)
                else:
                    del self._running[request_id]
            self._hand_over(outputs)
            self._busy_since = time.monotonic() if self._running or self._waiting else None
        self._running.clear()
        self._waiting.clear()

    def _drain(self) -> bool:
        """Take all messages, waiting for one if there is nothing to do. False means stop."""
        wait = not (self._running or self._waiting)
        while True:
            try:
                message = self._inbox.get(block=wait)
            except queue.Empty:
                return True
            wait = False
            match message:
                case GenerateRequest():
                    self._arrivals += 1
                    state = RequestState(
                        message,
                        arrival=self._arrivals,
                        eos_token_ids=self._info.eos_token_ids,
                        max_model_len=self._info.max_model_len,
                    )
                    heapq.heappush(self._waiting, (state.key, state))
                    self._busy_since = self._busy_since or time.monotonic()
                case str():
                    self._abort(message)
                case None:
                    return False

    def _abort(self, request_id: str) -> None:
        known = self._running.pop(request_id, None) is not None
        kept = [item for item in self._waiting if item[1].request.request_id != request_id]
        if len(kept) < len(self._waiting):
            known = True
            heapq.heapify(kept)
            self._waiting = kept
        if known:
            self._hand_over([(request_id, TokenChunk(finish_reason="abort"))])

    def _hand_over(self, outputs: list[Output]) -> None:
        if self._loop is not None and outputs:
            try:
                self._loop.call_soon_threadsafe(self._deliver, outputs)
            except RuntimeError:  # The event loop is closed; nobody is left to read.
                _log.debug("dropped %d chunks: the event loop is closed", len(outputs))

    def _deliver(self, outputs: list[Output]) -> None:
        """On the event loop: a stream that was closed has no entry any more."""
        for request_id, chunk in outputs:
            if request_id in self._streams:
                self._streams[request_id].put_nowait(chunk)

    @torch.inference_mode()
    def _step(self, state: RequestState, cache: Any) -> tuple[TokenChunk, Any]:
        """Compute the request's next token; returns its chunk and its cache for the next step."""
        sampling = state.sampling
        first = state.num_output_tokens == 0
        scores_prompt = first and sampling.prompt_logprobs is not None
        token_ids = state.token_ids if cache is None else state.token_ids[-1:]
        extra = {"logits_to_keep": 1} if self._keeps_logits and not scores_prompt else {}
        output = self._model(
            input_ids=torch.tensor([token_ids], device=self._model.device),
            past_key_values=cache,
            use_cache=True,
            **extra,
        )
        logits: Tensor = output.logits[0].float()
        self._num_steps += 1
        prompt_logprobs = None
        if first:
            self._prompt_tokens += state.num_prompt_tokens
            if scores_prompt:
                prompt_logprobs = (None, *_prompt_logprobs(state, logits))

        tokens: tuple[int, ...] = ()
        logprobs: tuple[TokenLogprob, ...] | None = None
        if state.max_len == state.num_prompt_tokens:
            # `max_tokens=0` asks for the prompt's logprobs alone.
            state.finish_reason = "length"
        else:
            raw = logits[-1:]
            token = _draw(state, raw)
            if sampling.logprobs is not None:
                normalised = torch.log_softmax(raw, dim=-1)
                chosen = torch.tensor([token], device=raw.device)
                logprobs = tuple(logprob_rows(normalised, chosen, [sampling.logprobs]))
            state.append(token)
            self._generation_tokens += 1
            tokens = (token,)
        chunk = TokenChunk(
            token_ids=tokens,
            logprobs=logprobs,
            finish_reason=state.finish_reason,
            prompt_logprobs=prompt_logprobs,
        )
        # Models without such a cache compute the whole sequence again at every step.
        return chunk, getattr(output, "past_key_values", None)


def _draw(state: RequestState, raw: Tensor) -> int:
    """Draw a token from raw logits fp32 [1, V], in the order that `SamplingParams` documents."""
    sampling, device = state.sampling, raw.device
    logits = raw.clone()
    for token, bias in sampling.logit_bias.items():
        logits[0, token] += bias
    if sampling.allowed_token_ids is not None:
        banned = torch.ones_like(logits, dtype=torch.bool)
        banned[0, sorted(sampling.allowed_token_ids)] = False
        logits.masked_fill_(banned, float("-inf"))
    if state.num_tokens < state.min_len and state.stop_ids:
        logits[0, sorted(state.stop_ids)] = float("-inf")

    def row(value: float, dtype: torch.dtype = torch.float32) -> Tensor:
        return torch.tensor([value], dtype=dtype, device=device)

    prompt_mask = torch.zeros_like(logits, dtype=torch.bool)
    prompt_mask[0, state.token_ids[: state.num_prompt_tokens]] = True
    output = torch.tensor(state.token_ids[state.num_prompt_tokens :], dtype=torch.int64, device=device)
    counts = torch.bincount(output, minlength=logits.shape[1]).int().unsqueeze(0)
    apply_penalties(
        logits,
        prompt_mask,
        counts,
        row(sampling.repetition_penalty),
        row(sampling.frequency_penalty),
        row(sampling.presence_penalty),
    )
    drawn = sample(
        logits,
        row(sampling.temperature),
        row(sampling.top_k, torch.int32),
        row(sampling.top_p),
        row(sampling.min_p),
        row(state.seed, torch.int64),
        row(state.num_tokens, torch.int64),
    )
    return int(drawn)


def _prompt_logprobs(state: RequestState, logits: Tensor) -> list[TokenLogprob]:
    """What logits [prompt, V] give to the prompt tokens after the first."""
    following = torch.tensor(state.token_ids[1 : state.num_prompt_tokens], device=logits.device)
    if following.numel() == 0:
        return []
    tops = [state.sampling.prompt_logprobs or 0] * len(following)
    return logprob_rows(torch.log_softmax(logits[: len(following)], dim=-1), following, tops)


def _eos_token_ids(hf_model: Any) -> frozenset[int]:
    for config in (getattr(hf_model, "generation_config", None), hf_model.config.get_text_config()):
        ids = getattr(config, "eos_token_id", None)
        if ids is not None:
            return frozenset([ids] if isinstance(ids, int) else ids)
    return frozenset()
