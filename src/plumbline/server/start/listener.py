"""Listen with uvicorn, with changes to its behaviour (`start/connections/`).

* Malformed HTTP is answered in the API's envelope (ERR-01); uvicorn answers in plain text.
* A server that stops accepts no further connection, answers what comes on those that it has, and closes each after a
  short silence; uvicorn resets the connections that wait to be accepted, and closes idle ones with their requests.
* Streams that outlast `shutdown_timeout` end with an error event (ERR-10, ERR-12); uvicorn cuts them.
* Connections beyond `max_connections` are refused at once with a 503, so that a flood cannot use up the file
  descriptors.
* Connections that do not finish the headers of a request within `header_timeout` are closed; uvicorn keeps a silent
  connection for ever.
* Connections whose client does not read its answer for five minutes are closed: its request would keep its model
  loaded, and others may wait for the memory. uvicorn's pings do not close a WebSocket that still has data to send.
* Heads, trailers and chunks have limits before they are parsed, and a request begins when the last answer was read;
  uvicorn's faster parser has no limits.
* A WebSocket reads a message when there is room for it, and its application always waits for the next event; uvicorn
  reads one message, and does not see that the client has left before that is taken.
* Nothing of a request stays when it has ended; uvicorn keeps the scope, which has the body, until the next request.
* An upgrade other than to WebSocket is an ordinary request (RFC 9110, section 7.8); uvicorn loses its body.
* A server whose engine is dead ends with `failed`, for a service manager to start it again.
* A WebSocket handshake that was refused with an answer is complete (WS-01); uvicorn logs it as an error of the server.
* An answer to HTTP/1.0 without a length ends with its connection (HTTP-20); uvicorn sends chunks, which such a client
  need not understand.
* A request that no model has room for is refused without a task: an overloaded server refuses most requests, and each
  refusal takes CPU time from those that are answered.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Awaitable, Callable
from functools import partial
from types import FrameType
from typing import Any

import uvicorn

from plumbline.base.workers.memory import Trimmer
from plumbline.server.app import create_app
from plumbline.server.limits.claims.shared import SharedClaims
from plumbline.server.limits.draining import Draining
from plumbline.server.loading.catalog import Catalog
from plumbline.server.settings import Settings
from plumbline.server.start.connections.configuration import GRACE, configuration
from plumbline.server.start.connections.http import HttpConnection
from plumbline.server.start.connections.proxy_protocol import Announced
from plumbline.server.start.connections.tls import Secured
from plumbline.server.start.hangup import on_hangup
from plumbline.server.start.repeats import Repeats
from plumbline.server.start.sockets import make_reusable
from plumbline.server.store.interface import Store

__all__ = ["Listener", "listener"]

_SILENT = logging.getLogger("plumbline.lifespan")
_SILENT.addHandler(logging.NullHandler())
_SILENT.propagate = False
_log = logging.getLogger("plumbline.server")
_LOOK = 0.05
"""Seconds between looks at what still runs."""
_TICKS = 10
"""uvicorn's ticks of 0.1 s between two looks whether the engine lives."""
_TRIM_TICKS = 50
"""The same between two looks at the memory."""
_GREETING = 5.0
"""Seconds for handshakes of TLS, and for what proxies announce, that are under way when a server stops."""
_SWITCH_SECONDS = 0.0005
_LAST = 1.0
"""Seconds for the error events after a second signal."""


