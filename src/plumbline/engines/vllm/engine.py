"""Implement the engine port with vLLM's asynchronous engine."""

from __future__ import annotations

import asyncio
import logging
import signal
import time
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from itertools import islice
from multiprocessing import resource_tracker
from pathlib import Path
from typing import Any

from plumbline.engines.admission import Admission
from plumbline.engines.checks import check_request, no_adapters
from plumbline.engines.constraints.grammar import GrammarCompiler, Matcher
from plumbline.engines.vllm.adapters import AdapterSet
from plumbline.engines.vllm.configuration import VllmError, check_release, engine_config
from plumbline.engines.vllm.media import MediaRenderer, modalities
from plumbline.engines.vllm.parameters import FEATURES, matcher_spec, vllm_parameters
from plumbline.port.checks import check_media
from plumbline.port.engine import (
    EngineClosedError,
    EngineFullError,
    EngineInfo,
    EngineStats,
    FinishReason,
    GenerateRequest,
    MediaPrompt,
    RefusedRequestError,
    SamplingParams,
    TokenChunk,
    TokenLogprob,
)

__all__ = ["VllmEngine"]

_log = logging.getLogger("plumbline.engines.vllm")

_FAILED = "The engine failed while it computed this request."


class VllmEngine:
    """Run a model with vLLM; see `plumbline.port.engine.Engine`.

    vLLM runs in processes of its own, which `start` begins; that takes seconds to minutes. Grammars, thinking budgets
    and bans are ours (`grammars.py`); draws with a seed repeat, but are not those of our engine.

    Args:
        folder: the model's.
        model: its name.
        eos_token_ids: its ends of sequence.
        vocabulary: `module:function` that gives vLLM's core process the tokens of the model, from the folder, the ends
            and the size of the vocabulary.
        max_num_waiting: requests that may be in flight besides those that run.
        max_seqs_per_client: running and waiting requests of one client; 0 sets no limit.
        cache_bytes: keys and values; None lets vLLM choose.
        options: arguments of vLLM's engine by their name.
        max_adapters: LoRA adapters that may be loaded; 0 leaves vLLM's support for them out.
        max_rank: the largest rank of one.
        grammars: makes the grammar compiler for the facts of the engine.

    Raises:
        VllmError: vLLM cannot run the model.
    """

    def __init__(
        self,
        folder: Path,
        *,
        model: str,
        eos_token_ids: frozenset[int],
        vocabulary: str,
        max_num_waiting: int = 1024,
        max_seqs_per_client: int = 0,
        cache_bytes: int | None = None,
        options: Mapping[str, Any] | None = None,
        max_adapters: int = 0,
        max_rank: int = 16,
        grammars: Callable[[EngineInfo], GrammarCompiler | None] | None = None,
    ) -> None:
        check_release()
        from vllm.platforms import current_platform

        self._on_gpu = not current_platform.is_cpu()
        self._adapters: AdapterSet | None = None
        if max_adapters:
            self._adapters = AdapterSet(max_adapters, max_rank, on_cpu=not self._on_gpu)
            # All stay in memory, those of a batch too: vLLM would load one that it dropped again from its folder, and
            # end if the folder is gone. One more place is for the adapter of zeros.
            places = max_adapters + 1
            lora = {
                "enable_lora": True,
                "max_loras": places,
                "max_cpu_loras": places,
                "max_lora_rank": max_rank,
            }
            options = {**lora, **(options or {})}
        self._config = engine_config(folder, eos_token_ids, vocabulary, cache_bytes, options or {})
        self._llm: Any = None
        self._media: MediaRenderer | None = None
        self._counters: list[Any] = []
        self._aborts: set[asyncio.Task[None]] = set()
        self._closed = False
        info = EngineInfo(
            name="vllm",
            model=model,
            vocab_size=self._config.model_config.get_vocab_size(),
            max_model_len=self._config.model_config.max_model_len,
            eos_token_ids=eos_token_ids,
            features=FEATURES if self._adapters is None else FEATURES | {"adapters"},
            modalities=modalities(self._config.model_config),
            cache_bytes=cache_bytes or 0,
            max_num_seqs=self._config.scheduler_config.max_num_seqs,
            runs_on="a GPU" if self._on_gpu else "cpu",
        )
        self.admission = Admission(
            info,
            max_in_flight=self._config.scheduler_config.max_num_seqs + max_num_waiting,
            max_per_client=max_seqs_per_client,
            grammars=None if grammars is None else grammars(info),
        )
        self._info = self.admission.info

    @property
    def info(self) -> EngineInfo:
        """The engine's fixed facts."""
        return self._info

    async def start(self) -> None:
        """Start vLLM's processes and load the model, in a thread.

        Raises:
            VllmError: a process failed; vLLM has written the reason to the log.
        """
        try:
            self._llm = await asyncio.to_thread(self._load)
        except Exception as error:
            raise VllmError(f"vLLM could not start, its log above has the reason: {error}") from error
        self._media = MediaRenderer(self._llm.renderer)
        await self._warm_up()

    def _load(self) -> Any:
        from vllm.v1.engine.async_llm import AsyncLLM

        from plumbline.engines.vllm.counters import Counters

        def factory(vllm_config: Any, engine_index: int = 0) -> Counters:
            counters = Counters(vllm_config, engine_index)
            self._counters.append(counters)
            return counters

        # Ctrl-C reaches the whole process group, and vLLM's processes would die before what runs has ended. They
        # inherit the mask of this thread. Only the tracker, which unblocks the signal, must exist before.
        resource_tracker.ensure_running()
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            return AsyncLLM.from_vllm_config(self._config, stat_loggers=[factory], disable_log_stats=True)
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)

    async def _warm_up(self) -> None:
        """Make the first request, with logprobs: vLLM compiles for them, which takes seconds."""
        sampling = SamplingParams(temperature=0.0, max_tokens=1, logprobs=1, prompt_logprobs=1)
        request = GenerateRequest(request_id="warm-up", prompt_token_ids=[0, 0], sampling=sampling)
        async for _ in self.generate(request):
            pass
        for counters in self._counters:
            counters.__init__()

    async def stop(self) -> None:
        """Abort what still runs and end vLLM's processes. Idempotent."""
        if self._closed:
            return
        self._closed = True
        await self.admission.close()
        llm, self._llm, self._media = self._llm, None, None
        if llm is not None:
            await llm.abort(list(self.admission.ids))
            await asyncio.to_thread(llm.shutdown, 30.0)

    async def expand(self, prompt: MediaPrompt) -> Sequence[int]:
        """See `plumbline.port.engine.Engine.expand`; vLLM runs the model's image processor in a worker thread."""
        check_media(prompt, self._info)
        if self._media is None:
            raise EngineClosedError("The engine is shutting down.")
        return list((await self._media.render(prompt))["prompt_token_ids"])

    async def check_grammar(self, grammar: str, client: str = "") -> None:
        """See `plumbline.port.engine.Engine.check_grammar`."""
        await self.admission.compile(grammar, client)

    async def generate(self, request: GenerateRequest) -> AsyncGenerator[TokenChunk, None]:
        """Continue a sequence; see `plumbline.port.engine.Engine.generate`."""
        sampling = request.sampling
        check_request(request, self._info)
        matcher = None
        if sampling.grammar is not None:
            matcher = await self.admission.compile(sampling.grammar, request.client)
        spec = matcher_spec(sampling, self._info.eos_token_ids)
        params = vllm_parameters(sampling, self._info.eos_token_ids, spec, on_gpu=self._on_gpu)
        self._check_alive()
        self.admission.enter(request)
        self._mark_running()
        lora, entered = None, False
        try:
            if self._adapters is not None:
                lora, entered = self._adapters.enter(request.adapter), True
            async for chunk in self._chunks(request, params, matcher, lora):
                self.admission.started(request)  # Later chunks change nothing.
                yield chunk
                if chunk.finish_reason is not None:
                    return
        finally:
            if self._adapters is not None and entered:
                self._adapters.leave(lora)
            self.admission.leave(request)
            self._mark_running()

    def _mark_running(self) -> None:
        """Mark what vLLM computes: it takes requests in the order of their arrival, and does not say which run."""
        for request_id in islice(self.admission.ids, self._info.max_num_seqs):
            self.admission.mark(request_id, True)

    async def load_adapter(self, name: str, folder: Path) -> None:
        """See `plumbline.port.engine.Engine.load_adapter`."""
        if self._adapters is None:
            raise no_adapters(self._info)
        if self._llm is None:
            raise EngineClosedError("The engine is shutting down.")
        await self._adapters.load(self._llm, name, folder)

    async def unload_adapter(self, name: str) -> None:
        """See `plumbline.port.engine.Engine.unload_adapter`; returns when no request uses it any more."""
        if self._adapters is not None and self._llm is not None:
            await self._adapters.unload(self._llm, name)

    def _check_alive(self) -> None:
        if self._llm is None or self._closed:
            raise EngineClosedError("The engine is shutting down.")
        if self._llm.errored:
            raise EngineClosedError("The engine has failed.")

    async def _chunks(
        self, request: GenerateRequest, params: Any, matcher: Matcher | None, lora: Any
    ) -> AsyncGenerator[TokenChunk, None]:
        """Ask vLLM, and turn its outputs and errors into chunks."""
        from vllm.exceptions import GracefulHTTPError, VLLMClientError
        from vllm.v1.engine.exceptions import EngineDeadError, EngineGenerateError

        prompt: dict[str, Any] = {"type": "token", "prompt_token_ids": list(request.prompt_token_ids)}
        if request.media is not None:
            assert self._media is not None, "it exists as long as the engine is alive"
            prompt = await self._media.render(request.media)
            self._check_alive()  # The engine may have stopped meanwhile.
        if request.cache_salt is not None:
            prompt["cache_salt"] = request.cache_salt
        source = self._llm.generate(
            prompt, params, request.request_id, priority=request.priority, lora_request=lora
        )
        first = True
        try:
            async for output in source:
                yield _chunk(request, output, first, matcher, self._info.eos_token_ids)
                first = False
        except (VLLMClientError, GracefulHTTPError, ValueError) as error:
            if not first:
                yield TokenChunk(finish_reason="error", error=str(error), refused=True)
            elif isinstance(error, GracefulHTTPError):
                raise EngineFullError(str(error)) from error
            else:
                raise RefusedRequestError(str(error), getattr(error, "parameter", None)) from error
        except (EngineDeadError, EngineGenerateError) as error:
            _log.error("vLLM failed: %s", error)
            yield TokenChunk(finish_reason="error", error=_FAILED)
        finally:
            await source.aclose()  # Aborts what still runs.

    def refusal(self, client: str, more: int = 0) -> EngineFullError | None:
        """See `plumbline.port.engine.Engine.refusal`."""
        return self.admission.refusal(client, more)

    def arriving(self, client: str) -> AbstractContextManager[None]:
        """See `plumbline.port.engine.Engine.arriving`."""
        return self.admission.arrivals.one(client)

    def abort(self, request_id: str) -> None:
        """End a request now; its stream gets a last chunk with reason `abort`."""
        if self._llm is not None and request_id in self.admission.ids:
            task = asyncio.get_running_loop().create_task(self._llm.abort(request_id))
            self._aborts.add(task)
            task.add_done_callback(self._aborts.discard)

    def stats(self) -> EngineStats:
        """A snapshot of the counters of all engine cores."""
        counters = self._counters
        in_flight = len(self.admission.ids)
        running = min(in_flight, sum(each.num_running for each in counters))
        idle_since = max((each.last_step for each in counters), default=0.0)
        return EngineStats(
            alive=self._llm is not None and not self._llm.errored and not self._closed,
            failure="vLLM has failed; its log above has the reason",
            seconds_since_step=max(0.0, time.monotonic() - idle_since) if in_flight else 0.0,
            num_running=running,
            num_waiting=in_flight - running,
            kv_cache_usage=max((each.cache_usage for each in counters), default=0.0),
            num_preemptions=sum(each.num_preemptions for each in counters),
            prefix_cache_queries=sum(each.prefix_queries for each in counters),
            prefix_cache_hits=sum(each.prefix_hits for each in counters),
            prompt_tokens=sum(each.prompt_tokens for each in counters),
            generation_tokens=sum(each.generation_tokens for each in counters),
            num_steps=sum(each.num_steps for each in counters),
        )


