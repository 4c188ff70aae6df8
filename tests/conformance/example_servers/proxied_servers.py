"""Provide raw servers and clients for the proxy."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any

from plumbline_conformance.transcript.exchange import Exchange
from plumbline_conformance.watch.proxy import Proxy

__all__ = ["CHUNKED", "GET", "Behave", "between", "loops", "replays", "talk"]

CHUNKED = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nX-odd:  two  \r\ntransfer-encoding: chunked\r\n\r\n"
GET = b"GET /v1/models?x=1 HTTP/1.1\r\nhost: me\r\nconnection: close\r\n\r\n"
Behave = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@contextmanager
def loops() -> Iterator[Callable[[Any], Any]]:
    """Run an event loop on a thread, for servers during a test."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    try:
        yield lambda coroutine: asyncio.run_coroutine_threadsafe(coroutine, loop).result(20)
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


@contextmanager
def between(behave: Behave, **options: Any) -> Iterator[tuple[int, int, list[Exchange]]]:
    """Run a raw server behind a proxy; yield both ports and the recorded exchanges."""
    seen: list[Exchange] = []
    with loops() as run:
        server = run(asyncio.start_server(behave, "127.0.0.1", 0))
        port = server.sockets[0].getsockname()[1]
        proxy = Proxy(f"http://127.0.0.1:{port}", seen.append, **options)
        front = run(proxy.start("127.0.0.1", 0))
        try:
            yield front.sockets[0].getsockname()[1], port, seen
        finally:
            run(proxy.stop())
            front.close()
            server.close()


def talk(port: int, request: bytes) -> bytes:
    """Return all received bytes until the connection closes."""

    async def go() -> bytes:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(request)
        answer = await asyncio.wait_for(reader.read(-1), 20)
        writer.close()
        return answer

    return asyncio.run(go())


def replays(answer: bytes, pieces: list[int] | None = None) -> Behave:
    """Answer any request with these bytes, in pieces of these lengths."""

    async def behave(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        place = 0
        for length in pieces or []:
            writer.write(answer[place : place + length])
            await writer.drain()
            await asyncio.sleep(0)
            place += length
        writer.write(answer[place:])
        await writer.drain()
        writer.close()

    return behave