class Listener(uvicorn.Server):
    """A uvicorn server that loses no request when it stops, and ends long streams with an error event.

    Args:
        config: with connections of ours (`configuration`).
        abort: ends all running requests.
        shutdown_timeout: the seconds that these have after a signal.
        announce: called when the application has started and the server listens.
        draining: whether the server stops.
        reload: called at SIGHUP.
        has_died: whether the server can answer nothing any more.
        private: a socket to listen on for our own processes, which use it until the end.
        stop_delay: the seconds after a signal in which connections are still accepted.
    """

    def __init__(
        self,
        config: uvicorn.Config,
        abort: Callable[[], Awaitable[None]],
        shutdown_timeout: float,
        announce: Callable[[], None] = lambda: None,
        draining: Draining | None = None,
        reload: Callable[[], None] = lambda: None,
        has_died: Callable[[], bool] = lambda: False,
        private: socket.socket | None = None,
        handles_hangup: bool = True,
        stop_delay: float = 0.0,
    ) -> None:
        super().__init__(config)
        self._private = [] if private is None else [private]
        self._stop_delay = stop_delay
        self._greeted_at = math.inf
        """By the loop's clock, when handshakes that are not done are waited for no longer."""
        self._repeats = Repeats()
        self._has_died = has_died
        self.failed = False
        """Whether the server ended because it could not answer requests any more."""
        self._draining = Draining() if draining is None else draining
        self._announce = announce
        self._reload = reload
        self._handles_hangup = handles_hangup
        self._loop: asyncio.AbstractEventLoop | None = None
        self._is_stale = False
        """Whether something was to be read again before the start was done."""
        self._abort = abort
        self._shutdown_timeout = shutdown_timeout
        self._failure: Exception | None = None
        self._trimmer = Trimmer()

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
        if sockets is not None:
            make_reusable(sockets)
            sockets = [*sockets, *self._private]
        await super().on_tick(0)  # Or answers before the first tick would have no date (RFC 9110, 6.6.1).
        try:
            await super().startup(sockets)
        except SystemExit:
            if self._failure is None:
                raise
            raise self._failure from None
        finally:
            self.config.loaded_app = app
        if not self.should_exit:
            self._loop = asyncio.get_running_loop()
            if self._is_stale:
                self._renew()
            # Windows has none, and only the main thread may handle one.
            own = self._handles_hangup and threading.current_thread() is threading.main_thread()
            if own and hasattr(signal, "SIGHUP"):
                self._loop.add_signal_handler(signal.SIGHUP, on_hangup(self._renew, self._end))
            self._announce()

    def read_again(self, keys: bool = True) -> None:
        """Read the certificate and the keys again, at once or after the start. Any thread may call this."""
        self._is_stale = True
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._renew, keys)

    def _renew(self, keys: bool = True) -> None:
        if (secured := self._secured) is not None:
            secured.renew()
        if keys:
            self._reload()

    @property
    def _secured(self) -> Secured | None:
        """What makes the connections of TLS, if there are any."""
        http: object = self.config.http  # uvicorn declares a class.
        if isinstance(http, Announced):
            http = http.following
        return http if isinstance(http, Secured) else None

    async def on_tick(self, counter: int) -> bool:
        """Return whether to stop; also when the engine is dead, so that the server can be started again."""
        if counter % _TICKS == 0 and not self.should_exit and self._has_died():
            _log.error("the engine has failed: the server ends with status 1, to be started again")
            self.failed = self.should_exit = True
        if counter % _TRIM_TICKS == 0:
            await asyncio.to_thread(self._trimmer.look)
        return await super().on_tick(counter)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Begin to stop; a second signal ends the running requests."""
        if self._repeats.is_again(sig) and self.should_exit:
            self.force_exit = True
        super().handle_exit(sig, frame)

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
        """Stop listening, wait up to `shutdown_timeout` for what runs and comes, end the rest, and close.

        Clients, and proxies without probes, send requests that are refused a connection to another server. Requests
        that have been sent may not be sent again, so all of them are answered.
        """
        running = self._draining.begin()
        end = time.monotonic() + self._stop_delay
        while time.monotonic() < end and not self.force_exit:  # noqa: ASYNC110 - a plain flag of uvicorn
            await asyncio.sleep(_LOOK)
        ending = asyncio.create_task(self._end_streams())
        try:
            await self._stop_listening(sockets or [])
            await self._drain(running)
            await super().shutdown([*(sockets or ()), *self._private])
        finally:
            ending.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await ending

    async def _stop_listening(self, sockets: list[socket.socket]) -> None:
        """Accept the connections that wait, and no others: the system has told their clients that they are accepted."""
        public = self.servers[: len(self.servers) - len(self._private)]
        kept = [socket.socket(fileno=os.dup(one.fileno())) for server in public for one in server.sockets]
        for server in public:
            server.close()
        for one in sockets:
            one.close()
        accepted: list[socket.socket] = []
        for one in kept:
            one.setblocking(False)
            # All at once: whoever connects between the last look and the end gets a reset. No more than may wait: a
            # flood would go on for ever.
            with contextlib.closing(one), contextlib.suppress(OSError):
                for _ in range(self.config.backlog):
                    accepted.append(one.accept()[0])  # noqa: PERF401 - raises when none waits
        for each in accepted:
            await asyncio.get_running_loop().connect_accepted_socket(self._connection, each)

    def _connection(self) -> asyncio.Protocol:
        """Make the protocol of a connection, as uvicorn does."""
        made: asyncio.Protocol = self.config.http_protocol_class(  # type: ignore[call-arg]
            config=self.config, server_state=self.server_state, app_state=self.lifespan.state
        )
        return made

    async def _drain(self, running: int) -> None:
        """Wait until no request runs or may come, the end of running streams has been tried, or a second signal."""
        loop = asyncio.get_running_loop()
        until = loop.time() + self._shutdown_timeout + GRACE
        self._greeted_at = loop.time() + _GREETING
        if running:
            _log.warning(
                "stopping: %d requests still run, for %g s at most (--shutdown-timeout); Ctrl-C or SIGTERM again ends "
                "them now",
                running,
                self._shutdown_timeout,
            )
        for connection in tuple(self.server_state.connections):
            if isinstance(connection, HttpConnection):
                connection.drain()
        await self._idle(until, or_forced=True)
        if self.force_exit:
            await (
                self._end_requests()
            )  # Streams end with an error event, as far as their clients read it at once.
            await self._idle(loop.time() + _LAST, or_forced=False)
        # What is left are connections that read slowly, and WebSockets.
        self.config.timeout_graceful_shutdown = max(1, math.ceil(until - loop.time()))

    async def _idle(self, until: float, *, or_forced: bool) -> None:
        """Wait until no request runs or may come, until a time of the loop, or until a second signal."""
        loop = asyncio.get_running_loop()
        while self._draining.running or self._awaits_requests():
            if (or_forced and self.force_exit) or loop.time() >= until:
                return
            await asyncio.sleep(_LOOK)  # uvicorn's `force_exit` is a plain flag.

    def _awaits_requests(self) -> bool:
        if asyncio.get_running_loop().time() < self._greeted_at and self._greets:
            return True
        return any(
            isinstance(one, HttpConnection) and one.is_awaited for one in self.server_state.connections
        )

    @property
    def _greets(self) -> bool:
        """Whether a connection is not yet one of HTTP."""
        http: object = self.config.http
        if isinstance(http, Announced) and http.waits:
            return True
        return (secured := self._secured) is not None and secured.shakes_hands

    async def _end_streams(self) -> None:
        await asyncio.sleep(self._shutdown_timeout)
        await self._end_requests()

    async def _end_requests(self) -> None:
        """End all requests: those that are being read with a 503, streams with error events of their writers."""
        self._draining.end()
        await self._abort()


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
    private: socket.socket | None = None,
    handles_hangup: bool = True,
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
        private: the socket for requests of the other API servers.
        handles_hangup: whether SIGHUP makes it read; if not, `Listener.read_again` does.
    """
    # Threads that decode and render let the event loop go on at each of its events, and not 5 ms later.
    sys.setswitchinterval(min(sys.getswitchinterval(), _SWITCH_SECONDS))
    app = create_app(catalog, settings, store, shared)
    return Listener(
        configuration(
            app, settings, host=host, port=port, refuse=app.refuse, budget=app.budget, draining=app.draining
        ),
        app.models.close,
        settings.shutdown_timeout,
        announce if shared is None else shared.ready,
        app.draining,
        (lambda: None) if read is None else partial(app.access.read_again, read),
        app.models.has_died,
        private,
        handles_hangup,
        settings.stop_delay,
    )
