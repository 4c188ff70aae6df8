"""Configure uvicorn with our connections, limits and certificates."""

from __future__ import annotations

import contextlib
import logging
import math
from collections.abc import Callable
from typing import Any, ClassVar
from weakref import WeakValueDictionary

import uvicorn
from uvicorn.middleware.proxy_headers import ProxyHeadersMiddleware

from plumbline.server.http.middleware.answers import WholeAnswer
from plumbline.server.limits.draining import Draining
from plumbline.server.limits.held_bytes import ByteBudget
from plumbline.server.settings import Settings
from plumbline.server.start.connections.http import HttpConnection
from plumbline.server.start.connections.loop_share import LoopShare
from plumbline.server.start.connections.pace import ClientPace
from plumbline.server.start.connections.proxy_protocol import Announced
from plumbline.server.start.connections.tls import Secured
from plumbline.server.start.connections.websocket import WebSocketConnection

__all__ = ["GRACE", "configuration"]

_NEVER = 10**8
"""Seconds, about three years."""
_FORWARDED = frozenset({b"x-forwarded-for", b"x-forwarded-proto"})
"""What uvicorn reads of a trusted proxy."""
GRACE = 5.0
"""Seconds for the error events to reach the clients before the remaining connections are cut."""


def configuration(
    app: Any,
    settings: Settings,
    *,
    host: str = "127.0.0.1",
    port: int = 0,
    refuse: Callable[[Any], WholeAnswer | None] | None = None,
    budget: ByteBudget | None = None,
    draining: Draining | None = None,
) -> uvicorn.Config:
    """Configure uvicorn for an ASGI application, with the limits and certificates of the settings.

    Args:
        app: the application.
        settings: the settings.
        host: the address to listen on, if the server gets no sockets.
        port: the port to listen on, if the server gets no sockets.
        refuse: answers a request that no model has room for; see `WholeAnswer`.
        budget: the bytes that clients may make the process hold.
        draining: whether the server stops.
    """
    budget = ByteBudget.for_messages(settings.max_body_bytes) if budget is None else budget

    class Http(HttpConnection):
        max_connections = settings.max_connections
        header_timeout = settings.header_timeout
        max_ignored = 2 * settings.max_body_bytes
        paces: ClassVar[WeakValueDictionary[str, ClientPace]] = WeakValueDictionary()

    class Socket(WebSocketConnection):
        body_timeout = settings.body_timeout
        paces: ClassVar[WeakValueDictionary[str, ClientPace]] = WeakValueDictionary()

    Http.budget = Socket.budget = budget
    Http.share = Socket.share = LoopShare()
    Http.draining = Draining() if draining is None else draining
    connection: Any = Secured(Http, settings) if settings.ssl_certfile else Http
    if settings.proxy_protocol:
        proxies = ProxyHeadersMiddleware(app, settings.forwarded_allow_ips).trusted_hosts
        connection = Announced(connection, lambda host: host in proxies, settings.header_timeout)
    config = uvicorn.Config(
        app,
        host=host,
        port=port,
        uds=settings.uds or None,
        http=connection,  # It is called only.
        ws=Socket,
        ws_max_size=settings.max_body_bytes,
        log_config=None,  # It would replace the handlers of `observe/logs.py`.
        log_level=logging.WARNING,
        access_log=False,
        server_header=False,
        # uvicorn would believe whoever connects from this machine, browsers' pages and other users among them.
        proxy_headers=bool(settings.forwarded_allow_ips),
        forwarded_allow_ips=settings.forwarded_allow_ips,
        timeout_keep_alive=settings.idle_timeout or _NEVER,  # type: ignore[arg-type]  # fractions work, too
        timeout_graceful_shutdown=math.ceil(settings.shutdown_timeout + GRACE),
        lifespan="on",
    )
    if refuse is not None:
        trusted = settings.forwarded_allow_ips
        Http.refuse = staticmethod(_behind_proxies(refuse, trusted) if trusted else refuse)
    return config


def _behind_proxies(
    refuse: Callable[[Any], WholeAnswer | None], trusted: str
) -> Callable[[Any], WholeAnswer | None]:
    """Return `refuse` for requests as a trusted proxy passes them on; uvicorn does so for the application."""

    async def nothing(scope: Any, receive: Any, send: Any) -> None:
        pass

    forwarded: Any = ProxyHeadersMiddleware(nothing, trusted)

    def refuse_forwarded(scope: Any) -> WholeAnswer | None:
        if not _FORWARDED.isdisjoint(name for name, _ in scope["headers"]):
            with contextlib.suppress(StopIteration):
                # It awaits `nothing` only. A second time it changes nothing.
                forwarded(scope, None, None).send(None)
        return refuse(scope)

    return refuse_forwarded
