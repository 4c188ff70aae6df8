"""What a target may lack without breaking a rule, found out once before the scenarios that need it."""

from __future__ import annotations

from collections.abc import Generator

from plumbline_conformance.case import Request, Target, capability
from plumbline_conformance.checks.common import error_of
from plumbline_conformance.transcript import Exchange

__all__ = ["user"]

Probing = Generator[Request, Exchange, str | None]
REASONING_KEYS = ("reasoning_content", "reasoning")


def user(text: str) -> list[dict[str, object]]:
    """A conversation of one message."""
    return [{"role": "user", "content": text}]


def _absent(exchange: Exchange) -> bool:
    """There is no such operation; an unknown model has the same status."""
    code = (error_of(exchange) or {}).get("code")
    return exchange.status in (404, 405, 501) and code != "model_not_found"


def _refusal(exchange: Exchange) -> str | None:
    """What a server says that refuses a feature; None if it has not refused anything."""
    if exchange.status not in (400, 404, 405, 422, 501):
        return None
    message = (error_of(exchange) or {}).get("message")
    return f"refused with status {exchange.status}: {str(message)[:150]}"


@capability("responses", "The Responses API")
def responses(target: Target) -> Probing:
    body = {"model": target.model, "input": "Hi", "max_output_tokens": 16}
    found = yield Request(path="/responses", json=body)
    return f"there is no POST /responses: status {found.status}" if _absent(found) else None


@capability("completions", "Legacy completions")
def completions(target: Target) -> Probing:
    found = yield Request(path="/completions", json={"model": target.model, "prompt": "Hi", "max_tokens": 1})
    return f"there is no POST /completions: status {found.status}" if _absent(found) else None


@capability("tools", "Tools on chat completions")
def tools(target: Target) -> Probing:
    tool = {"type": "function", "function": {"name": "ping", "parameters": {"type": "object"}}}
    body = {"model": target.model, "messages": user("Hi"), "max_tokens": 4, "tools": [tool]}
    return _refusal((yield Request(path="/chat/completions", json=body)))


@capability("reasoning", "Reasoning that is shown")
def reasoning(target: Target) -> Probing:
    body = {"model": target.model, "messages": user("Hi"), "max_tokens": 256, "reasoning_effort": "low"}
    found = yield Request(path="/chat/completions", json=body)
    if (refusal := _refusal(found)) is not None:
        return refusal
    try:
        message = found.json["choices"][0]["message"]
        shown = any(message.get(key) for key in REASONING_KEYS)
    except (LookupError, TypeError, AttributeError):
        return None  # The checks of shape will say what is wrong.
    return None if shown else "the model shows no reasoning at effort low"


@capability("stored", "Responses that are kept")
def stored(target: Target) -> Probing:
    body = {"model": target.model, "input": "Hi", "max_output_tokens": 16, "store": True}
    found = yield Request(path="/responses", json=body)
    if (refusal := _refusal(found)) is not None:
        return refusal
    kept = isinstance(found.json, dict) and found.json.get("store") is False
    return "the server says that it keeps nothing: `store` is false in its answer" if kept else None


@capability("background", "Responses that run in the background")
def background(target: Target) -> Probing:
    body = {"model": target.model, "input": "Hi", "max_output_tokens": 16, "store": True, "background": True}
    found = yield Request(path="/responses", json=body)
    if (refusal := _refusal(found)) is not None:
        return refusal
    echoed = found.json.get("background") if isinstance(found.json, dict) else None
    return None if echoed is True else f"it was asked for, and `background` is {echoed!r} in the answer"


@capability("compact", "Compaction of a conversation")
def compact(target: Target) -> Probing:
    found = yield Request(path="/responses/compact", json={"model": target.model, "input": "Hi"})
    return (
        f"there is no POST /responses/compact: status {found.status}" if _absent(found) else _refusal(found)
    )


@capability("websocket", "Responses over a WebSocket")
def websocket(target: Target) -> Probing:
    create = {"type": "response.create", "model": target.model, "input": "Hi", "max_output_tokens": 16}
    found = yield Request(path="/responses", method="WEBSOCKET", json=create)
    if found.status == 101:
        return None
    return f"there is no WebSocket at /responses: {found.error or f'status {found.status}'}"


@capability("count", "Counting the tokens of an input")
def count(target: Target) -> Probing:
    found = yield Request(path="/responses/input_tokens", json={"model": target.model, "input": "Hi"})
    return f"there is no POST /responses/input_tokens: status {found.status}" if _absent(found) else None


@capability("key", "An API key")
def key(target: Target) -> Probing:
    if target.api_key is None:
        return "no key was given, so that nothing says whether the server wants one"
    found = yield Request(path="/models", method="GET", headers={"authorization": "Bearer wrong-key-0f3a"})
    return "the server asks for no key" if found.status == 200 else None


@capability("structured", "The extension `structured_outputs`")
def structured(target: Target) -> Probing:
    """A server that does not know the field may ignore it; one that knows it refuses what is no regular expression."""
    wrong: dict[str, object] = {"regex": 5}
    body = {"model": target.model, "messages": user("Hi"), "max_tokens": 1, "structured_outputs": wrong}
    found = yield Request(path="/chat/completions", json=body)
    return "the server ignores `structured_outputs`" if found.status == 200 else None
