"""Let other processes use the engine of this one."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from bisect import bisect_left
from collections.abc import Coroutine
from contextlib import ExitStack, aclosing
from pathlib import Path
from typing import Any

import msgspec

from plumbline.engines.arrivals import Arrivals
from plumbline.engines.remote.journal import Question, Suspicion
from plumbline.engines.remote.memory import MemoryUse
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
    Generate,
    Hello,
    LoadAdapter,
    Refused,
    Room,
    Statistics,
    ToHost,
    UnloadAdapter,
    Unread,
)
from plumbline.port.connection import Connection, FrameError
from plumbline.port.engine import (
    Engine,
    EngineClosedError,
    EngineFullError,
    EngineStats,
    GenerateRequest,
    MediaPrompt,
    RefusedRequestError,
    TokenChunk,
)

__all__ = ["EngineHost"]

_log = logging.getLogger("plumbline.engines")

_STATISTICS_SECONDS = 0.2
_NEWS_SECONDS = 0.005
"""Least seconds between two messages, where room is short and has changed."""
_PAUSE = 20
"""Least pause after a message, in multiples of the CPU time that the message took. It grows with the clients."""
_PLENTY = 256
"""Requests that hardly arrive at one API server between two messages."""
_ANOTHER = "\n"
"""A client without requests: neither a key nor an address has a line break."""


class EngineHost:
    """Serve an engine, which has been started, on a Unix socket. All its users share the engine as one server would.

    A connection that ends, however it ends, aborts what was generated for it and nothing else.

    Args:
        engine: the engine; the host neither starts nor stops it.
        path: the socket to create. Whoever can open it can use the engine, so its folder must be private.
        suspicion: writes down what the engine computes, and refuses what it has died of; None does neither.
        process: the number of this process.
    """

    def __init__(
        self, engine: Engine, path: Path, suspicion: Suspicion | None = None, process: int = 0
    ) -> None:
        self._shared = _Shared(engine, _Adapters(engine), suspicion, process)
        self._path = path
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._num_users = 0

    async def start(self) -> None:
        """Begin to listen.

        Raises:
            OSError: the socket cannot be created.
        """
        self._server = await asyncio.start_unix_server(self._serve, self._path)

    async def stop(self) -> None:
        """End all connections and remove the socket. Idempotent."""
        if self._server is None:
            return
        self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._path.unlink(missing_ok=True)
        self._server = None

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        self._num_users += 1
        connection: Connection[ToHost] = Connection(reader, writer, ToHost)
        user = _User(self._shared, connection, self._num_users)
        self._shared.users.add(user)
        try:
            await user.run()
        except FrameError as error:
            _log.error("an API server was disconnected from the engine: %s", error)
        except asyncio.CancelledError:
            pass  # The host stops.
        finally:
            self._tasks.discard(task)
            self._shared.users.discard(user)
            connection.close()


class _Shared:
    """What all connections to an engine share."""

    def __init__(
        self, engine: Engine, adapters: _Adapters, suspicion: Suspicion | None, process: int
    ) -> None:
        self.engine = engine
        self.adapters = adapters
        self.suspicion = suspicion
        self.process = process
        self.memory = MemoryUse()
        self.users: set[_User] = set()
        self.clients = Arrivals()
        """The requests of all users that are being prepared or generated."""


class _User:
    """One connection: its streams are tasks that copy chunks of the engine into frames.

    The chunks of one pass of the event loop, which a step of the engine delivers together, share a frame.
    """

    def __init__(self, shared: _Shared, connection: Connection[ToHost], number: int) -> None:
        self._shared = shared
        self._engine = shared.engine
        self._adapters = shared.adapters
        self._clients = shared.clients
        self._connection = connection
        self._number = number
        self._tasks: dict[int, asyncio.Task[None]] = {}
        self._news = asyncio.Event()
        self._is_short = False
        """Whether some client has little room, by the last message."""
        self._arriving: dict[int, ExitStack] = {}
        self._num_arrivals = 0
        self._held: dict[int, asyncio.Event] = {}
        """Streams with a reader that lags far behind; the event is set when the reader has caught up."""
        self._ready: list[tuple[int, TokenChunk]] = []
        self._writable = asyncio.Event()
        self._writable.set()

    async def run(self) -> None:
        """Answer messages until the connection ends."""
        self._connection.send(Hello(self._engine.info, self._number, self._shared.process))
        statistics = asyncio.create_task(self._send_statistics())
        try:
            while messages := await self._connection.receive():
                for message in messages:
                    self._take_alone(message)
        finally:
            for arriving in self._arriving.values():
                arriving.close()
            tasks = [statistics, *self._tasks.values()]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    def _name(self, stream: int) -> str:
        """Return the id of a stream's request, which no other connection has."""
        return f"{self._number}.{stream}"

    def _take_alone(self, message: ToHost) -> None:
        """Take a message; one that fails must not end what else this connection is for."""
        try:
            self._take(message)
        except Exception:
            _log.exception("a message of an API server could not be taken")
            if isinstance(message, Question):
                error = RefusedRequestError("The engine could not take this request.")
                self._connection.send(_refused(message.stream, error))

    def _take(self, message: ToHost) -> None:
        match message:
            case Generate(stream, request):
                request = msgspec.structs.replace(request, request_id=self._name(stream))
                self._run_noted(message, self._generate(stream, request))
                self._announce()
            case CheckGrammar(stream, grammar, client):
                self._run_noted(message, self._answer(stream, self._check(stream, grammar, client)))
            case Expand(stream, prompt):
                self._run_noted(message, self._answer(stream, self._expand(stream, prompt)))
            case LoadAdapter(stream, name, folder):
                self._run_noted(message, self._answer(stream, self._load(stream, name, folder)))
            case UnloadAdapter(stream, name):
                self._run(stream, self._answer(stream, self._unload(stream, name)))
            case Arriving(number, client):
                self._num_arrivals = number
                self._arriving[number] = stack = ExitStack()
                stack.enter_context(self._engine.arriving(client))
                stack.enter_context(self._clients.one(client))
                self._announce()
            case Arrived(number):
                if (ended := self._arriving.pop(number, None)) is not None:
                    ended.close()
                    self._announce()
            case Abort(stream):
                self._cancel(stream)
            case AbortNamed(stream):
                if self._cancel(stream):
                    self._send_chunk(stream, TokenChunk(finish_reason="abort"))
            case Unread(stream, True):
                if stream in self._tasks:
                    self._held.setdefault(stream, asyncio.Event())
            case Unread(stream, False):
                event = self._held.pop(stream, None)
                if event is not None:
                    event.set()

    def _run_noted(
        self, message: Generate | CheckGrammar | Expand | LoadAdapter, work: Coroutine[Any, Any, None]
    ) -> None:
        """Run what the engine might die of, unless it has died of that twice."""
        suspicion = self._shared.suspicion
        error = None
        if suspicion is not None:
            error = suspicion.enter(self._name(message.stream), self._number, message)
        if error is None:
            self._run(message.stream, work)
        else:
            work.close()
            self._connection.send(_refused(message.stream, error))

    def _run(self, stream: int, work: Coroutine[Any, Any, None]) -> None:
        task = self._tasks[stream] = asyncio.create_task(work)
        task.add_done_callback(lambda _: self._forget(stream))

    def _cancel(self, stream: int) -> bool:
        """Close the engine's iterator of a stream, which aborts the request; returns whether the stream was open."""
        task = self._tasks.pop(stream, None)
        return task is not None and task.cancel()

    def _forget(self, stream: int) -> None:
        self._tasks.pop(stream, None)
        self._held.pop(stream, None)
        if self._shared.suspicion is not None:
            self._shared.suspicion.leave(self._name(stream))
        self._announce()

    def _announce(self) -> None:
        """Send all users for which room is short a message soon, because room has changed."""
        for user in self._shared.users:
            if user._is_short:
                user._news.set()

    def _send_chunk(self, stream: int, chunk: TokenChunk) -> None:
        if not self._ready:
            asyncio.get_running_loop().call_soon(self._flush)
        self._ready.append((stream, chunk))

    async def _generate(self, stream: int, request: GenerateRequest) -> None:
        try:
            with self._clients.one(request.client):
                async with aclosing(self._engine.generate(request)) as chunks:
                    async for chunk in chunks:
                        self._send_chunk(stream, chunk)
                        if chunk.finish_reason in ("stop", "length"):
                            self._clear(stream)
                        # While this task waits, chunks wait in the engine, which pauses the request when they
                        # are many.
                        while stream in self._held:
                            await self._held[stream].wait()
                        if not self._writable.is_set():
                            await self._writable.wait()
        except (RefusedRequestError, EngineFullError, EngineClosedError) as error:
            self._connection.send(_refused(stream, error))

    def _clear(self, stream: int) -> None:
        if self._shared.suspicion is not None:
            self._shared.suspicion.clear(self._name(stream))

    async def _answer(self, stream: int, work: Coroutine[Any, Any, Checked | Expanded]) -> None:
        """Send what `work` returns, or the error of the port that it raises."""
        try:
            self._connection.send(await work)
        except (RefusedRequestError, EngineFullError, EngineClosedError) as error:
            self._connection.send(_refused(stream, error))

    async def _check(self, stream: int, grammar: str, client: str) -> Checked:
        await self._engine.check_grammar(grammar, client)
        return Checked(stream)

    async def _expand(self, stream: int, prompt: MediaPrompt) -> Expanded:
        return Expanded(stream, list(await self._engine.expand(prompt)))

    async def _load(self, stream: int, name: str, folder: str) -> Checked:
        await self._adapters.load(name, Path(folder))
        return Checked(stream)

    async def _unload(self, stream: int, name: str) -> Checked:
        await self._adapters.unload(name)
        return Checked(stream)

    def _flush(self) -> None:
        self._connection.send(Chunks(self._ready))
        self._ready = []
        if self._connection.is_behind and self._writable.is_set():
            self._writable.clear()
            self._run(-1, self._drain())

    async def _drain(self) -> None:
        """Hold all streams until the other process has read what was sent."""
        with contextlib.suppress(ConnectionError):
            await self._connection.drained()
        self._writable.set()

    async def _send_statistics(self) -> None:
        """Send the counters as long as the other process reads them."""
        with contextlib.suppress(ConnectionError):
            while True:
                began = time.thread_time()
                rooms, others = self._rooms()
                self._connection.send(Statistics(self._stats(), rooms, others, self._num_arrivals))
                self._is_short = bool(rooms) or others is not None
                spent = time.thread_time() - began
                await self._connection.drained()
                await asyncio.sleep(max(_NEWS_SECONDS, _PAUSE * spent))
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(_STATISTICS_SECONDS):
                        await self._news.wait()
                self._news.clear()

    def _stats(self) -> EngineStats:
        memory = self._shared.memory
        memory.measure()
        return msgspec.structs.replace(
            self._engine.stats(), memory_bytes=memory.resident, device_memory=memory.device
        )

    def _rooms(self) -> tuple[dict[str, Room], Room | None]:
        """Return the room of each client that has less than the others, and the room of the others.

        No client has more room than one without requests. So only clients with requests are looked at, and none of them
        if even a client without requests has no room.
        """
        others = self._room(_ANOTHER, _PLENTY)
        if others is not None and not others.count:
            return {}, others
        most = _PLENTY if others is None else others.count - 1
        rooms = {client: room for client in self._clients if (room := self._room(client, most)) is not None}
        return rooms, others

    def _room(self, client: str, most: int) -> Room | None:
        """Return how many more requests of a client the engine takes; None if these are more than `most`."""
        if self._engine.refusal(client, most) is None:
            return None
        # Usually there is none, or much.
        count = bisect_left(
            range(most), True, key=lambda more: self._engine.refusal(client, more) is not None
        )
        error = self._engine.refusal(client, count)
        return None if error is None else Room(count, str(error), error.retry_after)


class _Adapters:
    """Load each adapter once for all users: every API server loads the adapters of the command line."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._loaded: dict[str, Path] = {}
        self._changes = asyncio.Lock()

    async def load(self, name: str, folder: Path) -> None:
        """Load an adapter, unless it is loaded from this folder."""
        async with self._changes:
            if self._loaded.get(name) != folder:
                await self._engine.load_adapter(name, folder)
                self._loaded[name] = folder

    async def unload(self, name: str) -> None:
        """Unload an adapter for all users."""
        async with self._changes:
            self._loaded.pop(name, None)
            await self._engine.unload_adapter(name)


def _refused(stream: int, error: Exception) -> Refused:
    match error:
        case RefusedRequestError():
            return Refused(stream, "refused", str(error), param=error.param, code=error.code)
        case EngineFullError():
            return Refused(stream, "full", str(error), retry_after=error.retry_after)
        case _:
            seconds = error.retry_after if isinstance(error, EngineClosedError) else 1
            return Refused(stream, "closed", str(error), retry_after=seconds)
