"""List what the contract lets a server do differently: members, events, ids, and how an answer is cut into deltas.

Each row keeps the meaning of an answer: its text, its calls, its counts and how it ends.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterator
from typing import Any

from plumbline_conformance.transcript.exchange import Exchange
from plumbline_conformance.variations.formats import Change, Variation, changed, is_stream, with_body

__all__ = ["CONTRACT"]

Json = dict[str, Any]
Event = tuple[str | None, Any]
CHAT = "/chat/completions"


def _read(exchange: Exchange) -> list[Event]:
    """Return the events of a scripted stream, whose form is known."""
    events: list[Event] = []
    for block in exchange.body.decode().split("\n\n"):
        fields = dict(line.split(": ", 1) for line in block.split("\n") if line)
        if "data" in fields:
            data = fields["data"]
            events.append((fields.get("event"), data if data == "[DONE]" else json.loads(data)))
    return events


def _write(exchange: Exchange, events: list[Event]) -> Exchange:
    frames = []
    for place, (_, value) in enumerate(events):
        if isinstance(value, dict) and "sequence_number" in value:
            value["sequence_number"] = place
    for name, value in events:
        data = value if value == "[DONE]" else json.dumps(value)
        frames.append(
            (0.0, f"event: {name}\ndata: {data}\n\n".encode() if name else f"data: {data}\n\n".encode())
        )
    return changed(exchange, frames=frames)


def _events(change: Callable[[list[Event]], list[Event]], path: str = "") -> Change:
    """Change the events of streams of an API, or of all."""

    def apply(exchange: Exchange) -> Exchange:
        if not is_stream(exchange) or (path and not exchange.path.endswith(path)):
            return exchange
        return _write(exchange, change(_read(exchange)))

    return apply


def _values(change: Callable[[Any], Any], path: str = "") -> Change:
    """Change every JSON value of an answer of an API, or of all."""

    def each(events: list[Event]) -> list[Event]:
        return [(name, value if value == "[DONE]" else change(value)) for name, value in events]

    def apply(exchange: Exchange) -> Exchange:
        if path and not exchange.path.endswith(path):
            return exchange
        if is_stream(exchange):
            return _events(each)(exchange)
        return with_body(exchange, json.dumps(change(exchange.json)).encode())

    return apply


_OF_USER = ("metadata", "input")
"""Members whose objects are the client's, or the model's: the arguments of a call."""


def _within(value: Any, change: Callable[[Json], Json]) -> Any:
    """Change every object of the API within a value, the innermost first."""
    match value:
        case dict():
            return change(
                {key: member if key in _OF_USER else _within(member, change) for key, member in value.items()}
            )
        case list():
            return [_within(member, change) for member in value]
    return value


def _everywhere(change: Callable[[Json], Json]) -> Change:
    return _values(lambda value: _within(value, change))


def _strings(names: Collection[str], change: Callable[[str], str]) -> Change:
    """Change the strings of members of these names, wherever they are, to equal ones for equal ones."""

    def each(found: Json) -> Json:
        if found.get("object") in ("model", "list"):
            return found
        old = {name: found[name] for name in names if isinstance(found.get(name), str)}
        return {**found, **{name: change(text) for name, text in old.items()}}

    return _everywhere(each)


def _nulls(found: Json) -> Json:
    """Add members that the schemas allow to be null, as null."""
    if "delta" in found and "index" in found and "type" not in found:
        delta = {
            "content": None,
            "refusal": None,
            "function_call": None,
            "tool_calls": None,
            **found["delta"],
        }
        return {**found, "delta": delta}
    if found.get("object") == "chat.completion.chunk":
        return {"usage": None, "service_tier": None, "system_fingerprint": None, **found}
    if found.get("role") == "assistant" and "refusal" in found:
        return {"function_call": None, "tool_calls": None, "annotations": None, "audio": None, **found}
    return found


def _without_nulls(found: Json) -> Json:
    """Leave out members that are null and need not be there."""
    optional = {"user", "citations"}
    if "delta" in found and "index" in found and "type" not in found:  # A choice of a chunk.
        optional |= {"logprobs"}
    return {key: value for key, value in found.items() if value is not None or key not in optional}


def _deltas(split: Callable[[str], list[str]]) -> Change:
    """Cut the texts and arguments of deltas anew."""

    def change(events: list[Event]) -> list[Event]:
        return [new for event in _joined(events) for new in _cut(event, split)]

    return _events(change)


def _text_place(value: Any) -> list[str | int] | None:
    """Return where the text of a delta is, if an event is one."""
    if not isinstance(value, dict):
        return None
    if isinstance(choices := value.get("choices"), list) and choices:
        choice = choices[0]
        if choice.get("finish_reason"):
            return None
        if "text" in choice:
            return ["choices", 0, "text"]
        delta = choice.get("delta", {})
        if delta.get("content"):
            return ["choices", 0, "delta", "content"]
        calls = delta.get("tool_calls")
        if calls and "id" not in calls[0]:
            return ["choices", 0, "delta", "tool_calls", 0, "function", "arguments"]
        return None
    if str(value.get("type", "")).endswith(".delta") and isinstance(value.get("delta"), str):
        return ["delta"]
    if value.get("type") == "content_block_delta":
        return ["delta", "partial_json" if "partial_json" in value["delta"] else "text"]
    return None


def _at(value: Any, place: list[str | int]) -> Any:
    for key in place:
        value = value[key]
    return value


def _with(value: Any, place: list[str | int], new: str) -> Any:
    copy = json.loads(json.dumps(value))
    _at(copy, place[:-1])[place[-1]] = new
    return copy


def _joined(events: list[Event]) -> Iterator[Event]:
    """Join deltas that follow each other."""
    held: Event | None = None
    for name, value in events:
        place = _text_place(value)
        if held is not None and place is not None and place == _text_place(held[1]):
            held = (name, _with(held[1], place, _at(held[1], place) + _at(value, place)))
            continue
        if held is not None:
            yield held
        held = (name, value)
    if held is not None:
        yield held


def _cut(event: Event, split: Callable[[str], list[str]]) -> Iterator[Event]:
    name, value = event
    place = _text_place(value)
    if place is None or not _at(value, place):
        yield event
        return
    for piece in split(_at(value, place)):
        yield name, _with(value, place, piece)


def _empty_deltas(events: list[Event]) -> list[Event]:
    """Put a delta without anything between others."""
    found: list[Event] = []
    for name, value in events:
        found.append((name, value))
        if isinstance(value, dict) and value.get("choices") and not value["choices"][0].get("finish_reason"):
            choice = {**value["choices"][0], "delta": {}}
            found.append((name, {**value, "choices": [choice]}))
    return found


def _thinking(events: list[Event]) -> list[Event]:
    """Think before the text, in the field that reasoning models of others have."""
    first = next((value for _, value in events if isinstance(value, dict) and value.get("choices")), None)
    if first is None:
        return events
    thoughts: list[Event] = []
    for piece in ("Let me ", "think. "):
        choice = {**first["choices"][0], "delta": {"reasoning_content": piece}}
        thoughts.append((None, {**first, "choices": [choice]}))
    return [events[0], *thoughts, *events[1:]]


def _unknown_events(events: list[Event]) -> list[Event]:
    """Put events of a type of the server's own between the others; Open Responses has a prefix for these."""
    found: list[Event] = []
    for number, (name, value) in enumerate(events):
        found.append((name, value))
        if number == 0 and name is not None:
            kind = "ping" if name == "message_start" else "vendor:progress"
            found.append((kind, {"type": kind, "sequence_number": 1, "percent": 10}))
    return found


