"""Check the nesting of a Responses stream: several items may be open at once, but only one part of an item."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from plumbline_conformance.checks.common import without_nulls
from plumbline_conformance.suite.scenario import Inconclusive, Problem
from plumbline_conformance.suite.wording import as_json

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


@dataclass
class _Open:
    """An item between its added and its done event."""

    item: dict[str, Any]
    """The item as it was added."""
    part: Any = None
    """The index of the open part."""
    kind: str = ""
    """The type of the open part."""
    ended: bool = False
    """Whether the text of the open part is done."""
    count: int = 0
    """The number of parts so far."""


class Items:
    """Track the open items of a stream."""

    def __init__(self) -> None:
        self.open: dict[int, _Open] = {}
        """By output index."""
        self._met: set[int] = set()

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
            return self._add(event["item"], place)
        if place not in self.open:
            return "RS-07", f"item {place} to be open"
        if kind == "response.output_item.done":
            return _closed(self.open.pop(place), event["item"])
        name = self.open[place].item.get("id")
        if event.get("item_id", name) != name:
            return "RS-07", f"item_id {name}"
        return _meet_part(self.open[place], event, kind)

    def _add(self, item: dict[str, Any], place: int) -> Fault | None:
        new, next_one = place not in self._met, place == len(self._met)
        self._met.add(place)
        self.open[place] = _Open(item)
        if not (new and next_one):
            return "RS-06", f"output_index {len(self._met) - 1}, used once"
        if item.get("status") not in (None, "in_progress"):
            return "RS-05", "an item in progress"
        # `tool/added-empty` looks at the arguments of functions.
        filled = [key for key in ("content", "summary", "input") if item.get(key)]
        return ("RS-05", f"an item without {filled[0]} yet") if filled else None


def _closed(begun: _Open, item: dict[str, Any]) -> Fault | None:
    """Compare a done item with its added item (RS-05), and look for an open part (RS-08)."""
    if begun.part is not None:
        return "RS-08", f"{begun.item.get('id')} without an open part"
    for key in ("id", "type", "call_id", "name"):
        wanted = begun.item.get(key)
        if item.get(key) != wanted and (wanted or key == "id"):
            return "RS-05", f"an item with the {key} {wanted}, as when it was added"
    return ("RS-05", "an item that has ended") if item.get("status") == "in_progress" else None


def _add_part(item: _Open, part: Any, index: Any) -> Fault | None:
    """Open a part, which must be the next one and empty."""
    part = part if isinstance(part, dict) else {}
    allowed = item.part is None and index == item.count
    item.part, item.count, item.ended = index, item.count + 1, False
    item.kind = str(part.get("type")) if part else ""
    if not allowed:
        return "RS-08", f"part {item.count - 1} of {item.item.get('id')}, and no other open"
    filled = [key for key in FILLED if part.get(key)]
    return ("RS-08", f"a part without {filled[0]} yet") if filled else None


def _meet_part(item: _Open, event: dict[str, Any], kind: str) -> Fault | None:
    """Check that parts come one after the other: added empty, deltas, one done event, done (RS-08)."""
    index = event.get("summary_index" if kind.startswith("response.reasoning_summary") else "content_index")
    if kind in ("response.content_part.added", "response.reasoning_summary_part.added"):
        return _add_part(item, event.get("part"), index)
    if kind in ("response.content_part.done", "response.reasoning_summary_part.done"):
        unfinished = item.kind in PARTS and item.part is not None and not item.ended
        item.part = None
        return ("RS-08", f"{PARTS[item.kind]}.done before the end of the part") if unfinished else None
    if index is not None and index != item.part:
        return "RS-08", f"part {index} of {item.item.get('id')} to be open"
    if item.kind in PARTS and index is not None:
        stem, _, verb = kind.rpartition(".")
        if stem == PARTS[item.kind] and verb in ("delta", "done"):
            again, item.ended = item.ended, item.ended or verb == "done"
            return ("RS-08", f"nothing of a text after its {stem}.done") if again else None
    return None


FILLED = ("text", "refusal", "annotations", "logprobs")
"""The members of a part that are empty when it is added."""


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
            shown = f"{kind.removeprefix('response.')}: {as_json(event.get(TEXTS[stem]))[:200]}"
            wanted = f"the deltas joined: {as_json(texts.get(place, ''))[:200]}"
            yield Problem(expected=wanted, actual=shown, pointer=f"event {number}", rule="RS-09")
        elif kind in ("response.content_part.done", "response.reasoning_summary_part.done"):
            yield from _part_done(event, number, texts)
        elif kind == "response.output_item.done":
            done[event["output_index"]] = event["item"]
    for (item, part, stem), text in texts.items():
        found = _text_of(done.get(item), part, stem)
        if found != text:
            where = f"item {item}, part {part}"
            shown = f"output_item.done: {as_json(found)[:200]}"
            wanted = f"the deltas joined: {as_json(text)[:200]}"
            yield Problem(expected=wanted, actual=shown, pointer=where, rule="RS-09")
    output = terminal(events)["output"]
    if without_nulls(output) != without_nulls([item for _, item in sorted(done.items())]):
        shown = f"response.output at the end: {as_json(output)[:200]}"
        wanted = f"the items of output_item.done: {as_json([item for _, item in sorted(done.items())])[:200]}"
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
        shown, wanted = as_json(part.get(TEXTS[stem]))[:200], as_json(texts.get(place, ""))[:200]
        yield Problem(
            expected=f"the deltas joined: {wanted}",
            actual=f"{str(event.get('type')).removeprefix('response.')}: {shown}",
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
