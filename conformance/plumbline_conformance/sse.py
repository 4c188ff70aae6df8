"""Server-sent events, read as the WHATWG specification says, with a note of everything that clients stumble over."""

from __future__ import annotations

import json
from functools import cached_property
from typing import Any

import msgspec

__all__ = ["Event", "parse_events"]


class Event(msgspec.Struct, kw_only=True, dict=True):
    """One block of lines up to a blank line."""

    data: str | None
    """Joined `data` lines; None if there were none."""
    name: str | None = None
    fields: tuple[str, ...] = ()
    """The names of its other fields: `id`, `retry`."""
    comments: int = 0
    closed: bool = True
    """A blank line followed."""

    @cached_property
    def json(self) -> Any:
        """The data as JSON, or None if it is none."""
        try:
            return None if self.data is None else json.loads(self.data)
        except ValueError:
            return None


def parse_events(body: bytes) -> list[Event]:
    """All blocks that have at least one field. Blocks of comments alone are keep-alives and are left out."""
    text = body.decode("utf-8", "replace").replace("\r\n", "\n").replace("\r", "\n")
    events: list[Event] = []
    blocks = text.split("\n\n")
    for index, block in enumerate(blocks):
        lines = [line for line in block.split("\n") if line]
        if not lines:
            continue
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
        if data or name is not None or others:
            events.append(
                Event(
                    data="\n".join(data) if data else None,
                    name=name,
                    fields=tuple(others),
                    comments=comments,
                    closed=index < len(blocks) - 1,
                )
            )
    return events
