"""Change how uvicorn treats a connection; the list is in `listener.py`."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import ssl
from collections.abc import Callable
from http import HTTPStatus
from typing import Any

import uvicorn
from uvicorn.middleware.proxy_headers import ProxyHeadersMiddleware
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol

from plumbline.server.middleware.answers import Answer
from plumbline.server.settings import Settings
from plumbline.wire.errors import ApiError, engine_unavailable, envelope

__all__ = ["GRACE", "configuration"]

_log = logging.getLogger("plumbline.server")
_NEVER = 10**8
"""Seconds, about three years."""
_FORWARDED = frozenset({b"x-forwarded-for", b"x-forwarded-proto"})
"""What uvicorn reads of a trusted proxy."""
GRACE = 5.0
"""Seconds for the error events to reach the clients before the remaining connections are cut."""


class _Connection(asyncio.Protocol):
    """A connection that is cut if its client does not read for `unread_timeout`."""

    unread_timeout = 300.0
    """Seconds in which a client must make room for more of its answer."""
    loop: asyncio.AbstractEventLoop
    transport: asyncio.Transport
    _unread_timer: asyncio.TimerHandle | None = None

    def connection_lost(self, exc: Exception | None) -> None:
        self._was_read()
        super().connection_lost(exc)

    def pause_writing(self) -> None:
        super().pause_writing()
        self._unread_timer = self.loop.call_later(self.unread_timeout, self.transport.abort)

    def resume_writing(self) -> None:
        self._was_read()
        super().resume_writing()

    def _was_read(self) -> None:
        if self._unread_timer is not None:
            self._unread_timer.cancel()
            self._unread_timer = None

    def _refuse(self, error: ApiError) -> None:
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
        self.transport.close()


class _ClosingCycle(RequestResponseCycle):
    """Answer a request of HTTP/1.0, after which uvicorn closes the connection in any case."""

    _has_length = False

    async def send(self, message: Any) -> None:
        """Send a message of the application: the body as it comes, and no `transfer-encoding`."""
        if message["type"] == "http.response.start":
            self._has_length = any(
                name.lower() == b"content-length" for name, _ in message.get("headers", ())
            )
            self.chunked_encoding = None if self._has_length else False
        elif not self._has_length:
            # uvicorn compares the body with this length, piece by piece.
            self.expected_content_length = len(message.get("body", b""))
        await super().send(message)


class _Protocol(_Connection, HttpToolsProtocol):
    """HTTP/1.1 with refusals in the API's envelope, and a limit on the time that headers take."""

    max_connections = 0
    header_timeout = 0.0
    refuse: Callable[[Any], Answer | None] = staticmethod(lambda scope: None)
    """Answers a request that no model has room for; see `Answer`."""
    _next_line = 0.0
    """When the next line about refused connections may be logged; each server has a class of its own."""
    _header_timer: asyncio.TimerHandle | None = None
    _in_headers = False

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._await_headers()
        if self.max_connections and len(self.connections) > self.max_connections:
            self._log_flood()
            self._refuse(engine_unavailable("The server has too many open connections."))

    def connection_lost(self, exc: Exception | None) -> None:
        self._headers_came()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self.transport.get_protocol() is not self:
            return  # A WebSocket has taken over the connection.
        # Also an empty line, or the rest of a refused body, ends uvicorn's own timeout for idle connections. A refusal
        # in the call above has started that timeout anew.
        if self._in_headers or (self._is_idle and self.timeout_keep_alive_task is None):
            self._await_headers()

    def on_message_begin(self) -> None:
        self._in_headers = True
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        self._in_headers = False
        self._headers_came()
        super().on_headers_complete()
        # The task that answers has not run yet. uvicorn has no other place to choose the class.
        cycle: RequestResponseCycle | None = self.cycle
        if cycle is not None and cycle.scope is self.scope and self.scope.get("http_version") == "1.0":
            cycle.__class__ = _ClosingCycle
            cycle.waiting_for_100_continue = False  # RFC 9110, section 10.1.1: HTTP/1.0 knows no status 100.

    def on_message_complete(self) -> None:
        super().on_message_complete()
        cycle: RequestResponseCycle | None = self.cycle
        if cycle is None or cycle.scope is not self.scope or not cycle.response_complete:
            return  # A WebSocket handshake has no cycle, and one that is not complete waits for its answer.
        # The body of a request that was answered before has come, which has ended the timeout for idle connections.
        if self.timeout_keep_alive_task is None and not self.transport.is_closing():
            self._headers_came()
            self.timeout_keep_alive_task = self.loop.call_later(
                self.timeout_keep_alive, self.timeout_keep_alive_handler
            )

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        """Answer a request: at once if it is refused, or in a task."""
        # Pipelined requests have tasks, or each would be answered inside the last one's answer; so have those of a
        # client that does not read.
        if cycle is self.cycle and not self.flow.write_paused:
            answer = self.refuse(cycle.scope)
            if answer is not None:
                self._answer(cycle, answer)
                return
        super()._start_asgi_task(cycle, app)

    def _answer(self, cycle: RequestResponseCycle, answer: Answer) -> None:
        """Send a whole answer; uvicorn drops what still comes of the request's body."""
        head = [STATUS_LINE[answer.status]]
        for name, value in (*self.server_state.default_headers, *answer.headers):
            head += (name, b": ", value, b"\r\n")
        head.append(b"\r\n" if cycle.keep_alive else b"connection: close\r\n\r\n")
        cycle.response_started = cycle.response_complete = True
        cycle.waiting_for_100_continue = False
        self.transport.write(b"".join(head) + answer.body)
        if not cycle.keep_alive:
            self.transport.close()
        cycle.on_response()

    def _log_flood(self) -> None:
        """Log that connections are refused, once a minute: a flood must not fill the disk of the log."""
        now = self.loop.time()
        if now >= type(self)._next_line:
            type(self)._next_line = now + 60.0
            _log.error("status 503: more than %d connections (--max-connections)", self.max_connections)

    @property
    def _is_idle(self) -> bool:
        """Whether no request is being answered."""
        cycle: RequestResponseCycle | None = self.cycle
        return cycle is None or cycle.response_complete

    def _await_headers(self) -> None:
        if self.header_timeout and self._header_timer is None and not self.transport.is_closing():
            self._header_timer = self.loop.call_later(self.header_timeout, self._headers_late)

    def _headers_came(self) -> None:
        if self._header_timer is not None:
            self._header_timer.cancel()
            self._header_timer = None

    def _headers_late(self) -> None:
        self._header_timer = None
        if self.transport.is_closing():
            return
        if not self._is_idle:  # A client sends its next request while it reads an answer.
            self._await_headers()
        elif self._in_headers:
            self._refuse(
                ApiError(
                    408,
                    f"The headers of the request took more than {self.header_timeout:g} seconds.",
                    code="request_timeout",
                )
            )
        else:
            self.transport.close()

    def send_400_response(self, msg: str) -> None:
        """Answer malformed HTTP, and close the connection."""
        self._refuse(ApiError(400, "The request is not valid HTTP/1.1.", code="invalid_http"))


