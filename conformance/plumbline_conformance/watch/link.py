"""A client's connection and the server's, side by side.

What the server sends is handed on before anything else is done with it, in the very call that brings it: no task has to
wake up for an event. What the client sends is handed on as soon as it is known where its head ends.
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

from plumbline_conformance.transcript.model import Exchange
from plumbline_conformance.watch.http1 import Head, Malformed, bare
from plumbline_conformance.watch.turn import LONGEST_HEAD, Turn

__all__ = ["End", "Link", "Towards"]

_CLIENT_LEFT = "the client left before the end of the answer"
_SERVER_CLOSED = "the server closed the connection before the end of its answer"
_AT_ONCE = struct.pack("hh" if sys.platform == "win32" else "ii", 1, 0)
"""Close by a reset, and wait for nothing."""
_METHOD = re.compile(rb"(\r\n)*[!#$%&'*+.^_`|~0-9A-Za-z-]*([ \r]|$)")
"""How a request begins, as far as it has come."""


class Towards(Protocol):
    """What a link has to know of its upstream."""

    place: str
    """Host and port, for the `Host` header."""
    prefix: str
    """Of the path of every target."""
    origin: str
    keep: int
    """Bytes of a body that are kept."""
    open: int
    """Exchanges that are under way."""
    seen: Callable[[Exchange], None]


class End(asyncio.Protocol):
    """One of the two connections. It is not read from while the other one takes nothing more."""

    transport: asyncio.Transport | None = None
    other: End

    def __init__(
        self,
        heard: Callable[[bytes], None],
        finished: Callable[[], bool],
        lost: Callable[[Exception | None], None],
    ) -> None:
        self._heard = heard
        self._finished = finished
        self._lost = lost
        self._pauses: set[str] = set()
        self._unwanted = False
        self._descriptor: int | None = None
        """Where it can be written to."""

    def write(self, data: bytes) -> None:
        """Send, if anybody is there."""
        transport = self.transport
        if not data or transport is None or transport.is_closing():
            return
        if self._descriptor is not None and not transport.get_write_buffer_size():
            # Not every loop sends at once: uvloop first reads what has come on all other connections. Where there is
            # no room, or nobody, the transport finds out and knows what to do.
            with suppress(OSError):
                data = data[os.write(self._descriptor, data) :]
        if data:
            transport.write(data)

    def finish(self) -> bool:
        """Say that nothing more will be sent; gives whether that could be said, which TLS cannot without closing."""
        if self.transport is None or self.transport.is_closing() or not self.transport.can_write_eof():
            return False
        self.transport.write_eof()
        return True

    def close(self) -> None:
        """Close once everything is sent."""
        self._unwanted = True
        if self.transport is not None:
            self.transport.close()

    def abort(self) -> None:
        """Close at once."""
        self._unwanted = True
        if self.transport is not None:
            self.transport.abort()

    def reset(self) -> None:
        """Close at once, and let the other side know that this is no end in order."""
        if self.transport is not None and not self.transport.is_closing():
            plain = self.transport.get_extra_info("socket")
            with suppress(AttributeError, OSError):
                plain.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _AT_ONCE)
        self.abort()

    def set_paused(self, why: str, paused: bool) -> None:
        """Stop reading, or go on when nothing else holds it back."""
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
        with suppress(AttributeError, OSError):  # Who is gone without a word would keep its place for ever.
            plain.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            if sys.platform != "win32" and transport.get_extra_info("ssl_object") is None:
                self._descriptor = plain.fileno()
        if self._unwanted:
            self.transport.abort()

    def data_received(self, data: bytes) -> None:
        self._heard(data)

    def eof_received(self) -> bool:
        return self._finished()

    def connection_lost(self, exc: Exception | None) -> None:
        self._lost(exc)

    def pause_writing(self) -> None:
        self.other.set_paused("full", True)

    def resume_writing(self) -> None:
        self.other.set_paused("full", False)


class Link:
    """Requests go one way and responses the other, one exchange at a time.

    Args:
        towards: the upstream, whose `seen` is called with each exchange when it has ended.
        over: called once, when both connections have been closed.
    """

    def __init__(self, towards: Towards, over: Callable[[], object]) -> None:
        self._towards = towards
        self._over = over
        self.front = End(self._client_sent, self._finished, self._left)
        self.back = End(self._server_sent, self._server_finished, self._ended)
        self.front.other, self.back.other = self.back, self.front
        self._turn: Turn | None = None
        """The exchange whose answer is awaited."""
        self._sending: Turn | None = None
        """The exchange whose request is being handed on: an answer may be whole before its request is."""
        self._early = b""
        """What the client sent that has not been handed on."""
        self._ready = False
        self._opaque = False
        """Nothing is looked at any more, in either direction."""
        self._silent = False
        """The client has said all that it will."""
        self._passed_on = False
        """The server knows that."""
        self._closed = False
        self._refusal: bytes | None = None

    def begin(self) -> None:
        """The server's connection is there."""
        self._ready = True
        self._advance()

    def refuse(self, why: str) -> None:
        """There is no server: say so when the request has come. It is the only answer of the proxy's own."""
        error = {"message": why, "type": "server_error", "param": None, "code": "upstream_unreachable"}
        body = json.dumps({"error": error}).encode()
        head = (
            f"HTTP/1.1 502 Bad Gateway\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n"
        )
        self._refusal = head.encode() + b"connection: close\r\n\r\n" + body
        self._advance()

    def stop(self) -> None:
        """End both connections; an exchange that is under way is seen, with the reason."""
        self._close("the proxy was stopped")

    def _client_sent(self, data: bytes) -> None:
        if self._opaque:
            self.back.write(data)
            return
        self._early += data
        self._advance()

    def _advance(self) -> None:
        """Hand on what the client sent, up to the end of a request whose answer has not come."""
        if self._refusal is not None and (b"\r\n\r\n" in self._early or len(self._early) > LONGEST_HEAD):
            self.front.write(self._refusal)
            # The rest of the request is read, to nobody: closing before it has come would take the answer back.
            self.front.finish()
            self._refusal, self._opaque, self._early = None, True, b""
        if not self._ready:
            return
        while self._early and not self._opaque:
            if self._sending is None and (self._turn is not None or not self._starts()):
                break
            if self._sending is not None and self._early:
                self._sends(self._sending)
        if self._opaque:
            self.back.write(self._early)
            self._early = b""
        self.front.set_paused("early", len(self._early) > LONGEST_HEAD)
        if self._silent and not self._passed_on and (self._turn is None or not self._early):
            # A request that is cut ends for the server as it does for the client.
            self.back.write(self._early)
            self._early, self._passed_on = b"", True
            if not self.back.finish() and self._turn is None:
                self._close(_CLIENT_LEFT)

    def _starts(self) -> bool:
        """Hand on the head of the next request, if it has come; what is no head passes as it is, and is not judged."""
        raw, end, rest = self._early.partition(b"\r\n\r\n")
        if not end:
            self._opaque = len(raw) > LONGEST_HEAD or bare(raw) or _METHOD.match(raw) is None
            return False
        towards = self._towards
        try:
            head = Head(raw + end)
            target = _within(towards.prefix, head.first[1])
            self._turn = turn = Turn(head, towards.origin + target, towards.keep)
        except Malformed:
            self._opaque = True
            return False
        self._sending = None if turn.request_sent else turn
        towards.open += 1
        self._early = rest
        self.back.write(head.encode([("host", towards.place)], target))
        return True

    def _sends(self, turn: Turn) -> None:
        """Hand on what has come of the body of a request."""
        data, self._early = self._early, b""
        self._early = turn.ask(data)
        self.back.write(data[: len(data) - len(self._early)] if self._early else data)
        self._opaque = turn.opaque
        if turn.request_sent:
            self._sending = None

    def _server_sent(self, data: bytes) -> None:
        self.front.write(data)
        # The client's bytes first; what is done with the copy delays nobody but the next event.
        turn = self._turn
        if turn is None:
            return
        turn.answer(data)
        if turn.done:
            self._end_turn()
            if turn.last or (self._silent and not self._early):
                self._close(None)
            else:
                self._advance()
        elif turn.opaque and not self._opaque:
            self._opaque = True
            self._advance()

    def _end_turn(self, why: str | None = None, *, closed: bool = False) -> None:
        if self._turn is not None:
            turn, self._turn = self._turn, None
            self._towards.open -= 1
            self._towards.seen(turn.end(why, closed=closed))

    def _finished(self) -> bool:
        """The client says nothing more, and may still listen: whoever is behind decides what that means."""
        self._silent = True
        if self._turn is None and not self._early and not (self._ready and self._opaque):
            return False
        self._advance()
        return not self._closed

    def _left(self, error: Exception | None) -> None:
        self.back.abort()
        self._close(_CLIENT_LEFT)

    def _server_finished(self) -> bool:
        """The server says nothing more: the client is told at once, whatever is still on its way to the server."""
        self._ended(None)
        return False

    def _ended(self, error: Exception | None) -> None:
        if self._closed:
            return
        if error is not None:
            # What was cut off is not to look like the end of an answer, to the client as to the judge.
            self.front.reset()
            self._close(f"the connection to the server broke: {error}")
        elif self._silent:
            # Servers take the end of what a client says for its leaving, and such an end of theirs says nothing.
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
    """A target under the prefix of the upstream; what is no path is left as it is."""
    if not prefix or not target.startswith("/"):
        return target
    under = target == prefix or target.startswith((f"{prefix}/", f"{prefix}?"))
    return target if under else prefix + target
