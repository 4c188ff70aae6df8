"""Responses: the object and the grammar of its events."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from itertools import pairwise
from typing import Any

from plumbline_conformance.case import Problem, Request, Target, check, scenario
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
from plumbline_conformance.checks.items import Items, sums, terminal
from plumbline_conformance.checks.sameness import same, whole_and_streamed
from plumbline_conformance.contract import event_schemas
from plumbline_conformance.schema import violations
from plumbline_conformance.transcript import Exchange, Transcript

TERMINAL = ("response.completed", "response.incomplete", "response.failed")


@scenario("responses/stream-text", "A short answer, whole and streamed", needs=("responses",))
def stream_text(target: Target) -> Generator[Request, Exchange, None]:
    body: dict[str, object] = {
        "model": target.model,
        "input": "Hi",
        "max_output_tokens": 16,
        "temperature": 0,
    }
    yield from whole_and_streamed("/responses", body, _whole, _streamed)


def _texts(response: Any) -> object:
    parts = [part for item in response["output"] for part in item.get("content") or []]
    return [part.get("text") or part.get("refusal") or "" for part in parts]


def _whole(exchange: Exchange) -> object:
    return _texts(exchange.json)


def _streamed(exchange: Exchange) -> object:
    return _texts(terminal(_events(exchange)))


def _events(exchange: Exchange) -> list[dict[str, Any]]:
    return [event for event in accepted(exchange).chunks if isinstance(event, dict)]


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
    yield from Items().judge(_events(last(seen)))


@check(
    "responses/stream-text/sums",
    "Let deltas sum to done, done to the item, items to the response",
    "RS-09",
    "RS-14",
)
def responses_sums(seen: Transcript) -> Iterator[Problem]:
    yield from sums(_events(last(seen)))


@check("responses/stream-text/same-as-whole", "Stream what the same request answers in one piece", "RS-16")
def responses_same(seen: Transcript) -> Iterator[Problem]:
    yield from same(seen, _whole, _streamed)