class _WebSocket(_Connection, WebSocketsSansIOProtocol):
    """uvicorn's WebSocket connection, with refusals of handshakes that it cannot read."""

    def data_received(self, data: bytes) -> None:
        """Take the request of the handshake, which comes whole and first, and then messages."""
        super().data_received(data)
        # uvicorn neither answers nor closes these, and the limit on the time of headers has ended.
        if not self.handshake_initiated and not self.transport.is_closing():
            self._refuse(
                ApiError(
                    400,
                    "The WebSocket handshake is not valid: it must have no body, at most 128 headers, and at most 8192 "
                    "bytes in each.",
                    code="invalid_http",
                )
            )

    async def send(self, message: Any) -> None:
        """Send a message of the application."""
        await super().send(message)
        if message["type"] == "websocket.http.response.body" and not message.get("more_body", False):
            self.handshake_complete = True


def configuration(
    app: Any,
    settings: Settings,
    *,
    host: str = "127.0.0.1",
    port: int = 0,
    refuse: Callable[[Any], Answer | None] | None = None,
) -> uvicorn.Config:
    """Configure uvicorn for an ASGI application, with the limits and certificates of the settings.

    Args:
        app: the application.
        settings: the settings.
        host: the address to listen on, if the server gets no sockets.
        port: the port to listen on, if the server gets no sockets.
        refuse: answers a request that no model has room for; see `Answer`.
    """
    limits = {"max_connections": settings.max_connections, "header_timeout": settings.header_timeout}
    protocol: Any = type("_Limited", (_Protocol,), limits)
    config = uvicorn.Config(
        app,
        host=host,
        port=port,
        uds=settings.uds or None,
        ssl_certfile=settings.ssl_certfile or None,
        ssl_keyfile=settings.ssl_keyfile or None,
        ssl_ca_certs=settings.ssl_ca_certs or None,
        ssl_cert_reqs=ssl.CERT_REQUIRED if settings.ssl_ca_certs else ssl.CERT_NONE,
        http=protocol,
        ws=_WebSocket,
        ws_max_size=settings.max_body_bytes,
        log_config=None,  # It would replace the handlers of `observe/logs.py`.
        log_level=logging.WARNING,
        access_log=False,
        server_header=False,
        timeout_keep_alive=settings.idle_timeout or _NEVER,  # type: ignore[arg-type]  # fractions work, too
        timeout_graceful_shutdown=math.ceil(settings.shutdown_timeout + GRACE),
        lifespan="on",
    )
    if refuse is not None:
        protocol.refuse = staticmethod(_behind_proxies(refuse, config.forwarded_allow_ips))
    return config


def _behind_proxies(
    refuse: Callable[[Any], Answer | None], trusted: list[str] | str
) -> Callable[[Any], Answer | None]:
    """Return `refuse` for requests as a trusted proxy passes them on; uvicorn does so for the application."""

    async def nothing(scope: Any, receive: Any, send: Any) -> None:
        pass

    forwarded: Any = ProxyHeadersMiddleware(nothing, trusted)

    def refuse_forwarded(scope: Any) -> Answer | None:
        if not _FORWARDED.isdisjoint(name for name, _ in scope["headers"]):
            with contextlib.suppress(StopIteration):
                # It awaits `nothing` only. A second time it changes nothing.
                forwarded(scope, None, None).send(None)
        return refuse(scope)

    return refuse_forwarded
