"""What a request asks for, read off the request: laws hold of any answer, so they cannot know it beforehand."""

from __future__ import annotations

from typing import Any

from plumbline_conformance.suite.model import NotRequested
from plumbline_conformance.transcript.model import Exchange

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
}


OPERATIONS = frozenset(_PATHS.values())
"""What a request can be for."""


def request_fields(exchange: Exchange) -> dict[str, Any]:
    """The body of the request, if it is an object."""
    body = exchange.request_json
    return body if isinstance(body, dict) else {}


def features(method: str, url: str, body: Any) -> frozenset[str]:
    """The operation, and what changes how an answer is written.

    A law of a scenario holds of an exchange that has all features of the scenario's own request.
    """
    path = url.partition("?")[0].rstrip("/")
    operation = next((name for end, name in _PATHS.items() if path.endswith(end)), "other")
    if operation == "completions" and path.endswith("/chat/completions"):
        operation = "chat"
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
    form = _dict(body.get("response_format")) or _dict(_dict(body.get("text")).get("format"))
    found |= {str(form.get("type"))} - {"None", "text"}
    return found | set(_dict(body.get("structured_outputs")))


def _choice(choice: Any) -> str:
    if isinstance(choice, dict):
        kind = choice.get("type")
        return "allowed" if kind == "allowed_tools" else f"named {kind}"
    return choice if isinstance(choice, str) else "auto"


def requested_tools(exchange: Exchange) -> dict[str, dict[str, Any]]:
    """The tools of the request that have names, in either API's form."""
    return _by_name(request_fields(exchange).get("tools"))


def _by_name(tools: Any) -> dict[str, dict[str, Any]]:
    found = {}
    for tool in _list(tools):
        held = _dict(_dict(tool).get(str(_dict(tool).get("type")))) or _dict(tool)
        if isinstance(held.get("name"), str):
            found[held["name"]] = held
    return found


def allowed_tools(exchange: Exchange) -> set[str]:
    """The names that may be called: those of the choice, if it names any, and else all of the request's."""
    choice = request_fields(exchange).get("tool_choice")
    if choice == "none":
        return set()
    if isinstance(choice, dict):
        held = _dict(choice.get("allowed_tools")) or choice
        names = set(_by_name(held.get("tools", [choice])))
        if names:
            return names
    return set(requested_tools(exchange))


def requested_schema(exchange: Exchange) -> dict[str, Any]:
    """The strict schema of the answer. One that is not strict, or lies elsewhere, is not held against anybody."""
    body = request_fields(exchange)
    form = _dict(body.get("response_format")) or _dict(_dict(body.get("text")).get("format"))
    held = _dict(form.get("json_schema")) or form
    schema = held.get("schema")
    if form.get("type") != "json_schema" or not isinstance(schema, dict) or held.get("strict") is not True:
        raise NotRequested("no strict schema was asked for")
    if not _local(schema):
        raise NotRequested("a part of the schema lies elsewhere")
    return schema


def _local(value: Any) -> bool:
    """Whether nothing has to be fetched to read a schema."""
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
    """What `structured_outputs` holds the answer to."""
    value = _dict(request_fields(exchange).get("structured_outputs")).get(kind)
    if value is None:
        raise NotRequested(f"no {kind} was asked for")
    return value


def requested_stops(exchange: Exchange) -> list[str]:
    """The stop strings, if they are to be left out of the text."""
    stop = request_fields(exchange).get("stop")
    found = [stop] if isinstance(stop, str) else [one for one in _list(stop) if isinstance(one, str)]
    if not any(found) or request_fields(exchange).get("include_stop_str_in_output"):
        raise NotRequested("there is no stop string to be left out")
    return [one for one in found if one]


def requested_limit(exchange: Exchange) -> int:
    """The token limit of the answer."""
    body = request_fields(exchange)
    names = ("max_completion_tokens", "max_tokens", "max_output_tokens")
    found = {body[name] for name in names if isinstance(body.get(name), int)}
    if len(found) != 1:
        raise NotRequested("there is no limit, or more than one")
    return int(found.pop())


def requested_choices(exchange: Exchange) -> int:
    """How many choices."""
    number = request_fields(exchange).get("n")
    return number if isinstance(number, int) else 1


def requested_top_logprobs(exchange: Exchange) -> int:
    """How many alternatives of each token."""
    number = request_fields(exchange).get("top_logprobs")
    return number if isinstance(number, int) else 0


def greedy(exchange: Exchange) -> bool:
    """Whether the best token is to be drawn each time."""
    return request_fields(exchange).get("temperature") == 0


def _dict(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []
