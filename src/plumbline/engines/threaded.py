"""Serve a synchronous engine core through the asyncio port, and start a new core when one breaks or hangs.

The thread of the core (`core_thread.py`) and the event loop meet in two places only: an inbox that takes requests,
aborts and changes of adapters at any time, and one `call_soon_threadsafe` per step that delivers all chunks of that
step. The event loop never waits for a step.

When the thread dies, or does not end a step in time, the requests in flight end with an error, and a new core with the
same weights goes on. The engine reports itself dead when there can be no new core, or when several fail in a row.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import sys
import time
from collections.abc import AsyncGenerator, Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from plumbline.engines.adapters import AdapterGate
from plumbline.engines.admission import Admission, MediaReader, Readings
from plumbline.engines.checks import check_media, check_request, no_adapters
from plumbline.engines.constraints.bans import BanMatcher, TokenTexts
from plumbline.engines.constraints.grammar import GrammarCompiler, Matcher
from plumbline.engines.constraints.thinking_budget import ThinkingBudgetMatcher
from plumbline.engines.core_thread import CoreThread, Message, Reading, Submission, Work
from plumbline.engines.features import CHAIN_FEATURES
from plumbline.engines.port import (
    EngineClosedError,
    EngineInfo,
    EngineStats,
    GenerateRequest,
    MediaPrompt,
    TokenChunk,
)
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
_MOST_RESTARTS = 3
"""New cores in a row that do not finish a step, after which the engine is dead."""
_HANGS = 3.0
"""A step hangs when it takes this many times the seconds after which the engine counts as stuck."""
_LONGEST_LOOK = 1.0
"""Seconds between two looks at the thread."""
_LAST_STEP = 30.0
"""Seconds that `stop` waits for the step that runs."""
_DEAD_RETRY = 10
"""Seconds for `Retry-After` when only a new process helps."""

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
        self._core = core
        self._readings = Readings(media)
        self.admission = Admission(
            info,
            max_in_flight=max_in_flight,
            max_per_client=max_per_client,
            grammars=grammars,
            adapters=adapters,
        )
        self._info = self.admission.info
        self._texts: TokenTexts | None = None
        """Made when the first request bans a text."""
        self._streams: dict[str, asyncio.Queue[TokenChunk]] = {}
        self._works: set[asyncio.Future[Any]] = set()
        """Functions that the thread has not called yet."""
        self._paused: set[str] = set()
        self._thread: CoreThread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._closed = False
        self._failed: str | None = None
        """Why the engine is dead."""
        self._restarting: asyncio.Task[None] | None = None
        self._watching: asyncio.Task[None] | None = None
        self._hangs_after = _HANGS * stuck_after
        self._abandoned: list[CoreThread] = []
        """Threads that were in a step that did not end; they may still use their core."""
        self._num_restarts = 0
        self._restarts_in_vain = 0
        self._failed_steps = 0
        """Of earlier threads."""

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
        self._thread = self._start_thread(self._core)
        self._watching = asyncio.create_task(self._watch())

    async def stop(self) -> None:
        """End the thread after its current step; requests in flight get an abort. Idempotent."""
        self._closed = True
        for task in (self._watching, self._restarting):
            if task is not None:
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)
        thread, self._thread = self._thread, None
        if thread is not None:
            thread.put(None)
            if not await asyncio.to_thread(thread.join, _LAST_STEP):
                _log.error("the engine is stopped while a step still runs")
                self._abandon(thread)
        for stream in self._streams.values():
            stream.put_nowait(TokenChunk(finish_reason="abort"))
        self._streams.clear()
        self._readings.end_all()
        self._fail_works()

    async def generate(self, request: GenerateRequest) -> AsyncGenerator[TokenChunk, None]:
        """Continue a sequence; see `plumbline.engines.port.Engine.generate`."""
        check_request(request, self._info)
        grammar, budget = request.sampling.grammar, request.sampling.thinking_budget
        matcher = None if grammar is None else await self.admission.compile(grammar)
        if budget is not None:
            matcher = ThinkingBudgetMatcher(budget, matcher)
        if request.sampling.bad_words or request.sampling.banned_strings:
            matcher = await self._with_bans(request, matcher)
        stream = self._enter(request)
        started = finished = False
        try:
            await self._submit(request, matcher)
            while not finished:
                chunk = await stream.get()
                if not started:
                    self.admission.started(request)
                    started = True
                finished = chunk.finish_reason is not None
                if request.request_id in self._paused and stream.qsize() <= _UNREAD_RESUMES:
                    self._paused.discard(request.request_id)
                    self._put(Reading(request.request_id, keeps_up=True))
                yield chunk
        finally:
            self._streams.pop(request.request_id, None)
            self.admission.leave(request)
            self._paused.discard(request.request_id)
            self._readings.forget(request.request_id)
            if not finished:
                self._put(request.request_id)

    async def expand(self, prompt: MediaPrompt) -> Sequence[int]:
        """See `plumbline.engines.port.Engine.expand`. Engines that take media override it."""
        check_media(prompt, self._info)
        return prompt.token_ids

    async def check_grammar(self, grammar: str) -> None:
        """See `plumbline.engines.port.Engine.check_grammar`."""
        await self.admission.compile(grammar)

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
            self._put(request_id)

    def stats(self) -> EngineStats:
        """A snapshot. The numbers are read without a lock: each is right, but they may be one step apart."""
        thread = self._thread
        busy_since = None if thread is None else thread.busy_since
        counted = self._core.stats()
        return msgspec.structs.replace(
            counted,
            alive=self._failed is None and thread is not None,
            seconds_since_step=0.0 if busy_since is None else max(0.0, time.monotonic() - busy_since),
            num_waiting=counted.num_waiting
            + (0 if thread is None else thread.num_unread)
            + len(self._readings),
            num_failed_steps=self._failed_steps + (0 if thread is None else thread.num_failed),
            num_restarts=self._num_restarts,
        )

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
        self._check_open()
        result: asyncio.Future[Result] = asyncio.get_running_loop().create_future()
        self._works.add(result)
        self._put(Work(function, result))
        try:
            return await result
        finally:
            self._works.discard(result)

    def _check_open(self) -> None:
        if self._closed or self._thread is None:
            raise EngineClosedError("The engine is shutting down.")
        if self._failed is not None:
            raise EngineClosedError(f"The engine has failed: {self._failed}", _DEAD_RETRY)
        if self._restarting is not None:
            raise EngineClosedError("The engine starts again after a failure. Send the request again.")

    def _enter(self, request: GenerateRequest) -> asyncio.Queue[TokenChunk]:
        self._check_open()
        self.admission.enter(request)
        stream: asyncio.Queue[TokenChunk] = asyncio.Queue()
        self._streams[request.request_id] = stream
        return stream

    async def _submit(self, request: GenerateRequest, matcher: Matcher | None) -> None:
        """Hand a request to the thread once its files are read, unless it has ended before."""
        images = await self._readings.read(request)
        if images is not None and request.request_id in self._streams:
            self._put(Submission(request, matcher, images))

    def _put(self, message: Message) -> None:
        """Hand a message to the thread; without one nothing is left to abort or to pause."""
        if self._thread is not None:
            self._thread.put(message)

    def _start_thread(self, core: RequestCore) -> CoreThread:
        thread = CoreThread(
            core,
            f"{self._info.name}-engine",
            deliver=lambda outputs: self._call_loop(self._deliver, thread, outputs),
            settle=partial(self._call_loop, _settle),
            ended=lambda reason: self._call_loop(self._thread_ended, thread, reason),
        )
        thread.start()
        return thread

    # Watching the thread

    async def _watch(self) -> None:
        """Abandon a thread that hangs in a step.

        Looks are counted rather than seconds: a process that was stopped for an hour has not hung for an hour.
        """
        look = min(_LONGEST_LOOK, self._hangs_after / 10)
        looks, seen = 0, None
        while True:
            await asyncio.sleep(look)
            thread = self._thread
            mark = None if thread is None else thread.busy_since
            looks = looks + 1 if mark is not None and mark == seen else 0
            seen = mark
            if thread is not None and looks * look >= self._hangs_after:
                self._abandon(thread)
                self._thread_ended(thread, f"a step did not end within {self._hangs_after:.0f} s")

    def _abandon(self, thread: CoreThread) -> None:
        thread.abandon()
        self._abandoned.append(thread)

    def _thread_ended(self, thread: CoreThread, reason: str) -> None:
        """Fail the requests in flight, and start a new core."""
        if (
            thread is not self._thread
            or self._closed
            or self._failed is not None
            or self._restarting is not None
        ):
            return
        self._failed_steps += thread.num_failed
        thread.num_failed = 0
        thread.busy_since = None
        self._fail_streams()
        self._restarts_in_vain = 0 if thread.num_finished else self._restarts_in_vain + 1
        self._abandoned = [each for each in self._abandoned if each.is_alive]
        if self._restarts_in_vain > _MOST_RESTARTS:
            self._die(f"{reason}, and so did {_MOST_RESTARTS} cores after it")
        elif len(self._abandoned) > 1:
            self._die(f"{reason}, for the second time")
        else:
            _log.error("the engine starts again: %s", reason)
            self._restarting = asyncio.create_task(self._restart(thread, reason))

    async def _restart(self, thread: CoreThread, reason: str) -> None:
        try:
            core = await asyncio.to_thread(self._renew, abandoned=thread in self._abandoned)
            if core is None:
                self._die(f"{reason}, and the {self._info.name} engine cannot start again in this process")
            else:
                self._core = core
                self._thread = self._start_thread(core)
                self._num_restarts += 1
                _log.warning("the engine has started again")
        except Exception as error:
            _log.exception("the engine could not start again")
            self._die(f"{reason}, and a new start failed with {type(error).__name__}")
        finally:
            self._restarting = None

    def _die(self, reason: str) -> None:
        """Refuse all requests from here on: only a new process helps."""
        self._failed = reason
        _log.error("the engine has failed: %s; the server must be restarted", reason)

    @property
    def has_hanging_thread(self) -> bool:
        """Whether a thread is in a step that did not end."""
        return any(thread.is_alive for thread in self._abandoned)

    def _renew(self, *, abandoned: bool) -> RequestCore | None:
        """Return a new core with the same weights; None if that is not possible.

        Args:
            abandoned: whether a thread may still use the memory of the present core.
        """
        return None

    def _call_loop(self, function: Callable[..., None], *arguments: object) -> None:
        loop = self._loop
        if loop is not None:
            # A closed event loop raises; no client reads any more then.
            with contextlib.suppress(RuntimeError):
                loop.call_soon_threadsafe(function, *arguments)

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
            _settle(result, None, EngineClosedError("The engine has stopped."))

    def _deliver(self, thread: CoreThread, outputs: list[Output]) -> None:
        """Put each chunk into its stream, on the event loop; closed streams are no longer in the table."""
        if thread is not self._thread:
            return
        for request_id, chunk in outputs:
            stream = self._streams.get(request_id)
            if stream is None:
                continue
            stream.put_nowait(chunk)
            if stream.qsize() >= _UNREAD_PAUSES and request_id not in self._paused:
                self._paused.add(request_id)
                self._put(Reading(request_id, keeps_up=False))


def _settle(future: asyncio.Future[Any], result: object, error: Exception | None) -> None:
    """Give a future its result, unless nothing waits for it any more."""
    if future.done():
        return
    if error is None:
        future.set_result(result)
    else:
        future.set_exception(error)
