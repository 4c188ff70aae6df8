"""Find the client method that sends a recorded request, without importing the client."""

from __future__ import annotations

from typing import Any, Literal
from urllib.parse import parse_qs, unquote, urlsplit

import msgspec

from plumbline_conformance.sdk.sums import get_field
from plumbline_conformance.transcript.exchange import Exchange

__all__ = ["ClientCall", "call_of"]

_CREATED = {
    "/chat/completions": ("chat", ("chat", "completions")),
    "/completions": ("completions", ("completions",)),
    "/responses": ("responses", ("responses",)),
    "/messages": ("messages", ("messages",)),
}
"""By the end of the path: the surface, and the attributes of the client that lead to `create`."""
_OTHER_PATHS = ("input_tokens", "compact")
"""Paths below `/responses` that are not ids of responses."""


class ClientCall(msgspec.Struct, frozen=True, kw_only=True):
    """A method of the client and its arguments."""

    surface: Literal["chat", "completions", "responses", "models", "messages", "count"]
    method: tuple[str, ...]
    """Such as `("chat", "completions", "create")`."""
    given: dict[str, Any]
    """Arguments by name. Unknown ones are left out later; the replay ignores the request."""
    stream: bool = False
    helper: tuple[str, ...] = ()
    """The method that folds the stream, if the client has one for these requests."""


def call_of(exchange: Exchange) -> ClientCall | None:
    """Return the call that sends this request; None if the client has no such call."""
    try:
        parts = urlsplit(exchange.url)
    except ValueError:
        return None
    path = parts.path.rstrip("/")
    if exchange.method == "GET":
        return _read(path, parse_qs(parts.query))
    body = exchange.request_json
    if exchange.method != "POST" or not isinstance(body, dict):
        return None
    if not isinstance(body.get("stream"), bool | None):
        return None  # The answer to such a request may be a stream or not.
    if path.endswith("/messages/count_tokens"):
        return ClientCall(surface="count", method=("messages", "count_tokens"), given=body)
    for end, (surface, place) in _CREATED.items():
        if path.endswith(end):
            stream = body.get("stream") is True
            return ClientCall(
                surface=surface,  # type: ignore[arg-type]
                method=(*place, "create"),
                given={name: value for name, value in body.items() if name != "stream"},
                stream=stream,
                helper=(*place, "stream") if stream and _has_helper(surface, body) else (),
            )
    return None


def _has_helper(surface: str, body: dict[str, Any]) -> bool:
    """Return whether the client's helper can fold the stream; chat's helper fails on tools other than functions."""
    tools = body.get("tools")
    others = (
        [tool for tool in tools if get_field(tool, "type") != "function"] if isinstance(tools, list) else []
    )
    return surface in ("responses", "messages") or (surface == "chat" and not others)


def _read(path: str, query: dict[str, list[str]]) -> ClientCall | None:
    if path.endswith("/models"):
        return ClientCall(surface="models", method=("models", "list"), given={})
    _, models, model = path.rpartition("/models/")
    if models:
        return ClientCall(surface="models", method=("models", "retrieve"), given={"model": unquote(model)})
    _, responses, name = path.rpartition("/responses/")
    if not responses or "/" in name or name in _OTHER_PATHS:
        return None
    return ClientCall(
        surface="responses",
        method=("responses", "retrieve"),
        given={"response_id": unquote(name)},
        stream=query.get("stream") == ["true"],
    )
