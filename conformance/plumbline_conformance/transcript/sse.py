"""Parse server-sent events as the WHATWG specification requires, and keep details that break less careful clients."""

from __future__ import annotations

import json
from functools import cached_property
from typing import Any, NoReturn

import msgspec

__all__ = ["BYTE_ORDER_MARK", "Event", "load_json", "parse_blocks", "parse_events"]

BYTE_ORDER_MARK = b"\xef\xbb\xbf"


def load_json(text: str | bytes) -> Any:
    """Return the value, or None if the text is not JSON, contains NaN or is nested too deeply.

    `1.0` becomes the integer 1, as in JSON Schema.
    """
    try:
        if isinstance(text, str):  # The data of an event: `loads` would make a decoder for each one.
            return _DECODER.decode(text)
        return json.loads(text, parse_constant=_refuse, parse_float=_number)
    except (ValueError, RecursionError):
        return None


def _number(text: str) -> float:
    value = float(text)
    return int(value) if value.is_integer() and abs(value) < 2**53 else value


def _refuse(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


_DECODER = json.JSONDecoder(parse_constant=_refuse, parse_float=_number)


class Event(msgspec.Struct, kw_only=True, dict=True):
    """One block of lines up to a blank line."""

    data: str | None
    """The joined `data` lines; None if there are no such lines."""
    name: str | None = None
    fields: tuple[str, ...] = ()
    """The names of its other fields, such as `id` and `retry`."""
    comments: int = 0
    closed: bool = True
    """Whether a blank line follows; a browser drops the event otherwise."""

    @cached_property
    def json(self) -> Any:
        """Return the data as JSON, or None if it is not JSON."""
        return None if self.data is None else load_json(self.data)


def parse_events(body: bytes) -> list[Event]:
    """Return the events: blocks with data, and blocks with a name, which need data.

    A client dispatches no other block: comments, and `retry`, `id` or an empty `data` alone.
    """
    return [event for event in parse_blocks(body) if event.data or event.name is not None]


def parse_blocks(body: bytes) -> list[Event]:
    """Return all blocks with at least one field, including blocks that are not events."""
    text = body.removeprefix(BYTE_ORDER_MARK).decode("utf-8", "replace")
    lines = text.replace("\r\n", "\n").replace("\r", "\n").split("\n")
    if not lines[-1]:
        lines.pop()  # The empty string after the last line end.
    blocks: list[list[str]] = [[]]
    for line in lines:
        if line:
            blocks[-1].append(line)
        elif blocks[-1]:
            blocks.append([])
    return [event for index, block in enumerate(blocks) if (event := _event(block, index < len(blocks) - 1))]


def _event(lines: list[str], closed: bool) -> Event | None:
    data: list[str] = []
    name: str | None = None
    others: list[str] = []
    comments = 0
    for line in lines:
        field, _, value = line.partition(":")
        value = value.removeprefix(" ")
        match field:
            case "":
                comments += 1
            case "data":
                data.append(value)
            case "event":
                name = value
            case _:
                others.append(field)
    if not data and name is None and not others:
        return None
    return Event(
        data="\n".join(data) if data else None,
        name=name,
        fields=tuple(others),
        comments=comments,
        closed=closed,
    )
