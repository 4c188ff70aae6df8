"""Servers that send invalid, endless or truncated bytes."""

from __future__ import annotations

import asyncio
import gzip
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress

__all__ = ["LINE", "STREAM", "Behaviour", "hostile"]

Behaviour = Callable[[asyncio.StreamWriter], Awaitable[None]]
STREAM = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n"
JSON = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\nconnection: close\r\n"
LINE = 10 * 1024 * 1024
BOMB = gzip.compress(bytes(64 * 1024 * 1024))


@contextmanager
def hostile(behave: Behaviour) -> Iterator[str]:
    """Serve connections with this behaviour; yield the base URL."""
    started = threading.Event()
    place: list[int] = []
    stop: list[Callable[[], object]] = []

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        # The end of the test cancels this, which asyncio would report as an error.
        with suppress(OSError, asyncio.IncompleteReadError, asyncio.CancelledError):
            await reader.readuntil(b"\r\n\r\n")
            await behave(writer)
            await writer.drain()
        writer.close()

    async def serve() -> None:
        ended = asyncio.Event()
        loop = asyncio.get_running_loop()
        server = await asyncio.start_server(connected, "127.0.0.1", 0)
        place.append(server.sockets[0].getsockname()[1])
        stop.append(lambda: loop.call_soon_threadsafe(ended.set))
        started.set()
        await ended.wait()
        server.close()

    thread = threading.Thread(target=asyncio.run, args=(serve(),))
    thread.start()
    started.wait()
    try:
        yield f"http://127.0.0.1:{place[0]}/v1"
    finally:
        stop[0]()
        thread.join()


async def closes_at_once(_: asyncio.StreamWriter) -> None:
    """Accept the request and never answer."""


async def closes_in_the_middle(writer: asyncio.StreamWriter) -> None:
    writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\nhalf")


async def closes_in_a_chunk(writer: asyncio.StreamWriter) -> None:
    writer.write(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nff\r\nhalf")


async def closes_one_half(writer: asyncio.StreamWriter) -> None:
    """Send EOF in the middle of a chunk, and keep reading."""
    writer.write(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n5\r\n{")
    writer.write_eof()
    await asyncio.sleep(0.2)


async def speaks_no_http(writer: asyncio.StreamWriter) -> None:
    writer.write(b"\x16\x03\x01 hello\r\n\r\n")


async def never_answers(_: asyncio.StreamWriter) -> None:
    await asyncio.sleep(3600)


async def never_ends(writer: asyncio.StreamWriter) -> None:
    writer.write(STREAM)
    while True:
        writer.write(b'data: {"choices": []}\n\n')
        await writer.drain()
        await asyncio.sleep(0.01)


async def drips(writer: asyncio.StreamWriter) -> None:
    """Send one byte at a time, so that no read waits long."""
    writer.write(JSON + b"\r\n")
    while True:
        writer.write(b" ")
        await writer.drain()
        await asyncio.sleep(0.02)


async def drips_headers(writer: asyncio.StreamWriter) -> None:
    writer.write(b"HTTP/1.1 200 OK\r\n")
    while True:
        writer.write(b"x-more: x\r\n")
        await writer.drain()
        await asyncio.sleep(0.02)


async def sends_more_than_its_length(writer: asyncio.StreamWriter) -> None:
    writer.write(b'HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{"a": 1}{}')


async def has_two_lengths(writer: asyncio.StreamWriter) -> None:
    writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\ncontent-length: 3\r\n\r\n{}")


async def has_a_chunk_without_end(writer: asyncio.StreamWriter) -> None:
    writer.write(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nffffffffffffffff\r\n{}")


async def sends_an_endless_line(writer: asyncio.StreamWriter) -> None:
    writer.write(STREAM + b"data: " + b"x" * LINE)


async def sends_a_bomb(writer: asyncio.StreamWriter) -> None:
    """Send 64 MiB of zeros, compressed to 64 KiB."""
    writer.write(JSON + b"content-encoding: gzip\r\ncontent-length: %d\r\n\r\n" % len(BOMB) + BOMB)


async def sends_what_is_not_gzip(writer: asyncio.StreamWriter) -> None:
    writer.write(b"HTTP/1.1 200 OK\r\ncontent-encoding: gzip\r\ncontent-length: 4\r\n\r\nnope")


async def sends_control_characters(writer: asyncio.StreamWriter) -> None:
    body = b'{"error": {"message": "\\u001b[31m[/bold] \\ud800", "type": "x", "param": null, "code": null}}'
    writer.write(b"HTTP/1.1 400 Bad Request\r\ncontent-length: %d\r\n\r\n%s" % (len(body), body))


async def points_to_itself(writer: asyncio.StreamWriter) -> None:
    writer.write(b"HTTP/1.1 307 Again\r\nlocation: /v1/chat/completions\r\ncontent-length: 0\r\n\r\n")


async def repeats_continue(writer: asyncio.StreamWriter) -> None:
    while True:
        writer.write(b"HTTP/1.1 100 Continue\r\n\r\n" * 100)
        await writer.drain()
        await asyncio.sleep(0.01)


async def sends_deep_json(writer: asyncio.StreamWriter) -> None:
    writer.write(JSON + b"\r\n" + b'{"choices":' + b"[" * 100_000)


async def sends_events_of_nothing(writer: asyncio.StreamWriter) -> None:
    writer.write(STREAM + b"data: {}\n\n" * 500 + b"data: [DONE]\n\n")
