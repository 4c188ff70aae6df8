"""Server-sent events, read as the WHATWG specification says, with a note of everything that clients stumble over."""

from __future__ import annotations

import json
from functools import cached_property
from typing import Any, NoReturn

import msgspec

__all__ = ["BYTE_ORDER_MARK", "Event", "load_json", "parse_events"]

BYTE_ORDER_MARK = b"\xef\xbb\xbf"


def load_json(text: str | bytes) -> Any:
    """The value, or None where this is not JSON: NaN is none, nor is what is nested too deep to be read.

    `1.0` is the integer 1, as JSON Schema has it.
    """
    try:
        if isinstance(text, str):  # An event's: `loads` would make a decoder for each.
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
    """Joined `data` lines; None if there were none."""
    name: str | None = None
    fields: tuple[str, ...] = ()
    """The names of its other fields: `id`, `retry`."""
    comments: int = 0
    closed: bool = True
    """A blank line followed. A browser would drop the event otherwise."""

    @cached_property
    def json(self) -> Any:
        """The data as JSON, or None if it is none."""
        return None if self.data is None else load_json(self.data)


def parse_events(body: bytes) -> list[Event]:
    """All blocks that have at least one field. Blocks of comments alone are keep-alives and are left out."""
    text = body.removeprefix(BYTE_ORDER_MARK).decode("utf-8", "replace")
    lines = text.replace("\r\n", "\n").replace("\r", "\n").split("\n")
    if not lines[-1]:
        lines.pop()  # What comes after the last line end is no line.
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