def _last_with_finish(events: list[Event]) -> list[Event]:
    """Give the finish reason with the last delta of the text, as several servers do."""
    found = list(events)
    for place in range(len(found) - 1):
        value, following = found[place][1], found[place + 1][1]
        ends = (
            isinstance(following, dict)
            and following.get("choices")
            and following["choices"][0].get("finish_reason")
        )
        if ends and not following["choices"][0]["delta"]:
            choice = {**value["choices"][0], "finish_reason": ends}
            return [*found[:place], (None, {**value, "choices": [choice]}), *found[place + 2 :]]
    return found


def _longer(text: str) -> str:
    """Return an id of 64 characters, the most that a call may have."""
    return text.ljust(64, "x")


SCHEMA = "OpenAI's schemas"
_IDS = ("id", "call_id", "item_id")
CONTRACT: tuple[Variation, ...] = (
    Variation(SCHEMA, "unknown members", _everywhere(lambda v: {**v, "x_vendor": {"a": [1, None]}})),
    Variation(SCHEMA, "unknown events", _events(_unknown_events)),
    Variation(SCHEMA, "null members", _everywhere(_nulls)),
    Variation(SCHEMA, "absent members", _everywhere(_without_nulls)),
    Variation(SCHEMA, "a character in each delta", _deltas(list)),
    Variation(SCHEMA, "everything in one delta", _deltas(lambda text: [text])),
    Variation(SCHEMA, "empty pieces", _deltas(lambda text: ["", *text.partition(" "), ""])),
    Variation(SCHEMA, "empty deltas", _events(_empty_deltas, CHAT)),
    Variation(SCHEMA, "a finish reason with the last text", _events(_last_with_finish, CHAT)),
    Variation("DeepSeek's API", "thinking before the text", _events(_thinking, CHAT)),
    Variation(SCHEMA, "long ids", _strings(_IDS, _longer)),
    Variation(SCHEMA, "ids of other characters", _strings(_IDS, lambda text: f"functions.{text}:0/é")),
    Variation(SCHEMA, "ids of one character", _strings(_IDS, lambda text: text[0])),
    Variation(
        SCHEMA, "other names of the model", _strings(("model",), lambda text: f"org/{text}@2026-01-01")
    ),
    Variation(
        SCHEMA,
        "padding",
        _events(
            lambda events: [
                (name, {**value, "obfuscation": "x" * 17} if isinstance(value, dict) else value)
                for name, value in events
            ]
        ),
    ),
)
