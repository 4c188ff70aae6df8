"""List the conversations that every template renders: turns with calls, text and thinking, and results of calls."""

from __future__ import annotations

import json
from typing import Any

import msgspec

from plumbline.answer.turn import Message, Tool, ToolCall

__all__ = ["PROBES", "QUESTION", "RESULTS", "TOOLS", "Probe", "ResultProbe", "called"]

QUESTION = "Could you book the quiet room?"

_BOOK: dict[str, Any] = {
    "type": "object",
    "properties": {
        "note": {"type": "string", "description": "What to tell the host."},
        "guests": {"type": "integer", "description": "How many."},
        "hours": {"type": "number", "description": "How long."},
        "quiet": {"type": "boolean", "description": "Whether to be quiet."},
        "catered": {"type": "boolean", "description": "Whether there is food."},
        "names": {"type": "array", "items": {"type": "string"}, "description": "Who comes."},
        "seats": {"type": "array", "items": {"type": "integer"}, "description": "Where they sit."},
    },
    "required": [],
}
_CANCEL: dict[str, Any] = {
    "type": "object",
    "properties": {"reason": {"type": "string", "description": "Why."}},
    "required": [],
}
_FIND: dict[str, Any] = {
    "type": "object",
    "properties": {
        "place": {
            "type": "object",
            "description": "What is known of it.",
            "properties": {
                "city": {"type": "string"},
                "at": {
                    "type": "object",
                    "properties": {"lat": {"type": "number"}, "exact": {"type": "boolean"}},
                },
                "doors": {
                    "type": "array",
                    "items": {"type": "object", "properties": {"id": {"type": "integer"}}},
                },
            },
        },
    },
    "required": [],
}
_PICK: dict[str, Any] = {
    "type": "object",
    "properties": {"floor": {"type": ["integer", "null"], "description": "Which one; null for any."}},
    "required": [],
}

# Some templates require a description of everything.
TOOLS = (
    Tool(name="book_room", description="Books a room.", parameters=_BOOK),
    Tool(name="cancel_room", description="Gives a room back.", parameters=_CANCEL),
)
"""The tools of every conversation that has some."""
# Some templates cannot show nested objects or a list of types, so that no other conversation has one of these.
_FIND_PLACE = Tool(name="find_place", description="Finds a place.", parameters=_FIND)
_PICK_FLOOR = Tool(name="pick_floor", description="Picks a floor.", parameters=_PICK)


class Probe(msgspec.Struct, frozen=True):
    """One turn of the assistant that a template renders and our parser reads back."""

    name: str
    calls: tuple[tuple[str, str], ...] = ()
    """The name and the arguments, in JSON, of each call."""
    text: str | None = None
    reasoning: str | None = None
    tools: tuple[Tool, ...] = TOOLS
    """The tools of the conversation, if the template shows tools at all."""


class ResultProbe(msgspec.Struct, frozen=True):
    """Results of calls, which have to stand in the prompt in their order."""

    name: str
    results: tuple[str, ...]
    text: str | None = None
    """An answer of the assistant behind the results."""


def _booking(**arguments: Any) -> tuple[tuple[str, str], ...]:
    return (("book_room", json.dumps(arguments, ensure_ascii=False)),)


_TWO = (*_booking(note="a", guests=2), ("cancel_room", '{"reason": "full"}'))
_PLACE = {
    "city": 'Saint-"Ouen"',
    "at": {"lat": 48.5, "exact": True},
    "doors": [{"id": 1}, {"id": 2}],
}
_THOUGHT = "The user wants silence, so I look for it."

PROBES = (
    Probe("string", _booking(note="by the window")),
    Probe("quotes", _booking(note="She said \"it's 5 o'clock\" & left <b>{x}</b> 100%")),
    Probe("backslashes", _booking(note='C:\\temp\\new \\" \\n')),
    Probe("line feeds", _booking(note="first\nsecond\n\n\tthird")),
    Probe("line feeds at both ends", _booking(note="\nmiddle\n")),
    Probe("spaces at both ends", _booking(note="  middle ")),
    Probe("empty string", _booking(note="")),
    Probe("string like a number", _booking(note="42")),
    Probe("string like a word of JSON", _booking(note="true")),
    Probe("string like JSON", _booking(note='{"a": [1, "b"]}')),
    Probe("numbers", _booking(guests=-3, hours=2.5)),
    Probe("large and small numbers", _booking(guests=12345678901234, hours=0.00025)),
    Probe("booleans", _booking(quiet=True, catered=False)),
    Probe("null", (("pick_floor", '{"floor": null}'),), tools=(*TOOLS, _PICK_FLOOR)),
    Probe("lists", _booking(names=["Ann", 'Bob "B"', "it's\nme"], seats=[1, 2, 3])),
    Probe("empty lists", _booking(names=[], note="x")),
    Probe("nested objects", (("find_place", json.dumps({"place": _PLACE})),), tools=(*TOOLS, _FIND_PLACE)),
    Probe("unicode", _booking(note="Zürich — 東京 🎉 ½", names=["Åsa"])),
    Probe("no arguments", (("book_room", "{}"),)),
    Probe("two calls", _TWO),
    Probe("call after text", _booking(note="x"), text="I book it now."),
    Probe("two calls after text", _TWO, text="I book it now."),
    Probe("call after thinking", _booking(note="x"), reasoning=_THOUGHT),
    Probe("call after thinking and text", _booking(note="x"), text="I book it now.", reasoning=_THOUGHT),
    Probe("text", text="It is booked.\n\n1 < 2, and `a` is {b}."),
    Probe("text after thinking", text="It is booked.", reasoning=_THOUGHT),
    Probe("text without tools", text="It is booked.", tools=()),
)
"""The turns. Each is the last of its conversation."""

RESULTS = (
    ResultProbe("result", ("Room 7 is yours.",)),
    ResultProbe("result in JSON", ('{"room": 7, "notes": ["a \\"b\\"", null]}',)),
    ResultProbe("two results", ("Room 7 is yours.", "Room 9 is free.")),
    ResultProbe("text after a result", ("Room 7 is yours.",), text="You have room 7."),
)


def called(probe: Probe, *, style: str) -> Message:
    """Return the turn as a message of a conversation.

    Args:
        probe: the turn.
        style: the style of the ids of calls, because some templates require one.
    """
    return Message(
        role="assistant",
        content=probe.text,
        reasoning=probe.reasoning,
        tool_calls=tuple(
            ToolCall(_call_id(style, name, number), name, arguments)
            for number, (name, arguments) in enumerate(probe.calls)
        ),
    )


def _call_id(style: str, name: str, number: int) -> str:
    return f"functions.{name}:{number}" if style == "kimi" else f"abcdefg{number:02}"
