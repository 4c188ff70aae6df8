"""What a target may lack without breaking a rule, found out once before the scenarios that need it."""

from __future__ import annotations

from collections.abc import Generator

from plumbline_conformance.checks.common import BUSY, error_of, refusal
from plumbline_conformance.checks.sample_requests import user
from plumbline_conformance.suite.model import UNKNOWN, WRONG_KEY, Request, Target, capability
from plumbline_conformance.transcript.model import Exchange

__all__ = ["user"]

Probing = Generator[Request, Exchange, str | None]
REASONING_KEYS = ("reasoning_content", "reasoning")


_ABSENT = (404, 405, 501)
_REFUSED = (400, 404, 405, 422, 501)
_UNTOLD = BUSY | {401, 403, 407, 409, 425}
"""Statuses about the moment, or about whoever asks: they say nothing of what the server has."""


def _untold(exchange: Exchange) -> str | None:
    """Why an answer shows neither that a feature is there nor that it is lacking; None if it may show either.

    A status 500 is left to the scenarios: whoever fails at a right request is to be told so, not excused from it.
    """
    return _not_found_out(exchange) if exchange.status in (0, *_UNTOLD) else None


def _not_found_out(exchange: Exchange) -> str:
    return f"{UNKNOWN}: {exchange.error or f'status {exchange.status}'}"


def _absence(exchange: Exchange, operation: str) -> str | None:
    """Why there is no such operation, or none for this model; None if it answered, whatever it was."""
    if (untold := _untold(exchange)) is not None:
        return untold
    if exchange.status not in _ABSENT:
        return None
    if (error_of(exchange) or {}).get("code") == "model_not_found":
        return f"{operation} does not know the model: status {exchange.status}"
    return f"there is no {operation}: status {exchange.status}"


def _lacking(exchange: Exchange) -> str | None:
    """Why a feature cannot be had; None if the request was not refused."""
    if (untold := _untold(exchange)) is not None:
        return untold
    if exchange.status not in _REFUSED:
        return None
    return f"refused with status {exchange.status}: {refusal(exchange)[:150]}"


@capability("responses", "The Responses API")
def responses(target: Target) -> Probing:
    body = {"model": target.model, "input": "Hi", "max_output_tokens": 16}
    return _absence((yield Request(path="/responses", json=body)), "POST /responses")


@capability("completions", "Legacy completions")
def completions(target: Target) -> Probing:
    body = {"model": target.model, "prompt": "Hi", "max_tokens": 1}
    return _absence((yield Request(path="/completions", json=body)), "POST /completions")


@capability("tools", "Tools on chat completions")
def tools(target: Target) -> Probing:
    tool = {"type": "function", "function": {"name": "ping", "parameters": {"type": "object"}}}
    body = {"model": target.model, "messages": user("Hi"), "max_tokens": 4, "tools": [tool]}
    return _lacking((yield Request(path="/chat/completions", json=body)))


@capability("reasoning", "Reasoning that is shown")
def reasoning(target: Target) -> Probing:
    body = {"model": target.model, "messages": user("Hi"), "max_tokens": 256, "reasoning_effort": "low"}
    found = yield Request(path="/chat/completions", json=body)
    if (lack := _lacking(found)) is not None or found.status >= 500:
        return lack
    if found.error is not None:
        return _not_found_out(found)
    try:
        message = found.json["choices"][0]["message"]
        shown = any(message.get(key) for key in REASONING_KEYS)
    except (LookupError, TypeError, AttributeError):
        # The server took the request: what is wrong with its answer is said by the checks of that answer.
        return None
    return None if shown else "the model shows no reasoning at effort low"


@capability("stored", "Responses that are kept")
def stored(target: Target) -> Probing:
    body = {"model": target.model, "input": "Hi", "max_output_tokens": 16, "store": True}
    found = yield Request(path="/responses", json=body)
    if (lack := _lacking(found)) is not None:
        return lack
    kept = isinstance(found.json, dict) and found.json.get("store") is False
    return "the server says that it keeps nothing: `store` is false in its answer" if kept else None


@capability("background", "Responses that run in the background")
def background(target: Target) -> Probing:
    body = {"model": target.model, "input": "Hi", "max_output_tokens": 16, "store": True, "background": True}
    found = yield Request(path="/responses", json=body)
    if (lack := _lacking(found)) is not None:
        return lack
    if found.status >= 500 or found.error is not None:
        return _not_found_out(found)
    echoed = found.json.get("background") if isinstance(found.json, dict) else None
    return None if echoed is True else f"it was asked for, and `background` is {echoed!r} in the answer"


