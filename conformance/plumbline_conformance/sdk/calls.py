"""Which call of a client a recorded request is: read off the request, without the client."""

from __future__ import annotations

from typing import Any, Literal
from urllib.parse import parse_qs, unquote, urlsplit

import msgspec

from plumbline_conformance.sdk.sums import get_field
from plumbline_conformance.transcript.model import Exchange

__all__ = ["Call", "call_of"]

_CREATED = {
    "/chat/completions": ("chat", ("chat", "completions")),
    "/completions": ("completions", ("completions",)),
    "/responses": ("responses", ("responses",)),
}
"""By the end of the path: the surface, and where the client has its `create`. The longest end comes first."""
_OTHER_PATHS = ("input_tokens", "compact")
"""Below `/responses`, and no ids of responses."""


class Call(msgspec.Struct, frozen=True, kw_only=True):
    """A method of the client, and what it is given."""

    surface: Literal["chat", "completions", "responses", "models"]
    method: tuple[str, ...]
    """Such as `("chat", "completions", "create")`."""
    given: dict[str, Any]
    """Arguments by name. Those that the method does not know are left out: nobody reads the request again."""
    stream: bool = False
    helper: tuple[str, ...] = ()
    """The method that puts the stream together, where there is one for such requests."""


def call_of(exchange: Exchange) -> Call | None:
    """The call that sends such a request; None where the client has none, or none of those that are looked at."""
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
        return None  # Whether the answer to such a request is streamed, only the server knows.
    for end, (surface, place) in _CREATED.items():
        if path.endswith(end):
            stream = body.get("stream") is True
            return Call(
                surface=surface,  # type: ignore[arg-type]
                method=(*place, "create"),
                given={name: value for name, value in body.items() if name != "stream"},
                stream=stream,
                helper=(*place, "stream") if stream and _is_put_together(surface, body) else (),
            )
    return None


def _is_put_together(surface: str, body: dict[str, Any]) -> bool:
    """Whether the client has a helper for such a request: chat's reads calls of functions, and trips over any other."""
    tools = body.get("tools")
    others = (
        [tool for tool in tools if get_field(tool, "type") != "function"] if isinstance(tools, list) else []
    )
    return surface == "responses" or (surface == "chat" and not others)


def _read(path: str, query: dict[str, list[str]]) -> Call | None:
    if path.endswith("/models"):
        return Call(surface="models", method=("models", "list"), given={})
    _, models, model = path.rpartition("/models/")
    if models:
        return Call(surface="models", method=("models", "retrieve"), given={"model": unquote(model)})
    _, responses, name = path.rpartition("/responses/")
    if not responses or "/" in name or name in _OTHER_PATHS:
        return None
    return Call(
        surface="responses",
        method=("responses", "retrieve"),
        given={"response_id": unquote(name)},
        stream=query.get("stream") == ["true"],
    )
