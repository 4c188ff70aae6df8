"""Run the proxy in a separate process that sends its exchanges through a pipe.

Checks in the same process would block the interpreter for the time of several events. The process ends with the
pipe, so it never outlives the judge.
"""

from __future__ import annotations

import asyncio
import gc
import signal
import socket
import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from multiprocessing import get_context
from typing import cast

import msgspec

from plumbline_conformance.transcript.exchange import Exchange
from plumbline_conformance.watch.proxy import Proxy

__all__ = ["Inbox", "Listening", "Outbox", "Passing", "ProxyProcess", "Seen", "Unable", "framed"]

_WAITING = 256 * 1024 * 1024
"""Maximum bytes of exchanges that wait for judging."""
_DESCRIPTORS = 10_240
"""File descriptors to request; the limit of macOS."""
_PATIENCE = 5.0
"""Seconds to wait for the end of the process."""
_REPORT_INTERVAL = 0.25
"""Seconds between the reports of the number of exchanges in progress."""


class Listening(msgspec.Struct, frozen=True, tag=True):
    """The proxy listens."""

    port: int


class Unable(msgspec.Struct, frozen=True, tag=True):
    """The proxy cannot listen, or not towards this upstream."""

    why: str


class Seen(msgspec.Struct, frozen=True, tag=True):
    """An exchange has ended."""

    exchange: Exchange


class Passing(msgspec.Struct, frozen=True, tag=True):
    """The number of exchanges in progress, and of exchanges that passed unjudged for lack of room."""

    open: int
    unjudged: int
    last: bool = False
    """Whether this is the last message."""


Message = Listening | Unable | Seen | Passing
_read: Callable[[bytes], Message] = msgspec.msgpack.Decoder(Message).decode
_write = msgspec.msgpack.Encoder().encode
_LENGTH = 4
"""Bytes of the length before each message."""


def framed(message: Message) -> bytes:
    """Encode a message with its length."""
    data = _write(message)
    return len(data).to_bytes(_LENGTH, "big") + data


class Inbox:
    """Read the messages of the proxy process."""

    def __init__(self, pipe: socket.socket) -> None:
        self._file = pipe.makefile("rb")

    def read(self) -> Message:
        """Return the next message.

        Raises:
            EOFError: there is no further message.
            OSError: the pipe broke.
        """
        length = int.from_bytes(self._take(_LENGTH), "big")
        return _read(self._take(length))

    def _take(self, length: int) -> bytes:
        data = self._file.read(length)
        if len(data) < length:
            raise EOFError
        return data


class Outbox(asyncio.Protocol):
    """Queue exchanges for the judge, without blocking and without a thread."""

    transport: asyncio.Transport

    def __init__(self) -> None:
        self.unjudged = 0
        """Number of exchanges for which there was no room."""
        self.ended = asyncio.Event()
        """Set when the judge requests the end, or is gone."""
        self._waiting = 0
        self._queue: deque[bytes] = deque()
        self._full = False
        self._empty = asyncio.Event()
        self._lost = asyncio.Event()

    def take(self, exchange: Exchange) -> None:
        """Queue an exchange, or count it as unjudged if there is no room."""
        data = framed(Seen(exchange))
        if self._waiting + len(data) > _WAITING:
            self.unjudged += 1
        else:
            self._put(data)

    def send(self, message: Message) -> None:
        """Queue a small message."""
        self._put(framed(message))

    async def close(self) -> None:
        """Wait until everything is sent, or the judge is gone."""
        self._flush()
        await self._empty.wait()
        self.transport.close()
        await self._lost.wait()

    def _put(self, data: bytes) -> None:
        if self._lost.is_set():
            return
        self._empty.clear()
        self._waiting += len(data)
        self._queue.append(data)
        self._flush()

    def _flush(self) -> None:
        while self._queue and not self._full:
            data = self._queue.popleft()
            self._waiting -= len(data)
            self.transport.write(data)
        if not self._queue:
            self._empty.set()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        self.ended.set()

    def connection_lost(self, exc: Exception | None) -> None:
        self._full = True
        for event in (self.ended, self._empty, self._lost):
            event.set()

    def pause_writing(self) -> None:
        self._full = True

    def resume_writing(self) -> None:
        self._full = False
        self._flush()


class ProxyProcess:
    """Start and stop the proxy process.

    Args:
        upstream: the URL of the server.
        host: the host to listen on.
        port: the port to listen on; 0 for any.
        connections: maximum number of connections to the upstream.
    """

    def __init__(self, upstream: str, host: str, port: int, connections: int) -> None:
        # Spawn, because a fork would copy locks of threads without the threads.
        self._pipe, theirs = socket.socketpair()
        self._process = get_context("spawn").Process(
            target=_run, args=(theirs, upstream, host, port, connections), name="proxy", daemon=True
        )
        with _uninterrupted():
            self._process.start()
        theirs.close()
        self.inbox = Inbox(self._pipe)

    def stop(self) -> None:
        """Ask the process to close all connections and to send the remaining exchanges."""
        with suppress(OSError):
            self._pipe.sendall(b"stop")

    def close(self) -> None:
        """Wait for the end of the process, then kill it; call after reading all messages."""
        with suppress(OSError):
            self._pipe.shutdown(socket.SHUT_RDWR)
        self._pipe.close()
        self._process.join(_PATIENCE)
        if self._process.is_alive():
            self._process.kill()
            self._process.join()


@contextmanager
def _uninterrupted() -> Iterator[None]:
    """Ignore SIGINT, so that a process started here inherits that from its first moment."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _run(pipe: socket.socket, upstream: str, host: str, port: int, connections: int) -> None:
    """Run the proxy process until the judge ends it; Ctrl-C, which reaches both processes, does not end it."""
    for name in (signal.SIGINT, signal.SIGTERM):
        signal.signal(name, signal.SIG_IGN)
    _many_connections()
    with asyncio.Runner(loop_factory=_loop_factory()) as runner:
        runner.run(_talk(pipe, upstream, host, port, connections))


def _many_connections() -> None:
    """Raise the limit of file descriptors, because each connection needs two."""
    with suppress(ImportError, OSError, ValueError):
        import resource

        most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        wanted = _DESCRIPTORS if most == resource.RLIM_INFINITY else min(most, _DESCRIPTORS)
        if resource.getrlimit(resource.RLIMIT_NOFILE)[0] < wanted:
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, most))


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """Return uvloop if the extra `watch` is installed, because it needs half the time per event."""
    try:
        import uvloop
    except ModuleNotFoundError:
        return None
    factory: Callable[[], asyncio.AbstractEventLoop] = uvloop.new_event_loop
    return factory


async def _talk(pipe: socket.socket, upstream: str, host: str, port: int, connections: int) -> None:
    loop, outbox = asyncio.get_running_loop(), Outbox()
    pipe.setblocking(False)
    if pipe.family == getattr(socket, "AF_UNIX", None):
        await loop.create_unix_connection(lambda: outbox, sock=pipe)
    else:
        await loop.create_connection(lambda: outbox, sock=pipe)
    try:
        proxy = Proxy(upstream, outbox.take, connections=connections)
        server = await proxy.start(host, port)
    except (OSError, ValueError) as error:
        outbox.send(Unable(str(error)))
    else:
        # Exclude all imported objects from garbage collection, which would delay events.
        gc.collect()
        gc.freeze()
        outbox.send(Listening(server.sockets[0].getsockname()[1]))
        await _serve(proxy, outbox)
        server.close()
        await proxy.stop()
        outbox.send(Passing(0, outbox.unjudged, last=True))
    await outbox.close()


async def _serve(proxy: Proxy, outbox: Outbox) -> None:
    """Report the number of exchanges in progress, until the end."""
    reported = Passing(0, 0)
    while not outbox.ended.is_set():
        with suppress(TimeoutError):
            await asyncio.wait_for(outbox.ended.wait(), _REPORT_INTERVAL)
        now = Passing(proxy.open, outbox.unjudged)
        if now != reported:
            outbox.send(now)
        reported = now