def _chunk(
    request: GenerateRequest,
    output: Any,
    first: bool,
    matcher: Matcher | None,
    eos_token_ids: frozenset[int],
) -> TokenChunk:
    """Turn an output of vLLM into a chunk; a complete text of the grammar ends it."""
    sampling = request.sampling
    done = output.outputs[0]
    tokens, reason, error = tuple(done.token_ids), done.finish_reason, None
    if sampling.max_tokens == 0:
        tokens, reason = (), "length"
    if matcher is not None:
        tokens, reason = _within_grammar(tokens, reason, matcher, sampling.stop_token_ids - eos_token_ids)
    if reason == "error":
        error = (
            _FAILED if matcher is None else "The grammar of this request failed: no token can continue it."
        )
    logprobs = None
    if sampling.logprobs is not None:
        entries = zip(tokens, done.logprobs or (), strict=False)
        logprobs = tuple(_logprob(token, found, sampling.logprobs) for token, found in entries)
    return TokenChunk(
        token_ids=tokens,
        logprobs=logprobs,
        finish_reason=reason,
        error=error,
        refused=error is not None and matcher is not None,
        num_cached_tokens=(output.num_cached_tokens or 0) if first else 0,
        queued_seconds=_queued_seconds(getattr(output, "metrics", None)) if first else 0.0,
        prompt_logprobs=_prompt_logprobs(request, output) if first else None,
    )


