"""Serve HTTP/1.1 on one connection: requests one after the other, with limits on their size and their time."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from typing import Any

from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle

from plumbline.contract.wire.errors import ApiError, engine_unavailable
from plumbline.server.http.middleware.answers import WholeAnswer
from plumbline.server.limits.draining import Draining
from plumbline.server.limits.held_bytes import Reservation
from plumbline.server.start.connections.base import ClientConnection
from plumbline.server.start.connections.cycles import ClosingCycle, RequestCycle
from plumbline.server.start.connections.pace import CHUNKS
from plumbline.server.start.connections.request_guard import MAX_HEAD, RequestGuard

__all__ = ["HttpConnection"]

_log = logging.getLogger("plumbline.server")

_SLICE_CHUNKS = 128
"""Chunks of a body that are parsed before other connections have their turn: 0.5 ms. They may have one byte each."""
_IGNORED_A_SECOND = 16 << 20
"""Bytes a second that are read and dropped of a body after its answer, so that other connections keep their time."""
_PIPELINE_SECONDS = 0.01
"""Delay of a request that arrived before the last answer was sent. Other clients wait for their answers; without it a
client that sends requests ahead would get all of the server's time for a few bytes each."""


_QUIET = 0.5
"""Seconds without data after which a stopping server closes a connection. A request may be in transit, and a proxy may
not repeat a POST."""


class _Flow(FlowControl):
    """uvicorn's control of reading; while `holds`, uvicorn cannot resume it."""

    holds = False

    def resume_reading(self) -> None:
        if not self.holds:
            super().resume_reading()


