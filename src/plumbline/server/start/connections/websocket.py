"""Speak WebSocket: messages within the budget of their client, frames in slices of little work."""

from __future__ import annotations

import asyncio
from typing import Any

from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from websockets.frames import Frame

from plumbline.contract.wire.errors import ApiError
from plumbline.contract.wire.incoming import HELD_FOR
from plumbline.server.limits.held_bytes import LEAST_RATE, HeldMessage, Reservation
from plumbline.server.start.connections.base import ClientConnection
from plumbline.server.start.connections.frame_guard import (
    MAX_SMALL_FRAGMENTS,
    SLICE_FRAMES,
    SMALL,
    FrameGuard,
    TooManyFragmentsError,
)

__all__ = ["WebSocketConnection"]

_MAX_WAITING = 16
"""Messages of one connection that wait for their turn. Further ones are not read."""
_INVALID_TEXT = 1007
_POLICY = 1008
"""Status of a closed connection, RFC 6455, section 7.4.1."""


class WebSocketConnection(ClientConnection, WebSocketsSansIOProtocol):
    """uvicorn's WebSocket, which reads a message when there is room for it.

    The application always waits for the next event, so it learns at once that its client has left; what is not read
    waits here. uvicorn would read one message and stop, and see nothing more until that is taken.
    """

    body_timeout = 0.0
    """Seconds in which a message may be silent, or late by as much; 0 means no limit."""
    _partial = 0
    """Bytes that are reserved for a message of which a part has come."""
    _awaits_room = False
    _pumping = False
    _next_slice: asyncio.TimerHandle | None = None
    _message_timer: asyncio.TimerHandle | None = None
    _got = 0
    """Bytes that have come since the last look whether the message is late."""

    def connection_made(self, transport: Any) -> None:
        """Wait for the request of the handshake."""
        super().connection_made(transport)
        self._guard = FrameGuard(self.config.ws_max_size)
        self.held = Reservation(self.budget, self.client[0] if self.client else "")
        self._messages: set[HeldMessage] = set()

    def connection_lost(self, exc: Exception | None) -> None:
        """Give back what is held; uvicorn tells the application."""
        for timer in (self._next_slice, self._message_timer):
            if timer is not None:
                timer.cancel()
        self._messages.clear()
        self._guard.rest()
        self.frames = []
        super().connection_lost(exc)
        # It may have a part of a message, and cycles keep it until a garbage collection.
        self.conn.receive_eof()
        del self.conn

    def pause_writing(self) -> None:
        """Read no pings either, whose pongs would pile up."""
        super().pause_writing()
        self._set_reading()

    def resume_writing(self) -> None:
        """Read on."""
        super().resume_writing()
        self._pump()

    def data_received(self, data: bytes) -> None:
        """Take the request of the handshake, which comes whole and first, and then frames."""
        if self.dropped(data):
            return
        if self.handshake_initiated:
            self._got += len(data)
            self._guard.add(data)
            self._pump()
        else:
            self._begin(data)

    def _begin(self, data: bytes) -> None:
        super().data_received(data)
        # uvicorn neither answers nor closes these, and the limit on the time of headers has ended.
        if not self.handshake_initiated and not self.is_over:
            self.refuse_rest(
                ApiError(
                    400,
                    "The WebSocket handshake is not valid: it must have no body, at most 128 headers, and at most 8192 "
                    "bytes in each.",
                    code="invalid_http",
                )
            )

    def _pump(self) -> None:
        """Give the parser a slice of what has come, and read on if there is room."""
        if not self._pumping and self._next_slice is None:
            self._pumping = True
            before = self._guard.frames
            try:
                self._feed(before + SLICE_FRAMES)
            except TooManyFragmentsError:
                self._fail(_POLICY, f"more than {MAX_SMALL_FRAGMENTS} fragments have less than {SMALL} bytes")
            finally:
                self._pumping = False
            parsed = self._guard.frames - before
            wait = self.pace.take(parsed)
            if (wait or parsed >= SLICE_FRAMES) and not self.is_over:
                self._next_slice = self.loop.call_later(wait, self._go_on)
            self._watch_message()
        self._count()
        self._set_reading()

    def _feed(self, until: int) -> None:
        while not (self.is_over or self._is_full) and self._guard.frames < until:
            piece = self._guard.take()
            if piece is not None:
                super().data_received(piece)
            elif (size := self._guard.wanted) is not None:
                self._reserve(size)
            else:
                return

    def _go_on(self) -> None:
        self._next_slice = None
        self._pump()

    @property
    def _is_full(self) -> bool:
        """Whether nothing more may be parsed now."""
        if self.close_sent:  # The client's part of the closing handshake follows.
            return False
        if (
            not self.handshake_complete
        ):  # The library cannot refuse a frame before it has accepted the handshake.
            return True
        waiting = sum(not message.begun for message in self._messages)
        return waiting >= _MAX_WAITING or self._awaits_room or not self.writable.is_set()

    def _set_reading(self) -> None:
        if self.is_over:
            return
        if self._is_full or self._next_slice is not None:
            self.transport.pause_reading()
        else:
            self.transport.resume_reading()

    def _reserve(self, size: int) -> None:
        """Take the next message when there is room for all of it: halves of many messages could fill all room."""
        client = self.scope["state"].get(HELD_FOR, self.held.client)
        if client != self.held.client:  # Its key is known now.
            self.held.move(client)
            self._pace = None

        def admit() -> None:
            self._awaits_room = False
            self._partial = size
            self._guard.admit()
            if not self._pumping:
                self.loop.call_soon(self._pump)

        if self.close_sent:
            self._guard.admit()
            return
        self._awaits_room = True
        self.held.when_free(size, admit)

    def _count(self) -> None:
        size = self._guard.held + self._partial + sum(message.size for message in self._messages)
        if not self.is_over and size != self.held.size:
            self.held.set(size)

    # The parser keeps its last frame for as long as the connection idles; without its payload that is little.

    def handle_text(self, event: Frame) -> None:
        """Take the first fragment of a text."""
        super().handle_text(event)
        event.data = b""

    def handle_bytes(self, event: Frame) -> None:
        """Take the first fragment of bytes."""
        super().handle_bytes(event)
        event.data = b""

    def handle_cont(self, event: Frame) -> None:
        """Take a further fragment."""
        super().handle_cont(event)
        event.data = b""

    def send_receive_event_to_app(self) -> None:
        """Give the application a message, which counts until it is ended."""
        data = b"".join(self.frames)
        self.frames = []
        self._partial = 0
        if self.close_sent:
            return
        event: Any = {"type": "websocket.receive", "bytes": data}
        if self.curr_msg_data_type == "text":
            try:
                event = {"type": "websocket.receive", "text": data.decode()}
            except UnicodeDecodeError:
                self._fail(_INVALID_TEXT, "invalid UTF-8")
                return
        event["held"] = message = HeldMessage(len(data), self._changed)
        self._messages.add(message)
        self.queue.put_nowait(event)

    def _changed(self, message: HeldMessage) -> None:
        """Read on when a message was begun, and give its bytes back when it has ended."""
        if message in self._messages:
            if message.ended:
                self._messages.discard(message)
            self._pump()

    def _watch_message(self) -> None:
        if self._partial and self.body_timeout and self._message_timer is None and not self.is_over:
            self._got = 0
            self._message_timer = self.loop.call_later(self.body_timeout, self._message_late)

    def _message_late(self) -> None:
        """Close the connection if it sends a part of a message only, whose room others may wait for."""
        self._message_timer = None
        if self._partial and self._got < LEAST_RATE * self.body_timeout and not self._is_full:
            self._fail(_POLICY, "a message took too long")
        else:
            self._watch_message()

    def keepalive_timeout(self) -> None:
        """Close a connection without pongs, unless they are not read."""
        if self._is_full and not self.is_over:
            self.pong_timer = self.loop.call_later(self.ping_timeout or 0.0, self.keepalive_timeout)
        else:
            super().keepalive_timeout()

    def _fail(self, code: int, reason: str) -> None:
        if not self.is_over and not self.close_sent:
            self.conn.fail(code, reason)
            self.handle_parser_exception()

    async def send(self, message: Any) -> None:
        """Send a message of the application."""
        await super().send(message)
        if message["type"] == "websocket.send":
            self.share.streamed()
        elif message["type"] == "websocket.http.response.body" and not message.get("more_body", False):
            self.handshake_complete = True
        elif message["type"] == "websocket.accept":
            self._pump()
