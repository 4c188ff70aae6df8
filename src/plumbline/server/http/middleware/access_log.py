"""Log a line for each request when it has ended, without what was asked or answered."""

from __future__ import annotations

import logging
import time
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from typing import Any
from urllib.parse import quote

from plumbline.contract.wire.call import FACTS, authorization
from plumbline.server.http.middleware.answers import WholeAnswer
from plumbline.server.http.middleware.cors import Cors
from plumbline.server.http.middleware.front import Front
from plumbline.server.limits.draining import PROBES
from plumbline.server.limits.keys import KeyRing
from plumbline.server.observe.logs import FIELDS

__all__ = ["AccessLog"]

Message = MutableMapping[str, Any]
Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]

_log = logging.getLogger("plumbline.access")
_LONGEST_PATH = 200
_PLAIN = "/:@!$&'()*+,;=~"
"""Characters of a path that a line shows as they are, besides letters, digits and `_.-`."""


class AccessLog:
    """The application with a line for each request but those of probes.

    Args:
        app: the application; it leaves `request_id` and facts about the answer in the state of the scope.
        keys: the keys, for their names.
    """

    def __init__(self, app: Front | Cors, keys: KeyRing) -> None:
        self._app = app
        self._keys = keys
        _log.setLevel(logging.INFO)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request; a WebSocket has one line when it ends."""
        if scope["type"] not in ("http", "websocket") or scope["path"] in PROBES:
            await self._app(scope, receive, send)
            return
        began = time.perf_counter()
        status, first = (499 if scope["type"] == "http" else 101), 0.0
        scope.setdefault("state", {})

        async def send_and_look(message: Message) -> None:
            nonlocal status, first
            if message["type"] in ("http.response.start", "websocket.http.response.start"):
                status = message["status"]
            elif message["type"] == "http.response.body" and not first:
                first = time.perf_counter() - began
            await send(message)

        try:
            await self._app(scope, receive, send_and_look)
        finally:
            self._write(scope, status, time.perf_counter() - began, first)

    def refuse(self, scope: Scope) -> WholeAnswer | None:
        """See `WholeAnswer`."""
        began = time.perf_counter()
        found = self._app.refuse(scope)
        if found is not None:
            whole = time.perf_counter() - began
            self._write(scope, found.status, whole, whole)
        return found

    def _write(self, scope: Scope, status: int, whole: float, first: float) -> None:
        """Log the line of a request that has ended."""
        state = scope["state"]
        fields: dict[str, Any] = {
            "request_id": state.get("request_id"),
            "method": scope.get("method", "WEBSOCKET"),
            "path": scope["path"][:_LONGEST_PATH],
            "status": status,
            "seconds": round(whole, 4),
            "first_byte_seconds": round(first, 4) if first else None,
            "key": self._key_name(scope),
            "client": (scope.get("client") or ("",))[0],
            **state.get(FACTS, {}),
        }
        known = {name: value for name, value in fields.items() if value not in (None, "")}
        _log.info("%s", _text(known), extra={FIELDS: known})

    def _key_name(self, scope: Scope) -> str:
        headers = {
            name.decode("latin-1"): value.decode("utf-8", "surrogateescape")
            for name, value in reversed(scope["headers"])
        }
        return self._keys.find((authorization(headers, scope["path"]) or "").partition(" ")[2].strip()).name


def _text(fields: Mapping[str, Any]) -> str:
    """Return the line for people: method, path, status, and the rest by name."""
    # A path may have spaces and line breaks, which would look like fields and lines of the server.
    first = (fields["method"], quote(fields["path"], _PLAIN), fields["status"])
    rest = (f"{name}={value}" for name, value in fields.items() if name not in ("method", "path", "status"))
    return " ".join(map(str, (*first, *rest)))
