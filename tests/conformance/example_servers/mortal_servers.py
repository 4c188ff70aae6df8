"""The reference behind a relay that dies of a request, and may return."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from urllib.parse import urlsplit

from example_servers.good_server import serving
from example_servers.reference import application

__all__ = ["mortal"]


def _answer(status: str, message: str) -> bytes:
    body = json.dumps(
        {"error": {"message": message, "type": "invalid_request_error", "param": None, "code": None}}
    )
    head = f"HTTP/1.1 {status}\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n"
    return f"{head}connection: close\r\n\r\n{body}".encode()


_MALFORMED = _answer("400 Bad Request", "the messages are no objects")
_REFUSAL = _answer("404 Not Found", "the model's thread has ended")


class _Relay:
    """Forward connections until a request contains a fatal text."""

    def __init__(
        self,
        upstream: int,
        fatal: Callable[[bytes], bool],
        returns_after: float | None,
        survives: bool,
        mutes: bool,
        hangs: bool,
        recovers: bool,
    ) -> None:
        self._upstream = upstream
        self._survives = survives
        self._mutes = mutes
        self._hangs = hangs
        self._recovers = recovers
        self._hanging = False
        self._mute = False
        self._fatal = fatal
        self._returns_after = returns_after
        self._tasks: set[asyncio.Task[None]] = set()
        self._accepting: asyncio.Task[None] | None = None
        self.port = 0
        self.deaths = 0

    async def listen(self) -> None:
        listener = socket.create_server(("127.0.0.1", self.port))
        listener.setblocking(False)
        self.port = listener.getsockname()[1]
        self._accepting = asyncio.ensure_future(self._accept(listener))

    async def _accept(self, listener: socket.socket) -> None:
        # A server of asyncio that is closed between accepting a connection and serving it leaves the connection open
        # (Python 3.11), so that a client waits until its time is over.
        with listener:
            while True:
                connection, _ = await asyncio.get_running_loop().sock_accept(listener)
                task = asyncio.ensure_future(self._accepted(connection))
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)

    async def _accepted(self, connection: socket.socket) -> None:
        with suppress(OSError, asyncio.IncompleteReadError, asyncio.CancelledError):
            reader, writer = await asyncio.open_connection(sock=connection)
            with closing(writer):
                await self._relay(reader, writer)

    async def _relay(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        sizes = [line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:")]
        body = await reader.readexactly(int(sizes[0].partition(b":")[2])) if sizes else b""
        hanging = self._hanging or (self._hangs and self._fatal(head + body))
        self._hanging = hanging and not self._recovers
        if hanging:
            await asyncio.Event().wait()  # The client has to give up.
        if self._mute and head.startswith(b"POST"):
            writer.write(_REFUSAL)
            return
        if self._fatal(head + body):
            if not self._survives:
                await self._die()
            elif self._mutes:
                self._mute = True
                writer.write(_MALFORMED)
            return
        up_reader, up_writer = await asyncio.open_connection("127.0.0.1", self._upstream)
        up_writer.write(head + body)

        async def send_on() -> None:
            while more := await reader.read(65536):
                up_writer.write(more)

        client = asyncio.ensure_future(send_on())
        try:
            while part := await up_reader.read(65536):
                writer.write(part)
                await writer.drain()
        finally:
            client.cancel()
            up_writer.close()

    async def _die(self) -> None:
        if self._accepting is None:
            return  # Another request has killed it at the same moment.
        self.deaths += 1
        self._accepting.cancel()
        self._accepting = None
        for task in self._tasks - {asyncio.current_task()}:
            task.cancel()
        if self._returns_after is not None:
            asyncio.get_running_loop().call_later(
                self._returns_after, lambda: asyncio.ensure_future(self.listen())
            )


@contextmanager
def mortal(
    fatal: Callable[[bytes], bool],
    *,
    returns_after: float | None = None,
    survives: bool = False,
    mutes: bool = False,
    hangs: bool = False,
    recovers: bool = False,
) -> Iterator[tuple[str, _Relay]]:
    """Serve the reference until a request is fatal; yield the base URL and the relay, which counts deaths.

    Args:
        fatal: tells whether the server dies of a request, from its bytes.
        returns_after: seconds after which it listens again; None for never.
        survives: whether only the connection of the fatal request dies.
        mutes: whether a server that survives refuses the fatal request, and every POST after it.
        hangs: whether it answers neither the fatal request nor any after it.
        recovers: whether it answers the others.
    """
    with serving(application()) as upstream:
        relay = _Relay(urlsplit(upstream).port or 0, fatal, returns_after, survives, mutes, hangs, recovers)
        loop = asyncio.new_event_loop()
        thread = threading.Thread(target=loop.run_forever)
        thread.start()
        asyncio.run_coroutine_threadsafe(relay.listen(), loop).result(10)
        try:
            yield f"http://127.0.0.1:{relay.port}/v1", relay
        finally:
            loop.call_soon_threadsafe(loop.stop)
            thread.join()
            loop.run_until_complete(_end_tasks())
            loop.close()


async def _end_tasks() -> None:
    pending = asyncio.all_tasks() - {asyncio.current_task()}
    for task in pending:
        task.cancel()
    await asyncio.gather(*pending, return_exceptions=True)
