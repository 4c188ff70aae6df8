"""Responses: the object and the grammar of its events."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from itertools import pairwise
from typing import Any

from plumbline_conformance.case import Inconclusive, Problem, Request, Target, check, scenario
from plumbline_conformance.checks.common import (
    accepted,
    at,
    content_type,
    done_last,
    framing,
    last,
    tidy,
    usage_adds_up,
)
from plumbline_conformance.checks.sameness import same, whole_and_streamed
from plumbline_conformance.contract import event_schemas
from plumbline_conformance.schema import violations
from plumbline_conformance.transcript import Exchange, Transcript

TERMINAL = ("response.completed", "response.incomplete", "response.failed")


@scenario("responses/stream-text", "A short answer, whole and streamed")
def stream_text(target: Target) -> Generator[Request, Exchange, None]:
    body: dict[str, object] = {
        "model": target.model,
        "input": "Hi",
        "max_output_tokens": 16,
        "temperature": 0,
    }
    yield from whole_and_streamed("/responses", body, _texts, _streamed)


def _texts(response: Any) -> object:
    parts = [part for item in response["output"] for part in item.get("content") or []]
    return [part.get("text") or part.get("refusal") or "" for part in parts]


def _streamed(exchange: Exchange) -> object:
    return _texts(_terminal(_events(exchange)))


def _events(exchange: Exchange) -> list[dict[str, Any]]:
    return [event for event in accepted(exchange).chunks if isinstance(event, dict)]


def _terminal(events: list[dict[str, Any]]) -> Any:
    found = [event for event in events if event.get("type") in TERMINAL]
    if not found:
        raise Inconclusive("there is no terminal event; another check says so")
    return found[-1]["response"]


@check("responses/stream-text/shape", "Answer with the whole response object", "R-01", "R-11")
def responses_shape(seen: Transcript) -> Iterator[Problem]:
    yield from violations("Response", accepted(at(seen, 0)).json)


@check("responses/stream-text/usage", "Count tokens so that the total is the sum", "R-10")
def responses_usage(seen: Transcript) -> Iterator[Problem]:
    answer = accepted(at(seen, 0)).json
    yield from usage_adds_up(answer.get("usage"), prompt="input_tokens", completion="output_tokens")


@check("responses/stream-text/content-type", "Send text/event-stream", "HTTP-02")
def responses_content_type(seen: Transcript) -> Iterator[Problem]:
    yield from content_type(accepted(last(seen)), "text/event-stream")


@check("responses/stream-text/framing", "Name every event after its type", "SSE-04", "SSE-01")
def responses_framing(seen: Transcript) -> Iterator[Problem]:
    yield from framing(accepted(last(seen)), named=True)


@check("responses/stream-text/tidy", "Use line feeds, no byte order mark and no ids", "SSE-02", "SSE-03")
def responses_tidy(seen: Transcript) -> Iterator[Problem]:
    yield from tidy(accepted(last(seen)))


@check("responses/stream-text/done", "Send nothing after [DONE], and never two of them", "SSE-07")
def responses_done(seen: Transcript) -> Iterator[Problem]:
    yield from done_last(accepted(last(seen)), required=False)


# Open Responses asks for it, OpenAI's own service does not send it.
@check("responses/stream-text/terminator", "End with [DONE]", "SSE-06", milder=True)
def responses_terminator(seen: Transcript) -> Iterator[Problem]:
    yield from done_last(accepted(last(seen)))


@check("responses/stream-text/event-shapes", "Send events as the contract says", "RS-17")
def responses_event_shapes(seen: Transcript) -> Iterator[Problem]:
    for number, event in enumerate(_events(last(seen))):
        kind = event.get("type")
        if isinstance(kind, str) and ":" in kind:
            continue  # An extension, and marked as one.
        known = event_schemas().get(kind) if isinstance(kind, str) else None
        yield from violations(known or "ResponseStreamEvent", event, f"event {number}, ")


@check("responses/stream-text/lifecycle", "Begin with created, end with exactly one terminal event", "RS-01")
def responses_lifecycle(seen: Transcript) -> Iterator[Problem]:
    kinds = [event.get("type") for event in _events(last(seen))]
    if kinds[:1] != ["response.created"]:
        yield Problem(expected="response.created", actual=repr(kinds[:1]), pointer="event 0")
    terminal = [number for number, kind in enumerate(kinds) if kind in TERMINAL]
    if terminal != [len(kinds) - 1]:
        yield Problem(expected="one terminal event, the last", actual=repr(terminal), pointer="events")


@check("responses/stream-text/sequence", "Number events strictly upwards", "RS-02")
def responses_sequence(seen: Transcript) -> Iterator[Problem]:
    found = [event.get("sequence_number") for event in _events(last(seen))]
    numbers = [number for number in found if isinstance(number, int)]
    if len(numbers) != len(found) or any(b <= a for a, b in pairwise(numbers)):
        shown = repr(found[:20])
        yield Problem(expected="strictly increasing integers", actual=shown, pointer="sequence_number")


@check(
    "responses/stream-text/nesting",
    "Open, fill and close items and parts in order",
    "RS-07",
    "RS-05",
    "RS-08",
)
def responses_nesting(seen: Transcript) -> Iterator[Problem]:
    items = Items()
    for number, event in enumerate(_events(last(seen))):
        said = items.meet(event)
        if said is not None:
            kind = event["type"]
            yield Problem(expected=said, actual="not so", pointer=f"event {number}, {kind}")
    if items.open and any(event.get("type") == "response.completed" for event in _events(last(seen))):
        yield Problem(expected="every item done", actual=f"{len(items.open)} open", pointer="the end")


class Items:
    """The items of a stream, which may be open side by side; the parts of one may not."""

    def __init__(self) -> None:
        self.open: dict[int, tuple[Any, int | None, int]] = {}
        """By output index: the item's id, its open part, how many parts it has had."""
        self._met: set[int] = set()

    def meet(self, event: dict[str, Any]) -> str | None:
        """Take an event; return what should have been, if it comes at the wrong time."""
        kind = event.get("type")
        place = event.get("output_index")
        if not isinstance(kind, str) or not isinstance(place, int):
            return None
        if kind == "response.output_item.added":
            new = place not in self._met
            self._met.add(place)
            self.open[place] = (event["item"].get("id"), None, 0)
            return None if new else f"output_index {place} to be used once"
        if place not in self.open:
            return f"item {place} to be open"
        name, part, _ = self.open[place]
        if kind == "response.output_item.done":
            del self.open[place]
            return (
                None if part is None and event["item"].get("id") == name else f"{name} without an open part"
            )
        if event.get("item_id", name) != name:
            return f"item_id {name}"
        return self._meet_part(event, kind, place)

    def _meet_part(self, event: dict[str, Any], kind: str, place: int) -> str | None:
        name, part, count = self.open[place]
        index = event.get("content_index")
        if kind == "response.content_part.added":
            self.open[place] = (name, index, count + 1)
            return None if part is None and index == count else f"part {count} of {name}, and no other open"
        if kind == "response.content_part.done":
            self.open[place] = (name, None, count)
        if index is not None and index != part:
            return f"part {index} of {name} to be open"
        return None


