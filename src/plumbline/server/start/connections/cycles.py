"""Run one HTTP request: uvicorn's cycle of request and answer, with the accounts of its connection."""

from __future__ import annotations

from typing import Any, Protocol

from uvicorn.protocols.http.httptools_impl import RequestResponseCycle

from plumbline.server.limits.draining import Draining
from plumbline.server.start.connections.loop_share import LoopShare, Timed

__all__ = ["ClosingCycle", "RequestCycle"]

_EVENTS = (b"content-type", b"text/event-stream")


class CycleOwner(Protocol):
    """The connection of a cycle, as far as the cycle uses it."""

    draining: Draining
    share: LoopShare
    parsing: float
    scope: Any

    def reserve(self) -> None:
        """Account for the bytes of the request that the application has not read."""


class RequestCycle(RequestResponseCycle):
    """One request and its answer."""

    connection: CycleOwner
    client = ""
    """The address of the client, as a trusted proxy reports it."""
    _streams = False

    async def run_asgi(self, app: Any) -> None:
        """Run the application."""
        timed = Timed(super().run_asgi(app))
        try:
            await timed
        finally:
            parsing, self.connection.parsing = self.connection.parsing, 0.0
            self.connection.share.spent(self.client, 0.0 if self._streams else timed.seconds + parsing)
            self.forget()

    async def send(self, message: Any) -> None:
        """Send a message of the application."""
        if self._streams:
            self.connection.share.streamed()
        elif message["type"] == "http.response.start":
            self._streams = _EVENTS in message.get("headers", ())
        elif self.is_early and not message.get("more_body", False):
            self.keep_alive = True
        await super().send(message)

    @property
    def is_early(self) -> bool:
        """Whether the rest of the body is read after the answer: a stop closes the connection after it, not before."""
        return self.more_body and self.connection.draining.began

    def forget(self) -> None:
        """Drop the request: its scope has the body, and the connection may idle."""
        if self.connection.scope is self.scope:
            self.connection.scope = {}
            self.scope = self.connection.scope
        del self.connection
        self.on_response = lambda: None

    async def receive(self) -> Any:
        """Give the application a part of the body."""
        message = await super().receive()
        self.connection.reserve()
        return message


class ClosingCycle(RequestCycle):
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
