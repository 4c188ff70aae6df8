"""The grammar of a Responses stream: items that may be open side by side, and their parts, which may not."""

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
"""Streams of fragments, and the member of the event that ends each that has all of them."""


Fault = tuple[str, str]
"""A rule, and what it wants."""


class Items:
    """The items of a stream that are open."""

    def __init__(self) -> None:
        self.open: dict[int, tuple[Any, int | None, int]] = {}
        """By output index: the item's id, its open part, how many parts it has had."""
        self._met: set[int] = set()

    def judge(self, events: list[dict[str, Any]]) -> Iterator[Problem]:
        """RS-05 to RS-08 over a whole stream."""
        for number, event in enumerate(events):
            said = self.meet(event)
            if said is not None:
                rule, wanted = said
                where = f"event {number}, {event['type']}"
                yield Problem(expected=wanted, actual="not so", pointer=where, rule=rule)
        if self.open and any(event.get("type") == "response.completed" for event in events):
            shown = f"{len(self.open)} open"
            yield Problem(expected="every item done", actual=shown, pointer="the end", rule="RS-05")

    def meet(self, event: dict[str, Any]) -> Fault | None:
        """Take an event; return the rule and what should have been, if it comes at the wrong time."""
        kind = event.get("type")
        place = event.get("output_index")
        if not isinstance(kind, str) or not isinstance(place, int):
            return None
        if kind == "response.output_item.added":
            new = place not in self._met
            next_one = place == len(self._met)
            self._met.add(place)
            self.open[place] = (event["item"].get("id"), None, 0)
            return None if new and next_one else ("RS-06", f"output_index {len(self._met) - 1}, used once")
        if place not in self.open:
            return "RS-07", f"item {place} to be open"
        name, part, _ = self.open[place]
        if kind == "response.output_item.done":
            del self.open[place]
            if part is not None:
                return "RS-08", f"{name} without an open part"
            return None if event["item"].get("id") == name else ("RS-05", f"the item {name}")
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
    """The response of the terminal event."""
    found = [event for event in events if event.get("type") in TERMINAL]
    if not found:
        raise Inconclusive("there is no terminal event; another check says so")
    return found[-1].get("response")


def sums(events: list[dict[str, Any]]) -> Iterator[Problem]:
    """RS-09, RS-14: deltas, done, the part, the item and the response say the same text."""
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
        wanted = "the items that were done"
        yield Problem(expected=wanted, actual=shown, pointer="response.output", rule="RS-14")


def _text_of(item: Any, part: Any, stem: str) -> Any:
    if not isinstance(item, dict):
        return None
    if TEXTS[stem] in ("arguments", "input"):
        return item.get(TEXTS[stem])
    parts = item.get("summary" if "summary" in stem else "content")
    if not isinstance(parts, list) or not isinstance(part, int) or not 0 <= part < len(parts):
        return None
    return parts[part].get(TEXTS[stem])
