"""Listen with uvicorn, with eight changes to its behaviour.

* Malformed HTTP is answered in the API's envelope (ERR-01); uvicorn answers in plain text.
* Streams that outlast `shutdown_timeout` end with an error event (ERR-10, ERR-12); uvicorn cuts them.
* Connections beyond `max_connections` are refused at once with a 503, so that a flood cannot use up the file
  descriptors.
* Connections that do not finish the headers of a request within `header_timeout` are closed; uvicorn keeps a silent
  connection for ever.
* Connections whose client does not read its answer for five minutes are closed: its request would keep its model
  loaded, and others may wait for the memory. uvicorn's pings do not close a WebSocket that still has data to send.
* A server whose engine is dead ends with `failed`, for a service manager to start it again.
* A WebSocket handshake that was refused with an answer is complete (WS-01); uvicorn logs it as an error of the server.
* An answer to HTTP/1.0 without a length ends with its connection (HTTP-20); uvicorn sends chunks, which such a client
  need not understand.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import signal
import socket
import ssl
from collections.abc import Awaitable, Callable
from functools import partial
from http import HTTPStatus
from typing import Any

import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol

from plumbline.server.app import create_app
from plumbline.server.claims.shared import SharedClaims
from plumbline.server.limits.draining import Draining
from plumbline.server.loading.catalog import Catalog
from plumbline.server.settings import Settings
from plumbline.server.start.hangup import on_hangup
from plumbline.store.interface import Store
from plumbline.wire.errors import ApiError, engine_unavailable, envelope

__all__ = ["Listener", "configuration", "listener"]

_NEVER = 10**8
"""Seconds, about three years."""
_SILENT = logging.getLogger("plumbline.lifespan")
_SILENT.addHandler(logging.NullHandler())
_SILENT.propagate = False
_log = logging.getLogger("plumbline.server")
_LOOK = 0.05
"""Seconds between looks at what still runs."""
_TICKS = 10
"""uvicorn's ticks of 0.1 s between two looks whether the engine lives."""
_LAST = 1.0
"""Seconds for the error events after a second Ctrl-C."""
_GRACE = 5.0
"""Seconds for the error events to reach the clients before the remaining connections are cut."""


class Listener(uvicorn.Server):
    """A uvicorn server that ends running streams with an error event."""

    def __init__(
        self,
        config: uvicorn.Config,
        abort: Callable[[], Awaitable[None]],
        shutdown_timeout: float,
        announce: Callable[[], None] = lambda: None,
        draining: Draining | None = None,
        reload: Callable[[], None] | None = None,
        has_died: Callable[[], bool] = lambda: False,
    ) -> None:
        super().__init__(config)
        self._has_died = has_died
        self.failed = False
        """Whether the server ended because it could not answer requests any more."""
        self._draining = Draining() if draining is None else draining
        self._announce = announce
        self._reload = reload
        self._abort = abort
        self._shutdown_timeout = shutdown_timeout
        self._failure: Exception | None = None

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start the application and listen.

        Raises:
            Exception: what ended the start of the application; uvicorn would log its traceback and exit.
        """
        app = self.config.loaded_app
        self.config.loaded_app = self._kept(
            app
        )  # The lifespan takes it at its start, requests take it later.
        self.lifespan.logger = _SILENT
        try:
            await super().startup(sockets)
        except SystemExit:
            if self._failure is None:
                raise
            raise self._failure from None
        finally:
            self.config.loaded_app = app
        if not self.should_exit:
            if self._reload is not None and hasattr(signal, "SIGHUP"):  # Windows has none.
                handle = on_hangup(self._reload, self._end)
                asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, handle)
            self._announce()

    async def on_tick(self, counter: int) -> bool:
        """Return whether to stop; also when the engine is dead, so that the server can be started again."""
        if counter % _TICKS == 0 and not self.should_exit and self._has_died():
            _log.error("the engine has failed: the server ends with status 1, to be started again")
            self.failed = self.should_exit = True
        return await super().on_tick(counter)

    def _end(self) -> None:
        self.should_exit = True

    def _kept(self, app: Any) -> Any:
        async def application(scope: Any, receive: Any, send: Any) -> None:
            try:
                await app(scope, receive, send)
            except Exception as error:
                self._failure = error
                raise

        return application

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Wait up to `shutdown_timeout` for running streams, end the rest, and close.

        New requests are turned away meanwhile, and probes say that the server is not ready: connections that nobody
        accepts would look like a server that has died.
        """
        ending = asyncio.create_task(self._end_streams())
        try:
            await self._drain()
            await super().shutdown(sockets)
        finally:
            ending.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await ending

    async def _drain(self) -> None:
        """Wait until no request runs, the end of running streams has been tried, or a second Ctrl-C."""
        loop = asyncio.get_running_loop()
        until = loop.time() + self._shutdown_timeout + _GRACE
        if running := self._draining.begin():
            _log.warning(
                "stopping: %d requests still run, for %g s at most (--shutdown-timeout); Ctrl-C again ends them now",
                running,
                self._shutdown_timeout,
            )
        await self._idle(until, or_forced=True)
        if self.force_exit:
            await self._abort()  # Streams end with an error event, as far as their clients read it at once.
            await self._idle(loop.time() + _LAST, or_forced=False)
        # What is left are connections that read slowly, and WebSockets.
        self.config.timeout_graceful_shutdown = max(1, math.ceil(until - loop.time()))

    async def _idle(self, until: float, *, or_forced: bool) -> None:
        """Wait until no request runs, until a time of the loop, or until a second Ctrl-C."""
        loop = asyncio.get_running_loop()
        while True:
            if not self._draining.running or (or_forced and self.force_exit) or loop.time() >= until:
                return
            await asyncio.sleep(_LOOK)  # uvicorn's `force_exit` is a plain flag.

    async def _end_streams(self) -> None:
        await asyncio.sleep(self._shutdown_timeout)
        # This aborts all requests; their writers send error events.
        await self._abort()


