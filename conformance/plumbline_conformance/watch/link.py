"""Connect a client connection with a server connection.

Bytes of the server are forwarded in the callback that receives them, before they are recorded: waking up a task for
each event would delay it. Bytes of the client are forwarded as soon as the head of the request is complete.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import socket
import struct
import sys
from collections.abc import Callable
from contextlib import suppress
from typing import Protocol, cast

from plumbline_conformance.transcript.exchange import Exchange
from plumbline_conformance.watch.http1 import Malformed, MessageHead, bare
from plumbline_conformance.watch.turn import LONGEST_HEAD, WatchedTurn

__all__ = ["Link", "LinkEnd", "UpstreamSide"]

_CLIENT_LEFT = "the client left before the end of the answer"
_SERVER_CLOSED = "the server closed the connection before the end of its answer"
_LINGER_OFF = struct.pack("hh" if sys.platform == "win32" else "ii", 1, 0)
"""Socket option: close with a reset, without waiting."""
_METHOD = re.compile(rb"(\r\n)*[!#$%&'*+.^_`|~0-9A-Za-z-]*([ \r]|$)")
"""Matches the start of a request, even if it is incomplete."""


class UpstreamSide(Protocol):
    """The upstream of a link."""

    place: str
    """Host and port, for the `Host` header."""
    prefix: str
    """Prefix of the path of every request."""
    origin: str
    keep: int
    """Maximum bytes to keep of a body."""
    open: int
    """Number of exchanges in progress."""
    seen: Callable[[Exchange], None]
    """Called with each exchange when it has ended."""


class LinkEnd(asyncio.Protocol):
    """One of the two connections. Reading is paused while the other cannot be written to."""

    transport: asyncio.Transport | None = None
    other: LinkEnd

    def __init__(
        self,
        on_data: Callable[[bytes], None],
        on_eof: Callable[[], bool],
        on_lost: Callable[[Exception | None], None],
    ) -> None:
        self._on_data = on_data
        self._on_eof = on_eof
        self._on_lost = on_lost
        self._pauses: set[str] = set()
        self._close_requested = False
        self._descriptor: int | None = None
        """The file descriptor for direct writes."""

    def write(self, data: bytes) -> None:
        """Send, if the connection is open."""
        transport = self.transport
        if not data or transport is None or transport.is_closing():
            return
        if self._descriptor is not None and not transport.get_write_buffer_size():
            # Write directly, because uvloop first reads all other connections. The transport handles a full buffer or
            # a closed connection.
            with suppress(OSError):
                data = data[os.write(self._descriptor, data) :]
        if data:
            transport.write(data)

    def finish(self) -> bool:
        """Send EOF; return whether that was possible. TLS has no EOF without closing."""
        if self.transport is None or self.transport.is_closing() or not self.transport.can_write_eof():
            return False
        self.transport.write_eof()
        return True

    def close(self) -> None:
        """Close after sending everything."""
        self._close_requested = True
        if self.transport is not None:
            self.transport.close()

    def abort(self) -> None:
        """Close immediately."""
        self._close_requested = True
        if self.transport is not None:
            self.transport.abort()

    def reset(self) -> None:
        """Close with a reset, so that the peer does not take it for a normal end."""
        if self.transport is not None and not self.transport.is_closing():
            plain = self.transport.get_extra_info("socket")
            with suppress(AttributeError, OSError):
                plain.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _LINGER_OFF)
        self.abort()

    def set_paused(self, why: str, paused: bool) -> None:
        """Pause reading for a reason, or resume it if no other reason is left."""
        before = bool(self._pauses)
        (self._pauses.add if paused else self._pauses.discard)(why)
        if self.transport is None or self.transport.is_closing() or before == bool(self._pauses):
            return
        if self._pauses:
            self.transport.pause_reading()
        else:
            self.transport.resume_reading()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        plain = transport.get_extra_info("socket")
        with suppress(AttributeError, OSError):  # Detect peers that vanished without closing.
            plain.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            if sys.platform != "win32" and transport.get_extra_info("ssl_object") is None:
                self._descriptor = plain.fileno()
        if self._close_requested:
            self.transport.abort()

    def data_received(self, data: bytes) -> None:
        self._on_data(data)

    def eof_received(self) -> bool:
        return self._on_eof()

    def connection_lost(self, exc: Exception | None) -> None:
        self._on_lost(exc)

    def pause_writing(self) -> None:
        self.other.set_paused("full", True)

    def resume_writing(self) -> None:
        self.other.set_paused("full", False)


class Link:
    """Forward requests and responses, one exchange at a time.

    Args:
        upstream: the server; its `seen` is called with each exchange when it has ended.
        over: called once, when both connections are closed.
    """

    def __init__(self, upstream: UpstreamSide, over: Callable[[], object]) -> None:
        self._upstream = upstream
        self._over = over
        self.front = LinkEnd(self._client_sent, self._client_finished, self._client_lost)
        self.back = LinkEnd(self._server_sent, self._server_finished, self._server_lost)
        self.front.other, self.back.other = self.back, self.front
        self._turn: WatchedTurn | None = None
        """The exchange that waits for its answer."""
        self._sending: WatchedTurn | None = None
        """The exchange with an incomplete request; its answer may end first."""
        self._unsent = b""
        """Bytes of the client that are not forwarded yet."""
        self._ready = False
        self._opaque = False
        """Whether bytes are forwarded without parsing, in both directions."""
        self._client_eof = False
        """Whether the client has sent EOF."""
        self._eof_forwarded = False
        """Whether the EOF has been forwarded."""
        self._closed = False
        self._refusal: bytes | None = None

    def begin(self) -> None:
        """Start forwarding, when the connection to the server exists."""
        self._ready = True
        self._advance()

    def refuse(self, why: str) -> None:
        """Answer the request with 502 if the server cannot be reached. The proxy writes no other answer itself."""
        error = {"message": why, "type": "server_error", "param": None, "code": "upstream_unreachable"}
        body = json.dumps({"error": error}).encode()
        head = (
            f"HTTP/1.1 502 Bad Gateway\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n"
        )
        self._refusal = head.encode() + b"connection: close\r\n\r\n" + body
        self._advance()

    def stop(self) -> None:
        """Close both connections; an exchange in progress is reported with the reason."""
        self._close("the proxy was stopped")

    def _client_sent(self, data: bytes) -> None:
        if self._opaque:
            self.back.write(data)
            return
        self._unsent += data
        self._advance()

    def _advance(self) -> None:
        """Forward bytes of the client, up to the end of a request that waits for its answer."""
        if self._refusal is not None and (b"\r\n\r\n" in self._unsent or len(self._unsent) > LONGEST_HEAD):
            self.front.write(self._refusal)
            # Read and discard the rest of the request: closing earlier would drop the answer.
            self.front.finish()
            self._refusal, self._opaque, self._unsent = None, True, b""
        if not self._ready:
            return
        while self._unsent and not self._opaque:
            if self._sending is None and (self._turn is not None or not self._forward_head()):
                break
            if self._sending is not None and self._unsent:
                self._forward_body(self._sending)
        if self._opaque:
            self.back.write(self._unsent)
            self._unsent = b""
        self.front.set_paused("early", len(self._unsent) > LONGEST_HEAD)
        if self._client_eof and not self._eof_forwarded and (self._turn is None or not self._unsent):
            # Forward an incomplete request as well, so that the server sees the same end.
            self.back.write(self._unsent)
            self._unsent, self._eof_forwarded = b"", True
            if not self.back.finish() and self._turn is None:
                self._close(_CLIENT_LEFT)

    def _forward_head(self) -> bool:
        """Forward the head of the next request and return True; return False if it is incomplete or not HTTP.

        Bytes that are not HTTP are forwarded without judging.
        """
        raw, end, rest = self._unsent.partition(b"\r\n\r\n")
        if not end:
            self._opaque = len(raw) > LONGEST_HEAD or bare(raw) or _METHOD.match(raw) is None
            return False
        upstream = self._upstream
        try:
            head = MessageHead(raw + end)
            target = _within(upstream.prefix, head.first[1])
            self._turn = turn = WatchedTurn(head, upstream.origin + target, upstream.keep)
        except Malformed:
            self._opaque = True
            return False
        self._sending = None if turn.request_sent else turn
        upstream.open += 1
        self._unsent = rest
        self.back.write(head.encode([("host", upstream.place)], target))
        return True

    def _forward_body(self, turn: WatchedTurn) -> None:
        """Forward the received part of the body of a request."""
        data, self._unsent = self._unsent, b""
        self._unsent = turn.ask(data)
        self.back.write(data[: len(data) - len(self._unsent)] if self._unsent else data)
        self._opaque = turn.opaque
        if turn.request_sent:
            self._sending = None

    def _server_sent(self, data: bytes) -> None:
        self.front.write(data)
        # Forward first; processing the copy only delays the next event.
        turn = self._turn
        if turn is None:
            return
        turn.answer(data)
        if turn.done:
            self._end_turn()
            if turn.last or (self._client_eof and not self._unsent):
                self._close(None)
            else:
                self._advance()
        elif turn.opaque and not self._opaque:
            self._opaque = True
            self._advance()

    def _end_turn(self, why: str | None = None, *, closed: bool = False) -> None:
        if self._turn is not None:
            turn, self._turn = self._turn, None
            self._upstream.open -= 1
            self._upstream.seen(turn.end(why, closed=closed))

    def _client_finished(self) -> bool:
        """Handle an EOF of the client: close if idle, else forward it, because the client may still read the answer."""
        self._client_eof = True
        if self._turn is None and not self._unsent and not (self._ready and self._opaque):
            return False
        self._advance()
        return not self._closed

    def _client_lost(self, error: Exception | None) -> None:
        self.back.abort()
        self._close(_CLIENT_LEFT)

    def _server_finished(self) -> bool:
        """Handle an EOF of the server: close both connections, even if a request is not completely sent."""
        self._server_lost(None)
        return False

    def _server_lost(self, error: Exception | None) -> None:
        if self._closed:
            return
        if error is not None:
            # Reset, so that a truncated answer does not look complete to the client.
            self.front.reset()
            self._close(f"the connection to the server broke: {error}")
        elif self._client_eof:
            # Many servers close when they receive the EOF of the client, which is not a fault.
            self._close(_CLIENT_LEFT)
        else:
            self._close(_SERVER_CLOSED, closed=True)

    def _close(self, why: str | None, *, closed: bool = False) -> None:
        if self._closed:
            return
        self._closed = self._opaque = True
        try:
            self._end_turn(why, closed=closed)
        finally:
            self.front.close()
            self.back.close()
            self._over()


def _within(prefix: str, target: str) -> str:
    """Add the prefix of the upstream to a request target, unless the target has it or is not a path."""
    if not prefix or not target.startswith("/"):
        return target
    under = target == prefix or target.startswith((f"{prefix}/", f"{prefix}?"))
    return target if under else prefix + target
