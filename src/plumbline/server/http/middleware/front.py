"""Give every request an id, check its key and body, and count it.

This is a plain ASGI application around Litestar, because a request that matches no route also needs an `x-request-id`,
a key check and a count.
"""

from __future__ import annotations

import contextlib
import re
import time
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from types import MappingProxyType
from typing import Any

from litestar.utils import normalize_path

from plumbline.contract.wire.call import (
    CLIENT_NAMED,
    ERROR,
    FACTS,
    SHARE,
    authorization,
    fact_headers,
    new_request_id,
    note_error,
)
from plumbline.contract.wire.error_forms import ANTHROPIC_VERSION, error_answer, is_messages, is_model_list
from plumbline.contract.wire.errors import ApiError, from_status, invalid_api_key
from plumbline.contract.wire.incoming import FORMS, HELD_FOR, IGNORED
from plumbline.server.http.middleware.answers import WholeAnswer
from plumbline.server.http.middleware.bodies import Bodies, announced
from plumbline.server.http.middleware.origins import Origins, is_browser, is_host
from plumbline.server.http.streams import closing_streams
from plumbline.server.limits.draining import PROBES, Draining
from plumbline.server.limits.held_bytes import ByteBudget, Reservation
from plumbline.server.limits.keys import KeyRing, admin_error
from plumbline.server.limits.rates import Rates, RequestShare
from plumbline.server.observe.metrics import Metrics
from plumbline.server.observe.recent import RecentRequest, RecentRequests
from plumbline.server.observe.routes import OTHER, route_of

__all__ = ["Front"]

Message = MutableMapping[str, Any]
Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

_ADMIN_PATHS = frozenset(
    {
        "/models/load",
        "/models/unload",
        "/v1/model/load",
        "/v1/model/unload",
        "/v1/load_lora_adapter",
        "/v1/unload_lora_adapter",
    }
)
"""Take an admin key without an API key. The operations check it again, because a path has several spellings."""

_GENERATING = frozenset(
    {
        "/v1/chat/completions",
        "/v1/completions",
        "/v1/messages",
        "/v1/responses",
        "/v1/responses/compact",
    }
)
"""Paths whose requests use the share of their key (`limits/rates.py`)."""
_SOCKET_PATHS = frozenset({"/v1/responses"})

_REQUEST_ID = re.compile(rb"[!-~]{1,128}")
"""An id that a client may give its request; others are replaced."""

_NO_KEYS = KeyRing(())
_ANTHROPIC = ANTHROPIC_VERSION.encode()
_KEY_HEADERS = frozenset({b"authorization", b"x-api-key", b"x-admin-key"})


