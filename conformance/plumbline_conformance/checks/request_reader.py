"""Derive the expected answer from a request, because laws apply to requests of any client."""

from __future__ import annotations

from typing import Any

from plumbline_conformance.suite.scenario import NotRequested
from plumbline_conformance.transcript.exchange import Exchange

__all__ = [
    "OPERATIONS",
    "allowed_tools",
    "features",
    "greedy",
    "request_fields",
    "requested_choices",
    "requested_limit",
    "requested_schema",
    "requested_stops",
    "requested_structure",
    "requested_tools",
    "requested_top_logprobs",
]

_PATHS = {
    "/chat/completions": "chat",
    "/completions": "completions",
    "/responses": "responses",
    "/responses/input_tokens": "count",
    "/responses/compact": "compaction",
    "/models": "models",
    "/messages": "messages",
    "/messages/count_tokens": "message count",
}


OPERATIONS = frozenset(_PATHS.values())
"""The operations of the API."""


def request_fields(exchange: Exchange) -> dict[str, Any]:
    """Return the JSON object of the request; empty if the request has no object."""
    body = exchange.request_json
    return body if isinstance(body, dict) else {}


def features(method: str, url: str, body: Any) -> frozenset[str]:
    """Return the operation of a request, and the options that change the format of the answer.

    A law of a scenario applies to an exchange that has all features of the scenario's request.
    """
    path = url.partition("?")[0].rstrip("/")
    operation = next((name for end, name in _PATHS.items() if path.endswith(end)), "other")
    if operation == "completions" and path.endswith("/chat/completions"):
        operation = "chat"
    if operation == "messages" and "/threads/" in path:
        operation = "other"  # The Assistants API.
    if method != ("GET" if operation == "models" else "POST"):
        operation = "other"
    if not isinstance(body, dict):
        return frozenset({operation, "whole" if operation == "models" else "no body"})
    return frozenset({operation, "stream" if body.get("stream") is True else "whole", *_wanted(body)})


def _wanted(body: dict[str, Any]) -> set[str]:
    found = set()
    if body.get("tools"):
        found.add("tools")
        found |= {f"choice {_choice(body.get('tool_choice'))}"} - {"choice auto"}
    flags = {
        "single": body.get("parallel_tool_calls") is False,
        "logprobs": body.get("logprobs") not in (None, False),
        "included logprobs": "message.output_text.logprobs" in _list(body.get("include")),
        "reasoning": bool(body.get("reasoning_effort") or body.get("reasoning")),
        "several": body.get("n") not in (None, 1),
        "usage": _dict(body.get("stream_options")).get("include_usage") is True,
        "echo": body.get("echo") is True,
        "stop": bool(body.get("stop")),
        "background": body.get("background") is True,
    }
    found |= {name for name, wanted in flags.items() if wanted}
    output_format = _dict(body.get("response_format")) or _dict(_dict(body.get("text")).get("format"))
    found |= {str(output_format.get("type"))} - {"None", "text"}
    return found | set(_dict(body.get("structured_outputs")))


def _choice(choice: Any) -> str:
    if isinstance(choice, dict):
        kind = choice.get("type")
        return "allowed" if kind == "allowed_tools" else f"named {kind}"
    return choice if isinstance(choice, str) else "auto"


def requested_tools(exchange: Exchange) -> dict[str, dict[str, Any]]:
    """Return the named tools of the request, of either API, by name."""
    return _by_name(request_fields(exchange).get("tools"))


def _by_name(tools: Any) -> dict[str, dict[str, Any]]:
    found = {}
    for tool in _list(tools):
        inner = _dict(_dict(tool).get(str(_dict(tool).get("type")))) or _dict(tool)
        if isinstance(inner.get("name"), str):
            found[inner["name"]] = inner
    return found


def allowed_tools(exchange: Exchange) -> set[str]:
    """Return the names of the tools that may be called: the tools of `tool_choice`, or all tools of the request."""
    choice = request_fields(exchange).get("tool_choice")
    if choice == "none":
        return set()
    if isinstance(choice, dict):
        inner = _dict(choice.get("allowed_tools")) or choice
        names = set(_by_name(inner.get("tools", [choice])))
        if names:
            return names
    return set(requested_tools(exchange))


def requested_schema(exchange: Exchange) -> dict[str, Any]:
    """Return the strict schema of the answer; not requested if it is not strict or has remote references."""
    body = request_fields(exchange)
    output_format = _dict(body.get("response_format")) or _dict(_dict(body.get("text")).get("format"))
    inner = _dict(output_format.get("json_schema")) or output_format
    schema = inner.get("schema")
    if (
        output_format.get("type") != "json_schema"
        or not isinstance(schema, dict)
        or inner.get("strict") is not True
    ):
        raise NotRequested("the request has no strict schema")
    if not _local(schema):
        raise NotRequested("the schema has remote references")
    return schema


def _local(value: Any) -> bool:
    """Return whether a schema has no remote references."""
    match value:
        case dict():
            places = [
                value[key] for key in ("$ref", "$dynamicRef", "$schema") if isinstance(value.get(key), str)
            ]
            near = all(place.startswith(("#", "https://json-schema.org/")) for place in places)
            return near and all(map(_local, value.values()))
        case list():
            return all(map(_local, value))
    return True


def requested_structure(exchange: Exchange, kind: str) -> Any:
    """Return the constraint of this kind in `structured_outputs`."""
    value = _dict(request_fields(exchange).get("structured_outputs")).get(kind)
    if value is None:
        raise NotRequested(f"the request has no {kind}")
    return value


def requested_stops(exchange: Exchange) -> list[str]:
    """Return the stop strings, if the text must not include them."""
    stop = request_fields(exchange).get("stop")
    found = [stop] if isinstance(stop, str) else [one for one in _list(stop) if isinstance(one, str)]
    if not any(found) or request_fields(exchange).get("include_stop_str_in_output"):
        raise NotRequested("the request has no stop string, or includes it in the text")
    return [one for one in found if one]


def requested_limit(exchange: Exchange) -> int:
    """Return the token limit of the answer."""
    body = request_fields(exchange)
    names = ("max_completion_tokens", "max_tokens", "max_output_tokens")
    found = {body[name] for name in names if isinstance(body.get(name), int)}
    if len(found) != 1:
        raise NotRequested("the request has no token limit, or several")
    return int(found.pop())


def requested_choices(exchange: Exchange) -> int:
    """Return the number of choices (`n`)."""
    number = request_fields(exchange).get("n")
    return number if isinstance(number, int) else 1


def requested_top_logprobs(exchange: Exchange) -> int:
    """Return the number of alternatives per token (`top_logprobs`)."""
    number = request_fields(exchange).get("top_logprobs")
    return number if isinstance(number, int) else 0


def greedy(exchange: Exchange) -> bool:
    """Return whether the temperature is 0."""
    return request_fields(exchange).get("temperature") == 0


def _dict(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []
