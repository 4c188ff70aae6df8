"""Probe for optional features of a server, once, before the scenarios that need them.

A probe returns None if the feature exists, and otherwise the reason why its scenarios are skipped.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

from plumbline_conformance.checks import tools as samples
from plumbline_conformance.checks.common import error_of, refusal
from plumbline_conformance.checks.sample_requests import user
from plumbline_conformance.suite.scenario import UNKNOWN, WRONG_KEY, Request, Target, capability
from plumbline_conformance.suite.wording import as_json
from plumbline_conformance.transcript.answer_fold import REASONING_KEYS
from plumbline_conformance.transcript.exchange import UNABLE, Exchange

__all__ = ["user"]

Probing = Generator[Request, Exchange, str | None]


_TRIES = 3
"""After this many answers without a thought, the model counts as one that does not show its thinking."""
_NO_ROUTE = (404, 405, 501)
_REFUSED = (400, 404, 405, 422, 501)
_TEMPORARY = UNABLE | {401, 403, 407, 409, 425}
"""Statuses that depend on the moment or the client, so that they do not show whether a feature exists."""


def _no_information(exchange: Exchange) -> str | None:
    """Return why an answer does not show whether a feature exists; None if it does.

    A status 500 counts as existing: the scenarios then report the failure instead of being skipped.
    """
    return _unknown(exchange) if exchange.status in (0, *_TEMPORARY) else None


def _unknown(exchange: Exchange) -> str:
    return f"{UNKNOWN}: {exchange.error or f'status {exchange.status}'}"


def _no_operation(exchange: Exchange, operation: str) -> str | None:
    """Return why the operation does not exist, or not for this model; None if it gave any other answer."""
    if (unknown := _no_information(exchange)) is not None:
        return unknown
    if exchange.status not in _NO_ROUTE:
        return None
    if (error_of(exchange) or {}).get("code") == "model_not_found":
        return f"{operation} does not know the model: status {exchange.status}"
    return f"there is no {operation}: status {exchange.status}"


def _missing(exchange: Exchange) -> str | None:
    """Return why a feature is missing; None if the request was not refused."""
    if (unknown := _no_information(exchange)) is not None:
        return unknown
    if exchange.status not in _REFUSED:
        return None
    return f"refused with status {exchange.status}: {refusal(exchange)[:150]}"


@capability("responses", "The Responses API")
def responses(target: Target) -> Probing:
    body = {"model": target.model, "input": "Hi", "max_output_tokens": 16}
    return _no_operation((yield Request(path="/responses", json=body)), "POST /responses")


@capability("completions", "Legacy completions")
def completions(target: Target) -> Probing:
    body = {"model": target.model, "prompt": "Hi", "max_tokens": 1}
    return _no_operation((yield Request(path="/completions", json=body)), "POST /completions")


@capability("messages", "Messages")
def messages(target: Target) -> Probing:
    body = {"model": target.model, "messages": user("Hi"), "max_tokens": 1}
    return _no_operation((yield Request(path="/messages", json=body)), "POST /messages")


@capability("tools", "Tools on chat completions")
def tools(target: Target) -> Probing:
    tool = {"type": "function", "function": {"name": "ping", "parameters": {"type": "object"}}}
    body = {"model": target.model, "messages": user("Hi"), "max_tokens": 4, "tools": [tool]}
    return _missing((yield Request(path="/chat/completions", json=body)))


@capability("reasoning", "Visible reasoning")
def reasoning(target: Target) -> Probing:
    """Ask more than once: a model is free to answer without a thought."""
    asked = user("What is 17 times 3?")
    body = {"model": target.model, "messages": asked, "max_tokens": 256, "reasoning_effort": "low"}
    for number in range(1, _TRIES + 1):
        found = yield Request(name=f"try/{number}", path="/chat/completions", json=body)
        if (reason := _missing(found)) is not None or found.status >= 500:
            return reason
        if found.error is not None:
            return _unknown(found)
        if _shows_reasoning(found):
            return None
    return "the model shows no reasoning at effort low"


def _shows_reasoning(found: Exchange) -> bool:
    try:
        message = found.json["choices"][0]["message"]
        return any(message.get(key) for key in REASONING_KEYS)
    except (LookupError, TypeError, AttributeError):
        # The server accepted the request; other checks report faults of the answer.
        return True


@capability("stored", "Stored responses")
def stored(target: Target) -> Probing:
    body = {"model": target.model, "input": "Hi", "max_output_tokens": 16, "store": True}
    found = yield Request(name="created", path="/responses", json=body)
    if (reason := _missing(found)) is not None:
        return reason
    if isinstance(found.json, dict) and found.json.get("store") is False:
        return "the server stores nothing: `store` is false in its answer"
    name = found.json.get("id") if isinstance(found.json, dict) else None
    if not (isinstance(name, str) and name.isascii() and name.replace("_", "").isalnum()):
        return None
    kept = yield Request(name="get", path=f"/responses/{name}", method="GET")
    if kept.status not in _NO_ROUTE:
        return None
    # A route that does not exist answers like any other unknown path.
    strange = yield Request(name="no_such_path", path=f"/no-such-path/{name}", method="GET")
    if kept.status != 404 or (strange.status, strange.body) == (kept.status, kept.body):
        return f"there is no GET /responses/{{id}}: status {kept.status}"
    return None


@capability("background", "Responses that run in the background")
def background(target: Target) -> Probing:
    body = {"model": target.model, "input": "Hi", "max_output_tokens": 16, "store": True, "background": True}
    found = yield Request(path="/responses", json=body)
    if (reason := _missing(found)) is not None:
        return reason
    if found.status >= 500 or found.error is not None:
        return _unknown(found)
    echoed = found.json.get("background") if isinstance(found.json, dict) else None
    return None if echoed is True else f"the request has `background: true`, and the answer {as_json(echoed)}"


@capability("compact", "Compaction of a conversation")
def compact(target: Target) -> Probing:
    found = yield Request(path="/responses/compact", json={"model": target.model, "input": "Hi"})
    return _no_operation(found, "POST /responses/compact") or _missing(found)


@capability("websocket", "Responses over a WebSocket")
def websocket(target: Target) -> Probing:
    create = {"type": "response.create", "model": target.model, "input": "Hi", "max_output_tokens": 16}
    found = yield Request(path="/responses", method="WEBSOCKET", json=create)
    if found.status == 101:
        return None
    if found.status in UNABLE:
        return _unknown(found)
    return f"there is no WebSocket at /responses: {found.error or f'status {found.status}'}"


@capability("count", "Counting the tokens of an input")
def count(target: Target) -> Probing:
    found = yield Request(path="/responses/input_tokens", json={"model": target.model, "input": "Hi"})
    return _no_operation(found, "POST /responses/input_tokens")


@capability("key", "An API key")
def key(target: Target) -> Probing:
    """Try a wrong key with the list of models, which may be public or missing, and then with an answer."""
    if target.api_key is None:
        return "no key was given, so it is unknown whether the server requires one"
    wrong = {"authorization": WRONG_KEY}
    listed = yield Request(name="models", path="/models", method="GET", headers=wrong)
    if listed.status in (401, 403):
        return None
    body = {"model": target.model, "messages": user("Hi"), "max_tokens": 1}
    found = yield Request(name="wrong_key", path="/chat/completions", json=body, headers=wrong)
    if found.status in (401, 403):
        return None
    if found.status == 200:
        return "the server requires no key"
    if found.status not in (0, *_TEMPORARY):
        # Another status may be about the request. If the right key gets an answer, the status was about the key.
        right = yield Request(name="right_key", path="/chat/completions", json=body)
        if right.status == 200:
            return None
    return f"{_unknown(found)}, with a wrong key"


@capability("structured", "The extension `structured_outputs`")
def structured(target: Target) -> Probing:
    """Send an invalid regular expression, which only a server that knows the field refuses.

    A server that fails with 5xx knows the field as well, if it does not fail with a valid expression.
    """
    wrong: dict[str, object] = {"regex": 5}
    body = {"model": target.model, "messages": user("Hi"), "max_tokens": 1, "structured_outputs": wrong}
    found = yield Request(name="invalid_regex", path="/chat/completions", json=body)
    if found.status == 200:
        return "the server ignores `structured_outputs`"
    if found.status >= 500 and found.status not in _TEMPORARY:
        valid = {**body, "structured_outputs": {"regex": "a"}}
        right = yield Request(name="valid_regex", path="/chat/completions", json=valid)
        return None if right.status == 200 else _unknown(found)
    return None if found.status in (400, 422) else _unknown(found)


@capability("continuation", "The extension `continue_final_message`")
def continuation(target: Target) -> Probing:
    """Request to continue a message and to begin a new one, which only a server that knows the fields refuses."""
    messages = [*user("Hi"), {"role": "assistant", "content": "Well"}]
    both = {"continue_final_message": True, "add_generation_prompt": True}
    body = {"model": target.model, "messages": messages, "max_tokens": 1, **both}
    found = yield Request(path="/chat/completions", json=body)
    if found.status == 200:
        return "the server ignores `continue_final_message`"
    return None if found.status in (400, 422) else _unknown(found)


@capability("stored-chat", "Stored chat completions")
def stored_chat(target: Target) -> Probing:
    found = yield Request(path="/chat/completions?limit=1", method="GET")
    if (reason := _no_operation(found, "GET /chat/completions") or _missing(found)) is not None:
        return reason
    if found.status != 200:
        return _unknown(found)
    listed = isinstance(found.json, dict) and isinstance(found.json.get("data"), list)
    return None if listed else "GET /chat/completions returns no list"


def _client_tool(target: Target, *tools: dict[str, Any], choice: object = "required") -> Probing:
    """Force a call of a tool that the client runs.

    A server that takes it for a hosted tool refuses the choice, or accepts the request and makes no call.

    Args:
        target: the server.
        tools: the tool, and others that belong to it.
        choice: what forces the call; some tools have no choice of their own.
    """
    kind = tools[0]["type"]
    body = {"model": target.model, "input": f"Use {kind}.", "tools": tools, "tool_choice": choice}
    found = yield Request(path="/responses", json={**body, "max_output_tokens": 128, "temperature": 0})
    if (reason := _missing(found)) is not None or found.status >= 500:
        return reason
    output = found.json.get("output") if isinstance(found.json, dict) else None
    if not isinstance(output, list) or found.json.get("status") == "incomplete":
        # The token limit may have cut the call, and other checks report a wrong answer.
        return None
    called = any(isinstance(item, dict) and item.get("type") == f"{kind}_call" for item in output)
    return None if called else f"the request forces a call of {kind}, and the answer has none"


@capability("shell", "A shell that the client runs")
def shell(target: Target) -> Probing:
    return (yield from _client_tool(target, samples.SHELL, choice={"type": "shell"}))


@capability("local-shell", "Single commands that the client runs")
def local_shell(target: Target) -> Probing:
    return (yield from _client_tool(target, samples.LOCAL_SHELL))


@capability("tool-search", "A search for tools that the client runs")
def tool_search(target: Target) -> Probing:
    return (yield from _client_tool(target, samples.SEARCH, samples.DEFERRED))


@capability("mcp", "Tools of MCP servers that the server calls")
def mcp(target: Target) -> Probing:
    """Ask for a list of the tools of the judge's MCP server."""
    if target.mcp is None:
        return "no address was given for an MCP server that the server may call (--mcp HOST:PORT)"
    tool = samples.mcp(target, "get_time")
    body = {"model": target.model, "input": "Hi", "tools": [tool], "max_output_tokens": 16, "store": False}
    found = yield Request(path="/responses", json=body)
    if (reason := _missing(found)) is not None or found.status >= 500:
        return reason
    output = found.json.get("output") if isinstance(found.json, dict) else None
    kinds = (
        [item.get("type") for item in output if isinstance(item, dict)] if isinstance(output, list) else []
    )
    return (
        None if "mcp_list_tools" in kinds else "the request has an MCP server, and the answer lists no tools"
    )


@capability("apply-patch", "Patches that the client applies")
def apply_patch(target: Target) -> Probing:
    return (yield from _client_tool(target, samples.PATCH, choice={"type": "apply_patch"}))


@capability("conversations", "Conversations")
def conversations(target: Target) -> Probing:
    """Create a conversation, and delete it again."""
    found = yield Request(name="created", path="/conversations", json={})
    if (reason := _no_operation(found, "POST /conversations") or _missing(found)) is not None:
        return reason
    name = found.json.get("id") if isinstance(found.json, dict) else None
    if found.status != 200 or not isinstance(name, str):
        return _unknown(found)
    if name.isascii() and name.replace("_", "").isalnum():
        yield Request(name="deleted", path=f"/conversations/{name}", method="DELETE")
    return None
