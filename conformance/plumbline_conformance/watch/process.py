"""The proxy in a process of its own, and the pipe through which its exchanges come.

Checks are plain Python: judging beside the proxy would hold its interpreter for as long as several events take to pass.
So nothing but the traffic is in that process. It ends when the pipe does, so that it never outlives whoever judges.
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

from plumbline_conformance.transcript.model import Exchange
from plumbline_conformance.watch.proxy import Proxy

__all__ = ["Inbox", "Listening", "Outbox", "Passing", "ProxyProcess", "Seen", "Unable", "framed"]

_WAITING = 256 * 1024 * 1024
"""Bytes of exchanges that may wait to be judged."""
_DESCRIPTORS = 10_240
"""As many as macOS gives anybody."""
_PATIENCE = 5.0
"""Seconds that the process has for its end."""
_TOLD = 0.25
"""Seconds between the reports of how many exchanges are under way."""


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
    """How many exchanges are under way, and how many have passed without a place where they could wait."""

    open: int
    unjudged: int
    last: bool = False
    """Whether nothing follows."""


Word = Listening | Unable | Seen | Passing
_read: Callable[[bytes], Word] = msgspec.msgpack.Decoder(Word).decode
_write = msgspec.msgpack.Encoder().encode
_LENGTH = 4
"""Bytes of the length before each word."""


def framed(word: Word) -> bytes:
    """A word as it is sent."""
    said = _write(word)
    return len(said).to_bytes(_LENGTH, "big") + said


class Inbox:
    """What the process of the proxy says."""

    def __init__(self, pipe: socket.socket) -> None:
        self._file = pipe.makefile("rb")

    def read(self) -> Word:
        """The next word.

        Raises:
            EOFError: there is none.
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
    """Exchanges on their way to the judge: whoever puts one in never waits, and no thread has to be woken for it."""

    transport: asyncio.Transport

    def __init__(self) -> None:
        self.unjudged = 0
        """Exchanges for which there was no room."""
        self.ended = asyncio.Event()
        """The judge has asked for the end, or is gone."""
        self._waiting = 0
        self._queue: deque[bytes] = deque()
        self._full = False
        self._empty = asyncio.Event()
        self._lost = asyncio.Event()

    def take(self, exchange: Exchange) -> None:
        """Send an exchange in its turn, or count it as not judged."""
        said = framed(Seen(exchange))
        if self._waiting + len(said) > _WAITING:
            self.unjudged += 1
        else:
            self._put(said)

    def send(self, word: Word) -> None:
        """Send something small."""
        self._put(framed(word))

    async def close(self) -> None:
        """Wait until everything is sent, or nobody reads any more."""
        self._flush()
        await self._empty.wait()
        self.transport.close()
        await self._lost.wait()

    def _put(self, said: bytes) -> None:
        if self._lost.is_set():
            return
        self._empty.clear()
        self._waiting += len(said)
        self._queue.append(said)
        self._flush()

    def _flush(self) -> None:
        while self._queue and not self._full:
            said = self._queue.popleft()
            self._waiting -= len(said)
            self.transport.write(said)
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
    """The process of the proxy.

    Args:
        upstream: where requests go.
        host: where it listens.
        port: 0 for any.
        connections: to the upstream at once, at most.
    """

    def __init__(self, upstream: str, host: str, port: int, connections: int) -> None:
        # A new interpreter, because a copy of this one would have its threads' locks and none of its threads.
        self._pipe, theirs = socket.socketpair()
        self._process = get_context("spawn").Process(
            target=_run, args=(theirs, upstream, host, port, connections), name="proxy", daemon=True
        )
        with _uninterrupted():
            self._process.start()
        theirs.close()
        self.inbox = Inbox(self._pipe)

    def stop(self) -> None:
        """Ask it to end every connection, and to send what is left."""
        with suppress(OSError):
            self._pipe.sendall(b"stop")

    def close(self) -> None:
        """Wait for its end, though not for ever; everything that it sent must have been read."""
        with suppress(OSError):
            self._pipe.shutdown(socket.SHUT_RDWR)
        self._pipe.close()
        self._process.join(_PATIENCE)
        if self._process.is_alive():
            self._process.kill()
            self._process.join()


@contextmanager
def _uninterrupted() -> Iterator[None]:
    """What is started here is not told of interruptions, from its first moment: a process inherits what is ignored."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _run(pipe: socket.socket, upstream: str, host: str, port: int, connections: int) -> None:
    """The process: it ends when it is told to, not when somebody interrupts it together with the one that tells it."""
    for name in (signal.SIGINT, signal.SIGTERM):
        signal.signal(name, signal.SIG_IGN)
    _many_connections()
    with asyncio.Runner(loop_factory=_loop_factory()) as runner:
        runner.run(_talk(pipe, upstream, host, port, connections))


def _many_connections() -> None:
    """Two descriptors for each: what systems allow by default is less than what they allow who asks."""
    with suppress(ImportError, OSError, ValueError):
        import resource

        most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        wanted = _DESCRIPTORS if most == resource.RLIM_INFINITY else min(most, _DESCRIPTORS)
        if resource.getrlimit(resource.RLIMIT_NOFILE)[0] < wanted:
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, most))


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """uvloop costs half as much for each event, and is taken where it is installed: `plumbline[watch]` has it."""
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
        # A full collection would walk all that was imported, for longer than an event may take.
        gc.collect()
        gc.freeze()
        outbox.send(Listening(server.sockets[0].getsockname()[1]))
        await _serve(proxy, outbox)
        server.close()
        await proxy.stop()
        outbox.send(Passing(0, outbox.unjudged, last=True))
    await outbox.close()


async def _serve(proxy: Proxy, outbox: Outbox) -> None:
    """Tell how much is under way, until the end."""
    told = Passing(0, 0)
    while not outbox.ended.is_set():
        with suppress(TimeoutError):
            await asyncio.wait_for(outbox.ended.wait(), _TOLD)
        now = Passing(proxy.open, outbox.unjudged)
        if now != told:
            outbox.send(now)
        told = now
