"""Serve any causal language model of Hugging Face transformers behind the port.

It is simple rather than fast: every request has its own key-value cache, and a step computes one token for each running
request, one after the other. The tests compare the native engine with it, and it serves models that the native engine
does not support.
"""

from __future__ import annotations

import inspect
import logging
from bisect import insort
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from plumbline.engines.fairness import fairest
from plumbline.engines.grammar import GrammarCompiler, Matcher, num_words
from plumbline.engines.logprobs import logprob_rows
from plumbline.engines.masks import fill_mask
from plumbline.engines.port import (
    EngineInfo,
    EngineStats,
    GenerateRequest,
    TokenChunk,
    TokenLogprob,
)
from plumbline.engines.request import RequestState
from plumbline.engines.threaded import FEATURES, Output, ThreadedEngine
from plumbline_kernels.sampling import apply_bitmask, apply_penalties, sample

__all__ = ["TransformersEngine"]

_log = logging.getLogger("plumbline.engines.transformers")


class TransformersEngine(ThreadedEngine):
    """Run a transformers model on a thread, behind the port."""

    def __init__(
        self,
        hf_model: Any,
        *,
        model: str,
        max_model_len: int | None = None,
        max_num_running: int = 8,
        max_num_waiting: int = 256,
        max_seqs_per_client: int = 0,
        grammars: Callable[[EngineInfo], GrammarCompiler | None] | None = None,
    ) -> None:
        """Serve `hf_model`, a `PreTrainedModel` with a language modelling head, under the name `model`."""
        config = hf_model.config.get_text_config()
        info = EngineInfo(
            name="transformers",
            model=model,
            vocab_size=config.vocab_size,
            max_model_len=max_model_len or getattr(config, "max_position_embeddings", None) or 4096,
            eos_token_ids=_eos_token_ids(hf_model),
            features=FEATURES,
        )
        super().__init__(
            _TransformersCore(hf_model, info, max_num_running),
            info,
            max_in_flight=max_num_running + max_num_waiting,
            max_per_client=max_seqs_per_client,
            grammars=None if grammars is None else grammars(info),
        )

    @classmethod
    def from_folder(
        cls,
        folder: Path,
        *,
        model: str,
        dtype: torch.dtype | None = None,
        device: torch.device | str = "cpu",
        max_model_len: int | None = None,
        max_num_waiting: int = 256,
        max_seqs_per_client: int = 0,
        grammars: Callable[[EngineInfo], GrammarCompiler | None] | None = None,
    ) -> TransformersEngine:
        """Load a model folder; `dtype` None takes the one of its config, `grammars` makes the grammar compiler."""
        from transformers import AutoModelForCausalLM

        hf_model = AutoModelForCausalLM.from_pretrained(
            folder, dtype=dtype if dtype is not None else "auto", local_files_only=True
        )
        return cls(
            hf_model.to(device),
            model=model,
            max_model_len=max_model_len,
            max_num_waiting=max_num_waiting,
            max_seqs_per_client=max_seqs_per_client,
            grammars=grammars,
        )


