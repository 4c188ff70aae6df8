"""Serve a synchronous engine core through the asyncio port.

The thread of the core (`core_thread.py`) and the event loop meet in two places only: an inbox that takes requests,
aborts and changes of adapters at any time, and one `call_soon_threadsafe` per step that delivers all chunks of that
step. The event loop never waits for a step. A core that breaks or hangs is replaced (`core_keeper.py`).
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from plumbline.engines.adapters import AdapterGate
from plumbline.engines.admission import Admission, MediaReader, Readings
from plumbline.engines.checks import check_request, no_adapters
from plumbline.engines.constraints.bans import BanMatcher, TokenTexts
from plumbline.engines.constraints.grammar import GrammarCompiler, Matcher
from plumbline.engines.constraints.thinking_budget import ThinkingBudgetMatcher
from plumbline.engines.features import CHAIN_FEATURES
from plumbline.engines.filters.processors import ProcessorFactory, RequestProcessors, make_processors
from plumbline.engines.threaded.core_keeper import CoreKeeper, settle
from plumbline.engines.threaded.core_thread import Overdue, Reading, Submission, Work
from plumbline.engines.threaded.request_core import Output, RequestCore
from plumbline.port.checks import check_media
from plumbline.port.engine import (
    EngineClosedError,
    EngineFullError,
    EngineInfo,
    EngineStats,
    GenerateRequest,
    MediaPrompt,
    TokenChunk,
)

__all__ = ["FEATURES", "ThreadedEngine"]

FEATURES = frozenset(
    {
        "allowed_token_ids",
        "bad_words",
        "frequency_penalty",
        "ignore_eos",
        "logit_bias",
        "logits_processors",
        "logprob_token_ids",
        "logprobs",
        "min_p",
        "min_tokens",
        "presence_penalty",
        "prompt_logprobs",
        "repetition_penalty",
        "thinking_budget",
        "stop_token_ids",
        "top_k",
        *CHAIN_FEATURES,
    }
)
"""The `SamplingParams` fields that engines on the shared sampling kernels honour."""

_UNREAD_PAUSES = 512
"""Unread chunks at which a request is paused, so that an answer that no client reads costs no more steps."""
_UNREAD_RESUMES = 64
"""Unread chunks at which a paused request goes on. Far fewer, because going on may cost a recomputation."""

Result = TypeVar("Result")


class ThreadedEngine:
    """Serve a core from a thread. Create it, `await start()`, then call `generate` from that event loop.

    Args:
        core: the engine core.
        info: the facts that the engine reports.
        max_in_flight: requests that may run and wait; one more is refused.
        max_per_client: how many of them one client may have; 0 sets no limit.
        grammars: compiles grammars; without it, requests with a grammar are refused.
        adapters: counts the requests of adapters, if the core has any.
        media: reads the files of requests, if the core does not do that itself.
        stuck_after: seconds after which a step counts as stuck; it is abandoned after three times as long.
    """

    def __init__(
        self,
        core: RequestCore,
        info: EngineInfo,
        *,
        max_in_flight: int,
        max_per_client: int = 0,
        grammars: GrammarCompiler | None = None,
        adapters: AdapterGate | None = None,
        media: MediaReader | None = None,
        stuck_after: float = 120.0,
    ) -> None:
        self._readings = Readings(media)
        self.admission = Admission(
            info,
            max_in_flight=max_in_flight,
            max_per_client=max_per_client,
            grammars=grammars,
            adapters=adapters,
        )
        self._info = self.admission.info
        self.processors: Mapping[str, ProcessorFactory] = {}
        """The processors of logits that requests may name."""
        self._texts: TokenTexts | None = None
        """Made when the first request bans a text."""
        self._streams: dict[str, asyncio.Queue[TokenChunk]] = {}
        self._works: set[asyncio.Future[Any]] = set()
        """Functions that the thread has not called yet."""
        self._paused: set[str] = set()
        self._keeper = CoreKeeper(
            core,
            info.name,
            stuck_after=stuck_after,
            renew=self._renew,
            deliver=self._deliver,
            failed=self._fail_streams,
            mark=lambda request_id, works: self.admission.mark(request_id, works),
        )

    @property
    def info(self) -> EngineInfo:
        """The engine's fixed facts."""
        return self._info

    async def start(self) -> None:
        """Start the engine thread. The model is loaded already; a first request warms it up."""
        # The engine thread and the event loop share the interpreter lock. With the default of 5 ms a busy event loop
        # could delay the engine by several steps.
        sys.setswitchinterval(min(sys.getswitchinterval(), 0.0005))
        self._keeper.start()

    async def stop(self) -> None:
        """End the thread after its current step; requests in flight get an abort. Idempotent."""
        await self._keeper.stop()
        await self.admission.close()
        for stream in self._streams.values():
            stream.put_nowait(TokenChunk(finish_reason="abort"))
        self._streams.clear()
        self._readings.end_all()
        self._fail_works()

    async def generate(self, request: GenerateRequest) -> AsyncGenerator[TokenChunk, None]:
        """Continue a sequence; see `plumbline.port.engine.Engine.generate`."""
        check_request(request, self._info)
        processors = make_processors(request.sampling.processors, self.processors)
        grammar, budget = request.sampling.grammar, request.sampling.thinking_budget
        matcher = None if grammar is None else await self.admission.compile(grammar, request.client)
        if budget is not None:
            matcher = ThinkingBudgetMatcher(budget, matcher)
        if request.sampling.bad_words or request.sampling.banned_strings:
            matcher = await self._with_bans(request, matcher)
        stream = self._enter(request)
        started = finished = False
        try:
            await self._submit(request, matcher, processors)
            while not finished:
                chunk = await (stream.get() if started else self._first(stream, request))
                if not started:
                    self.admission.started(request)
                    started = True
                finished = chunk.finish_reason is not None
                if request.request_id in self._paused and stream.qsize() <= _UNREAD_RESUMES:
                    self._paused.discard(request.request_id)
                    self._keeper.put(Reading(request.request_id, keeps_up=True))
                yield chunk
        finally:
            self._streams.pop(request.request_id, None)
            self.admission.leave(request)
            self._paused.discard(request.request_id)
            self._readings.forget(request.request_id)
            if not finished:
                self._keeper.put(request.request_id)

    async def _first(self, stream: asyncio.Queue[TokenChunk], request: GenerateRequest) -> TokenChunk:
        """Wait for the first chunk.

        Raises:
            EngineFullError: the request has waited longer than any may, and was not begun. The estimate at its
                admission was too low: after a quiet time it does not know how slow a full engine is.
        """
        longest = self.admission.max_queue_seconds
        if not longest or request.patient:
            return await stream.get()
        try:
            async with asyncio.timeout(longest):
                return await stream.get()
        except TimeoutError:
            self._keeper.put(Overdue(request.request_id))
        chunk = await stream.get()
        if chunk.finish_reason == "abort" and not chunk.token_ids:
            raise self.admission.overdue(request)
        return chunk

    def refusal(self, client: str, more: int = 0) -> EngineFullError | None:
        """See `plumbline.port.engine.Engine.refusal`."""
        return self.admission.refusal(client, more)

    def arriving(self, client: str) -> AbstractContextManager[None]:
        """See `plumbline.port.engine.Engine.arriving`."""
        return self.admission.arrivals.one(client)

    async def expand(self, prompt: MediaPrompt) -> Sequence[int]:
        """See `plumbline.port.engine.Engine.expand`. Engines that take media override it."""
        check_media(prompt, self._info)
        return prompt.token_ids

    async def check_grammar(self, grammar: str, client: str = "") -> None:
        """See `plumbline.port.engine.Engine.check_grammar`."""
        await self.admission.compile(grammar, client)

    async def load_adapter(self, name: str, folder: Path) -> None:
        """Refuse every adapter."""
        raise no_adapters(self._info)

    async def unload_adapter(self, name: str) -> None:
        """Ignore every name: no adapter is loaded."""

    def abort(self, request_id: str) -> None:
        """End a request now; its stream gets a last chunk with reason `abort`."""
        if self._readings.end(request_id):
            self._streams[request_id].put_nowait(TokenChunk(finish_reason="abort"))
        else:
            self._keeper.put(request_id)

    def stats(self) -> EngineStats:
        """A snapshot. The numbers are read without a lock: each is right, but they may be one step apart."""
        counted = self._keeper.stats()
        return msgspec.structs.replace(counted, num_waiting=counted.num_waiting + len(self._readings))

    async def _with_bans(self, request: GenerateRequest, inner: Matcher | None) -> Matcher:
        """Return a matcher with the bans of a request. Texts are searched for in a thread."""
        sampling, vocab_size = request.sampling, self._info.vocab_size
        if not sampling.banned_strings:
            return BanMatcher(sampling, vocab_size, inner=inner)
        grammars = self.admission.grammars
        assert grammars is not None, "checked by its feature"
        if self._texts is None:
            self._texts = await asyncio.to_thread(TokenTexts, grammars.vocabulary)
        return await asyncio.to_thread(BanMatcher, sampling, vocab_size, self._texts, inner)

    async def between_steps(self, function: Callable[[], Result]) -> Result:
        """Call a function on the engine thread, after what was submitted and aborted before; returns its result.

        Raises:
            EngineClosedError: the engine ends before.
            Exception: the function raised it.
        """
        self._keeper.check_open()
        result: asyncio.Future[Result] = asyncio.get_running_loop().create_future()
        self._works.add(result)
        self._keeper.put(Work(function, result))
        try:
            return await result
        finally:
            self._works.discard(result)

    def _enter(self, request: GenerateRequest) -> asyncio.Queue[TokenChunk]:
        self._keeper.check_open()
        self.admission.enter(request)
        stream: asyncio.Queue[TokenChunk] = asyncio.Queue()
        self._streams[request.request_id] = stream
        return stream

    async def _submit(
        self, request: GenerateRequest, matcher: Matcher | None, processors: RequestProcessors | None
    ) -> None:
        """Hand a request to the thread once its files are read, unless it has ended before."""
        # Encoding a file also runs native code.
        self.admission.mark(request.request_id, request.media is not None)
        images = await self._readings.read(request)
        self.admission.mark(request.request_id, False)
        if images is not None and request.request_id in self._streams:
            self._keeper.put(Submission(request, matcher, images, processors))

    @property
    def has_hanging_thread(self) -> bool:
        """Whether a thread is in a step that did not end."""
        return self._keeper.has_hanging_thread

    def _renew(self, *, abandoned: bool) -> RequestCore | None:
        """Return a new core with the same weights; None if that is not possible.

        Args:
            abandoned: whether a thread may still use the memory of the present core.
        """
        return None

    def _fail_streams(self) -> None:
        """Fail every stream after the thread ended; from here on `_submit` refuses, so these are all that wait."""
        for stream in self._streams.values():
            stream.put_nowait(TokenChunk(finish_reason="error", error="The engine has failed."))
        self._streams.clear()
        self._readings.end_all()
        self._fail_works()

    def _fail_works(self) -> None:
        """Fail what the thread did not call before it ended."""
        for result in self._works:
            settle(result, None, EngineClosedError("The engine has stopped."))

    def _deliver(self, outputs: list[Output]) -> None:
        """Put each chunk into its stream; closed streams are no longer in the table."""
        for request_id, chunk in outputs:
            stream = self._streams.get(request_id)
            if stream is None:
                continue
            stream.put_nowait(chunk)
            if stream.qsize() >= _UNREAD_PAUSES and request_id not in self._paused:
                self._paused.add(request_id)
                self._keeper.put(Reading(request_id, keeps_up=False))
