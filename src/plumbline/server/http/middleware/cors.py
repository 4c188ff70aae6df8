"""Let web pages of other origins use the server (CORS), as far as the operator allows."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from typing import Any

from litestar.config.cors import CORSConfig

from plumbline.server.http.middleware.answers import WholeAnswer
from plumbline.server.http.middleware.front import Front

__all__ = ["Cors", "cors_config"]

Message = MutableMapping[str, Any]
Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]

_EXPOSED = [
    "openai-processing-ms",
    "openai-version",
    "retry-after",
    "x-plumbline-ignored",
    "x-plumbline-lenient",
    "x-plumbline-skipped-tools",
    "x-plumbline-unenforced",
    "x-request-id",
]
"""Headers of answers that scripts may read, in addition to those that every browser shows."""


def cors_config(origins: tuple[str, ...]) -> CORSConfig:
    """Return Litestar's description of what other origins may do.

    Args:
        origins: the allowed origins such as `https://example.org`; `*` stands for any text.
    """
    return CORSConfig(
        allow_origins=list(origins), allow_methods=["GET", "POST", "DELETE"], expose_headers=_EXPOSED
    )


class Cors:
    """Answer preflight requests, and mark the answers that pages of allowed origins may read.

    It surrounds the key check: a preflight request has no key, and a page must be able to read a 401. Litestar's own
    middleware runs inside the application, so only its `CORSConfig` is used.
    """

    def __init__(self, app: Front, config: CORSConfig) -> None:
        self._app = app
        self._config = config

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one connection event of an ASGI server."""
        headers = dict(scope["headers"]) if scope["type"] == "http" else {}
        origin = headers.get(b"origin", b"").decode("latin-1")
        if not origin:
            await self._app(scope, receive, send)
            return
        if scope["method"] == "OPTIONS" and b"access-control-request-method" in headers:
            await send(
                {
                    "type": "http.response.start",
                    "status": 204,
                    "headers": self._preflight(origin, headers),
                }
            )
            await send({"type": "http.response.body"})
            return

        async def send_marked(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message.get("headers", []), *self._marks(origin)]
            await send(message)

        await self._app(scope, receive, send_marked)

    def refuse(self, scope: Scope) -> WholeAnswer | None:
        """See `WholeAnswer`."""
        found = self._app.refuse(scope)
        if found is not None and (origin := dict(scope["headers"]).get(b"origin", b"").decode("latin-1")):
            found.headers.extend(self._marks(origin))
        return found

    def _preflight(self, origin: str, asked: Mapping[bytes, bytes]) -> list[tuple[bytes, bytes]]:
        """Return the headers of a preflight answer; a browser stops if they do not name the origin.

        A page from the web asks whether it may reach a server on loopback or in a private network. Where all origins
        are allowed the browser's own protection stays: any page would reach the server through its visitors.
        """
        if not self._config.is_origin_allowed(origin):
            return [(b"vary", b"Origin")]
        config = dict(self._config.preflight_headers)
        config.pop("Vary", None)
        config.pop("Access-Control-Allow-Origin", None)
        found = [(name.lower().encode(), value.encode()) for name, value in config.items()]
        if wanted := asked.get(b"access-control-request-headers"):
            found.append((b"access-control-allow-headers", wanted))
        is_asked = asked.get(b"access-control-request-private-network") == b"true"
        if is_asked and not self._config.is_allow_all_origins:
            found.append((b"access-control-allow-private-network", b"true"))
        return found + self._allowed(origin)

    def _marks(self, origin: str) -> list[tuple[bytes, bytes]]:
        if not self._config.is_origin_allowed(origin):
            return [(b"vary", b"Origin")]
        exposed = self._config.simple_headers["Access-Control-Expose-Headers"]
        return [*self._allowed(origin), (b"access-control-expose-headers", exposed.encode())]

    def _allowed(self, origin: str) -> list[tuple[bytes, bytes]]:
        if self._config.is_allow_all_origins:
            return [(b"access-control-allow-origin", b"*")]
        return [(b"access-control-allow-origin", origin.encode("latin-1")), (b"vary", b"Origin")]
