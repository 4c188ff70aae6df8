"""Run a synchronous engine core on a thread and serve it through the asyncio port.

The thread and the event loop meet in two places only: an inbox that takes requests, aborts and changes of adapters at
any time, and one `call_soon_threadsafe` per step that delivers all chunks of that step. The event loop never waits for
a step.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import queue
import sys
import threading
import time
from collections.abc import AsyncGenerator, Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import msgspec

from plumbline.engines.adapters import AdapterGate
from plumbline.engines.admission import Admission, MediaReader, Readings
from plumbline.engines.checks import check_media, check_request, no_adapters
from plumbline.engines.constraints.bans import BanMatcher, TokenTexts
from plumbline.engines.constraints.grammar import GrammarCompiler, Matcher
from plumbline.engines.constraints.thinking_budget import ThinkingBudgetMatcher
from plumbline.engines.features import CHAIN_FEATURES
from plumbline.engines.port import (
    EngineClosedError,
    EngineInfo,
    EngineStats,
    GenerateRequest,
    MediaPrompt,
    TokenChunk,
)
from plumbline.engines.request import PlacedImage
from plumbline.engines.request_core import Output, RequestCore

__all__ = ["FEATURES", "ThreadedEngine"]

_log = logging.getLogger("plumbline.engines")

FEATURES = frozenset(
    {
        "allowed_token_ids",
        "bad_words",
        "frequency_penalty",
        "ignore_eos",
        "logit_bias",
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
_FATAL_FAILURES = 3
"""After this many failed steps in a row the engine reports itself dead, and `/health` with it."""


Result = TypeVar("Result")


class _Submission(NamedTuple):
    """A request on its way to the engine thread."""

    request: GenerateRequest
    matcher: Matcher | None
    images: tuple[PlacedImage, ...]


class _Reading(NamedTuple):
    """Whether the reader of a request keeps up, on its way to the engine thread."""

    request_id: str
    keeps_up: bool


class _Work(NamedTuple):
    """A function to call between two steps, on its way to the engine thread."""

    function: Callable[[], Any]
    result: asyncio.Future[Any]


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
    ) -> None:
        self._core = core
        self._readings = Readings(media)
        self._admission = Admission(
            info,
            max_in_flight=max_in_flight,
            max_per_client=max_per_client,
            grammars=grammars,
            adapters=adapters,
        )
        self._info = self._admission.info
        self._texts: TokenTexts | None = None
        """Made when the first request bans a text."""
        self._inbox: queue.SimpleQueue[_Submission | _Reading | _Work | str | None] = queue.SimpleQueue()
        self._streams: dict[str, asyncio.Queue[TokenChunk]] = {}
        self._works: set[asyncio.Future[Any]] = set()
        """Functions that the thread has not called yet."""
        self._paused: set[str] = set()
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._closed = False
        self._failed: str | None = None
        self._busy_since: float | None = None

    @property
    def info(self) -> EngineInfo:
        """The engine's fixed facts."""
        return self._info

    async def start(self) -> None:
        """Start the engine thread. The model is loaded already; a first request warms it up."""
        self._loop = asyncio.get_running_loop()
        # The engine thread and the event loop share the interpreter lock. With the default of 5 ms a busy event loop
        # could delay the engine by several steps.
        sys.setswitchinterval(min(sys.getswitchinterval(), 0.0005))
        self._thread = threading.Thread(target=self._run, name=f"{self._info.name}-engine", daemon=True)
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
        self._readings.end_all()
        self._fail_works()

    async def generate(self, request: GenerateRequest) -> AsyncGenerator[TokenChunk, None]:
        """Continue a sequence; see `plumbline.engines.port.Engine.generate`."""
        check_request(request, self._info)
        grammar, budget = request.sampling.grammar, request.sampling.thinking_budget
        matcher = None if grammar is None else await self._admission.compile(grammar)
        if budget is not None:
            matcher = ThinkingBudgetMatcher(budget, matcher)
        if request.sampling.bad_words or request.sampling.banned_strings:
            matcher = await self._with_bans(request, matcher)
        stream = self._enter(request)
        finished = False
        try:
            await self._submit(request, matcher)
            while not finished:
                chunk = await stream.get()
                finished = chunk.finish_reason is not None
                if request.request_id in self._paused and stream.qsize() <= _UNREAD_RESUMES:
                    self._paused.discard(request.request_id)
                    self._inbox.put(_Reading(request.request_id, keeps_up=True))
                yield chunk
        finally:
            self._streams.pop(request.request_id, None)
            self._admission.leave(request)
            self._paused.discard(request.request_id)
            self._readings.forget(request.request_id)
            if not finished:
                self._inbox.put(request.request_id)

    async def expand(self, prompt: MediaPrompt) -> Sequence[int]:
        """See `plumbline.engines.port.Engine.expand`. Engines that take media override it."""
        check_media(prompt, self._info)
        return prompt.token_ids

    async def check_grammar(self, grammar: str) -> None:
        """See `plumbline.engines.port.Engine.check_grammar`."""
        await self._admission.compile(grammar)

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
            self._inbox.put(request_id)

    def stats(self) -> EngineStats:
        """A snapshot. The numbers are read without a lock: each is right, but they may be one step apart."""
        busy_since = self._busy_since
        thread = self._thread
        counted = self._core.stats()
        return msgspec.structs.replace(
            counted,
            alive=self._failed is None and thread is not None and thread.is_alive(),
            seconds_since_step=0.0 if busy_since is None else max(0.0, time.monotonic() - busy_since),
            num_waiting=counted.num_waiting + self._inbox.qsize() + len(self._readings),
        )

    async def _with_bans(self, request: GenerateRequest, inner: Matcher | None) -> Matcher:
        """Return a matcher with the bans of a request. Texts are searched for in a thread."""
        sampling, vocab_size = request.sampling, self._info.vocab_size
        if not sampling.banned_strings:
            return BanMatcher(sampling, vocab_size, inner=inner)
        grammars = self._admission.grammars
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
        self._check_open()
        result: asyncio.Future[Result] = asyncio.get_running_loop().create_future()
        self._works.add(result)
        self._inbox.put(_Work(function, result))
        try:
            return await result
        finally:
            self._works.discard(result)

    def _check_open(self) -> None:
        if self._closed or self._thread is None:
            raise EngineClosedError("The engine is shutting down.")
        if self._failed is not None:
            raise EngineClosedError(f"The engine has failed: {self._failed}")

    def _enter(self, request: GenerateRequest) -> asyncio.Queue[TokenChunk]:
        self._check_open()
        self._admission.enter(request)
        stream: asyncio.Queue[TokenChunk] = asyncio.Queue()
        self._streams[request.request_id] = stream
        return stream

    async def _submit(self, request: GenerateRequest, matcher: Matcher | None) -> None:
        """Hand a request to the thread once its files are read, unless it has ended before."""
        images = await self._readings.read(request)
        if images is not None:
            self._inbox.put(_Submission(request, matcher, images))

    def _run(self) -> None:
        """Run the engine thread; when it dies, end every stream with an error."""
        try:
            self._work()
        except Exception as error:
            _log.exception("the engine thread has died")
            self._failed = f"its thread died of {type(error).__name__}"
        if self._failed is not None:
            # From here on `_submit` refuses, so the table has every stream that still waits.
            self._call_loop(self._fail_streams)

    def _work(self) -> None:
        core = self._core
        failures = 0
        while True:
            outputs: list[Output] = []
            stopping = not self._drain(outputs)
            try:
                if core.has_work and not stopping:
                    outputs += core.step()
                    failures = 0
            except Exception as error:
                # One bad step must not take the server down: fail its requests and go on.
                _log.exception("a step failed")
                failures += 1
                outputs += core.fail_all("The engine failed while it computed this request.")
                if failures >= _FATAL_FAILURES:
                    self._failed = f"{failures} steps failed in a row, the last with {type(error).__name__}"
                    stopping = True
            if outputs:
                self._call_loop(self._deliver, outputs)
            if stopping:
                return
            self._busy_since = time.monotonic() if core.has_work else None

    def _drain(self, outputs: list[Output]) -> bool:
        """Take all messages from the inbox, waiting for one if there is no work. Returns False to stop."""
        core = self._core
        if not core.has_work:
            core.check_integrity()
        wait = not core.has_work
        while True:
            try:
                message = self._inbox.get(block=wait)
            except queue.Empty:
                return True
            wait = False
            match message:
                case _Submission():
                    core.add(message.request, message.matcher, message.images)
                    if self._busy_since is None:
                        self._busy_since = time.monotonic()
                case _Reading(request_id, keeps_up):
                    core.resume(request_id) if keeps_up else core.pause(request_id)
                case _Work():
                    self._call(message)
                case str():
                    outputs += core.abort(message)
                case None:
                    return False

    def _call(self, work: _Work) -> None:
        """Call a function and hand its result, or what it raises, to the event loop."""
        try:
            result, error = work.function(), None
        except Exception as raised:
            result, error = None, raised
        self._call_loop(_settle, work.result, result, error)

    def _call_loop(self, function: Callable[..., None], *arguments: object) -> None:
        loop = self._loop
        if loop is not None:
            # A closed event loop raises; no client reads any more then.
            with contextlib.suppress(RuntimeError):
                loop.call_soon_threadsafe(function, *arguments)

    def _fail_streams(self) -> None:
        """Fail every stream, on the event loop, after the engine died."""
        for stream in self._streams.values():
            stream.put_nowait(TokenChunk(finish_reason="error", error="The engine has failed."))
        self._readings.end_all()
        self._fail_works()

    def _fail_works(self) -> None:
        """Fail what the thread did not call before it ended."""
        for result in self._works:
            _settle(result, None, EngineClosedError("The engine is shutting down."))

    def _deliver(self, outputs: list[Output]) -> None:
        """Put each chunk into its stream, on the event loop; closed streams are no longer in the table."""
        for request_id, chunk in outputs:
            stream = self._streams.get(request_id)
            if stream is None:
                continue
            stream.put_nowait(chunk)
            if stream.qsize() >= _UNREAD_PAUSES and request_id not in self._paused:
                self._paused.add(request_id)
                self._inbox.put(_Reading(request_id, keeps_up=False))


def _settle(future: asyncio.Future[Any], result: object, error: Exception | None) -> None:
    """Give a future its result, unless nothing waits for it any more."""
    if future.done():
        return
    if error is None:
        future.set_result(result)
    else:
        future.set_exception(error)
