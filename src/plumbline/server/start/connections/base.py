"""What connections of HTTP and of WebSockets share."""

from __future__ import annotations

import asyncio
import select
from http import HTTPStatus
from typing import ClassVar
from weakref import WeakValueDictionary

from plumbline.contract.wire.errors import ApiError, envelope
from plumbline.server.limits.held_bytes import ByteBudget, Reservation
from plumbline.server.start.connections.loop_share import LoopShare
from plumbline.server.start.connections.pace import FRAMES, ClientPace

__all__ = ["ClientConnection"]

_LINGER_SECONDS = 1.0
_LINGER_BYTES = 1 << 20
_MOST_LINGERING = 16
"""Refused connections that wait for their clients; more of them would take the descriptors of those that are served."""


class ClientConnection(asyncio.Protocol):
    """A connection that is cut if its client does not read for `unread_timeout`."""

    unread_timeout = 300.0
    """Seconds in which a client must make room for more of its answer."""
    budget = ByteBudget()
    """The bytes that clients make this process hold; each configuration has its own."""
    share = LoopShare()
    """The time of the event loop; each configuration has its own."""
    lingering: ClassVar[dict[ClientConnection, None]] = {}
    """Refused connections that wait for their clients to close them, the oldest first."""
    paces: ClassVar[WeakValueDictionary[str, ClientPace]] = WeakValueDictionary()
    """By client, while it has a connection; each configuration has its own."""
    pieces = FRAMES
    _pace: ClientPace | None = None
    loop: asyncio.AbstractEventLoop
    transport: asyncio.Transport
    client: tuple[str, int] | None
    held: Reservation
    """The bytes of this connection that the application has not got."""
    _unread_timer: asyncio.TimerHandle | None = None
    _lingers = 0
    """Bytes that may still be dropped after a refusal."""

    def connection_lost(self, exc: Exception | None) -> None:
        """Give everything back."""
        self.held.release()
        self.lingering.pop(self, None)
        self._was_read()
        super().connection_lost(exc)

    def pause_writing(self) -> None:
        """Wait for the client to read."""
        super().pause_writing()
        self._unread_timer = self.loop.call_later(self.unread_timeout, self.transport.abort)

    def resume_writing(self) -> None:
        """Go on: the client has read."""
        self._was_read()
        super().resume_writing()

    def _was_read(self) -> None:
        if self._unread_timer is not None:
            self._unread_timer.cancel()
            self._unread_timer = None

    @property
    def pace(self) -> ClientPace:
        """The pace of the client."""
        if self._pace is None:
            self._pace = self.paces.get(self.held.client) or ClientPace(self.pieces)
            self.paces[self.held.client] = self._pace
        return self._pace

    @property
    def is_over(self) -> bool:
        """Whether no more is read of this connection."""
        return bool(self._lingers) or self.transport.is_closing()

    @property
    def has_unread(self) -> bool:
        """Whether bytes wait in the socket. uvloop runs timers before it reads, and may be late."""
        if self.is_over:
            return False
        poll = select.poll()
        poll.register(self.transport.get_extra_info("socket"), select.POLLIN)
        return bool(poll.poll(0))

    def dropped(self, data: bytes) -> bool:
        """Return whether these bytes come after a refusal, and are dropped."""
        if self._lingers:
            self._lingers -= len(data)
            if self._lingers <= 0:
                self.transport.abort()
        return self._lingers != 0

    def refuse_rest(self, error: ApiError) -> None:
        """Send an error outside of any request, and close the connection."""
        body = envelope(error)
        phrase = HTTPStatus(error.status).phrase
        head = (
            f"HTTP/1.1 {error.status} {phrase}\r\ncontent-type: application/json\r\n"
            f"content-length: {len(body)}\r\nconnection: close\r\n"
        )
        if error.status == 503:
            head += "retry-after: 1\r\n"
        self.transport.write(f"{head}\r\n".encode() + body)
        if not self.transport.can_write_eof():  # TLS
            self.transport.close()
            return
        # A socket that is closed with unread bytes sends a reset, and the client may lose the answer.
        self.transport.write_eof()
        self._lingers = _LINGER_BYTES
        self.lingering[self] = None
        if len(self.lingering) > _MOST_LINGERING:
            oldest = next(iter(self.lingering))
            del self.lingering[oldest]
            oldest.transport.abort()
        self.transport.resume_reading()
        self.loop.call_later(_LINGER_SECONDS, self.transport.abort)