class Front:
    """The outermost ASGI application."""

    def __init__(
        self,
        app: App,
        *,
        keys: KeyRing,
        admin_keys: KeyRing = _NO_KEYS,
        metrics: Metrics,
        max_body_bytes: int,
        body_timeout: float = 0.0,
        open_paths: frozenset[str] = frozenset(),
        recent: RecentRequests | None = None,
        draining: Draining | None = None,
        rates: Rates | None = None,
        full: Callable[[str | None, str], ApiError | None] = lambda api_key, peer: None,
        origins: Origins | None = None,
        budget: ByteBudget | None = None,
    ) -> None:
        self._app = app
        self._origins = origins
        self._budget = ByteBudget.for_messages(max_body_bytes) if budget is None else budget
        self._draining = Draining() if draining is None else draining
        self._bodies = Bodies(self._budget, max_body_bytes, body_timeout, self._draining)
        self._full = full
        self._open_paths = PROBES | open_paths
        self._rates = Rates(()) if rates is None else rates
        self._recent = RecentRequests() if recent is None else recent
        self._keys = keys
        self._admin_keys = admin_keys
        self._metrics = metrics
        self._max_body_bytes = max_body_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one connection event of an ASGI server."""
        given = scope.get("path", "")
        if given:
            # The router takes `//v1/completions/` as well, so checks of the plain path would be evaded.
            scope["path"] = normalize_path(given)
        if scope["type"] == "websocket":
            await self._upgrade(scope, receive, send)
            return
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        started = time.perf_counter()
        if (refused := self.refuse(scope)) is not None:
            await send({"type": "http.response.start", "status": refused.status, "headers": refused.headers})
            await send({"type": "http.response.body", "body": refused.body})
            return
        is_head = scope["method"] == "HEAD"
        if is_head:  # Answered wherever GET is: load balancers probe with it.
            scope = {**scope, "method": "GET"}
        state = _named(scope)
        status = 499  # The client leaves before there is a status.
        seen: RecentRequest | None = None
        limited: str | None = None  # The key whose share the request uses.
        share: RequestShare | None = None
        held = Reservation(self._budget)

        async def send_with_headers(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                elapsed = round((time.perf_counter() - started) * 1000)
                message["headers"] = [*message.get("headers", []), *self._headers(scope, elapsed, limited)]
                for key, name in ((IGNORED, b"x-plumbline-ignored"), (FORMS, b"x-plumbline-lenient")):
                    if key in state:
                        message["headers"].append((name, state[key].encode()))
                for shown, value in fact_headers(state.get(FACTS, {})).items():
                    message["headers"].append((shown.encode(), value.encode()))
            elif is_head:
                message = {**message, "body": b""}
            if seen is not None:
                seen.take(message)
            await send(message)

        self._metrics.opened()
        label = route_of(scope["path"])
        # Probes and pages would push the requests that people look for out of the list.
        counts = scope["method"] == "POST" and label != OTHER
        seen = self._recent.begin(scope["method"], label) if counts else None
        try:
            error = self._refusal(scope, is_open=given in self._open_paths)
            if error is None and label in _GENERATING and scope["method"] == "POST":
                limited = _api_key(scope, scope["path"])
                error = await self._rates.enter(limited)
                if error is None:
                    share = state[SHARE] = RequestShare(self._rates, limited)
            if self._draining.began and scope["path"] in PROBES:
                await _send_json(send_with_headers, *self._draining.health(scope["path"]))
            elif error is None:
                with contextlib.nullcontext() if scope["path"] in PROBES else self._draining.counted():
                    async with closing_streams():
                        held.client = self._client(scope)
                        await self._app(scope, self._bodies.reader(scope, held, receive), send_with_headers)
            else:
                if error.status == 413:
                    await self._bodies.drain(receive)
                await _answer(send_with_headers, error, scope)
        finally:
            held.release()
            if share is not None:
                share.end()
            self._metrics.closed(label, status, state.get(FACTS, {}).get(ERROR, ""))
            if seen is not None:
                seen.end(state["request_id"], status)

    def refuse(self, scope: Scope) -> WholeAnswer | None:
        """Answer a request that no model has room for. It costs its key nothing; see `WholeAnswer`."""
        path = scope["path"] if scope["path"] in _GENERATING else normalize_path(scope["path"])
        if path not in _GENERATING or scope["method"] != "POST":
            return None
        api_key = _api_key(scope, path)
        error = self._full(api_key, (scope.get("client") or ("",))[0])
        if error is None:
            return None
        is_open = scope["path"] in self._open_paths
        scope["path"] = path
        if self._refusal(scope, is_open=is_open) is not None:
            return None  # That error comes first.
        self._metrics.opened()
        state = _named(scope)
        seen = self._recent.begin("POST", path)
        note_error(state, error)
        status, body = error_answer(error, path, state["request_id"])
        headers = [*_json_headers(body, error.headers), *self._headers(scope, 0, api_key)]
        seen.take({"type": "http.response.body", "body": body})
        seen.end(state["request_id"], status)
        self._metrics.closed(path, status, state[FACTS][ERROR])
        return WholeAnswer(status, headers, body)

    def _headers(self, scope: Scope, elapsed: int, api_key: str | None) -> list[tuple[bytes, bytes]]:
        """Return the headers of every answer, and those of the key if it has limits."""
        name = scope["state"]["request_id"].encode()
        found = [
            (b"x-request-id", name),  # HTTP-03
            (b"openai-processing-ms", b"%d" % elapsed),  # HTTP-04
            (b"openai-version", b"2020-10-01"),
        ]
        if is_messages(scope["path"]) or is_model_list(
            scope["path"]
        ):  # The name that Anthropic's clients read.
            found.append((b"request-id", name))
        found += [(each.encode(), value.encode()) for each, value in self._rates.headers(api_key).items()]
        return found

    async def _upgrade(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Let a WebSocket handshake through, or answer it with an error in the envelope (WS-01)."""
        error = _host_error(scope) or self._origin_error(scope) or self._key_error(scope)
        error = error or self._draining.refusal
        if error is None and scope["path"] not in _SOCKET_PATHS:
            error = from_status(404, f"There is no WebSocket at {scope['path']}.")
        if error is None:
            scope.setdefault("state", {})[HELD_FOR] = self._client(scope)
            with self._metrics.socket():
                await self._app(scope, receive, send)
            return
        await receive()

        async def send_denial(message: Message) -> None:
            await send({**message, "type": message["type"].replace("http", "websocket.http")})

        if "websocket.http.response" in scope.get("extensions", {}):
            await _answer(send_denial, error, scope)
        else:
            await send({"type": "websocket.close", "code": 1008})

    def _key_error(self, scope: Scope) -> ApiError | None:
        """Return the error of a request without one of the keys (HTTP-06)."""
        headers = _key_headers(scope)
        given = authorization(headers, scope["path"])
        if scope["path"] in _ADMIN_PATHS and not self._admin_keys.open:
            return admin_error(self._admin_keys, given, headers.get("x-admin-key"))
        return None if self._keys.accepts(given) else invalid_api_key()

    def _origin_error(self, scope: Scope) -> ApiError | None:
        """Return the error of a web page that may not use a server without keys; those of its health are open."""
        if self._origins is None or not self._keys.open or scope["path"] in PROBES:
            return None
        return self._origins.error(scope)

    def _client(self, scope: Scope) -> str:
        """Return whose share of all bytes a request uses: that of its key, or of its address if there are no keys."""
        api_key = None if self._keys.open else _api_key(scope, scope["path"])
        return api_key or (scope.get("client") or ("",))[0]

    def _refusal(self, scope: Scope, *, is_open: bool) -> ApiError | None:
        """Check a request by its headers; return the error, if any."""
        headers = dict(scope["headers"])
        path = scope["path"]
        if (error := _host_error(scope) or self._origin_error(scope)) is not None:
            return error
        if not is_open and (error := self._key_error(scope)) is not None:
            return error
        if scope["method"] != "POST":
            return None
        length = headers.get(b"content-length", b"0")
        if length.isdigit() and int(length) > self._max_body_bytes:
            return ApiError(
                413,
                f"The request body has {int(length)} bytes; this server accepts at most {self._max_body_bytes}.",
                code="request_too_large",
            )
        encoding = headers.get(b"content-encoding", b"identity").strip().lower()
        if encoding not in (b"", b"identity"):
            return ApiError(
                415,
                f"Unsupported content encoding '{encoding.decode('latin-1')[:100]}'. Send the body uncompressed.",
                code="unsupported_media_type",
            )
        # A page may send a body without a type to any server, without asking.
        assumed = b"" if is_browser(headers) and announced(scope, 1) else b"application/json"
        media_type = headers.get(b"content-type", assumed).split(b";")[0].strip().lower()
        is_json = media_type == b"application/json" or media_type.endswith(b"+json")
        if not is_json and route_of(path) != OTHER:  # HTTP-08; an unknown path is a 404.
            return ApiError(
                415,
                f"Unsupported content type '{media_type.decode('latin-1')[:100]}'. "
                "Send the body as JSON with 'Content-Type: application/json'.",
                code="unsupported_media_type",
            )
        return None


