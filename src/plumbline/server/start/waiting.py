"""Answer requests while the models load (`--answer-while-loading`): probes get the progress, all others a 503.

Without the option the address is bound, so a port that is taken is found at once, and connections are refused until
the server is ready. Proxies send a refused request to another server, but may pass a 503 on to the client.
"""

from __future__ import annotations

import asyncio
import html
import socket
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

import msgspec

from plumbline.contract._generated.utilities import Health, StartProgress
from plumbline.contract.wire.call import new_request_id
from plumbline.contract.wire.error_forms import error_answer
from plumbline.contract.wire.errors import engine_unavailable
from plumbline.port.progress import LoadProgress
from plumbline.server.settings import Settings
from plumbline.server.start.connections.configuration import configuration
from plumbline.server.start.listener import Listener
from plumbline.server.start.sockets import make_reusable
from plumbline_conformance.console.sizes import size_text

__all__ = ["Waiting", "answering"]

_LIVE = "/health/live"
_HEALTH = frozenset({_LIVE, "/health", "/health/ready"})
_RETRY_AFTER = b"2"
"""Seconds."""
_PATIENCE = 10.0
"""Seconds for the thread to stop accepting; it has nothing else to do."""
_PAGE = """<!doctype html><html lang="en"><meta charset="utf-8"><title>Plumbline is starting</title>
<p>Plumbline is starting: {progress}. This page reloads by itself.</p></html>
"""


class Waiting:
    """The ASGI application of a server that still loads."""

    def __init__(self) -> None:
        self.progress = LoadProgress("starting")
        """What the start does; another thread replaces it."""

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Answer one request, or refuse a WebSocket."""
        if scope["type"] == "websocket":
            await receive()
            await send({"type": "websocket.close", "code": 1013})  # "Try again later", RFC 6455's registry.
            return
        if scope["type"] != "http":
            await _lifespan(receive, send)
            return
        status, kind, body = self._answer(scope["path"])
        headers = [
            (b"content-type", kind),
            (b"content-length", str(len(body)).encode()),
            # The connection must not stay with this application when the server is ready.
            (b"connection", b"close"),
            (b"x-request-id", new_request_id().encode()),
        ]
        if status != 200:
            headers.append((b"retry-after", _RETRY_AFTER))
        if scope["path"] == "/":
            headers += [(b"refresh", _RETRY_AFTER), (b"content-security-policy", b"default-src 'none'")]
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": b"" if scope["method"] == "HEAD" else body})

    def _answer(self, path: str) -> tuple[int, bytes, bytes]:
        """Return status, content type and body."""
        progress = self.progress
        if path in _HEALTH:
            known = StartProgress(stage=progress.stage)
            if progress.total:
                known.done_bytes, known.total_bytes = progress.done, progress.total
            body = msgspec.json.encode(Health(status="starting", progress=known))
            return 200 if path == _LIVE else 503, b"application/json", body
        if path == "/":
            return (
                503,
                b"text/html; charset=utf-8",
                _PAGE.format(progress=html.escape(text(progress))).encode(),
            )
        error = engine_unavailable(f"The server is starting ({text(progress)}). Try again in a few seconds.")
        status, body = error_answer(error, path, None)
        return status, b"application/json", body


def text(progress: LoadProgress) -> str:
    """Return a step and how much of it is done, in words."""
    if not progress.total:
        return progress.stage
    return f"{progress.stage}, {size_text(progress.done)} of {size_text(progress.total)}"


async def _lifespan(receive: Any, send: Any) -> None:
    for step in ("startup", "shutdown"):
        await receive()
        await send({"type": f"lifespan.{step}.complete"})


class _Listener(Listener):
    """A server that stops to accept connections at once; it ends the ones it has afterwards."""

    def __init__(self, application: Waiting, settings: Settings) -> None:
        super().__init__(configuration(application, settings), _nothing, 0.0)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._started = threading.Event()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Listen."""
        await super().startup(sockets)
        self._loop = asyncio.get_running_loop()
        self._started.set()

    def serve_until_closed(self, sockets: list[socket.socket]) -> None:
        """Run in a thread of its own; `close` ends it. If it cannot start, `close` must not wait for it."""
        try:
            self.run(sockets)
        finally:
            self._started.set()

    def close(self) -> None:
        """Accept no further connection. Call it in another thread; the server ends within a second afterwards."""
        self._started.wait()
        closed = threading.Event()

        def stop_accepting() -> None:
            for server in self.servers:
                server.close()
            self.should_exit = True
            closed.set()

        if self._loop is None:
            return
        with suppress(RuntimeError):  # The loop has ended by itself, and nothing listens.
            self._loop.call_soon_threadsafe(stop_accepting)
            closed.wait(_PATIENCE)


async def _nothing() -> None:
    """There are no streams to end."""


@contextmanager
def answering(application: Waiting, settings: Settings, sockets: Sequence[socket.socket]) -> Iterator[None]:
    """Answer on these sockets within the block, in a thread of its own.

    The sockets still listen afterwards: connections that come before the server itself accepts wait in their queue.
    """
    server = _Listener(application, settings)
    make_reusable(sockets)
    for one in sockets:  # From here on connections wait in the queue, until the thread accepts them.
        one.listen(server.config.backlog)
    # uvicorn closes the sockets that it is given when it stops.
    own = [one.dup() for one in sockets]
    threading.Thread(target=server.serve_until_closed, args=(own,), name="waiting", daemon=True).start()
    try:
        yield
    finally:
        server.close()
