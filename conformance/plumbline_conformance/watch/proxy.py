"""The proxy: bytes go through as they come, and a copy of them, bounded, goes to whoever looks.

Of what a client sends only the target's prefix and the `Host` header change; of what a server sends nothing does. A
connection of a client has one connection to the server, so that nothing is reordered and whoever hangs up ends both.
"""

from __future__ import annotations

import asyncio
import json
import ssl
import time
from collections.abc import Callable
from contextlib import suppress
from urllib.parse import urlsplit

from plumbline_conformance.packing import Unpacked
from plumbline_conformance.transcript import Exchange
from plumbline_conformance.watch.http1 import Body, Head, Malformed, body_of_request, body_of_response

__all__ = ["Proxy"]

_READ = 64 * 1024
_HEAD = 64 * 1024
_WATCHFUL = 0.25
"""Seconds between looks at whether a client that waits for a stream is still there."""
Reader = asyncio.StreamReader
Writer = asyncio.StreamWriter


class Proxy:
    """Serves connections towards one upstream.

    Args:
        upstream: where requests go, such as `http://127.0.0.1:8000`.
        seen: called with each exchange when it has ended; must be quick.
        keep: bytes of a request and of a response that are kept for judging. What is longer passes all the same.
        connections: at most so many at once; others wait to be accepted.
    """

    def __init__(
        self,
        upstream: str,
        seen: Callable[[Exchange], None],
        *,
        keep: int = 4 * 1024 * 1024,
        connections: int = 512,
    ) -> None:
        parts = urlsplit(upstream)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError(f"{upstream} is no address of a server")
        self._tls = ssl.create_default_context() if parts.scheme == "https" else None
        self._host = parts.hostname
        self._port = parts.port or (443 if self._tls else 80)
        self.place = parts.netloc.rpartition("@")[2]
        self.prefix = parts.path.rstrip("/")
        self.origin = f"{parts.scheme}://{self.place}"
        self.seen = seen
        self.keep = keep
        self._gate = asyncio.Semaphore(connections)
        self._tasks: set[asyncio.Task[None]] = set()
        self.open = 0
        """Exchanges that are under way."""

    async def start(self, host: str, port: int) -> asyncio.Server:
        """Listen."""
        return await asyncio.start_server(self._connected, host, port, limit=_HEAD)

    async def stop(self) -> None:
        """End every connection."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _connected(self, reader: Reader, writer: Writer) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        upstream: Writer | None = None
        try:
            async with self._gate:
                try:
                    back, upstream = await asyncio.open_connection(
                        self._host, self._port, ssl=self._tls, limit=_HEAD
                    )
                except OSError as error:
                    await _unreachable(reader, writer, f"{self.origin} cannot be reached: {error}")
                    return
                link = _Link(self, reader, writer, back, upstream)
                while await link.exchange():
                    pass
        except (OSError, Malformed, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            pass  # Either side hung up, or speaks no HTTP: the other one is told in the same way.
        except asyncio.CancelledError:
            pass  # The proxy stops. A connection's task has nobody to tell.
        finally:
            self._tasks.discard(task)
            for end in (writer, upstream):
                if end is not None:
                    end.close()


class _Link:
    """A client's connection and the server's, side by side."""

    def __init__(self, proxy: Proxy, reader: Reader, writer: Writer, back: Reader, upstream: Writer) -> None:
        self._proxy = proxy
        self._reader = reader
        self._writer = writer
        self._back = back
        self._upstream = upstream
        self._early = b""
        """What the client sent after the end of its request."""

    async def exchange(self) -> bool:
        """One request and its response; gives whether another one may follow."""
        raw = self._early
        while b"\r\n\r\n" not in raw:
            part = await self._next()
            if not part or len(raw) > _HEAD:
                return False
            raw += part
        end = raw.index(b"\r\n\r\n") + 4
        head, self._early = Head(raw[:end]), raw[end:]
        target = self._target(head.first[1])
        exchange = Exchange(
            method=head.first[0],
            url=self._proxy.origin + target,
            request_headers=dict(head.headers),
            request_body=b"",
        )
        began = time.monotonic()
        self._proxy.open += 1
        watchman = asyncio.create_task(self._watch())
        # A client may wait for `100 Continue` before it sends its body, so both directions go at once.
        sending = asyncio.create_task(self._request(head, target, exchange))
        try:
            again = await self._response(head, exchange, began)
            return again and sending.done() and not head.has("connection", "close")
        except (OSError, Malformed, asyncio.IncompleteReadError) as error:
            exchange.error = f"{type(error).__name__}: {error}"
            raise
        finally:
            self._proxy.open -= 1
            for task in (watchman, sending):
                task.cancel()
            await asyncio.gather(watchman, sending, return_exceptions=True)
            self._proxy.seen(exchange)

    async def _next(self) -> bytes:
        """What the client sends next; nothing if either side has ended the connection."""
        reading = asyncio.create_task(self._reader.read(_READ))
        try:
            while not reading.done() and not self._back.at_eof():
                await asyncio.wait({reading}, timeout=_WATCHFUL)
            return reading.result() if reading.done() else b""
        finally:
            reading.cancel()

    def _target(self, wanted: str) -> str:
        prefix = self._proxy.prefix
        return wanted if not prefix or wanted.startswith(f"{prefix}/") else prefix + wanted

    async def _watch(self) -> None:
        """A client that is gone ends the server's work as well."""
        while not (self._reader.at_eof() or self._writer.is_closing()):  # noqa: ASYNC110 - a reader has no event for it
            await asyncio.sleep(_WATCHFUL)
        self._upstream.transport.abort()

    async def _request(self, head: Head, target: str, exchange: Exchange) -> None:
        body = body_of_request(head)
        self._upstream.write(head.raw([("host", self._proxy.place)], target))
        kept = Unpacked(head.get("content-encoding"), self._proxy.keep)
        data, self._early = self._early, b""
        while True:
            payload, rest = body.feed(data) if not body.done else (b"", data)
            self._upstream.write(data[: len(data) - len(rest)])
            exchange.request_body += kept.feed(payload)
            if body.done:
                self._early = rest
                break
            await self._upstream.drain()
            data = await self._reader.read(_READ)
            if not data:
                break
        await self._upstream.drain()
        if kept.why is not None:
            exchange.error = f"the request: {kept.why}"

    async def _response(self, request: Head, exchange: Exchange, began: float) -> bool:
        while True:
            raw = await self._back.readuntil(b"\r\n\r\n")
            self._writer.write(raw)
            head = Head(raw)
            if head.status == 101:
                await self._pipe(exchange)
                return False
            if head.status >= 200:
                break
            await self._writer.drain()
        exchange.status = head.status
        exchange.headers = head.headers
        body = body_of_response(head, exchange.method)
        kept = Unpacked(head.get("content-encoding"), self._proxy.keep)
        try:
            await self._stream(body, kept, exchange, began)
        finally:
            kept.settle(exchange)
        exchange.error = exchange.error or kept.why
        if not body.done and not body.until_close:
            raise asyncio.IncompleteReadError(b"", None)
        return not (body.until_close or head.has("connection", "close") or head.first[0] == "HTTP/1.0")

    async def _stream(self, body: Body, kept: Unpacked, exchange: Exchange, began: float) -> None:
        while not body.done:
            data = await self._back.read(_READ)
            if not data:
                break
            # The client's bytes first; what is done with the copy delays nobody but the next event.
            self._writer.write(data)
            payload, _ = body.feed(data)
            if payload and not kept.ended:
                kept.keep(exchange, round(time.monotonic() - began, 6), payload)
            await self._writer.drain()
        await self._writer.drain()

    async def _pipe(self, exchange: Exchange) -> None:
        """After an upgrade there are no messages of HTTP any more."""
        exchange.status = 101
        exchange.error = "upgraded: not judged"

        async def copy(source: Reader, sink: Writer) -> None:
            while data := await source.read(_READ):
                sink.write(data)
                await sink.drain()

        copies = [
            asyncio.create_task(copy(self._reader, self._upstream)),
            asyncio.create_task(copy(self._back, self._writer)),
        ]
        try:
            await asyncio.wait(copies, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in copies:
                task.cancel()


async def _unreachable(reader: Reader, writer: Writer, why: str) -> None:
    """The proxy's own answer, the only one it ever gives."""
    error = {"message": why, "type": "server_error", "param": None, "code": "upstream_unreachable"}
    body = json.dumps({"error": error}).encode()
    with suppress(asyncio.IncompleteReadError, asyncio.LimitOverrunError):
        await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 10)
    head = f"HTTP/1.1 502 Bad Gateway\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n"
    writer.write(head.encode() + b"connection: close\r\n\r\n" + body)
    await writer.drain()
