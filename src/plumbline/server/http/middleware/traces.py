"""Trace each request of an application (`observe/traces.py`)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from plumbline.contract.wire.call import ERROR, FACTS, TRACE
from plumbline.server.http.middleware.answers import WholeAnswer
from plumbline.server.limits.draining import PROBES
from plumbline.server.observe.traces import CURRENT, Tracing

__all__ = ["Traces"]

Message = MutableMapping[str, Any]
Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]


class Traces:
    """The application with a trace for each request but those of probes."""

    def __init__(self, app: App, tracing: Tracing) -> None:
        self._app = app
        self._tracing = tracing

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request, or one WebSocket."""
        if scope["type"] not in ("http", "websocket") or scope["path"] in PROBES:
            await self._app(scope, receive, send)
            return
        status = 499  # The client leaves before there is a status.
        found = self._tracing.begin(scope)
        state = scope.setdefault("state", {})
        state[TRACE] = found
        facts = state.setdefault(FACTS, {})
        if found.trace_id is not None:
            facts["trace_id"] = found.trace_id

        async def send_and_look(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        token = CURRENT.set(found)
        try:
            await self._app(scope, receive, send_and_look)
        finally:
            CURRENT.reset(token)
            found.end(status, facts.get(ERROR))

    def refuse(self, scope: Scope) -> WholeAnswer | None:
        """Leave a refusal to `__call__`: the request also has a trace."""
        return None
