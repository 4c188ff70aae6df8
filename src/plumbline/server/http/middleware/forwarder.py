"""Pass requests about a response in the background to the API server that generates it.

The events of an unfinished response are in the memory of one process. A client that follows, cancels or deletes it may
reach any other.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import re
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

import httpx2

from plumbline.server.limits.claims.names import Claims, background_claim

__all__ = ["Forwarder"]

_log = logging.getLogger("plumbline.server")

Message = MutableMapping[str, Any]
Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

_RESPONSE = re.compile(r"/v1/responses/(resp_[^/]+)(?:/cancel)?")
_MARK = b"x-plumbline-forwarded"
"""Header of a forwarded request, which is not forwarded again."""
_OWN_HEADERS = frozenset(
    {
        b"connection",
        b"transfer-encoding",
        b"date",
        b"server",
        # The front of this process sets them.
        b"x-request-id",
        b"openai-processing-ms",
        b"openai-version",
    }
)


class Forwarder:
    """Forward requests to the API server that must answer them; pass all others to the wrapped application.

    Args:
        app: the application.
        claims: looks up which API server generates a response.
    """

    def __init__(self, app: App, claims: Claims) -> None:
        self._app = app
        self._claims = claims

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one connection event of an ASGI server."""
        holder = await self._holder(scope)
        if not holder or not await self._forwarded(holder, scope, receive, send):
            await self._app(scope, receive, send)

    async def _holder(self, scope: Scope) -> str:
        """Return the socket of the API server that must answer a request; empty for this one."""
        found = _RESPONSE.fullmatch(scope["path"]) if scope["type"] == "http" else None
        if found is None or any(name == _MARK for name, _ in scope["headers"]):
            return ""
        return await self._claims.holder(background_claim(found[1]))

    async def _forwarded(self, holder: str, scope: Scope, receive: Receive, send: Send) -> bool:
        """Forward a request until its answer, or its client, ends; returns False if the other process has ended."""
        copying = asyncio.create_task(_copy(holder, scope, send))
        leaving = asyncio.create_task(_left(receive))
        try:
            await asyncio.wait({copying, leaving}, return_when=asyncio.FIRST_COMPLETED)
            if not copying.done():
                return True
            try:
                copying.result()
            except httpx2.ConnectError:  # The run has ended, and its process with it.
                return False
            return True
        finally:
            for task in (copying, leaving):
                task.cancel()
            with contextlib.suppress(Exception):
                await asyncio.gather(copying, leaving, return_exceptions=True)


async def _copy(holder: str, scope: Scope, send: Send) -> None:
    """Send the request without its body, which none of these requests needs, and copy the answer."""
    query = scope["query_string"].decode("latin-1")
    url = f"http://api-server{scope['path']}" + (f"?{query}" if query else "")
    headers = [
        (name, value)
        for name, value in scope["headers"]
        if name not in (b"connection", b"content-length", b"transfer-encoding", b"expect")
    ]
    transport = httpx2.AsyncHTTPTransport(uds=holder)
    async with (
        httpx2.AsyncClient(transport=transport, timeout=None) as client,
        client.stream(scope["method"], url, headers=[*headers, (_MARK, b"1")]) as answer,
    ):
        kept = [
            (name.lower(), value) for name, value in answer.headers.raw if name.lower() not in _OWN_HEADERS
        ]
        await send({"type": "http.response.start", "status": answer.status_code, "headers": kept})
        async for data in answer.aiter_raw():
            await send({"type": "http.response.body", "body": data, "more_body": True})
    await send({"type": "http.response.body", "body": b""})


async def _left(receive: Receive) -> None:
    """Wait until the client has left."""
    while (await receive())["type"] != "http.disconnect":
        pass