@capability("compact", "Compaction of a conversation")
def compact(target: Target) -> Probing:
    found = yield Request(path="/responses/compact", json={"model": target.model, "input": "Hi"})
    return _absence(found, "POST /responses/compact") or _lacking(found)


@capability("websocket", "Responses over a WebSocket")
def websocket(target: Target) -> Probing:
    create = {"type": "response.create", "model": target.model, "input": "Hi", "max_output_tokens": 16}
    found = yield Request(path="/responses", method="WEBSOCKET", json=create)
    if found.status == 101:
        return None
    if found.status in BUSY:
        return _not_found_out(found)
    return f"there is no WebSocket at /responses: {found.error or f'status {found.status}'}"


@capability("count", "Counting the tokens of an input")
def count(target: Target) -> Probing:
    found = yield Request(path="/responses/input_tokens", json={"model": target.model, "input": "Hi"})
    return _absence(found, "POST /responses/input_tokens")


@capability("key", "An API key")
def key(target: Target) -> Probing:
    """The list of models may be open where answers are not, and there may be none: then an answer is asked for."""
    if target.api_key is None:
        return "no key was given, so that nothing says whether the server wants one"
    wrong = {"authorization": WRONG_KEY}
    listed = yield Request(path="/models", method="GET", headers=wrong)
    if listed.status in (401, 403):
        return None
    body = {"model": target.model, "messages": user("Hi"), "max_tokens": 1}
    found = yield Request(path="/chat/completions", json=body, headers=wrong)
    if found.status in (401, 403):
        return None
    if found.status == 200:
        return "the server asks for no key"
    if found.status not in (0, *_UNTOLD):
        # Another status may be about the request. Where the right key gets an answer, it was about the key.
        right = yield Request(path="/chat/completions", json=body)
        if right.status == 200:
            return None
    return f"{_not_found_out(found)}, to a wrong key"


@capability("structured", "The extension `structured_outputs`")
def structured(target: Target) -> Probing:
    """A server that does not know the field may ignore it; one that knows it refuses what is no regular expression.

    One that fails at it knows the field as well, if it does not fail at an expression that is one.
    """
    wrong: dict[str, object] = {"regex": 5}
    body = {"model": target.model, "messages": user("Hi"), "max_tokens": 1, "structured_outputs": wrong}
    found = yield Request(path="/chat/completions", json=body)
    if found.status == 200:
        return "the server ignores `structured_outputs`"
    if found.status >= 500 and found.status not in _UNTOLD:
        right = yield Request(path="/chat/completions", json={**body, "structured_outputs": {"regex": "a"}})
        return None if right.status == 200 else _not_found_out(found)
    return None if found.status in (400, 422) else _not_found_out(found)


@capability("continuation", "The extension `continue_final_message`")
def continuation(target: Target) -> Probing:
    """A server that knows the field refuses to go on with a message and to begin a new one at the same time."""
    said = [*user("Hi"), {"role": "assistant", "content": "Well"}]
    both = {"continue_final_message": True, "add_generation_prompt": True}
    body = {"model": target.model, "messages": said, "max_tokens": 1, **both}
    found = yield Request(path="/chat/completions", json=body)
    if found.status == 200:
        return "the server ignores `continue_final_message`"
    return None if found.status in (400, 422) else _not_found_out(found)


@capability("stored-chat", "Chat completions that are kept")
def stored_chat(target: Target) -> Probing:
    found = yield Request(path="/chat/completions?limit=1", method="GET")
    if (lack := _absence(found, "GET /chat/completions") or _lacking(found)) is not None:
        return lack
    if found.status != 200:
        return _not_found_out(found)
    listed = isinstance(found.json, dict) and isinstance(found.json.get("data"), list)
    return None if listed else "GET /chat/completions gives no list"


@capability("conversations", "Conversations that responses are part of")
def conversations(target: Target) -> Probing:
    """The conversation is deleted, so that a probe leaves nothing behind."""
    found = yield Request(path="/conversations", json={})
    if (lack := _absence(found, "POST /conversations") or _lacking(found)) is not None:
        return lack
    name = found.json.get("id") if isinstance(found.json, dict) else None
    if found.status != 200 or not isinstance(name, str):
        return _not_found_out(found)
    if name.isascii() and name.replace("_", "").isalnum():
        yield Request(path=f"/conversations/{name}", method="DELETE")
    return None
