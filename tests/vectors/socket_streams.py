"""Make the vectors of WebSockets: frames of a turn with what they add up to, and broken ones with their rules."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Iterator
from typing import Any

__all__ = ["cases"]

Event = dict[str, Any]
Frame = dict[str, Any]
_REQUEST = {"type": "response.create", "model": "m", "input": "Hi", "store": False}
_PIECES = ["Grü", "ße 東", "京 🎉"]
_ERROR = {
    "type": "error",
    "status": 400,
    "error": {"code": "unknown_event", "message": "There is no such event.", "type": "invalid_request_error"},
}


def _frame(opcode: str, payload: bytes = b"", *, fin: bool = True) -> Frame:
    """Return a frame; a payload that is not UTF-8, such as half of a character, is in hexadecimal."""
    try:
        return {"opcode": opcode, "fin": fin, "text": payload.decode()}
    except UnicodeDecodeError:
        return {"opcode": opcode, "fin": fin, "hex": payload.hex()}


def _json(event: Event) -> bytes:
    return json.dumps(event, ensure_ascii=False).encode()


def _messages(events: list[Event]) -> list[Frame]:
    return [_frame("text", _json(event)) for event in events]


def _fragments(message: bytes, size: int, between: tuple[Frame, ...] = ()) -> list[Frame]:
    """Return a message in fragments of so many bytes, with control frames between them."""
    parts = [message[start : start + size] for start in range(0, len(message), size)]
    found: list[Frame] = []
    for number, part in enumerate(parts):
        found.append(_frame("continuation" if number else "text", part, fin=number == len(parts) - 1))
        if number < len(parts) - 1:
            found += between
    return found


def cases(response: Callable[[list[str]], list[Event]]) -> Iterator[dict[str, Any]]:
    """Yield the cases.

    Args:
        response: returns the events of a response whose text comes in these pieces.
    """
    yield from _folds(response(_PIECES), {"content": "".join(_PIECES), "status": "completed"})
    yield from _faults(response(["It", " is 4."]))


def _folds(events: list[Event], folded: dict[str, Any]) -> Iterator[dict[str, Any]]:
    def right(title: str, frames: list[Frame], expected: dict[str, Any] = folded) -> dict[str, Any]:
        return {"title": title, "request": _REQUEST, "frames": frames, "folded": expected}

    whole = _messages(events)
    ping, pong = _frame("ping", b"1"), _frame("pong")
    yield right("a frame for each event", whole)
    yield right("fragments", [frame for event in events for frame in _fragments(_json(event), 40)])
    # One message is enough: with a fragment for each byte of all, the file would be long.
    at = next(number for number, event in enumerate(events) if event.get("delta") == _PIECES[2])
    bytewise = _fragments(_json(events[at]), 1)
    yield right("a fragment for each byte of an event", [*whole[:at], *bytewise, *whole[at + 1 :]])
    empty = _frame("continuation", fin=False)
    spaced = _fragments(_json(events[at]), 40, (empty,))
    yield right("empty fragments", [*whole[:at], *spaced, *whole[at + 1 :]])
    controlled = _fragments(_json(events[at]), 40, (ping, pong))
    yield right("pings and pongs between fragments", [*whole[:at], *controlled, *whole[at + 1 :]])
    yield right("pings and pongs between events", [one for frame in whole for one in (ping, frame, pong)])
    yield right("a close after the end", [*whole, _frame("close")])
    escaped = [_frame("text", json.dumps(event).encode()) for event in events]
    yield right("escaped characters", escaped)
    failed = {"content": "", "error": "unknown_event"}
    yield right("an error", _messages([_ERROR]), failed)


def _faults(events: list[Event]) -> Iterator[dict[str, Any]]:
    def wrong(title: str, frames: list[Frame], *rules: str) -> dict[str, Any]:
        return {"title": title, "request": _REQUEST, "frames": frames, "broken": sorted(set(rules))}

    def changed(place: int, **members: Any) -> list[Frame]:
        found = [{**event, **members} if number == place else event for number, event in enumerate(events)]
        return _messages(found)

    whole = _messages(events)
    yield wrong("binary messages", [{**frame, "opcode": "binary"} for frame in whole], "WS-03")
    two = _frame("text", _json(events[0]) + b"\n" + _json(events[1]))
    yield wrong("two events in a message", [two, *whole[2:]], "WS-03")
    sse = [_frame("text", b"data: " + _json(event) + b"\n\n") for event in events]
    yield wrong("server-sent events in messages", sse, "WS-03")
    half = _json(events[4])[:60]
    yield wrong("half of an event", [*whole[:4], _frame("text", half), *whole[5:]], "WS-03")
    yield wrong("a message that is a list", [_frame("text", b"[]"), *whole], "WS-03")
    yield wrong("no type", changed(4, type=None), "WS-03", "RS-21", "RS-17")
    renumbered = [{**event, "sequence_number": number} for number, event in enumerate(events[1:])]
    yield wrong("no response.created", _messages(renumbered), "RS-01", "RS-02", "WS-03")
    yield wrong("a number twice", changed(5, sequence_number=4), "RS-02", "RS-01", "WS-03")
    yield wrong(
        "no terminal event", [*whole[:-1], _frame("close")], "WS-04", "RS-01", "RS-08", "RS-13", "WS-02"
    )
    rules = ("RS-04", "RS-05", "RS-06", "RS-09", "RS-07", "RS-03")
    yield wrong("another text at the end", changed(6, text="It was 4."), *rules)
    yield wrong("another item id", changed(4, item_id="msg_2"), *rules)
    yield wrong("another output index", changed(4, output_index=1), *rules)
    other = copy.deepcopy(events)
    other[-1]["response"]["output"] = []
    yield wrong("no output at the end", _messages(other), "RS-08", "RS-14", *rules)
    for member in ("status", "error"):
        error = {key: value for key, value in _ERROR.items() if key != member}
        yield wrong(f"an error without {member}", _messages([error]), "WS-07")
    yield wrong("an error without a code", _messages([{**_ERROR, "error": {"message": "No."}}]), "WS-07")
