"""Check the response object and its streaming events."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from itertools import pairwise
from typing import Any

from plumbline_conformance.checks.common import (
    done_last,
    framing,
    json_content_type,
    portable_framing,
    sse_content_type,
)
from plumbline_conformance.checks.identity import distinct_ids, distinct_request_ids, made_now, streamed_now
from plumbline_conformance.checks.laws import either, stream, whole
from plumbline_conformance.checks.responses.items import terminal
from plumbline_conformance.checks.responses.shared_laws import (
    NAMED,
    NESTING,
    SHAPE,
    SUMS,
    event_shapes,
    event_types,
    events,
    nesting,
    shape,
    states_agree,
    summed,
    usage,
)
from plumbline_conformance.checks.responses.states import STATES
from plumbline_conformance.checks.sameness import same, whole_and_streamed
from plumbline_conformance.suite.scenario import (
    Inconclusive,
    Problem,
    Request,
    Target,
    breaking,
    check,
    scenario,
)
from plumbline_conformance.suite.schema_validation import NOT_NEEDED
from plumbline_conformance.suite.wording import as_json
from plumbline_conformance.transcript.exchange import Exchange, Transcript

TERMINAL = ("response.completed", "response.incomplete", "response.failed")


@scenario("responses/stream-text", "A short answer without and with streaming", needs=("responses",))
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
    return _texts(terminal(events(exchange)))


whole("responses/stream-text/shape", "Answer with the complete response object", *SHAPE)(shape)
whole("responses/stream-text/usage", "Count tokens so that the total is the sum", "R-10")(usage)


@whole("responses/stream-text/cache-writes", "Count the tokens written to the cache", "R-10", milder=True)
def _cache_writes(exchange: Exchange) -> Iterator[Problem]:
    """Check for the members that OpenAI's document requires, but no official client needs."""
    found = exchange.json.get("usage") if isinstance(exchange.json, dict) else None
    details = found.get("input_tokens_details") if isinstance(found, dict) else None
    if not isinstance(details, dict):
        raise Inconclusive("the answer has no details of its input; another check reports this")
    for name in NOT_NEEDED["InputTokensDetails"]:
        if not isinstance(details.get(name), int):
            shown, where = as_json(details.get(name)), f"usage.input_tokens_details.{name}"
            yield Problem(expected=f"an integer {name}", actual=shown, pointer=where)


@whole("responses/stream-text/members", "Send the members that Open Responses requires", "R-22")
def _members(exchange: Exchange) -> Iterator[Problem]:
    """Check for the members that OpenAI's document does not require; a null counts as a member."""
    found = exchange.json if isinstance(exchange.json, dict) else {}
    for name in NOT_NEEDED["Response"]:
        if name not in found:
            yield Problem(expected=f"a member {name}", actual="none", pointer=name)


whole("responses/stream-text/created", "Report when the response was created", "R-01")(made_now("created_at"))
stream("responses/stream-text/stream-created", "Report when a streamed response was created", "R-01")(
    streamed_now("created_at", "response")
)
check("responses/stream-text/ids", "Give each response a unique id", "R-01")(distinct_ids)
check("responses/stream-text/request-ids", "Give each request a unique id", "HTTP-03")(distinct_request_ids)
whole("responses/stream-text/json", "Send application/json", "HTTP-01")(json_content_type)
stream("responses/stream-text/content-type", "Send text/event-stream", "HTTP-02")(sse_content_type)


@stream("responses/stream-text/framing", "Name every event after its type", *NAMED)
def _framing(exchange: Exchange) -> Iterator[Problem]:
    yield from framing(exchange, named=True)


stream("responses/stream-text/tidy", "Use line feeds, no byte order mark and no ids", "SSE-02", "SSE-03")(
    portable_framing
)


@stream("responses/stream-text/done", "Send nothing after [DONE], and never two of them", "SSE-07")
def _done(exchange: Exchange) -> Iterator[Problem]:
    yield from done_last(exchange, required=False)


# Open Responses requires it, but OpenAI's service does not send it.
@stream("responses/stream-text/terminator", "End with [DONE]", "SSE-06", milder=True)
def _terminated(exchange: Exchange) -> Iterator[Problem]:
    yield from breaking("SSE-06", done_last(exchange))


stream("responses/stream-text/event-shapes", "Send events as the contract requires", "RS-21")(event_shapes)
stream("responses/stream-text/event-types", "Send only events of the contract", "RS-17")(event_types)


@stream("responses/stream-text/lifecycle", "Begin with created, end with exactly one terminal event", "RS-01")
def _lifecycle(exchange: Exchange) -> Iterator[Problem]:
    kinds = [event.get("type") for event in events(exchange)]
    if kinds[:1] != ["response.created"]:
        yield Problem(expected="response.created", actual=as_json(kinds[:1]), pointer="event 0")
    terminal = [number for number, kind in enumerate(kinds) if kind in TERMINAL]
    if terminal != [len(kinds) - 1]:
        yield Problem(expected="one terminal event, the last", actual=as_json(terminal), pointer="events")


@stream("responses/stream-text/sequence", "Number events strictly upwards", "RS-02")
def _sequence(exchange: Exchange) -> Iterator[Problem]:
    found = [event.get("sequence_number") for event in events(exchange)]
    numbers = [number for number in found if isinstance(number, int)]
    if len(numbers) != len(found) or any(b <= a for a, b in pairwise(numbers)):
        shown = as_json(found[:20])
        yield Problem(expected="strictly increasing integers", actual=shown, pointer="sequence_number")


either("responses/stream-text/state", "End the response and its items in states that agree", *STATES)(
    states_agree
)


@stream("responses/stream-text/begun", "Send in_progress as the second event", "RS-01", milder=True)
def _begun(exchange: Exchange) -> Iterator[Problem]:
    kinds = [event.get("type") for event in events(exchange)]
    if kinds[:1] != ["response.created"]:
        raise Inconclusive("the first event is another; another check reports this")
    # A response in the background may be queued first.
    if kinds[1:2] not in (["response.in_progress"], ["response.queued"]):
        yield Problem(expected="response.in_progress", actual=as_json(kinds[1:2]), pointer="event 1")


@stream("responses/stream-text/steps", "Number events from 0 or 1, without gaps", "RS-02", milder=True)
def _steps(exchange: Exchange) -> Iterator[Problem]:
    yield from steps(events(exchange))


def steps(turn: list[dict[str, Any]]) -> Iterator[Problem]:
    """Check for gaps, from which clients conclude that they lost events."""
    found = [event.get("sequence_number") for event in turn]
    numbers = [number for number in found if isinstance(number, int)]
    if not numbers or len(numbers) != len(found) or any(b <= a for a, b in pairwise(numbers)):
        raise Inconclusive("the events are not numbered upwards; another check reports this")
    if numbers[0] not in (0, 1) or numbers[-1] - numbers[0] != len(numbers) - 1:
        wanted = "a start at 0 or 1, and steps of 1"
        yield Problem(expected=wanted, actual=as_json(numbers[:20]), pointer="sequence_number")


stream(
    "responses/stream-text/nesting",
    "Open, fill and close items and parts in order",
    *NESTING,
)(nesting)
stream(
    "responses/stream-text/sums",
    "Make deltas add up to done events, items and response",
    *SUMS,
)(summed)


@check("responses/stream-text/same-as-whole", "Stream the same content as without streaming", "RS-16")
def responses_same(seen: Transcript) -> Iterator[Problem]:
    yield from same(seen, _whole, _streamed)
