"""Check laws that apply to every answer of the Responses API, non-streaming and streaming."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from itertools import pairwise
from typing import Any

from plumbline_conformance.checks.answers import is_stream
from plumbline_conformance.checks.common import (
    accepted,
    content_type,
    done_last,
    framing,
    usage_adds_up,
    valid_body,
    without_nulls,
)
from plumbline_conformance.checks.identity import LATEST
from plumbline_conformance.checks.laws import either, stream, whole
from plumbline_conformance.checks.request_reader import request_fields, requested_tools
from plumbline_conformance.checks.responses.echoes import Placed, defaults, requested, unlike
from plumbline_conformance.checks.responses.items import Items, sums, terminal
from plumbline_conformance.checks.responses.states import STATES, agreeing
from plumbline_conformance.checks.sameness import same, whole_and_streamed
from plumbline_conformance.suite.contract import event_schemas, known_events
from plumbline_conformance.suite.field_rules import rules_of_shape
from plumbline_conformance.suite.scenario import Inconclusive, Law, Problem, Request, Target, check, scenario
from plumbline_conformance.suite.schema_validation import violations
from plumbline_conformance.suite.wording import as_json
from plumbline_conformance.transcript.answer_fold import objects_in
from plumbline_conformance.transcript.exchange import Exchange, Transcript

__all__ = [
    "LIFECYCLE",
    "NAMED",
    "NEEDS",
    "NESTING",
    "SHAPE",
    "SNAPSHOTS",
    "SUMS",
    "constrained_text",
    "create_response",
    "event_order",
    "event_shapes",
    "event_types",
    "events",
    "items",
    "known_types",
    "lifecycle",
    "nesting",
    "outputs",
    "pair",
    "response",
    "shape",
    "shapes",
    "snapshots",
    "snapshots_agree",
    "snapshots_of",
    "states_agree",
    "summed",
    "usage",
    "wire",
]

NEEDS = ("responses",)
Body = Callable[[Target], dict[str, object]]
TERMINAL = ("response.completed", "response.incomplete", "response.failed")
SHAPE = rules_of_shape("Response")
NAMED = ("SSE-04", "SSE-01", "SSE-03")
KEEP_ALIVE = "keepalive"
LIFECYCLE = ("RS-01", "RS-02")
NESTING = ("RS-07", "RS-05", "RS-06", "RS-08")
SUMS = ("RS-09", "RS-14")
SNAPSHOTS = ("RS-03", "RS-04", "R-05", "RS-14", "R-10")
"""The rules of the stream laws."""
VOLATILE = {"id", "call_id", "status", "encrypted_content"}


def create_response(target: Target, question: object, **fields: object) -> dict[str, object]:
    """Return a request of the Responses API with temperature 0, which is not stored."""
    given = {"max_output_tokens": 128, "temperature": 0, "store": False, **fields}
    return {"model": target.model, "input": question, **given}


def pair(slug: str, title: str, body: Body, *, needs: tuple[str, ...] = ()) -> None:
    """Register a scenario that sends a request without and with `stream`, with the laws of both answers."""

    def steps(target: Target) -> Generator[Request, Exchange, None]:
        yield from whole_and_streamed("/responses", body(target), outputs, outputs)

    scenario(slug, title, needs=(*NEEDS, *needs))(steps)

    for name, title, rules, law in _WHOLE:
        whole(f"{slug}/{name}", title, *rules)(law)
    for name, title, rules, law in _STREAMED:
        stream(f"{slug}/{name}", title, *rules)(law)

    either(f"{slug}/state", "End the response and its items in states that agree", *STATES)(states_agree)

    @check(f"{slug}/same-as-whole", "Stream the same content as without streaming", "RS-16")
    def same_as_whole(seen: Transcript) -> Iterator[Problem]:
        yield from same(seen, outputs, outputs)


def shape(exchange: Exchange) -> Iterator[Problem]:
    """Check the schema of the answer; the wrong field determines the rule (R-01, R-03, R-11, R-21)."""
    yield from valid_body(exchange, "Response")


def usage(exchange: Exchange) -> Iterator[Problem]:
    """Check that the usage adds up (R-10); a response that has not ended has no usage."""
    answer = exchange.json
    if not isinstance(answer, dict):
        raise Inconclusive("the answer is not an object; another check reports this")
    if answer.get("status") in ("queued", "in_progress"):
        raise Inconclusive("the response has not ended")
    yield from usage_adds_up(answer.get("usage"), prompt="input_tokens", completion="output_tokens")


def states_agree(exchange: Exchange) -> Iterator[Problem]:
    """Check the end of the response and of its items (R-03, R-05, R-07, R-08), and the echoed parameters (R-11)."""
    given = request_fields(exchange)
    limit = given.get("max_output_tokens")
    yield from agreeing(response(exchange), limit if isinstance(limit, int) else None)
    state = response(exchange).get("status")
    if state == "cancelled" and given.get("background") is not True:
        yield Problem(
            expected="a response that nobody cancelled", actual=state, pointer="status", rule="R-03"
        )
    yield from unlike(snapshots_of(exchange), {**requested(given), **defaults(given)})
    if exchange.method == "POST" and exchange.path.endswith("/responses") and not given.get("background"):
        yield from _ended_by_now(exchange)


def _ended_by_now(exchange: Exchange) -> Iterator[Problem]:
    """Check that a response took no longer than its exchange, with two seconds for rounding (R-03)."""
    found = response(exchange)
    begun, ended = found.get("created_at"), found.get("completed_at")
    if not exchange.frames or not isinstance(begun, int | float) or not isinstance(ended, int | float):
        return
    latest = begun + exchange.frames[-1][0] + 2
    if latest < ended < LATEST:
        yield Problem(
            expected=f"{latest:.0f} or earlier", actual=as_json(ended), pointer="completed_at", rule="R-03"
        )


def snapshots_of(exchange: Exchange) -> list[Placed]:
    """Return every response object of an answer, with its place; for a stream, the objects of all events."""
    found = response(exchange)
    if not is_stream(exchange):
        return [("", found)]
    numbered = enumerate(events(exchange))
    return [
        (f"event {n}, response.", e["response"]) for n, e in numbered if isinstance(e.get("response"), dict)
    ]


def wire(exchange: Exchange) -> Iterator[Problem]:
    """Check content type, framing and `[DONE]` (SSE-01, SSE-03, SSE-04, SSE-07, HTTP-02)."""
    yield from content_type(exchange, "text/event-stream")
    yield from framing(exchange, named=True)
    yield from done_last(exchange, required=False)


def _of_events(claim: Callable[[list[dict[str, Any]]], Iterator[Problem]], doc: str) -> Law:
    def law(exchange: Exchange) -> Iterator[Problem]:
        yield from claim(events(exchange))

    law.__doc__ = doc
    return law


def events(exchange: Exchange) -> list[dict[str, Any]]:
    """Return the events of a stream that are JSON objects."""
    return [event for event in accepted(exchange).chunks if isinstance(event, dict)]


def response(exchange: Exchange) -> dict[str, Any]:
    """Return the response object of an answer, or of the terminal event of a stream."""
    found = terminal(events(exchange)) if is_stream(exchange) else accepted(exchange).json
    if not isinstance(found, dict):
        raise Inconclusive("there is no response; another check reports this")
    return found


def items(exchange: Exchange, kind: str | None = None) -> list[dict[str, Any]]:
    """Return the output items of an answer, or only the items of one type."""
    output = response(exchange).get("output")
    found = [one for one in output if isinstance(one, dict)] if isinstance(output, list) else []
    return [one for one in found if kind is None or one.get("type") == kind]


def constrained_text(exchange: Exchange, *, whole: bool = True) -> str:
    """Return the text that a format constrains.

    Args:
        exchange: the answer.
        whole: leave out answers that the token limit cut.

    Raises:
        Inconclusive: the answer is a call or a refusal instead, or was cut.
    """
    if whole and response(exchange).get("status") == "incomplete":
        raise Inconclusive("the token limit cut the answer")
    found = items(exchange, "message")
    if not found and requested_tools(exchange):
        raise Inconclusive("the answer is not text")
    if any(part.get("type") == "refusal" for item in found for part in objects_in(item.get("content"))):
        raise Inconclusive("the model refused to answer")
    texts = [part.get("text") for item in found for part in objects_in(item.get("content"))]
    return "".join(text for text in texts if isinstance(text, str))


def outputs(exchange: Exchange) -> object:
    """Return status and output without the fields that may differ between equal answers."""
    output = response(exchange)["output"]
    return response(exchange).get("status"), _stable_fields(without_nulls(output))


def _stable_fields(value: Any) -> Any:
    match value:
        case dict():
            return {
                key: _stable_fields(member)
                for key, member in value.items()
                if key not in VOLATILE and member != []
            }
        case list():
            return [_stable_fields(member) for member in value]
    return value


def shapes(found: list[dict[str, Any]]) -> Iterator[Problem]:
    """Check every event against the schema of its type (RS-21); `known_types` reports unknown types."""
    for number, event in enumerate(found):
        kind = event.get("type")
        if isinstance(kind, str) and kind in event_schemas():
            yield from violations(event_schemas()[kind], event, f"event {number}, ")


def known_types(found: list[dict[str, Any]]) -> Iterator[Problem]:
    """Check for unknown event types (RS-17); types with a colon are extensions.

    The service keeps long streams alive with events that its document does not have (openai-node#1964).
    """
    for number, event in enumerate(found):
        kind = event.get("type")
        if not isinstance(kind, str) or (":" not in kind and kind not in {*known_events(), KEEP_ALIVE}):
            yield Problem(
                expected="a type of the contract, or one with a prefix",
                actual=as_json(kind)[:100],
                pointer=f"event {number}, type",
            )


def event_order(found: list[dict[str, Any]]) -> Iterator[Problem]:
    """Check the first and the terminal event (RS-01), and the sequence numbers (RS-02)."""
    kinds = [event.get("type") for event in found]
    if kinds[:1] != ["response.created"]:
        shown = as_json(kinds[:1])
        yield Problem(expected="response.created", actual=shown, pointer="event 0", rule="RS-01")
    for kind in ("response.created", "response.in_progress"):
        if kinds.count(kind) > 1:
            yield Problem(
                expected=f"{kind} once", actual=str(kinds.count(kind)), pointer="events", rule="RS-01"
            )
    ends = [number for number, kind in enumerate(kinds) if kind in TERMINAL]
    if ends != [len(kinds) - 1]:
        wanted = "one terminal event, the last"
        yield Problem(expected=wanted, actual=as_json(ends), pointer="events", rule="RS-01")
    numbers = [event.get("sequence_number") for event in found]
    integers = [number for number in numbers if isinstance(number, int)]
    if len(integers) != len(numbers) or any(b <= a for a, b in pairwise(integers)):
        wanted, shown = "strictly increasing integers", as_json(numbers[:20])
        yield Problem(expected=wanted, actual=shown, pointer="sequence_number", rule="RS-02")


def snapshots(found: list[dict[str, Any]]) -> Iterator[Problem]:
    """Check the response snapshots in events (RS-03, RS-04, RS-14, R-05, R-10).

    All have the same id, the first ones have no output, and the last one has the status of its event.
    """
    numbered = [(n, e["response"]) for n, e in enumerate(found) if isinstance(e.get("response"), dict)]
    for key in ("id", "created_at", "model"):
        values = {as_json(snapshot.get(key)) for _, snapshot in numbered}
        if len(values) > 1:
            shown = ", ".join(sorted(values))[:200]
            yield Problem(expected=f"one {key}", actual=shown, pointer=key, rule="RS-03")
    for number, snapshot in numbered:
        kind = found[number].get("type")
        early = kind in ("response.created", "response.in_progress")
        if kind in ("response.completed", "response.incomplete"):
            yield from _final_usage(snapshot, number)
        rule, wrong = _wrong_while_running(snapshot) if early else _wrong_at_the_end(snapshot, kind)
        for key in wrong:
            shown, where = as_json(snapshot.get(key))[:100], f"event {number}, response.{key}"
            yield Problem(expected=f"the value for {kind}", actual=shown, pointer=where, rule=rule)


def _wrong_while_running(snapshot: dict[str, Any]) -> tuple[str, list[str]]:
    """Return the rule and the wrong members of a snapshot before the output."""
    early: dict[str, object] = {"output": [], "usage": None, "completed_at": None}
    wrong = [key for key, wanted in early.items() if snapshot.get(key) != wanted]
    return "RS-04", wrong + ([] if snapshot.get("status") in ("in_progress", "queued") else ["status"])


def _wrong_at_the_end(snapshot: dict[str, Any], kind: Any) -> tuple[str, list[str]]:
    """Return the rule and the wrong members of a later snapshot: R-05 if the limit cut the answer, else RS-14."""
    state = snapshot.get("status")
    cut = "incomplete" in (state, str(kind).partition(".")[2])
    return "R-05" if cut else "RS-14", [] if kind == f"response.{state}" else ["status"]


def _final_usage(snapshot: dict[str, Any], number: int) -> Iterator[Problem]:
    """Check that the last snapshot has a usage (RS-14) that adds up (R-10)."""
    found = snapshot.get("usage")
    if not isinstance(found, dict):
        where = f"event {number}, response.usage"
        yield Problem(expected="a usage object", actual=as_json(found)[:100], pointer=where, rule="RS-14")
        return
    for problem in usage_adds_up(found, prompt="input_tokens", completion="output_tokens"):
        where = f"event {number}, response.{problem.pointer}"
        yield Problem(expected=problem.expected, actual=problem.actual, pointer=where, rule="R-10")


event_shapes = _of_events(shapes, "Check the schema of every event (RS-21).")
event_types = _of_events(known_types, "Check for unknown event types (RS-17).")
lifecycle = _of_events(event_order, "Check first event, terminal event and numbers (RS-01, RS-02).")
nesting = _of_events(
    lambda found: Items().judge(found), "Check the nesting of items and parts (RS-05 to RS-08)."
)
summed = _of_events(sums, "Check that deltas add up to items and response (RS-09, RS-14).")
snapshots_agree = _of_events(snapshots, "Check the snapshots (RS-03, RS-04, RS-14, R-05, R-10).")
Row = tuple[str, str, tuple[str, ...], Law]
_WHOLE: tuple[Row, ...] = (
    (
        "shape",
        "Answer with the complete response object",
        SHAPE,
        shape,
    ),
    ("usage", "Count tokens so that the total is the sum", ("R-10",), usage),
)
_STREAMED: tuple[Row, ...] = (
    ("wire", "Name every event after its type", (*NAMED, "SSE-07", "HTTP-02"), wire),
    ("event-shapes", "Send events as the contract requires", ("RS-21",), event_shapes),
    ("event-types", "Send only events of the contract", ("RS-17",), event_types),
    (
        "lifecycle",
        "Begin with created, end with one terminal event, count upwards",
        LIFECYCLE,
        lifecycle,
    ),
    (
        "nesting",
        "Open, fill and close items and parts in order",
        NESTING,
        nesting,
    ),
    ("sums", "Make deltas add up to done events, items and response", SUMS, summed),
    ("snapshots", "Send consistent snapshots of the response", SNAPSHOTS, snapshots_agree),
)
