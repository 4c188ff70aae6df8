"""Send a request of HTTP/1.0, which httpx2 cannot, and keep the bytes of the answer as they come."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from urllib.parse import urlsplit

from plumbline_conformance.transcript.exchange import Exchange

__all__ = ["ask", "read_chunk", "read_head", "request_bytes"]


async def ask(exchange: Exchange, headers: Mapping[str, str], started: float, room: int) -> None:
    """Send the request of an exchange, and read until the answer's length or the end of the connection.

    Args:
        exchange: filled in.
        headers: headers that every request has.
        started: start of the exchange, by the monotonic clock.
        room: bytes that may be kept.

    Raises:
        OSError: there is no connection, or what comes is no answer.
    """
    parts = urlsplit(exchange.url)
    tls = parts.scheme == "https"
    reader, writer = await asyncio.open_connection(
        parts.hostname, parts.port or (443 if tls else 80), ssl=tls or None
    )
    try:
        writer.write(request_bytes(exchange, headers, "1.0"))
        read_head(exchange, await reader.readuntil(b"\r\n\r\n"))
        length = exchange.header("content-length") or ""
        left = min(room, int(length)) if length.isdigit() else room
        chunked = "chunked" in (exchange.header("transfer-encoding") or "").lower()
        while left > 0 and (
            part := await (read_chunk(reader, left) if chunked else reader.read(min(left, 65536)))
        ):
            exchange.frames.append((time.monotonic() - started, part))
            left -= len(part)
    except (asyncio.IncompleteReadError, asyncio.LimitOverrunError) as error:
        raise OSError(f"no answer of HTTP: {error}") from error
    finally:
        writer.close()


async def read_chunk(reader: asyncio.StreamReader, room: int) -> bytes:
    """Return the next chunk, or nothing after the last one: HTTP-20 forbids chunks, and other rules judge the body."""
    size = (await reader.readline()).partition(b";")[0].strip()
    try:
        length = min(room, int(size, 16))
    except ValueError:
        raise OSError(f"no chunk: {size[:20]!r}") from None
    part = await reader.readexactly(length)
    await reader.readline()
    return part


def request_bytes(exchange: Exchange, headers: Mapping[str, str], version: str) -> bytes:
    """Return the bytes of a request, with headers that every request has."""
    parts = urlsplit(exchange.url)
    given = {"host": parts.netloc, **headers, **exchange.request_headers}
    given["content-length"] = str(len(exchange.request_body))
    target = f"{parts.path or '/'}{'?' if parts.query else ''}{parts.query}"
    lines = [
        f"{exchange.method} {target} HTTP/{version}",
        *(f"{name}: {value}" for name, value in given.items()),
    ]
    return "\r\n".join([*lines, "", ""]).encode("latin-1") + exchange.request_body


def read_head(exchange: Exchange, head: bytes) -> None:
    """Fill in the status and the headers of an answer.

    Raises:
        OSError: it is no answer of HTTP.
    """
    first, *lines = head.decode("latin-1").rstrip("\r\n").split("\r\n")
    version, _, rest = first.partition(" ")
    status = rest.partition(" ")[0]
    if not version.startswith("HTTP/") or not status.isdigit():
        raise OSError(f"no answer of HTTP: {first[:80]}")
    exchange.status = int(status)
    pairs = (line.partition(":") for line in lines)
    exchange.headers = [(name.strip().lower(), value.strip()) for name, _, value in pairs]
