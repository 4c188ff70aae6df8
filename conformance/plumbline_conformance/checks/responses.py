"""Responses: the object and the grammar of its events."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from itertools import pairwise
from typing import Any

from plumbline_conformance.case import Inconclusive, Problem, Request, Target, check, scenario
from plumbline_conformance.checks.common import accepted, done_last, framing, usage_adds_up
from plumbline_conformance.schema import violations
from plumbline_conformance.transcript import Exchange, Transcript

TERMINAL = ("response.completed", "response.incomplete", "response.failed")


@scenario("responses/stream-text", "A short answer, whole and streamed", needs=("createResponse",))
def stream_text(target: Target) -> Generator[Request, Exchange, None]:
    body = {"model": target.model, "input": "Hi", "max_output_tokens": 16, "temperature": 0}
    yield Request(path="/responses", json=body)
    yield Request(path="/responses", json={**body, "stream": True})


def _events(seen: Transcript) -> list[Any]:
    found = [event for event in accepted(seen.last).chunks if isinstance(event, dict)]
    if not found:
        raise Inconclusive("no events")
    return found


@check("responses/stream-text/shape", "Answer with the whole response object", "R-01", "R-11")
def responses_shape(seen: Transcript) -> Iterator[Problem]:
    yield from violations("Response", accepted(seen.exchanges[0]).json)


@check("responses/stream-text/usage", "Count tokens so that the total is the sum", "R-10")
def responses_usage(seen: Transcript) -> Iterator[Problem]:
    yield from usage_adds_up(
        accepted(seen.exchanges[0]).json.get("usage"), prompt="input_tokens", completion="output_tokens"
    )


@check("responses/stream-text/framing", "Name every event after its type", "SSE-04", "SSE-01")
def responses_framing(seen: Transcript) -> Iterator[Problem]:
    yield from framing(accepted(seen.last), named=True)


@check("responses/stream-text/done", "End with exactly one [DONE]", "SSE-06", "SSE-07")
def responses_done(seen: Transcript) -> Iterator[Problem]:
    yield from done_last(accepted(seen.last))


@check("responses/stream-text/event-shapes", "Send events as the contract says", "RS-17")
def responses_event_shapes(seen: Transcript) -> Iterator[Problem]:
    for number, event in enumerate(_events(seen)):
        yield from violations("ResponseStreamEvent", event, f"event {number}, ")


@check("responses/stream-text/lifecycle", "Begin with created, end with exactly one terminal event", "RS-01")
def responses_lifecycle(seen: Transcript) -> Iterator[Problem]:
    kinds = [event.get("type") for event in _events(seen)]
    if kinds[0] != "response.created":
        yield Problem(expected="response.created", actual=repr(kinds[0]), pointer="event 0")
    terminal = [number for number, kind in enumerate(kinds) if kind in TERMINAL]
    if terminal != [len(kinds) - 1]:
        yield Problem(expected="one terminal event, the last", actual=repr(terminal), pointer="events")


@check("responses/stream-text/sequence", "Number events strictly upwards", "RS-02")
def responses_sequence(seen: Transcript) -> Iterator[Problem]:
    numbers = [event.get("sequence_number") for event in _events(seen)]
    if not all(isinstance(n, int) for n in numbers) or any(b <= a for a, b in pairwise(numbers)):
        yield Problem(
            expected="strictly increasing integers", actual=repr(numbers[:20]), pointer="sequence_number"
        )


@check(
    "responses/stream-text/nesting",
    "Open, fill and close items and parts in order",
    "RS-05",
    "RS-07",
    "RS-08",
)
def responses_nesting(seen: Transcript) -> Iterator[Problem]:
    item: str | None = None
    part = False
    for number, event in enumerate(_events(seen)):
        kind = event.get("type", "")
        where = f"event {number}, {kind}"
        match kind:
            case "response.output_item.added":
                if item is not None:
                    yield Problem(expected="the item before to be done", actual="another item", pointer=where)
                item = event["item"].get("id")
            case "response.output_item.done":
                if event["item"].get("id") != item or part:
                    yield Problem(
                        expected=f"{item} to be done, its part before it", actual="not so", pointer=where
                    )
                item, part = None, False
            case "response.content_part.added":
                if event.get("item_id") != item or part:
                    yield Problem(
                        expected=f"a part of {item}", actual=repr(event.get("item_id")), pointer=where
                    )
                part = True
            case "response.content_part.done":
                if event.get("item_id") != item or not part:
                    yield Problem(expected="an open part", actual="none", pointer=where)
                part = False
            case _ if "item_id" in event and (event["item_id"] != item or not part):
                if "function_call" not in kind and "custom_tool_call" not in kind:
                    yield Problem(
                        expected=f"an open part of {item}", actual=repr(event["item_id"]), pointer=where
                    )


@check(
    "responses/stream-text/sums",
    "Let deltas sum to done, done to the item, items to the response",
    "RS-09",
    "RS-14",
)
def responses_sums(seen: Transcript) -> Iterator[Problem]:
    deltas = ""
    items: list[Any] = []
    for number, event in enumerate(_events(seen)):
        match event.get("type"):
            case "response.output_item.added":
                deltas = ""
            case "response.output_text.delta":
                deltas += event["delta"]
            case "response.output_text.done" if event["text"] != deltas:
                yield Problem(
                    expected=repr(deltas), actual=repr(event["text"]), pointer=f"event {number}, text"
                )
            case "response.output_item.done":
                items.append(event["item"])
    output = _events(seen)[-1].get("response", {}).get("output")
    if output != items:
        yield Problem(
            expected="the items that were done", actual=repr(output)[:200], pointer="response.output"
        )


@check("responses/stream-text/same-as-whole", "Stream what the same request answers in one piece", "RS-16")
def responses_same(seen: Transcript) -> Iterator[Problem]:
    whole = _texts(accepted(seen.exchanges[0]).json)
    streamed = _texts(_events(seen)[-1].get("response", {}))
    if whole != streamed:
        yield Problem(expected=repr(whole), actual=repr(streamed), pointer="response.output")


def _texts(response: Any) -> list[str]:
    return [
        part.get("text") or part.get("refusal") or ""
        for item in response.get("output") or []
        for part in item.get("content") or []
    ]