def _queued_seconds(stats: Any) -> float:
    """Return how long a request waited, by the times that vLLM keeps of it; 0 if it keeps none."""
    queued, scheduled = getattr(stats, "queued_ts", 0.0), getattr(stats, "scheduled_ts", 0.0)
    return max(0.0, scheduled - queued) if queued and scheduled else 0.0


def _within_grammar(
    tokens: tuple[int, ...], reason: FinishReason | None, matcher: Matcher, stop_ids: frozenset[int]
) -> tuple[tuple[int, ...], FinishReason | None]:
    """Advance the grammar by drawn tokens. Returns those up to its end, and the reason if they are the last."""
    for at, token in enumerate(tokens):
        if token not in stop_ids and not matcher.accept(token):
            return tokens[:at], "error"
        if matcher.is_done:
            return tokens[: at + 1], "stop"
    return tokens, reason


def _prompt_logprobs(request: GenerateRequest, output: Any) -> tuple[TokenLogprob | None, ...] | None:
    count = request.sampling.prompt_logprobs
    if count is None:
        return None
    pairs = zip(request.prompt_token_ids, output.prompt_logprobs or (), strict=True)
    return tuple(
        None if found is None else _logprob(token, found, count, ranks=True) for token, found in pairs
    )


def _logprob(token: int, found: Mapping[int, Any], count: int, *, ranks: bool = False) -> TokenLogprob:
    """Turn vLLM's entries for a position, by token, into ours."""
    top = sorted((entry.rank, other, entry.logprob) for other, entry in found.items() if entry.rank <= count)
    own = found[token]
    return TokenLogprob(
        token, own.logprob, tuple((other, value) for _, other, value in top[:count]), own.rank if ranks else 0
    )
