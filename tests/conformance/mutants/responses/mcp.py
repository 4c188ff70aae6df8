"""Mutants of the tools of MCP servers that the server calls."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from mutants.basic import put
from mutants.mutations import Event, Mutant, Mutation, body, body_bytes, chunk, events
from mutants.responses.clauses import renumbered, without_kind
from mutants.responses.members import of_item
from plumbline_conformance.checks import tools
from plumbline_conformance.checks.laws import STREAM, WHOLE
from plumbline_conformance.transcript.exchange import Transcript

__all__ = ["MCP"]

Change = Callable[[Any], object]
LIST, CALL, MESSAGE = 0, 1, 2
"""The places of the items in the answers."""
ALL = [
    {"name": tool["name"], "description": tool["description"], "input_schema": tool["inputSchema"]}
    for tool in tools.MCP_TOOLS
]


def item(place: int, change: Change, request: str = WHOLE) -> Mutation:
    """Change an item of a non-streaming answer."""
    return body(lambda answer: change(answer["output"][place]), request)


def items(change: Callable[[list[Any]], object], request: str) -> Mutation:
    """Change the list of items of a non-streaming answer."""
    return body(lambda answer: change(answer["output"]), request)


def deltas(change: Callable[[list[Any]], object]) -> Mutation:
    """Change the events of arguments."""

    def mutate(found: list[Event]) -> list[Event]:
        change([event for name, event in found if name and "mcp_call_arguments" in name])
        return found

    return events(mutate, STREAM)


def swapped(found: list[Event]) -> list[Event]:
    """Let the list end before it begins."""
    names = [name for name, _ in found]
    begin, end = (names.index(f"response.mcp_list_tools.{verb}") for verb in ("in_progress", "completed"))
    found[begin], found[end] = found[end], found[begin]
    return found


def completes(found: list[Event]) -> list[Event]:
    """Give a failed call the event of one that did not fail."""
    name = "response.mcp_call.completed"
    return [
        (name, {**event, "type": name}) if old == "response.mcp_call.failed" else (old, event)
        for old, event in found
    ]


def unasked(output: list[Any]) -> None:
    """Make the call that needs approval."""
    asked = output.pop()
    made = {
        **asked,
        "type": "mcp_call",
        "output": "It is noon in Paris.",
        "error": None,
        "status": "completed",
    }
    output += [asked, {**made, "id": "mcp_unasked"}]


def declined(seen: Transcript) -> Transcript:
    """Make the call that the client declined."""
    asked = seen.exchanges[0].json["output"][-1]
    made = {**asked, "type": "mcp_call", "id": "mcp_declined", "approval_request_id": asked["id"]}
    made |= {"output": "It is noon in Paris.", "error": None, "status": "completed"}
    return items(lambda output: output.insert(0, made), "declined")(seen)


def leaked(content: bytes) -> bytes:
    """Echo the credentials."""
    label = json.dumps({"server_label": tools.MCP_LABEL})[1:-1].encode()
    return content.replace(
        b'"type": "mcp", ' + label,
        b'"type": "mcp", ' + label + b', "authorization": "' + tools.MCP_SECRET.encode() + b'"',
    )


def again(output: list[Any]) -> None:
    output.insert(
        0, {"type": "mcp_list_tools", "id": "mcpl_again", "server_label": tools.MCP_LABEL, "tools": []}
    )


def twice(output: list[Any]) -> None:
    output.insert(2, {**output[1], "id": "mcp_twice"})


ANOTHER = put("output", "It is midnight.")
SUCCEEDED = put("output", "It worked.")
Row = tuple[str, str, Mutation, str]
_ROWS: list[Row] = [
    ("mcp", "no list", items(lambda output: output.pop(LIST), WHOLE), "listed"),
    ("mcp", "all tools listed", item(LIST, put("tools", ALL)), "listed"),
    ("mcp", "another label", item(LIST, put("server_label", "other")), "listed"),
    (
        "mcp",
        "all tools listed in the stream",
        of_item(LIST, put("tools", ALL)),
        "stream-listed",
    ),
    ("mcp", "another output", item(CALL, ANOTHER), "called"),
    ("mcp", "another output in the stream", of_item(CALL, ANOTHER), "stream-called"),
    ("mcp", "a call that still runs", item(CALL, put("status", "calling")), "called"),
    ("mcp", "no answer after the call", items(lambda output: output.pop(), WHOLE), "answered"),
    ("mcp", "no end of the call", without_kind("response.mcp_call.completed"), "events"),
    ("mcp", "the list ends before it begins", renumbered(swapped), "events"),
    ("mcp", "a delta left out", deltas(lambda found: found[0].update(delta="")), "arguments"),
    (
        "mcp",
        "other arguments at the end",
        deltas(lambda found: found[-1].update(arguments="{}")),
        "arguments",
    ),
    ("mcp", "the authorization", body_bytes(leaked, WHOLE), "credentials"),
    ("mcp", "the authorization in the stream", body_bytes(leaked, STREAM), "credentials"),
    ("mcp-approval", "a call without approval", items(unasked, "asked"), "asked"),
    ("mcp-approval", "another tool asked for", item(1, put("name", "fail"), "asked"), "asked"),
    ("mcp-approval", "no call", items(lambda output: output.pop(0), "approved"), "approved"),
    ("mcp-approval", "the declined call", declined, "declined"),
    ("mcp-approval", "listed again", items(again, "approved"), "listed-once"),
    ("mcp-failure", "an output for a failure", item(CALL, SUCCEEDED), "item"),
    ("mcp-failure", "an output for a streamed failure", of_item(CALL, SUCCEEDED), "item"),
    ("mcp-failure", "a failed response", body(put("status", "failed"), WHOLE), "item sound"),
    ("mcp-failure", "a failed call that completes", events(completes, STREAM), "events"),
    ("mcp-failure", "no error of the list", item(LIST, put("error", None), "lost"), "lost"),
    ("mcp-failure", "no answer without the tools", items(lambda output: output.pop(), "lost"), "lost"),
    (
        "mcp-failure",
        "no streamed answer without the tools",
        chunk(-1, lambda event: event["response"]["output"].pop(), "lost_stream"),
        "lost sound",
    ),
    ("mcp-limit", "two calls", items(twice, WHOLE), "counted"),
    ("mcp-limit", "no echo of the limit", body(put("max_tool_calls", None), WHOLE), "state"),
    (
        "mcp-limit",
        "two streamed calls",
        chunk(-1, lambda event: twice(event["response"]["output"]), STREAM),
        "counted sums",
    ),
]
MCP: list[Mutant] = [
    (f"responses/{slug}", name, mutation, tuple(tripped.split())) for slug, name, mutation, tripped in _ROWS
]