class _Unread(asyncio.Protocol):
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


class _Protocol(_Unread, HttpToolsProtocol):
    """HTTP/1.1 with refusals in the API's envelope, and a limit on the time that headers take."""

    max_connections = 0
    header_timeout = 0.0
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
        # Also an empty line, or the rest of a refused body, ends uvicorn's own timeout for idle connections.
        if self._in_headers or self._is_idle:
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

    def _refuse(self, error: ApiError) -> None:
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


class _WebSocket(_Unread, WebSocketsSansIOProtocol):
    """uvicorn's WebSocket connection."""

    async def send(self, message: Any) -> None:
        """Send a message of the application."""
        await super().send(message)
        if message["type"] == "websocket.http.response.body" and not message.get("more_body", False):
            self.handshake_complete = True


def listener(
    catalog: Catalog,
    settings: Settings,
    store: Store | None = None,
    *,
    host: str,
    port: int,
    shared: SharedClaims | None = None,
    announce: Callable[[], None] = lambda: None,
    read: Callable[[], Settings] | None = None,
) -> Listener:
    """Build a server for these models. Call it outside an event loop, or in the loop that will run the server.

    Args:
        catalog: the models.
        settings: the settings.
        store: where responses are kept.
        host: the address to listen on, if `run` gets no sockets.
        port: the port to listen on, if `run` gets no sockets.
        shared: the claims of all API servers of the engine, if there are several.
        announce: called when the application has started and the server listens.
        read: reads the settings again at SIGHUP, of which the keys are used.
    """
    app = create_app(catalog, settings, store, shared)
    return Listener(
        configuration(app, settings, host=host, port=port),
        app.models.close,
        settings.shutdown_timeout,
        announce,
        app.draining,
        None if read is None else partial(app.access.read_again, read),
        app.models.has_died,
    )


def configuration(app: Any, settings: Settings, *, host: str = "127.0.0.1", port: int = 0) -> uvicorn.Config:
    """Configure uvicorn for an ASGI application, with the limits and certificates of the settings."""
    limits = {"max_connections": settings.max_connections, "header_timeout": settings.header_timeout}
    protocol = type("_Limited", (_Protocol,), limits)
    return uvicorn.Config(
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
        timeout_graceful_shutdown=math.ceil(settings.shutdown_timeout + _GRACE),
        lifespan="on",
    )
