"""Send turns over WebSockets and record every message until the turn ends."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Any

import httpx2
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidHandshake, InvalidStatus, InvalidURI

from plumbline_conformance.suite.scenario import Request
from plumbline_conformance.transcript.exchange import CLOSED, NO_HANDSHAKE, Exchange
from plumbline_conformance.transcript.sse import load_json

__all__ = ["ENDS", "Sockets", "message_of"]

ENDS = ("response.completed", "response.incomplete", "response.failed", "response.cancelled", "error")
"""Events that end a turn (WS-04, WS-07)."""
_UNREADABLE = 8
"""Messages in a row that are no JSON objects, after which a turn ends."""
_NO_FRAMES = (1002, 1007)
"""The codes by which our side closes after frames that break the protocol, and after text that is not UTF-8."""


def message_of(value: Any) -> bytes:
    """Return a message as JSON, or None."""
    return json.dumps(value).encode()


class Sockets:
    """Keep the WebSockets of one scenario by name, and its connections of HTTP."""

    def __init__(self) -> None:
        self._open: dict[str, ClientConnection] = {}
        self._clients: dict[str, httpx2.AsyncClient] = {}

    def http(self, name: str, make: Callable[[], httpx2.AsyncClient]) -> httpx2.AsyncClient:
        """Return the client of a connection of HTTP, which is made at its first use."""
        if name not in self._clients:
            self._clients[name] = make()
        return self._clients[name]

    async def exchange(
        self, exchange: Exchange, request: Request, headers: dict[str, str], started: float, room: int
    ) -> None:
        """Send the messages of a turn and read until the requested number of turns has ended.

        The exchange gets the status of a refused handshake, or 101. A connection that closes early is recorded in
        `error`, with its code.

        Args:
            exchange: filled in; each message is one frame.
            request: the turn.
            headers: headers of the handshake.
            started: start of the turn, by the monotonic clock.
            room: bytes that may be kept.
        """
        socket = self._open.get(request.socket)
        if socket is None:
            socket = await self._connected(exchange, request, headers, started, room)
            if socket is None:
                return
        exchange.status = 101
        left, unreadable = request.turns, 0
        try:
            for message in exchange.request_body.split(b"\n"):
                await socket.send(message.decode("utf-8", "replace"))
            while left:
                received = await socket.recv()
                if isinstance(received, bytes):
                    exchange.binary = True
                kept = received if isinstance(received, bytes) else received.encode("utf-8", "surrogatepass")
                exchange.frames.append((time.monotonic() - started, kept))
                room -= len(kept)
                if room < 0:
                    exchange.error = "the messages are longer than may be kept"
                    return
                value = load_json(kept)
                unreadable = 0 if isinstance(value, dict) else unreadable + 1
                if unreadable == _UNREADABLE:
                    # A turn without a readable end would cost the time limit, and so would each that follows.
                    exchange.error = f"{unreadable} messages in a row are no JSON objects"
                    exchange.unreadable = True
                    await self._open.pop(request.socket).close()
                    return
                left -= isinstance(value, dict) and value.get("type") in ENDS
        except ConnectionClosed as closed:
            self._open.pop(request.socket, None)
            if closed.sent is not None and closed.sent.code in _NO_FRAMES and not closed.rcvd_then_sent:
                exchange.unreadable = True
                exchange.error = f"what came is no frame of a WebSocket: {closed.sent.reason}"
                return
            code = closed.rcvd.code if closed.rcvd is not None else None
            exchange.error = f"{CLOSED}, with code {code}"

    async def _connected(
        self, exchange: Exchange, request: Request, headers: dict[str, str], started: float, room: int
    ) -> ClientConnection | None:
        agent = headers.pop("user-agent", None)
        try:
            socket = await connect(
                exchange.url,
                additional_headers=headers,
                user_agent_header=agent,
                max_size=max(1, room),
                open_timeout=None,
                close_timeout=1,
                proxy=None,
            )
        except InvalidStatus as refused:
            exchange.status = refused.response.status_code
            exchange.headers = [(name.lower(), value) for name, value in refused.response.headers.raw_items()]
            exchange.frames.append((time.monotonic() - started, bytes(refused.response.body or b"")[:room]))
            return None
        except (InvalidHandshake, InvalidURI, EOFError) as error:
            exchange.error = f"{NO_HANDSHAKE}: {type(error).__name__}: {error}"
            return None
        self._open[request.socket] = socket
        return socket

    async def close(self) -> None:
        """Close all of them."""
        for socket in self._open.values():
            await socket.close()
        for client in self._clients.values():
            await client.aclose()
        self._open.clear()
        self._clients.clear()
