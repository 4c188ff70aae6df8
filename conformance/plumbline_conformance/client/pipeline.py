"""Send two requests at once on one connection, which httpx2 cannot, and keep the answer to the second."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from urllib.parse import urlsplit

from plumbline_conformance.client.http10 import read_chunk, read_head, request_bytes
from plumbline_conformance.transcript.exchange import PIPE_CLOSED, PIPE_SILENT, Exchange

__all__ = ["ask"]

_SILENCE = 10.0
"""Seconds without the second answer, a short one, after the end of the first."""


async def ask(
    exchange: Exchange, before: Exchange, headers: Mapping[str, str], started: float, room: int
) -> None:
    """Send both requests, read the first answer, and keep the second.

    Args:
        exchange: the second request; filled in.
        before: the first request; filled in.
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
        writer.write(request_bytes(before, headers, "1.1") + request_bytes(exchange, headers, "1.1"))
        await _answer(before, reader, started, room)
        try:
            async with asyncio.timeout(_SILENCE):
                await _answer(exchange, reader, started, room)
        except TimeoutError:
            exchange.error = f"{PIPE_SILENT} within {_SILENCE:g} s"
        except (asyncio.IncompleteReadError, ConnectionError):
            if exchange.status:
                raise
            # A client sends the second request again on another connection (RFC 9112, section 9.3.2).
            exchange.error = PIPE_CLOSED
    except (asyncio.IncompleteReadError, asyncio.LimitOverrunError) as error:
        raise OSError(f"no answer of HTTP: {error}") from error
    finally:
        writer.close()


async def _answer(exchange: Exchange, reader: asyncio.StreamReader, started: float, room: int) -> None:
    """Read one answer to its end: by its length, its last chunk, or the end of the connection."""
    read_head(exchange, await reader.readuntil(b"\r\n\r\n"))
    length = exchange.header("content-length") or ""
    left = min(room, int(length)) if length.isdigit() else room
    chunked = "chunked" in (exchange.header("transfer-encoding") or "").lower()
    while left > 0 and (
        part := await (read_chunk(reader, left) if chunked else reader.read(min(left, 65536)))
    ):
        exchange.frames.append((time.monotonic() - started, part))
        left -= len(part)
