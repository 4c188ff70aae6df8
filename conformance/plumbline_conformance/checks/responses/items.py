"""Check the nesting of a Responses stream: several items may be open at once, but only one part of an item."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from plumbline_conformance.checks.common import without_nulls
from plumbline_conformance.suite.model import Inconclusive, Problem

__all__ = ["Items", "sums", "terminal"]

TERMINAL = ("response.completed", "response.incomplete", "response.failed")
TEXTS = {
    "response.output_text": "text",
    "response.refusal": "refusal",
    "response.reasoning_text": "text",
    "response.reasoning_summary_text": "text",
    "response.function_call_arguments": "arguments",
    "response.custom_tool_call_input": "input",
}
"""Event types with deltas, and the field of their done event that has the complete text."""


PARTS = {
    "output_text": "response.output_text",
    "refusal": "response.refusal",
    "reasoning_text": "response.reasoning_text",
    "summary_text": "response.reasoning_summary_text",
}
"""The events with the deltas of a part, by the type of the part."""
Fault = tuple[str, str]
"""A broken rule, and the expected event."""


class Items:
    """Track the open items of a stream."""

    def __init__(self) -> None:
        self.open: dict[int, tuple[Any, int | None, int]] = {}
        """By output index: the item's id, its open part, its number of parts so far."""
        self._met: set[int] = set()
        self._added: dict[int, dict[str, Any]] = {}

    def judge(self, events: list[dict[str, Any]]) -> Iterator[Problem]:
        """Check RS-05 to RS-08 for all events of a stream."""
        for number, event in enumerate(events):
            fault = self.meet(event)
            if fault is not None:
                rule, wanted = fault
                where = f"event {number}, {event['type']}"
                yield Problem(expected=wanted, actual="this event instead", pointer=where, rule=rule)
        if self.open and any(event.get("type") == "response.completed" for event in events):
            shown = f"{len(self.open)} open"
            yield Problem(
                expected="a done event for every item", actual=shown, pointer="the end", rule="RS-05"
            )

    def meet(self, event: dict[str, Any]) -> Fault | None:
        """Process an event; return the broken rule and the expected event if it comes at the wrong time."""
        kind = event.get("type")
        place = event.get("output_index")
        if not isinstance(kind, str) or not isinstance(place, int):
            return None
        if kind == "response.output_item.added":
            new = place not in self._met
            next_one = place == len(self._met)
            self._met.add(place)
            item = event["item"]
            self.open[place] = (item.get("id"), None, 0)
            self._added[place] = item
            if not (new and next_one):
                return "RS-06", f"output_index {len(self._met) - 1}, used once"
            return None if item.get("status") in (None, "in_progress") else ("RS-05", "an item in progress")
        if place not in self.open:
            return "RS-07", f"item {place} to be open"
        name, part, _ = self.open[place]
        if kind == "response.output_item.done":
            del self.open[place]
            if part is not None:
                return "RS-08", f"{name} without an open part"
            for key in ("id", "type", "call_id"):
                wanted = self._added[place].get(key)
                if event["item"].get(key) != wanted and (wanted is not None or key == "id"):
                    return "RS-05", f"an item with the {key} {wanted}, as when it was added"
            return None
        if event.get("item_id", name) != name:
            return "RS-07", f"item_id {name}"
        return self._meet_part(event, kind, place)

    def _meet_part(self, event: dict[str, Any], kind: str, place: int) -> Fault | None:
        name, part, count = self.open[place]
        summary = kind.startswith("response.reasoning_summary")
        index = event.get("summary_index" if summary else "content_index")
        if kind in ("response.content_part.added", "response.reasoning_summary_part.added"):
            self.open[place] = (name, index, count + 1)
            wanted = f"part {count} of {name}, and no other open"
            return None if part is None and index == count else ("RS-08", wanted)
        if kind in ("response.content_part.done", "response.reasoning_summary_part.done"):
            self.open[place] = (name, None, count)
        if index is not None and index != part:
            return "RS-08", f"part {index} of {name} to be open"
        return None


def terminal(events: list[dict[str, Any]]) -> Any:
    """Return the response of the terminal event."""
    found = [event for event in events if event.get("type") in TERMINAL]
    if not found:
        raise Inconclusive("there is no terminal event; another check reports this")
    return found[-1].get("response")


def sums(events: list[dict[str, Any]]) -> Iterator[Problem]:
    """Check that deltas, done events, parts, items and the response have the same text (RS-09, RS-14)."""
    texts: dict[tuple[Any, Any, str], str] = {}
    done: dict[int, Any] = {}
    for number, event in enumerate(events):
        kind = str(event.get("type"))
        stem, _, verb = kind.rpartition(".")
        place = (event.get("output_index"), event.get("summary_index", event.get("content_index", 0)), stem)
        if stem in TEXTS and verb == "delta":
            texts[place] = texts.get(place, "") + event["delta"]
        elif stem in TEXTS and verb == "done" and event.get(TEXTS[stem]) != texts.get(place, ""):
            shown = repr(event.get(TEXTS[stem]))[:200]
            wanted = repr(texts.get(place, ""))[:200]
            yield Problem(expected=wanted, actual=shown, pointer=f"event {number}", rule="RS-09")
        elif kind in ("response.content_part.done", "response.reasoning_summary_part.done"):
            yield from _part_done(event, number, texts)
        elif kind == "response.output_item.done":
            done[event["output_index"]] = event["item"]
    for (item, part, stem), text in texts.items():
        found = _text_of(done.get(item), part, stem)
        if found != text:
            where = f"item {item}, part {part}"
            shown = repr(found)[:200]
            yield Problem(expected=repr(text)[:200], actual=shown, pointer=where, rule="RS-09")
    output = terminal(events)["output"]
    if without_nulls(output) != without_nulls([item for _, item in sorted(done.items())]):
        shown = repr(output)[:200]
        wanted = "the items of the done events"
        yield Problem(expected=wanted, actual=shown, pointer="response.output", rule="RS-14")


def _part_done(
    event: dict[str, Any], number: int, texts: dict[tuple[Any, Any, str], str]
) -> Iterator[Problem]:
    """Check that a part ends with the text of its deltas (RS-09)."""
    part = event.get("part")
    stem = PARTS.get(str(part.get("type"))) if isinstance(part, dict) else None
    if stem is None or not isinstance(part, dict):
        return
    place = (event.get("output_index"), event.get("summary_index", event.get("content_index", 0)), stem)
    if part.get(TEXTS[stem]) != texts.get(place, ""):
        shown, wanted = repr(part.get(TEXTS[stem]))[:200], repr(texts.get(place, ""))[:200]
        yield Problem(
            expected=f"the deltas joined, {wanted}",
            actual=shown,
            pointer=f"event {number}, part",
            rule="RS-09",
        )


def _text_of(item: Any, part: Any, stem: str) -> Any:
    if not isinstance(item, dict):
        return None
    if TEXTS[stem] in ("arguments", "input"):
        return item.get(TEXTS[stem])
    parts = item.get("summary" if "summary" in stem else "content")
    if not isinstance(parts, list) or not isinstance(part, int) or not 0 <= part < len(parts):
        return None
    return parts[part].get(TEXTS[stem])
