"""Mutants of the tools that the client runs: a shell and patches."""

from __future__ import annotations

from typing import Any

from mutants.basic import counted, drop_kind
from mutants.mutations import Event, Mutant, Mutation, body, events, status
from mutants.responses.basics import every, item
from mutants.responses.members import of_items
from plumbline_conformance.checks.laws import WHOLE

__all__ = ["CLIENT_TOOLS"]

COMMAND = "response.shell_call_command"


def _as_function(item: Any) -> None:
    """Call a function of the tool's name."""
    name = item["type"].removesuffix("_call")
    call = {key: item[key] for key in ("id", "call_id", "status")}
    item.clear()
    item.update({**call, "type": "function_call", "name": name, "arguments": "{}"})


def _whole_function() -> Mutation:
    return body(lambda answer: _as_function(answer["output"][0]), WHOLE)


def _no_commands(item: Any) -> None:
    item["action"]["commands"] = []


def _no_path(item: Any) -> None:
    item["operation"]["path"] = ""


def _late(found: list[Event]) -> list[Event]:
    """End the first command after the second has begun."""
    end = next(place for place, (name, _) in enumerate(found) if name == f"{COMMAND}.done")
    moved = [*found[:end], found[end + 1], found[end], *found[end + 2 :]]
    for number, (_, event) in enumerate(moved[:-1]):
        event["sequence_number"] = number
    return moved


ONE_CALL = ("tool-shell", "tool-local-shell", "tool-patch", "tool-search")
Row = tuple[str, str, Mutation, str]
_BOTH: list[Row] = [
    (slug, name, mutation, tripped)
    for slug in ONE_CALL
    for name, mutation, tripped in (
        ("a function call", _whole_function(), "called call-id"),
        (
            "a streamed function call",
            of_items(_as_function),
            f"stream-called call-id{' commands' * (slug == 'tool-shell')}",
        ),
        ("a call_id of 65 characters", item(0, "call_id", "x" * 65), "call-id"),
        (
            "a streamed call_id of 65 characters",
            of_items(lambda one: one.update(call_id="x" * 65)),
            "call-id",
        ),
        (
            "one id for the item and the call",
            body(lambda answer: answer["output"][0].update(call_id=answer["output"][0]["id"]), WHOLE),
            "call-id",
        ),
    )
]
_ROWS: list[Row] = [
    *_BOTH,
    ("tool-shell", "no commands", item(0, "action", "commands", []), "called"),
    ("tool-shell", "no streamed commands", of_items(_no_commands), "stream-called commands"),
    ("tool-shell", "commands that do not end", events(drop_kind(f"{COMMAND}.done")), "commands"),
    ("tool-shell", "commands that do not begin", events(drop_kind(f"{COMMAND}.added")), "commands"),
    ("tool-shell", "the end of a command late", events(_late), "commands"),
    (
        "tool-shell",
        "another command at its end",
        every(f"{COMMAND}.done", lambda event: event.update(command="rm")),
        "commands",
    ),
    ("tool-patch", "no path", item(0, "operation", "path", ""), "called"),
    ("tool-patch", "no streamed path", of_items(_no_path), "stream-called"),
    ("tool-local-shell", "no command", item(0, "action", "command", []), "called"),
    (
        "tool-local-shell",
        "no streamed command",
        of_items(lambda one: one["action"].update(command=[])),
        "stream-called",
    ),
    ("tool-search", "a search by the server", item(0, "execution", "server"), "called"),
    ("tool-search", "a search for nothing", item(0, "arguments", {}), "called"),
    (
        "tool-search",
        "a streamed search by the server",
        of_items(lambda one: one.update(execution="server")),
        "stream-called",
    ),
    (
        "tool-search-loaded",
        "a call of the search",
        body(lambda answer: answer["output"][0].update(name="tool_search")),
        "called",
    ),
    *(
        row
        for slug in (f"{one}-round" for one in ONE_CALL)
        for row in (
            (slug, "its own call refused", status(400, "output"), "answered"),
            (slug, "outputs for nothing", body(counted("input_tokens", 1), "longer_output"), "read"),
        )
    ),
]
CLIENT_TOOLS: list[Mutant] = [
    (f"responses/{slug}", name, mutation, tuple(tripped.split())) for slug, name, mutation, tripped in _ROWS
]
