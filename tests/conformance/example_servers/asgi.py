"""Parts of ASGI applications that every example server needs."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

__all__ = ["body_of", "live_and_end", "send_json", "with_bodies"]


async def live_and_end(receive: Any, send: Any) -> None:
    """Start and stop without doing anything: the whole of a lifespan."""
    for event in ("startup", "shutdown"):
        await receive()
        await send({"type": f"lifespan.{event}.complete"})


async def body_of(receive: Any) -> bytes:
    """Receive the whole body of a request."""
    content, more = b"", True
    while more:
        message = await receive()
        content += message.get("body", b"")
        more = message.get("more_body", False)
    return content


async def send_json(send: Any, status: int, value: Any, kind: str = "application/json") -> None:
    """Send an answer; bytes are sent as they are."""
    headers = [(b"content-type", kind.encode()), (b"x-request-id", b"1")]
    body = value if isinstance(value, bytes) else json.dumps(value).encode()
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


def with_bodies(inner: Any, change: Callable[[bytes], bytes]) -> Any:
    """Return an application with the bodies of its answers changed on their way."""

    async def application(scope: Any, receive: Any, send: Any) -> None:
        async def sent(message: Any) -> None:
            if message["type"] == "http.response.body":
                message = {**message, "body": change(message.get("body", b""))}
            if message["type"] == "http.response.start":
                kept = [(k, v) for k, v in message["headers"] if k != b"content-length"]
                message = {**message, "headers": kept}
            await send(message)

        await inner(scope, receive, sent)

    return application
