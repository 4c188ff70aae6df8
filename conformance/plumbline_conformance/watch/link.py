"""A client's connection and the server's, side by side.

What the server sends is handed on before anything else is done with it, in the very call that brings it: no task has to
wake up for an event. What the client sends is handed on as soon as it is known where its head ends.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Protocol, cast

from plumbline_conformance.transcript import Exchange
from plumbline_conformance.watch.http1 import Head, Malformed
from plumbline_conformance.watch.turn import LONGEST_HEAD, SERVER_CLOSED, Turn

__all__ = ["End", "Link", "Towards"]

_CLIENT_LEFT = "the client left before the end of the answer"


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
        self, heard: Callable[[bytes], None], finished: Callable[[], bool], lost: Callable[[], None]
    ) -> None:
        self._heard = heard
        self._finished = finished
        self._lost = lost
        self._held: set[str] = set()

    @property
    def usable(self) -> bool:
        """Whether it is connected."""
        return self.transport is not None and not self.transport.is_closing()

    def write(self, data: bytes) -> None:
        """Send, if anybody is there."""
        if self.transport is not None and not self.transport.is_closing():
            self.transport.write(data)

    def finish(self) -> None:
        """Say that nothing more will be sent; TLS cannot say it without closing."""
        if self.transport is not None and self.usable:
            if self.transport.can_write_eof():
                self.transport.write_eof()
            else:
                self.transport.abort()

    def close(self) -> None:
        """Close once everything is sent."""
        if self.transport is not None:
            self.transport.close()

    def abort(self) -> None:
        """Close at once."""
        if self.transport is not None:
            self.transport.abort()

    def hold(self, why: str, held: bool) -> None:
        """Stop reading, or go on when nothing else holds it back."""
        before = bool(self._held)
        (self._held.add if held else self._held.discard)(why)
        if self.transport is None or self.transport.is_closing() or before == bool(self._held):
            return
        if self._held:
            self.transport.pause_reading()
        else:
            self.transport.resume_reading()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        self._heard(data)

    def eof_received(self) -> bool:
        return self._finished()

    def connection_lost(self, exc: Exception | None) -> None:
        self._lost()

    def pause_writing(self) -> None:
        self.other.hold("full", True)

    def resume_writing(self) -> None:
        self.other.hold("full", False)


class Link:
    """Requests go one way and responses the other, one exchange at a time.

    Args:
        towards: the upstream, whose `seen` is called with each exchange when it has ended.
    """

    def __init__(self, towards: Towards) -> None:
        self._towards = towards
        self.front = End(self._asked, self._finished, self._left)
        self.back = End(self._answered, lambda: False, self._ended)
        self.front.other, self.back.other = self.back, self.front
        self.over = asyncio.Event()
        self._turn: Turn | None = None
        self._early = b""
        """What the client sent that has not been handed on."""
        self._ready = False
        self._opaque = False
        self._silent = False
        """Whether the client has said all that it will."""
        self._refusal: bytes | None = None

    def begin(self) -> None:
        """The server's connection is there."""
        if self.over.is_set():
            self.back.abort()
            return
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

    def _asked(self, data: bytes) -> None:
        if self._opaque:
            self.back.write(data)
            return
        self._early += data
        self._advance()

    def _advance(self) -> None:
        """Hand on what the client sent, up to the end of a request whose answer has not come."""
        if self._refusal is not None:
            if b"\r\n\r\n" in self._early or len(self._early) > LONGEST_HEAD:
                self.front.write(self._refusal)
                self.front.close()
            return
        while self._ready and self._early and not self._opaque:
            if self._turn is None and not self._starts():
                break
            turn = self._turn
            if turn is None or turn.asked:
                break
            data, self._early = self._early, b""
            self._early = turn.ask(data)
            self.back.write(data[: len(data) - len(self._early)] if self._early else data)
            self._opaque = turn.opaque
        if self._opaque and self._early:
            self.back.write(self._early)
            self._early = b""
        self.front.hold("early", len(self._early) > LONGEST_HEAD)
        if self._silent and self._ready and (self._turn is None or not self._early):
            # A request that is cut ends for the server as it does for the client.
            self.back.write(self._early)
            self._early = b""
            self.back.finish()

    def _starts(self) -> bool:
        """Hand on the head of the next request, if it has come; what is no head passes as it is, and is not judged."""
        raw, end, rest = self._early.partition(b"\r\n\r\n")
        if not end:
            self._opaque = len(raw) > LONGEST_HEAD
            return False
        towards = self._towards
        try:
            head = Head(raw + end)
            target = head.first[1]
            if towards.prefix and not target.startswith(f"{towards.prefix}/"):
                target = towards.prefix + target
            self._turn = Turn(head, towards.origin + target, towards.keep)
        except Malformed:
            self._opaque = True
            return False
        towards.open += 1
        self._early = rest
        self.back.write(head.raw([("host", towards.place)], target))
        return True

    def _answered(self, data: bytes) -> None:
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

    def _end_turn(self, why: str | None = None) -> None:
        if self._turn is not None:
            turn, self._turn = self._turn, None
            self._towards.open -= 1
            self._towards.seen(turn.end(why))

    def _finished(self) -> bool:
        """The client says nothing more, and may still listen: whoever is behind decides what that means."""
        self._silent = True
        if self._turn is None and not self._opaque and not self._early:
            return False
        self._advance()
        return True

    def _left(self) -> None:
        self.back.abort()
        self._close(_CLIENT_LEFT)

    def _ended(self) -> None:
        self._close(SERVER_CLOSED)

    def _close(self, why: str | None) -> None:
        self._end_turn(why)
        self._opaque = True
        self.over.set()
        self.front.close()
        self.back.close()
