"""Use an engine that runs in another process."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections import deque
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import msgspec

from plumbline.engines.port import (
    EngineClosedError,
    EngineFullError,
    EngineInfo,
    EngineStats,
    GenerateRequest,
    MediaPrompt,
    RefusedRequestError,
    TokenChunk,
)
from plumbline.engines.remote.messages import (
    Abort,
    AbortNamed,
    Arrived,
    Arriving,
    Checked,
    CheckGrammar,
    Chunks,
    Connection,
    Expand,
    Expanded,
    FrameError,
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

__all__ = ["RemoteEngine"]

_log = logging.getLogger("plumbline.engines")

_UNREAD_PAUSES = 256
_UNREAD_RESUMES = 32
"""Unread chunks at which a stream is paused, and at which it goes on. If the reader still lags, the engine pauses the
request."""
_Answer = TokenChunk | Checked | Expanded | Refused
_LOST = "The engine's process has ended."
_SILENT = "The engine's process does not answer."
_LONGEST_LOOK = 1.0
"""Seconds between two looks at what the host has sent."""
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


class RemoteEngine:
    """Forward the work of an `Engine` to an `EngineHost` in another process.

    Build it with `connect`. The counters of `stats` are those of the last message, at most a fraction of a second old.
    When the connection is lost, streams end with an error and the engine is not alive; it does not connect again.
    When the host sends nothing for too long, such as a process that was stopped, streams end with an error, too, and
    requests are refused until it sends something again.

    Args:
        path: the host's socket.
        info: the engine's facts, as received from the host.
        silent_after: seconds without a message after which the host counts as silent.
    """

    def __init__(self, path: Path, info: EngineInfo, silent_after: float = 120.0) -> None:
        self._path = path
        self._info = info
        self._silent_after = silent_after
        self._is_silent = False
        self._num_heard = 0
        """Messages of the host so far."""
        self._watching: asyncio.Task[None] | None = None
        self._connection: Connection[FromHost] | None = None
        self._reading: asyncio.Task[None] | None = None
        self._streams: dict[int, asyncio.Queue[_Answer]] = {}
        self._names: dict[str, int] = {}
        self._behind: set[int] = set()
        self._num_streams = 0
        self._closed: str | None = "The engine has not been started."
        self._stats = (_DEAD, time.monotonic())
        self._statistics: Statistics | None = None
        self._num_arrivals = 0
        self._unseen: deque[str] = deque()
        """The clients of the latest arrivals, which the statistics do not count yet."""
        self.on_lost: Callable[[], None] = lambda: None
        """Is called when the connection has ended without `stop`."""

    @classmethod
    async def connect(cls, path: Path, silent_after: float = 120.0) -> RemoteEngine:
        """Ask the host for the engine's facts. The connection for requests is made by `start`.

        Raises:
            OSError: no process listens on the socket.
            FrameError: the peer is not an engine host.
        """
        connection = await _open(path)
        try:
            return cls(path, await _greeting(connection), silent_after)
        finally:
            connection.close()

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
        self._connection = await _open(self._path)
        await _greeting(self._connection)
        self._closed = None
        self._stats = (msgspec.structs.replace(_DEAD, alive=True), time.monotonic())
        self._reading = asyncio.create_task(self._read(self._connection))
        self._watching = asyncio.create_task(self._watch())

    async def stop(self) -> None:
        """Abort what this process asked for, and disconnect. Idempotent; the engine itself goes on."""
        if self._closed is None:
            self._closed = "The server is shutting down."
        tasks = [task for task in (self._reading, self._watching) if task is not None]
        self._reading = self._watching = None
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if self._connection is not None:
            self._connection.close()
        for stream in self._streams.values():
            stream.put_nowait(TokenChunk(finish_reason="abort"))

    async def generate(self, request: GenerateRequest) -> AsyncGenerator[TokenChunk, None]:
        """Continue a sequence; see `plumbline.engines.port.Engine.generate`."""
        if request.request_id in self._names:
            raise RefusedRequestError(f"request id {request.request_id!r} is in flight already")
        number, queue, connection = self._open_stream()
        self._names[request.request_id] = number
        finished = False
        try:
            connection.send(Generate(number, request))
            while not finished:
                chunk = await queue.get()
                if not isinstance(chunk, TokenChunk):
                    finished = True
                    raise _error(chunk)
                finished = chunk.finish_reason is not None
                if number in self._behind and queue.qsize() <= _UNREAD_RESUMES:
                    self._behind.discard(number)
                    connection.send(Unread(number, False))
                yield chunk
        finally:
            self._streams.pop(number, None)
            self._names.pop(request.request_id, None)
            self._behind.discard(number)
            if not finished:
                connection.send(Abort(number))

    def refusal(self, client: str, more: int = 0) -> EngineFullError | None:
        """See `plumbline.engines.port.Engine.refusal`.

        The host's last message has counted what arrives at all API servers; what has arrived here since comes on top.
        """
        last = self._statistics
        if last is None or self._closed is not None or self._is_silent:
            return None
        room = last.rooms.get(client, last.others)
        if room is None or self._unseen.count(client) + more < room.count:
            return None
        return EngineFullError(room.message, room.retry_after)

    @contextmanager
    def arriving(self, client: str) -> Iterator[None]:
        """See `plumbline.engines.port.Engine.arriving`."""
        connection = self._connection
        if connection is None or self._closed is not None or self._is_silent:
            yield  # The request will be refused. A host that does not read could not take it off `_unseen`.
            return
        self._num_arrivals += 1
        number = self._num_arrivals
        self._unseen.append(client)
        connection.send(Arriving(number, client))
        try:
            yield
        finally:
            connection.send(Arrived(number))

    async def check_grammar(self, grammar: str) -> None:
        """See `plumbline.engines.port.Engine.check_grammar`."""
        await self._ask(lambda number: CheckGrammar(number, grammar))

    async def expand(self, prompt: MediaPrompt) -> Sequence[int]:
        """See `plumbline.engines.port.Engine.expand`."""
        answer = await self._ask(lambda number: Expand(number, prompt))
        return answer.token_ids if isinstance(answer, Expanded) else ()

    async def load_adapter(self, name: str, folder: Path) -> None:
        """See `plumbline.engines.port.Engine.load_adapter`."""
        await self._ask(lambda number: LoadAdapter(number, name, str(folder)))

    async def unload_adapter(self, name: str) -> None:
        """See `plumbline.engines.port.Engine.unload_adapter`."""
        await self._ask(lambda number: UnloadAdapter(number, name))

    async def _ask(self, question: Callable[[int], ToHost]) -> Checked | Expanded:
        """Send a message that has one answer, and return that.

        Args:
            question: makes the message for the number of its stream.
        """
        number, queue, connection = self._open_stream()
        finished = False
        try:
            connection.send(question(number))
            answer = await queue.get()
            finished = True
            if not isinstance(answer, Checked | Expanded):
                raise _error(answer)
            return answer
        finally:
            self._streams.pop(number, None)
            if not finished:
                connection.send(Abort(number))

    def abort(self, request_id: str) -> None:
        """End a request now; its stream gets a last chunk with reason `abort`."""
        number = self._names.get(request_id)
        if number is not None and self._connection is not None:
            self._connection.send(AbortNamed(number))

    def stats(self) -> EngineStats:
        """Return the counters of the last message; a busy engine has counted on since then."""
        stats, at = self._stats
        if self._closed is not None:
            return msgspec.structs.replace(stats, alive=False)
        if not stats.seconds_since_step and not self._is_silent:
            return stats
        return msgspec.structs.replace(
            stats, seconds_since_step=stats.seconds_since_step + time.monotonic() - at
        )

    def _open_stream(
        self,
    ) -> tuple[int, asyncio.Queue[_Answer], Connection[FromHost]]:
        if self._closed is not None or self._connection is None:
            raise EngineClosedError(self._closed or _LOST)
        if self._is_silent:
            raise EngineClosedError(f"{_SILENT} Send the request again.")
        self._num_streams += 1
        queue: asyncio.Queue[_Answer] = asyncio.Queue()
        self._streams[self._num_streams] = queue
        return self._num_streams, queue, self._connection

    async def _read(self, connection: Connection[FromHost]) -> None:
        with contextlib.suppress(FrameError):
            while messages := await connection.receive():
                for message in messages:
                    self._take(message)
        self._closed = _LOST
        self._fail_streams(_LOST)
        self.on_lost()

    async def _watch(self) -> None:
        """Fail what waits for a silent host. Looks are counted, because this process may have been stopped itself."""
        look = min(_LONGEST_LOOK, self._silent_after / 10)
        looks, seen = 0, -1
        while True:
            await asyncio.sleep(look)
            looks = looks + 1 if self._num_heard == seen else 0
            seen = self._num_heard
            if looks * look >= self._silent_after and not self._is_silent:
                _log.error("the engine's process has sent nothing for %.0f s", looks * look)
                self._is_silent = True
                self._fail_streams(_SILENT)

    def _fail_streams(self, error: str) -> None:
        """End all streams with an error; a host that is still there frees what they hold when it reads this."""
        for number, stream in self._streams.items():
            stream.put_nowait(TokenChunk(finish_reason="error", error=error))
            if self._connection is not None:
                self._connection.send(Abort(number))

    def _take(self, message: FromHost) -> None:
        self._num_heard += 1
        if self._is_silent:  # At once, not at the next look: `/health/ready` is 200 from this message on.
            _log.warning("the engine's process answers again")
            self._is_silent = False
        match message:
            case Chunks(items):
                for number, chunk in items:
                    self._deliver(number, chunk)
            case Checked(number) | Expanded(number) | Refused(number):
                stream = self._streams.get(number)
                if stream is not None:
                    stream.put_nowait(message)
            case Statistics(stats):
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
        stream.put_nowait(chunk)
        if stream.qsize() >= _UNREAD_PAUSES and number not in self._behind and self._connection is not None:
            self._behind.add(number)
            self._connection.send(Unread(number, True))


async def _open(path: Path) -> Connection[FromHost]:
    reader, writer = await asyncio.open_unix_connection(path)
    return Connection(reader, writer, FromHost)


async def _greeting(connection: Connection[FromHost]) -> EngineInfo:
    """Return the facts of the engine, which the host sends first."""
    messages = await connection.receive()
    if not messages or not isinstance(messages[0], Hello):
        raise FrameError("the engine's process did not send its greeting first")
    return messages[0].info


def _error(answer: _Answer) -> Exception:
    """Return the error of the port that the host's engine raised."""
    if not isinstance(answer, Refused):  # The connection ended, or the host fell silent.
        return EngineClosedError(answer.error or _LOST if isinstance(answer, TokenChunk) else _LOST)
    if answer.kind == "refused":
        return RefusedRequestError(answer.message, param=answer.param)
    if answer.kind == "full":
        return EngineFullError(answer.message, retry_after=answer.retry_after)
    return EngineClosedError(answer.message, answer.retry_after)
