"""The reference with one deviation each: gateways, and servers that differ but conform."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Any

from example_servers.asgi import body_of, live_and_end, send_json
from example_servers.reference import application
from example_servers.reference.names import KEY

__all__ = ["NOT_HERE", "answering", "error", "fixed", "limited", "of_the_o_series", "only", "reference_but"]

NOT_HERE = {"error": {"message": "not here", "type": "invalid_request_error", "param": None, "code": None}}
Answer = tuple[int, dict[str, str], Any]
"""A status, further headers, and JSON."""


def answering(change: Callable[[str, Any], Answer | None], *, open_to_all: bool = False) -> Any:
    """Return the reference, with a function that may answer requests itself.

    Args:
        change: called with the path below the base URL and the JSON body, None if it is not JSON.
        open_to_all: whether no key is required.
    """
    inner = application()

    async def serve(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            await inner(scope, receive, send)
            return
        content = await body_of(receive)
        try:
            body = json.loads(content)
        except (ValueError, RecursionError):
            body = None
        found = change(scope["path"].removeprefix("/v1"), body)
        if found is not None:
            status, more_headers, value = found
            named = {"content-type": "application/json", "x-request-id": "1", **more_headers}
            headers = [(name.encode(), text.encode()) for name, text in named.items()]
            await send({"type": "http.response.start", "status": status, "headers": headers})
            await send({"type": "http.response.body", "body": json.dumps(value).encode()})
            return

        async def again() -> Any:
            return {"type": "http.request", "body": content, "more_body": False}

        if open_to_all:
            headers = [(name, value) for name, value in scope["headers"] if name != b"authorization"]
            scope = {**scope, "headers": [*headers, (b"authorization", f"Bearer {KEY}".encode())]}
        await inner(scope, again, send)

    return serve


def reference_but(changes: Any) -> Any:
    """Return the reference, with a function that may answer requests with (status, JSON)."""
    inner = application()

    async def serve(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "lifespan":
            await inner(scope, receive, send)
            return
        message = await receive()
        body = message.get("body", b"")
        try:
            value = json.loads(body)
        except ValueError:
            value = None
        answer = changes(scope["path"], value if isinstance(value, dict) else {})
        if answer is not None:
            status, content = answer
            await send_json(send, status, content)
            return

        async def again() -> Any:
            return message

        await inner(scope, again, send)

    return serve


def fixed(status: int, content: Any, kind: str = "application/json") -> Any:
    """Return a server with the same answer to every request."""

    async def application(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "lifespan":
            await live_and_end(receive, send)
            return
        await body_of(receive)
        await send_json(send, status, content, kind)

    return application


def error(message: str, *, param: str | None = None, code: str | None = None) -> Any:
    """Return an error object."""
    return {"error": {"message": message, "type": "invalid_request_error", "param": param, "code": code}}


def limited(every: float, after: str | None) -> Any:
    """Serve one request in this many seconds; answer all others with 429 and `Retry-After`."""
    last = 0.0

    def change(_: str, __: Any) -> Answer | None:
        nonlocal last
        now = time.monotonic()
        if now - last < every:
            return 429, {} if after is None else {"retry-after": after}, error("Slow down.")
        last = now
        return None

    return answering(change)


def of_the_o_series() -> Any:
    """Accept only `max_completion_tokens`, which the contract allows for some models."""

    def change(path: str, body: Any) -> Answer | None:
        if path == "/chat/completions" and isinstance(body, dict) and "max_tokens" in body:
            message = "Unsupported parameter: 'max_tokens' is not supported with this model."
            return 400, {}, error(message, param="max_tokens", code="unsupported_parameter")
        return None

    return answering(change)


def only(*paths: str) -> Any:
    """Serve only these operations."""
    return answering(lambda path, _: None if path in paths else (404, {}, {"detail": "Not Found"}))
