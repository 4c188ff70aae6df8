"""Replay scripted tokens as an engine, for tests and benchmarks."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from pathlib import Path

import msgspec

from plumbline.engines.arrivals import Arrivals
from plumbline.engines.checks import no_adapters
from plumbline.engines.features import check_features
from plumbline.port.checks import check_media
from plumbline.port.engine import (
    EngineClosedError,
    EngineFullError,
    EngineInfo,
    EngineStats,
    GenerateRequest,
    MediaPrompt,
    RefusedRequestError,
    TokenChunk,
)

__all__ = ["Script", "ScriptedEngine"]

Script = Callable[[GenerateRequest], Iterable[TokenChunk]]
"""Return the chunks for a request; if the last one has no finish reason, `stop` is added."""


class ScriptedEngine:
    """Replay `script(request)`, honouring `max_tokens` and aborts.

    Args:
        info: the facts that the engine reports.
        script: the chunks for each request.
        delay: seconds between chunks; with 0 the event loop still gets a turn before each chunk.
        max_inflight: requests at a time; one more is refused as a full engine would.
    """

    def __init__(
        self, info: EngineInfo, script: Script, *, delay: float = 0.0, max_inflight: int = 1_000_000
    ) -> None:
        self._info = info
        self._script = script
        self._delay = delay
        self._max_inflight = max_inflight
        self._arrivals = Arrivals()
        self._running: dict[str, asyncio.Event] = {}
        self._closed = False
        self._num_prompt_tokens = 0
        self._num_generated_tokens = 0
        self.adapters: list[str] = []
        self.aborted: list[str] = []
        """Ids of the requests that ended before their script did, in order."""

    @property
    def info(self) -> EngineInfo:
        """The facts that the engine was created with."""
        return self._info

    async def start(self) -> None:
        """Accept requests again after a stop."""
        self._closed = False

    async def stop(self) -> None:
        """Abort the running requests and refuse new ones."""
        self._closed = True
        for stopped in self._running.values():
            stopped.set()

    async def expand(self, prompt: MediaPrompt) -> Sequence[int]:
        """Repeat each placeholder three times."""
        check_media(prompt, self._info)
        placeholders = self._info.modalities.values()
        return [token for token in prompt.token_ids for _ in range(3 if token in placeholders else 1)]

    async def check_grammar(self, grammar: str, client: str = "") -> None:
        """Refuse every grammar: a script does not follow one."""
        raise RefusedRequestError("this engine does not support grammars", param="grammar")

    def refusal(self, client: str, more: int = 0) -> EngineFullError | None:
        """Refuse a request beyond the limit of requests in flight."""
        return self._refusal(self._arrivals.total + more)

    def arriving(self, client: str) -> AbstractContextManager[None]:
        """See `plumbline.port.engine.Engine.arriving`."""
        return self._arrivals.one(client)

    def _refusal(self, before: int) -> EngineFullError | None:
        if len(self._running) + before < self._max_inflight:
            return None
        return EngineFullError(f"{len(self._running)} requests are in flight, which is the limit.")

    async def generate(self, request: GenerateRequest) -> AsyncGenerator[TokenChunk, None]:
        """Play the script of this request."""
        check_features(request.sampling, self._info)
        if request.sampling.grammar is not None:
            await self.check_grammar(request.sampling.grammar)
        if self._closed:
            raise EngineClosedError("The engine is shutting down.")
        if (full := self._refusal(0)) is not None:
            raise full
        stopped = self._running[request.request_id] = asyncio.Event()
        finished = False
        left = request.sampling.max_tokens
        self._num_prompt_tokens += len(request.prompt_token_ids)
        try:
            for chunk in self._script(request):
                await asyncio.sleep(self._delay)
                if stopped.is_set():
                    finished = True
                    yield TokenChunk(finish_reason="abort")
                    return
                if left is not None and len(chunk.token_ids) >= left:
                    reason = chunk.finish_reason if len(chunk.token_ids) == left else None
                    chunk = msgspec.structs.replace(
                        chunk,
                        token_ids=chunk.token_ids[:left],
                        logprobs=None if chunk.logprobs is None else chunk.logprobs[:left],
                        finish_reason=reason or "length",
                    )
                if left is not None:
                    left -= len(chunk.token_ids)
                self._num_generated_tokens += len(chunk.token_ids)
                finished = chunk.finish_reason is not None
                yield chunk
                if finished:
                    return
            finished = True
            yield TokenChunk(finish_reason="stop")
        finally:
            del self._running[request.request_id]
            if not finished:
                self.aborted.append(request.request_id)

    async def load_adapter(self, name: str, folder: Path) -> None:
        """Accept any adapter if the engine's facts declare adapters; scripts see its name."""
        if "adapters" not in self._info.features:
            raise no_adapters(self._info)
        self.adapters.append(name)

    async def unload_adapter(self, name: str) -> None:
        """Remove an adapter; unknown names are ignored."""
        if name in self.adapters:
            self.adapters.remove(name)

    def abort(self, request_id: str) -> None:
        """End a request at its next chunk."""
        if request_id in self._running:
            self._running[request_id].set()

    def stats(self) -> EngineStats:
        """Return the counts of requests and tokens. The scripted engine has no cache."""
        return EngineStats(
            alive=not self._closed,
            seconds_since_step=0.0,
            num_running=len(self._running),
            num_waiting=0,
            kv_cache_usage=0.0,
            num_preemptions=0,
            prefix_cache_queries=0,
            prefix_cache_hits=0,
            prompt_tokens=self._num_prompt_tokens,
            generation_tokens=self._num_generated_tokens,
            num_steps=0,
        )
