"""The proxy in a process of its own, and the pipe through which its exchanges come.

Checks are plain Python: judging beside the proxy would hold its interpreter for as long as several events take to pass.
So nothing but the traffic is in that process. It ends when the pipe does, so that it never outlives whoever judges.
"""

from __future__ import annotations

import asyncio
import gc
import queue
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from multiprocessing import get_context
from multiprocessing.connection import Connection

import msgspec

from plumbline_conformance.transcript import Exchange
from plumbline_conformance.watch.proxy import Proxy

__all__ = ["Apart", "Listening", "Outbox", "Passing", "Seen", "Unable", "read"]

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
read: Callable[[bytes], Word] = msgspec.msgpack.Decoder(Word).decode
_write = msgspec.msgpack.Encoder().encode


class Outbox:
    """Exchanges on their way to the judge: whoever puts one in never waits."""

    def __init__(self, pipe: Connection) -> None:
        self.unjudged = 0
        """Exchanges for which there was no room."""
        self._pipe = pipe
        self._waiting = 0
        self._queue: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="outbox")

    def start(self) -> None:
        """Begin to send."""
        self._thread.start()

    def take(self, exchange: Exchange) -> None:
        """Send an exchange in its turn, or count it as not judged."""
        said = _write(Seen(exchange))
        if self._waiting + len(said) > _WAITING:
            self.unjudged += 1
            return
        self._waiting += len(said)
        self._queue.put(said)

    def tell(self, word: Word) -> None:
        """Send something small."""
        said = _write(word)
        self._waiting += len(said)
        self._queue.put(said)

    def close(self) -> None:
        """Wait until everything is sent, or nobody reads any more."""
        self._queue.put(None)
        self._thread.join()

    def _run(self) -> None:
        with suppress(OSError):
            while (said := self._queue.get()) is not None:
                self._pipe.send_bytes(said)
                self._waiting -= len(said)


class Apart:
    """The process of the proxy.

    Args:
        upstream: where requests go.
        host: where it listens.
        port: 0 for any.
        connections: to the upstream at once, at most.
    """

    def __init__(self, upstream: str, host: str, port: int, connections: int) -> None:
        # A new interpreter, because a copy of this one would have its threads' locks and none of its threads.
        context = get_context("spawn")
        self.pipe, theirs = context.Pipe()
        self._process = context.Process(
            target=_run, args=(theirs, upstream, host, port, connections), name="proxy", daemon=True
        )
        with _uninterrupted():
            self._process.start()
        theirs.close()

    def stop(self) -> None:
        """Ask it to end every connection, and to send what is left."""
        with suppress(OSError):
            self.pipe.send_bytes(b"stop")

    def close(self) -> None:
        """Wait for its end, though not for ever; everything that it sent must have been read."""
        self.pipe.close()
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


def _run(pipe: Connection, upstream: str, host: str, port: int, connections: int) -> None:
    """The process: it ends when it is told to, not when somebody interrupts it together with the one that tells it."""
    for name in (signal.SIGINT, signal.SIGTERM):
        signal.signal(name, signal.SIG_IGN)
    _many_connections()
    outbox = Outbox(pipe)
    outbox.start()
    # A full collection would walk all that was imported, for longer than an event may take.
    gc.collect()
    gc.freeze()
    try:
        with asyncio.Runner(loop_factory=_loop_factory()) as runner:
            runner.run(
                _serve(Proxy(upstream, outbox.take, connections=connections), outbox, pipe, host, port)
            )
    except (OSError, ValueError) as error:
        outbox.tell(Unable(str(error)))
    finally:
        outbox.close()


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


async def _serve(proxy: Proxy, outbox: Outbox, pipe: Connection, host: str, port: int) -> None:
    server = await proxy.start(host, port)
    outbox.tell(Listening(server.sockets[0].getsockname()[1]))
    loop, ended = asyncio.get_running_loop(), asyncio.Event()

    def obey() -> None:
        with suppress(EOFError, OSError):
            pipe.recv_bytes()
        with suppress(RuntimeError):  # The loop may be gone by then.
            loop.call_soon_threadsafe(ended.set)

    threading.Thread(target=obey, name="obey", daemon=True).start()
    told = Passing(0, 0)
    while not ended.is_set():
        with suppress(TimeoutError):
            await asyncio.wait_for(ended.wait(), _TOLD)
        now = Passing(proxy.open, outbox.unjudged)
        if now != told:
            outbox.tell(now)
        told = now
    server.close()
    await proxy.stop()
    outbox.tell(Passing(0, outbox.unjudged, last=True))