class _TransformersCore:
    """Run requests with a cache each; a step computes one token for each of them, one after the other."""

    def __init__(self, hf_model: Any, info: EngineInfo, max_num_running: int) -> None:
        self._model = hf_model.eval()
        self._info = info
        self._max_num_running = max_num_running
        self._keeps_logits = "logits_to_keep" in inspect.signature(hf_model.forward).parameters
        self._waiting: list[RequestState] = []
        self._running: dict[str, tuple[RequestState, Any]] = {}
        self._paused: dict[str, RequestState] = {}
        self._arrivals = 0
        self._prompt_tokens = 0
        self._generation_tokens = 0
        self._num_steps = 0

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
        known = self._running.pop(request_id, None) is not None or len(left) < len(self._waiting)
        known = self._paused.pop(request_id, None) is not None or known
        self._waiting = left
        return [(request_id, TokenChunk(finish_reason="abort"))] if known else []

    def fail_all(self, error: str) -> list[Output]:
        """End every request with an error."""
        ids = [*self._running, *self._paused, *(state.request.request_id for state in self._waiting)]
        self._running.clear()
        self._paused.clear()
        self._waiting.clear()
        return [(request_id, TokenChunk(finish_reason="error", error=error)) for request_id in ids]

    def pause(self, request_id: str) -> None:
        """Take a request out of the steps and drop its cache."""
        state, _ = self._running.pop(request_id, (None, None))
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
            num_preemptions=0,
            prefix_cache_queries=0,
            prefix_cache_hits=0,
            prompt_tokens=self._prompt_tokens,
            generation_tokens=self._generation_tokens,
            num_steps=self._num_steps,
        )

    def step(self) -> list[Output]:
        """Compute one token for each running request; a request that fails does not affect the others."""
        while self._waiting and len(self._running) < self._max_num_running:
            running = [state for state, _ in self._running.values()]
            state = self._waiting.pop(fairest(self._waiting, running))
            self._running[state.request.request_id] = (state, None)
        outputs: list[Output] = []
        for request_id, (state, cache) in list(self._running.items()):
            try:
                chunk, cache = self._advance(state, cache)
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
        return outputs

    @torch.inference_mode()
    def _advance(self, state: RequestState, cache: Any) -> tuple[TokenChunk, Any]:
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
                logprobs = tuple(
                    logprob_rows(
                        normalised, chosen, [sampling.logprobs], further=[sampling.logprob_token_ids]
                    )
                )
            state.append(token)
            self._generation_tokens += 1
            tokens = (token,)
        if state.finish_reason == "error":
            return TokenChunk(finish_reason="error", error=state.error, refused=True), None
        chunk = TokenChunk(
            token_ids=tokens,
            logprobs=logprobs,
            finish_reason=state.finish_reason,
            prompt_logprobs=prompt_logprobs,
        )
        # Models without such a cache recompute the whole sequence at every step.
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
    if state.num_tokens < state.min_len and state.stop_ids and state.matcher is None:
        logits[0, sorted(state.stop_ids)] = float("-inf")

    def row(value: float, dtype: torch.dtype = torch.float32) -> Tensor:
        return torch.tensor([value], dtype=dtype, device=device)

    prompt_mask = torch.zeros_like(logits, dtype=torch.bool)
    prompt_mask[0, state.token_ids[: state.num_prompt_tokens]] = True
    output = torch.tensor(state.token_ids[state.num_prompt_tokens :], dtype=torch.int64, device=device)
    counts = torch.bincount(output, minlength=logits.shape[1]).int().unsqueeze(0)
    if state.chain is None:
        apply_penalties(
            logits,
            prompt_mask,
            counts,
            row(sampling.repetition_penalty),
            row(sampling.frequency_penalty),
            row(sampling.presence_penalty),
        )
    if state.matcher is not None:
        bitmask = np.zeros((1, num_words(logits.shape[1])), dtype=np.int32)
        fill_mask(state, bitmask[0])
        apply_bitmask(logits, torch.from_numpy(bitmask).to(device))
    plain = state.chain is None
    if state.chain is not None:
        logits = state.chain.filter(logits[0], state.num_tokens).unsqueeze(0)
    drawn = int(
        sample(
            logits,
            row(sampling.temperature if plain else 1.0),
            row(sampling.top_k if plain else 0, torch.int32),
            row(sampling.top_p if plain else 1.0),
            row(sampling.min_p if plain else 0.0),
            row(state.seed, torch.int64),
            row(state.num_tokens, torch.int64),
        )
    )
    if state.chain is not None:
        state.chain.observe(logits[0], drawn)
    return drawn


def _prompt_logprobs(state: RequestState, logits: Tensor) -> list[TokenLogprob]:
    """Return the logprobs that logits [prompt, V] give to the prompt tokens after the first."""
    following = torch.tensor(state.token_ids[1 : state.num_prompt_tokens], device=logits.device)
    if following.numel() == 0:
        return []
    tops = [state.sampling.prompt_logprobs or 0] * len(following)
    return logprob_rows(torch.log_softmax(logits[: len(following)], dim=-1), following, tops, ranks=True)


def _eos_token_ids(hf_model: Any) -> frozenset[int]:
    for config in (getattr(hf_model, "generation_config", None), hf_model.config.get_text_config()):
        ids = getattr(config, "eos_token_id", None)
        if ids is not None:
            return frozenset([ids] if isinstance(ids, int) else ids)
    return frozenset()
