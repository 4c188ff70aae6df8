"""Use an engine that runs in another process."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import AsyncGenerator, Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import msgspec

from plumbline.base.shares import within_share
from plumbline.engines.remote.link import LOST, SILENT, EngineLink, engine_info
from plumbline.engines.remote.messages import (
    Abort,
    AbortNamed,
    Arrived,
    Arriving,
    Checked,
    CheckGrammar,
    Chunks,
    Expand,
    Expanded,
    FromHost,
    Generate,
    Hello,
    LoadAdapter,
    Refused,
    Statistics,
    ToHost,
    UnloadAdapter,
    Unread,
)
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

__all__ = ["RemoteEngine"]

_log = logging.getLogger("plumbline.engines")

_UNREAD_PAUSES = 256
_UNREAD_RESUMES = 32
"""Unread chunks at which a stream is paused, and at which it goes on. If the reader still lags, the engine pauses the
request."""
_RECENT = 60.0
"""Seconds for which `/health` reports the end of a process once the next one is there."""
_Answer = TokenChunk | Checked | Expanded | Refused
_DEAD = EngineStats(
    alive=False,
    seconds_since_step=0.0,
    num_running=0,
    num_waiting=0,
    kv_cache_usage=0.0,
    num_preemptions=0,
    prefix_cache_queries=0,
    prefix_cache_hits=0,
    prompt_tokens=0,
    generation_tokens=0,
    num_steps=0,
)


class _Stream:
    """What this process has asked of the engine, and what has come of it."""

    __slots__ = ("answers", "client", "question", "waits")

    def __init__(self, question: ToHost, client: str | None) -> None:
        self.question = question
        self.client = client
        """Of a request; None for what is not one."""
        self.answers: asyncio.Queue[_Answer] = asyncio.Queue()
        self.waits = True
        """Whether another process could still take it: no chunk has come, and no error."""


class RemoteEngine:
    """Forward the work of an `Engine` to an `EngineHost` in another process.

    Build it with `connect`. The counters of `stats` are those of the last message, at most a fraction of a second old.
    When the process ends, the requests that it was computing end with an error. If its keeper starts another
    (`history.py`), the ones that waited are sent to that in their order, and so are new ones, which wait meanwhile;
    otherwise all end, and the engine is not alive. When the host sends nothing for too long, such as a process that was
    stopped, streams also end with an error, and requests are refused until it sends something again.

    Args:
        path: the host's socket.
        info: the engine's facts, as received from the host.
        silent_after: seconds without a message after which the host counts as silent.
        max_waiting: requests that may wait while the engine starts again.
    """

    def __init__(
        self, path: Path, info: EngineInfo, silent_after: float = 120.0, max_waiting: int = 1024
    ) -> None:
        self._info = info
        self._max_waiting = max_waiting
        self.link = EngineLink(
            path, silent_after, take=self._take, lost=self._lost, found=self._found, closed=self._closed
        )
        self._streams: dict[int, _Stream] = {}
        """By their number, in the order in which they came."""
        self._names: dict[str, int] = {}
        self._behind: set[int] = set()
        self._num_streams = 0
        self._stats = (_DEAD, time.monotonic())
        self._statistics: Statistics | None = None
        self._num_arrivals = 0
        self._unseen: deque[str] = deque()
        """The clients of the latest arrivals, which the statistics do not count yet."""
        self._adapters: dict[str, Path] = {}
        """The adapters that the next process must load as well."""
        self._restoring: asyncio.Task[None] | None = None
        """Sends a new process what has waited for it."""
        self.on_lost: Callable[[], None] = lambda: None
        """Is called when there is no process and there will be no other, without `stop`."""

    @classmethod
    async def connect(cls, path: Path, silent_after: float = 120.0, max_waiting: int = 1024) -> RemoteEngine:
        """Ask the host for the engine's facts. The connection for requests is made by `start`.

        Raises:
            OSError: no process listens on the socket.
            FrameError: the peer is not an engine host.
        """
        return cls(path, await engine_info(path), silent_after, max_waiting)

    @property
    def info(self) -> EngineInfo:
        """The engine's fixed facts."""
        return self._info

    async def start(self) -> None:
        """Connect to the host.

        Raises:
            OSError: no process listens on the socket.
            FrameError: the peer is not an engine host.
        """
        await self.link.start()
        self._stats = (msgspec.structs.replace(_DEAD, alive=True), time.monotonic())

    async def stop(self) -> None:
        """Abort what this process asked for, and disconnect. Idempotent; the engine itself goes on."""
        if self._restoring is not None:
            self._restoring.cancel()
        await self.link.stop()
        for stream in self._streams.values():
            stream.answers.put_nowait(TokenChunk(finish_reason="abort"))

    async def generate(self, request: GenerateRequest) -> AsyncGenerator[TokenChunk, None]:
        """Continue a sequence; see `plumbline.port.engine.Engine.generate`."""
        if request.request_id in self._names:
            raise RefusedRequestError(f"request id {request.request_id!r} is in flight already")
        if (full := self._full(request.client)) is not None:
            raise full
        finished = False
        number, stream = self._open_stream(lambda number: Generate(number, request), request.client)
        self._names[request.request_id] = number
        try:
            self._submit(stream)
            while not finished:
                chunk = await stream.answers.get()
                if not isinstance(chunk, TokenChunk):
                    finished = True
                    raise _error(chunk)
                finished = chunk.finish_reason is not None
                if number in self._behind and stream.answers.qsize() <= _UNREAD_RESUMES:
                    self._behind.discard(number)
                    self.link.send(Unread(number, False))
                yield chunk
        finally:
            self._streams.pop(number, None)
            self._names.pop(request.request_id, None)
            self._behind.discard(number)
            if not finished:
                self.link.send(Abort(number))

    def refusal(self, client: str, more: int = 0) -> EngineFullError | None:
        """See `plumbline.port.engine.Engine.refusal`.

        The host's last message has counted what arrives at all API servers; what has arrived here since comes on top.
        """
        if self._waits:
            return self._full(client, more)
        last = self._statistics
        if last is None or not self.link.is_open:
            return None
        room = last.rooms.get(client, last.others)
        if room is None or self._unseen.count(client) + more < room.count:
            return None
        return EngineFullError(room.message, room.retry_after)

    @property
    def _waits(self) -> bool:
        """Whether requests wait for the next process."""
        return self.link.closed is None and (self.link.connection is None or self._restoring is not None)

    def _full(self, client: str, more: int = 0) -> EngineFullError | None:
        """Return why another request may not wait for the next process; None if it may, or need not."""
        if not self._waits:
            return None
        clients = [stream.client for stream in self._streams.values() if stream.client is not None]
        if len(clients) + more >= self._max_waiting:
            return EngineFullError(
                f"{len(clients)} requests wait for the engine to start again, which is the limit of this server."
            )
        most = self._info.max_in_flight
        own = clients.count(client) + more
        if most and own >= most:
            return EngineFullError(
                f"{most} requests of this client are in flight, which is the limit for each."
            )
        if not within_share(own, 1, len(clients) + more, self._max_waiting):
            return EngineFullError(f"{own} requests of this client are in flight, its share beside others.")
        return None

    @contextmanager
    def arriving(self, client: str) -> Iterator[None]:
        """See `plumbline.port.engine.Engine.arriving`."""
        if not self.link.is_open:
            yield  # A host that does not read could not take it off `_unseen`.
            return
        self._num_arrivals += 1
        number = self._num_arrivals
        self._unseen.append(client)
        self.link.send(Arriving(number, client))
        try:
            yield
        finally:
            self.link.send(Arrived(number))

    async def check_grammar(self, grammar: str, client: str = "") -> None:
        """See `plumbline.port.engine.Engine.check_grammar`."""
        await self._ask(lambda number: CheckGrammar(number, grammar, client))

    async def expand(self, prompt: MediaPrompt) -> Sequence[int]:
        """See `plumbline.port.engine.Engine.expand`."""
        answer = await self._ask(lambda number: Expand(number, prompt))
        return answer.token_ids if isinstance(answer, Expanded) else ()

    async def load_adapter(self, name: str, folder: Path) -> None:
        """See `plumbline.port.engine.Engine.load_adapter`."""
        await self._ask(lambda number: LoadAdapter(number, name, str(folder)))
        self._adapters[name] = folder

    async def unload_adapter(self, name: str) -> None:
        """See `plumbline.port.engine.Engine.unload_adapter`."""
        self._adapters.pop(name, None)
        await self._ask(lambda number: UnloadAdapter(number, name))

    async def _ask(self, question: Callable[[int], ToHost], *, now: bool = False) -> Checked | Expanded:
        """Send a message that has one answer, and return that.

        Args:
            question: makes the message for the number of its stream.
            now: whether it comes before what waits.
        """
        finished = False
        number, stream = self._open_stream(question)
        try:
            self._submit(stream, now=now)
            answer = await stream.answers.get()
            finished = True
            if not isinstance(answer, Checked | Expanded):
                raise _error(answer)
            return answer
        finally:
            self._streams.pop(number, None)
            if not finished:
                self.link.send(Abort(number))

    def abort(self, request_id: str) -> None:
        """End a request now; its stream gets a last chunk with reason `abort`."""
        number = self._names.get(request_id)
        if number is None:
            return
        if self._waits:
            self._streams[number].answers.put_nowait(TokenChunk(finish_reason="abort"))
        self.link.send(AbortNamed(number))

    def stats(self) -> EngineStats:
        """Return the counters of the last message; a busy engine has counted on since then."""
        (stats, at), link, history = self._stats, self.link, self.link.history
        # From when it serves again: a start may itself take longer than what is called recent.
        is_recent = time.monotonic() - max(history.ended_at, link.found_again) < _RECENT
        stats = msgspec.structs.replace(
            stats,
            num_restarts=stats.num_restarts + sum(history.deaths.values()),
            deaths=history.deaths,
            last_death=history.cause if is_recent else "",
            num_quarantined=history.num_quarantined,
            outage=link.outage or stats.outage,
        )
        if link.closed is not None:
            return msgspec.structs.replace(stats, alive=False, failure=link.closed)
        if self._waits:
            waiting = sum(stream.client is not None for stream in self._streams.values())
            return msgspec.structs.replace(
                stats,
                outage=link.outage or LOST,
                seconds_since_step=0.0,
                num_running=0,
                num_waiting=waiting,
                kv_cache_usage=0.0,
            )
        if not stats.seconds_since_step and not link.is_silent:
            return stats
        return msgspec.structs.replace(
            stats, seconds_since_step=stats.seconds_since_step + time.monotonic() - at
        )

    def _open_stream(
        self, question: Callable[[int], ToHost], client: str | None = None
    ) -> tuple[int, _Stream]:
        if self.link.closed is not None:
            raise EngineClosedError(self.link.closed)
        if self.link.is_silent:
            raise EngineClosedError(f"{SILENT} Send the request again.")
        self._num_streams += 1
        stream = self._streams[self._num_streams] = _Stream(question(self._num_streams), client)
        return self._num_streams, stream

    def _submit(self, stream: _Stream, *, now: bool = False) -> None:
        """Send a question, unless it has to wait for the next process."""
        if now or not self._waits:
            self.link.send(stream.question)

    def _lost(self, error: str, fatal: Collection[int] | None) -> None:
        """End what was being computed with an error, or everything; a host that is still there frees what they hold."""
        if self._restoring is not None:
            self._restoring.cancel()
            self._restoring = None
        died = error not in (LOST, SILENT)
        for number, stream in self._streams.items():
            if fatal is not None and stream.client is not None and stream.waits and number not in fatal:
                continue
            stream.waits = False
            stream.answers.put_nowait(TokenChunk(finish_reason="error", error=error, died=died))
            self.link.send(Abort(number))
        self._unseen.clear()
        self._behind.clear()
        self._statistics = None

    def _found(self) -> None:
        self._restoring = asyncio.create_task(self._restore())

    async def _restore(self) -> None:
        """Send a new process what has waited for it, after the adapters that it may name."""
        for name, folder in list(self._adapters.items()):
            load = partial(LoadAdapter, name=name, folder=str(folder))
            try:
                await self._ask(load, now=True)
            except (RefusedRequestError, EngineFullError, EngineClosedError) as error:
                _log.error("the adapter %s could not be loaded again: %s", name, error)
        self._restoring = None
        for stream in list(self._streams.values()):
            if stream.waits:
                self._submit(stream)

    def _closed(self, reason: str) -> None:
        self.on_lost()

    def _take(self, message: FromHost) -> None:
        match message:
            case Chunks(items):
                for number, chunk in items:
                    self._deliver(number, chunk)
            case Checked(number) | Expanded(number) | Refused(number):
                stream = self._streams.get(number)
                if stream is not None:
                    stream.answers.put_nowait(message)
            case Statistics(stats):
                if not stats.alive:  # Its process ends, and another one starts.
                    outage = f"{stats.failure or 'the engine has failed'}; its process starts again"
                    stats = msgspec.structs.replace(stats, alive=True, outage=outage)
                self._stats, self._statistics = (stats, time.monotonic()), message
                while len(self._unseen) > self._num_arrivals - message.arrivals:
                    self._unseen.popleft()
            case Hello():
                pass

    def _deliver(self, number: int, chunk: TokenChunk) -> None:
        """Put a chunk into its stream; streams that were closed are no longer in the table."""
        stream = self._streams.get(number)
        if stream is None:
            return
        stream.waits = False
        stream.answers.put_nowait(chunk)
        if stream.answers.qsize() >= _UNREAD_PAUSES and number not in self._behind:
            self._behind.add(number)
            self.link.send(Unread(number, True))


def _error(answer: _Answer) -> Exception:
    """Return the error of the port that the host's engine raised."""
    if not isinstance(answer, Refused):  # The process has ended, or fell silent.
        return EngineClosedError(answer.error or LOST if isinstance(answer, TokenChunk) else LOST)
    if answer.kind == "refused":
        return RefusedRequestError(answer.message, answer.param, answer.code)
    if answer.kind == "full":
        return EngineFullError(answer.message, retry_after=answer.retry_after)
    return EngineClosedError(answer.message, answer.retry_after)