class HttpConnection(ClientConnection, HttpToolsProtocol):
    """HTTP/1.1 with refusals in the API's envelope; a request begins when the last answer was sent and read."""

    max_connections = 0
    header_timeout = 0.0
    pieces = CHUNKS
    max_ignored = 1 << 20
    """Bytes that are read of a body after its answer; a client that is still sending would see a reset instead."""
    draining = Draining()
    """Whether the server stops; each configuration has its own."""
    refuse: Callable[[Any], WholeAnswer | None] = staticmethod(lambda scope: None)
    """Answers a request that no model has room for; see `WholeAnswer`."""
    parsing = 0.0
    """Seconds that parsing the running request has taken."""
    _next_line = 0.0
    """When the next line about refused connections may be logged; each server has a class of its own."""
    _header_timer: asyncio.TimerHandle | None = None
    _parsed = True
    """Whether the parser has reached the end of the last request."""
    _ignored = 0
    _debt = 0.0
    """Seconds to wait because of ignored bytes."""
    _pumping = False
    _next_slice: asyncio.Handle | None = None
    """The scheduled call that parses the next slice."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Wait for a request."""
        super().connection_made(transport)
        self.flow = self._flow = _Flow(transport)
        self._guard = RequestGuard()
        self.held = Reservation(self.budget, self.client[0] if self.client else "")
        self._await_headers()
        if self.draining.began:
            self.drain()
        if self.max_connections and len(self.connections) > self.max_connections:
            self.log_flood()
            self.refuse_rest(engine_unavailable("The server has too many open connections."))

    def drain(self) -> None:
        """Answer further requests with `connection: close`, and close the connection after `_QUIET` without data."""
        self.header_timeout = _QUIET
        self.timeout_keep_alive = _QUIET  # type: ignore[assignment]  # fractions also work
        cycle: RequestResponseCycle | None = self.cycle
        if cycle is not None and not cycle.response_started:
            # Later the client has been told otherwise, and may send its next request.
            cycle.keep_alive = False
        if self.timeout_keep_alive_task is not None:
            self._unset_keepalive_if_required()
            self._await_request()
        elif self._is_idle:
            self._cancel_header_timer()
            self._await_headers()

    @property
    def is_awaited(self) -> bool:
        """Whether a request may still come, or is being answered."""
        return not (self.is_over or self.flow.write_paused)

    def connection_lost(self, exc: Exception | None) -> None:
        """End the request."""
        self._cancel_header_timer()
        if self._next_slice is not None:
            self._next_slice.cancel()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Take bytes of requests."""
        began = time.monotonic()
        self._feed(data)
        self.parsing += time.monotonic() - began

    def _feed(self, data: bytes) -> None:
        if self.dropped(data):
            return
        if self._is_idle and not self._guard.between:
            # The rest of a body that was answered early.
            self._ignored += len(data)
            self._debt += len(data) / _IGNORED_A_SECOND
            if self._ignored > self.max_ignored:
                self.transport.close()
                return
        self._unset_keepalive_if_required()
        self._guard.add(data)
        self._pump()
        if self.transport.get_protocol() is not self:
            return  # A WebSocket has taken over the connection.
        # Also an empty line, or the rest of a refused body, ends uvicorn's own timeout for idle connections. A refusal
        # in the call above has started that timeout anew.
        if self._guard.in_head or (self._is_idle and self.timeout_keep_alive_task is None):
            self._await_headers()

    def _pump(self) -> None:
        """Feed the parser a slice. It gets the head of a request only after the last answer was sent and read."""
        if self._pumping or self._next_slice is not None:
            return  # While pumping: a request was answered inside the parser, which led here again.
        self._pumping = True
        before = self._guard.chunks
        try:
            while self._may_parse:
                if self._guard.chunks - before >= _SLICE_CHUNKS:
                    break
                piece = self._guard.take()
                if piece is None:
                    break
                super().data_received(piece)
                following: Any = self.transport.get_protocol()
                if following is not self:
                    self._cancel_header_timer()
                    self.held.release()
                    if rest := self._guard.rest():
                        following.data_received(rest)
                    return
                if self._guard.between is not self._parsed and not self.is_over:
                    self.send_400_response("")  # They disagree on where the request ends.
        except ApiError as error:
            self.refuse_rest(error)
        finally:
            self._pumping = False
        self._give_turn(self._guard.chunks - before)
        self._flow.holds = self._guard.held > MAX_HEAD or self._next_slice is not None
        if self._flow.holds:
            self._flow.pause_reading()
        elif self._is_idle:
            self._flow.resume_reading()
        self.reserve()

    def _give_turn(self, chunks: int) -> None:
        """Schedule the next slice after the turns of other connections, later for tiny chunks and ignored bodies."""
        wait = (self.pace.take(chunks) if chunks else 0.0) + self._debt
        self._debt = 0.0
        if (wait or chunks >= _SLICE_CHUNKS) and self._next_slice is None and not self.is_over:
            self._next_slice = self.loop.call_later(wait, self._continue)

    @property
    def _may_parse(self) -> bool:
        return not self.is_over and self._next_slice is None and (self._is_idle or not self._guard.between)

    def _continue(self) -> None:
        self._next_slice = None
        self._pump()

    def reserve(self) -> None:
        """Reserve memory for the bytes that the application has not read; refuse the request if there is none."""
        cycle: RequestResponseCycle | None = self.cycle
        size = self._guard.held + (0 if cycle is None else len(cycle.body))
        if size == self.held.size or self.is_over:
            return
        fits = self.held.set(size)
        if not fits and self._guard.in_head and self._is_idle:
            # Pausing would not help: a part of a head can be neither used nor dropped.
            self.refuse_rest(
                engine_unavailable("The server holds too many unfinished requests of this client.")
            )

    def on_response_complete(self) -> None:
        """Go on with the next request."""
        super().on_response_complete()
        if self._guard.in_head and self._next_slice is None and not self.is_over:
            self._next_slice = self.loop.call_later(_PIPELINE_SECONDS, self._continue)
        self._pump()

    def resume_writing(self) -> None:
        """Go on with the next request: the client has read the last answer."""
        super().resume_writing()
        self._pump()

    def on_message_begin(self) -> None:
        """Begin a request."""
        self._parsed = False
        self._ignored = 0
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        """Answer the request, whose body may follow."""
        self._cancel_header_timer()
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        """Wait for the next request if this one was answered before its body came."""
        self._parsed = True
        super().on_message_complete()
        cycle: RequestResponseCycle | None = self.cycle
        if cycle is None or cycle.scope is not self.scope or not cycle.response_complete:
            return  # A WebSocket handshake has no cycle, and one that is not complete waits for its answer.
        # The body of a request that was answered before has come, which has ended the timeout for idle connections.
        if self.timeout_keep_alive_task is None and not self.is_over:
            self._cancel_header_timer()
            self._await_request()

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        """Answer a request: at once if it is refused, or in a task."""
        is_old = cycle.scope["http_version"] == "1.0"
        ours: Any = cycle  # uvicorn has no other place to choose the class.
        ours.__class__ = ClosingCycle if is_old else RequestCycle
        ours.connection = self
        if self.draining.began:
            cycle.keep_alive = False
        if is_old:
            cycle.waiting_for_100_continue = False  # RFC 9110, section 10.1.1: HTTP/1.0 knows no status 100.
        answer = self.refuse(cycle.scope)
        if answer is not None:
            self._answer(ours, answer)
            return
        if cycle.scope["client"]:
            ours.client = cycle.scope["client"][0]
        self.share.begin(ours.client, lambda: self._begin(ours, app))

    def _begin(self, cycle: RequestCycle, app: Any) -> None:
        """Run the application, unless the client has left while its request waited."""
        if cycle.disconnected:
            self.share.spent(cycle.client, 0.0)
            cycle.forget()
        else:
            super()._start_asgi_task(cycle, app)

    def _answer(self, cycle: RequestCycle, answer: WholeAnswer) -> None:
        """Send a whole answer; uvicorn drops what still comes of the request's body."""
        head = [STATUS_LINE[answer.status]]
        for name, value in (*self.server_state.default_headers, *answer.headers):
            head += (name, b": ", value, b"\r\n")
        head.append(b"\r\n" if cycle.keep_alive else b"connection: close\r\n\r\n")
        cycle.response_started = cycle.response_complete = True
        cycle.waiting_for_100_continue = False
        self.transport.write(b"".join(head) + answer.body)
        if not cycle.keep_alive and not cycle.is_early:
            self.transport.close()
        cycle.on_response()
        cycle.forget()

    def refuse_rest(self, error: ApiError) -> None:
        """Send an error in the place of the answer that has not begun, and close the connection."""
        cycle: RequestResponseCycle | None = self.cycle
        if cycle is not None and not cycle.response_complete:
            cycle.disconnected = True
            cycle.message_event.set()
            if cycle.response_started:
                self.transport.close()
                return
        super().refuse_rest(error)

    @classmethod
    def log_flood(cls) -> None:
        """Log that connections are refused, once a minute: a flood must not fill the disk of the log."""
        now = time.monotonic()
        if now >= cls._next_line:
            cls._next_line = now + 60.0
            _log.error("status 503: more than %d connections (--max-connections)", cls.max_connections)

    @property
    def _is_idle(self) -> bool:
        """Whether no request is being answered, and the client has read the last answer."""
        cycle: RequestResponseCycle | None = self.cycle
        return (cycle is None or cycle.response_complete) and not self.flow.write_paused

    def timeout_keep_alive_handler(self) -> None:
        """Close an idle connection, unless a request has come that the event loop has not read yet."""
        if self.has_unread:
            self._await_request()
        else:
            super().timeout_keep_alive_handler()

    def _await_request(self) -> None:
        self.timeout_keep_alive_task = self.loop.call_later(
            self.timeout_keep_alive, self.timeout_keep_alive_handler
        )

    def _await_headers(self) -> None:
        if self.header_timeout and self._header_timer is None and not self.is_over:
            self._header_timer = self.loop.call_later(self.header_timeout, self._on_header_timeout)

    def _cancel_header_timer(self) -> None:
        if self._header_timer is not None:
            self._header_timer.cancel()
            self._header_timer = None

    def _on_header_timeout(self) -> None:
        self._header_timer = None
        if self.is_over:
            return
        if not self._is_idle:  # A client sends its next request while it reads an answer.
            self._await_headers()
        elif self._guard.in_head:
            text = f"The headers of the request took more than {self.header_timeout:g} seconds."
            late = ApiError(408, text, code="request_timeout")
            self.refuse_rest(self.draining.refusal or late)
        elif self.has_unread:
            self._await_headers()
        else:
            self.transport.close()

    def send_400_response(self, msg: str) -> None:
        """Answer malformed HTTP, and close the connection."""
        self.refuse_rest(ApiError(400, "The request is not valid HTTP/1.1.", code="invalid_http"))