@check(
    "responses/stream-text/sums",
    "Let deltas sum to done, done to the item, items to the response",
    "RS-09",
    "RS-14",
)
def responses_sums(seen: Transcript) -> Iterator[Problem]:
    sums: dict[tuple[int, int], str] = {}
    items: dict[int, Any] = {}
    for number, event in enumerate(_events(last(seen))):
        place = (event.get("output_index", 0), event.get("content_index", 0))
        match event.get("type"):
            case "response.output_text.delta":
                sums[place] = sums.get(place, "") + event["delta"]
            case "response.output_text.done" if event["text"] != sums.get(place, ""):
                expected, actual = repr(sums.get(place, "")), repr(event["text"])
                yield Problem(expected=expected, actual=actual, pointer=f"event {number}, text")
            case "response.output_item.done":
                items[place[0]] = event["item"]
    for (item, part), text in sums.items():
        content = items[item]["content"] if item in items else []
        found = content[part].get("text") if part < len(content) else None
        if found != text:
            where = f"item {item}, part {part}"
            yield Problem(expected=repr(text), actual=repr(found), pointer=where)
    output = _terminal(_events(last(seen)))["output"]
    if _without_nulls(output) != _without_nulls([item for _, item in sorted(items.items())]):
        shown = repr(output)[:200]
        yield Problem(expected="the items that were done", actual=shown, pointer="response.output")


def _without_nulls(value: Any) -> Any:
    """A null is the same as nothing where two objects are compared."""
    match value:
        case dict():
            return {key: _without_nulls(member) for key, member in value.items() if member is not None}
        case list():
            return [_without_nulls(member) for member in value]
    return value


@check("responses/stream-text/same-as-whole", "Stream what the same request answers in one piece", "RS-16")
def responses_same(seen: Transcript) -> Iterator[Problem]:
    yield from same(seen, _texts, _streamed)