def _key_headers(scope: Scope) -> dict[str, str]:
    """Return the headers with keys; the first counts of those that are there twice, as for `Call`."""
    return {
        name.decode("latin-1"): value.decode("utf-8", "surrogateescape")
        for name, value in reversed(scope["headers"])
        if name in _KEY_HEADERS
    }


def _api_key(scope: Scope, path: str) -> str | None:
    """Return the key that a request has, accepted or not."""
    return (authorization(_key_headers(scope), path) or "").partition(" ")[2].strip() or None


def _named(scope: Scope) -> MutableMapping[str, Any]:
    """Give a request its id, and return its state."""
    state: MutableMapping[str, Any] = scope.setdefault("state", {})
    chosen = _client_request_id(scope)
    state["request_id"] = chosen or new_request_id()
    state[CLIENT_NAMED] = chosen is not None
    return state


def _client_request_id(scope: Scope) -> str | None:
    """Return the client's `x-request-id` if it is short and printable, so that logs of both sides can be joined."""
    for name, value in scope["headers"]:
        if name == b"x-request-id" and _REQUEST_ID.fullmatch(value):
            return str(value.decode("ascii"))
    return None


async def _answer(send: Send, error: ApiError, scope: Scope) -> None:
    note_error(scope.setdefault("state", {}), error)
    status, body = error_answer(
        error,
        scope["path"],
        scope.get("state", {}).get("request_id"),
        is_anthropic=any(name == _ANTHROPIC for name, _ in scope["headers"]),
    )
    await _send_json(send, status, body, error.headers)


async def _send_json(
    send: Send, status: int, body: bytes, more: Mapping[str, str] = MappingProxyType({})
) -> None:
    await send({"type": "http.response.start", "status": status, "headers": _json_headers(body, more)})
    await send({"type": "http.response.body", "body": body})


def _json_headers(body: bytes, more: Mapping[str, str]) -> list[tuple[bytes, bytes]]:
    headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body))]
    return headers + [(name.lower().encode(), value.encode()) for name, value in more.items()]


def _host_error(scope: Scope) -> ApiError | None:
    """Return what is wrong with the Host header (RFC 9112, section 3.2); Litestar fails on `host: t:x`."""
    hosts = [value for name, value in scope["headers"] if name == b"host"]
    if not hosts and scope.get("http_version") == "1.1":
        return ApiError(400, "The request has no Host header.", code="invalid_http")
    if len(hosts) > 1 or not all(map(is_host, hosts)):
        return ApiError(400, "The Host header is not one host with an optional port.", code="invalid_http")
    return None
