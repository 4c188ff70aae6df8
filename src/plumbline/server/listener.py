"""Listen with uvicorn, and change three things.

* Malformed HTTP is answered in the API's envelope (ERR-01); uvicorn answers in plain text.
* Streams that outlast `shutdown_timeout` end with an error event (ERR-10, ERR-12); uvicorn cuts them.
* Connections beyond `max_connections` are refused at once with a 503, so that a flood cannot use up the file
  descriptors.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import socket
import ssl

import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from plumbline.engines.port import Engine
from plumbline.server.app import create_app
from plumbline.server.loading import ServedModel
from plumbline.server.settings import Settings
from plumbline.wire.errors import ApiError, engine_unavailable, envelope

__all__ = ["Listener", "listener"]

_GRACE = 5.0
"""Seconds for the error events to reach the clients before the remaining connections are cut."""


class Listener(uvicorn.Server):
    """A uvicorn server that ends running streams with an error event."""

    def __init__(self, config: uvicorn.Config, engine: Engine, shutdown_timeout: float) -> None:
        super().__init__(config)
        self._engine = engine
        self._shutdown_timeout = shutdown_timeout

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Wait up to `shutdown_timeout` for running streams, end the rest, and close."""
        ending = asyncio.create_task(self._end_streams())
        try:
            await super().shutdown(sockets)
        finally:
            ending.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await ending

    async def _end_streams(self) -> None:
        await asyncio.sleep(self._shutdown_timeout)
        # This aborts all requests; their writers send error events.
        await self._engine.stop()


class _Protocol(HttpToolsProtocol):
    """HTTP/1.1 with refusals in the API's envelope."""

    max_connections = 0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        if self.max_connections and len(self.connections) > self.max_connections:
            self._refuse(engine_unavailable("The server has too many open connections."))

    def send_400_response(self, msg: str) -> None:
        """Answer malformed HTTP, and close the connection."""
        self._refuse(ApiError(400, "The request is not valid HTTP/1.1.", code="invalid_http"))

    def _refuse(self, error: ApiError) -> None:
        body = envelope(error)
        phrase = {400: "Bad Request", 503: "Service Unavailable"}[error.status]
        head = (
            f"HTTP/1.1 {error.status} {phrase}\r\ncontent-type: application/json\r\n"
            f"content-length: {len(body)}\r\nconnection: close\r\n"
        )
        if error.status == 503:
            head += "retry-after: 1\r\n"
        self.transport.write(f"{head}\r\n".encode() + body)
        self.transport.close()


def listener(model: ServedModel, settings: Settings, *, host: str, port: int) -> Listener:
    """Build a server for this model. Call it outside of an event loop, or in the loop that will run the server."""
    protocol = type("_Limited", (_Protocol,), {"max_connections": settings.max_connections})
    config = uvicorn.Config(
        create_app(model, settings),
        host=host,
        port=port,
        uds=settings.uds or None,
        ssl_certfile=settings.ssl_certfile or None,
        ssl_keyfile=settings.ssl_keyfile or None,
        ssl_ca_certs=settings.ssl_ca_certs or None,
        ssl_cert_reqs=ssl.CERT_REQUIRED if settings.ssl_ca_certs else ssl.CERT_NONE,
        http=protocol,
        log_level=logging.WARNING,
        access_log=False,
        server_header=False,
        timeout_graceful_shutdown=math.ceil(settings.shutdown_timeout + _GRACE),
        lifespan="on",
    )
    return Listener(config, model.engine, settings.shutdown_timeout)
