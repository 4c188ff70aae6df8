"""Log requests and answers, where the operator asks for it (`--enable-log-requests`, `--enable-log-outputs`).

A line has the beginning of a body. Values of fields that hold secrets, headers for other servers and long runs of
base64 (files, sealed reasoning) are left out; what users and the model write is not.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from plumbline.server.observe.logs import CONTROL
from plumbline.server.observe.redaction import redacted

__all__ = ["RequestLog", "shown"]

Message = MutableMapping[str, Any]
Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

_log = logging.getLogger("plumbline.requests")

_MOST_READ = 64 * 1024
"""Bytes of a body that are looked at. What is left out may make the rest of them short."""


class RequestLog:
    """Log what an application is sent, and what it answers.

    Args:
        app: the ASGI application.
        outputs: whether answers are also logged.
        max_chars: how many characters of a body are shown.
    """

    def __init__(self, app: App, *, outputs: bool, max_chars: int) -> None:
        self._app = app
        self._outputs = outputs
        self._max_chars = max_chars
        _log.setLevel(logging.INFO)
        if not _log.hasHandlers():
            handler = logging.StreamHandler()
            handler.setFormatter(logging.Formatter("%(asctime)s %(message)s"))
            _log.addHandler(handler)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request, or one WebSocket with a line for each message."""
        if scope["type"] == "http":
            await self._request(scope, receive, send)
        elif scope["type"] == "websocket":
            await self._socket(scope, receive, send)
        else:
            await self._app(scope, receive, send)

    async def _request(self, scope: Scope, receive: Receive, send: Send) -> None:
        name = f"request {scope['state']['request_id']}"
        started = time.perf_counter()
        asked, answered = _Beginning(), _Beginning()
        status = 499  # The client leaves before there is a status.

        async def receive_and_keep() -> Message:
            message = await receive()
            if message["type"] == "http.request":
                asked.add(message.get("body", b""))
                if not message.get("more_body", False):
                    _log.info("%s: %s %s %s", name, scope["method"], scope["path"], self._shown(asked))
            return message

        async def send_and_keep(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            elif message["type"] == "http.response.body" and self._outputs:
                answered.add(message.get("body", b""))
            await send(message)

        try:
            await self._app(scope, receive_and_keep, send_and_keep)
        finally:
            output = f" {self._shown(answered)}" if self._outputs else ""
            _log.info("%s: status %d after %.3f s%s", name, status, time.perf_counter() - started, output)

    async def _socket(self, scope: Scope, receive: Receive, send: Send) -> None:
        peer = "{}:{}".format(*scope.get("client") or ("a socket", 0))

        async def receive_and_log() -> Message:
            message = await receive()
            if message["type"] == "websocket.receive":
                _log.info("WebSocket of %s: received %s", peer, self._message(message))
            return message

        async def send_and_log(message: Message) -> None:
            if message["type"] == "websocket.send" and self._outputs:
                _log.info("WebSocket of %s: sent %s", peer, self._message(message))
            await send(message)

        await self._app(scope, receive_and_log, send_and_log)

    def _message(self, message: Message) -> str:
        text, data = message.get("text"), message.get("bytes")
        kept = _Beginning()
        # No character has less than a byte, so the beginning is long enough, and a long message is not encoded whole.
        kept.add((text or "")[:_MOST_READ].encode() if data is None else data)
        kept.size = max(kept.size, len(text or ""))
        return self._shown(kept)

    def _shown(self, kept: _Beginning) -> str:
        return shown(bytes(kept.data), kept.size, self._max_chars)


class _Beginning:
    """The first bytes of a body, and the size of all of it."""

    def __init__(self) -> None:
        self.data = bytearray()
        self.size = 0

    def add(self, part: bytes) -> None:
        """Take the next bytes."""
        self.size += len(part)
        if len(self.data) < _MOST_READ:
            self.data += part[: _MOST_READ - len(self.data)]


def shown(data: bytes, size: int, max_chars: int) -> str:
    """Return the beginning of a body as one line without secrets.

    Args:
        data: the beginning of the body, at most 64 KiB.
        size: the bytes of the whole body.
        max_chars: how many characters to show.
    """
    text = CONTROL.sub(" ", redacted(data.decode("utf-8", "replace")))
    if len(text) <= max_chars and size <= len(data):
        return text
    return f"{text[:max_chars]}… ({size} bytes)"
