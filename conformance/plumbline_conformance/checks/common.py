"""Claims that several surfaces share."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, TypeVar

from plumbline_conformance.suite.field_rules import rule_of, rules_of_shape
from plumbline_conformance.suite.model import Broken, Inconclusive, Problem, Rejected, breaking, check
from plumbline_conformance.suite.schema_validation import violations
from plumbline_conformance.transcript.model import Exchange, Transcript
from plumbline_conformance.transcript.sse import BYTE_ORDER_MARK

__all__ = [
    "BUSY",
    "accepted",
    "answered",
    "at",
    "content_type",
    "counted",
    "done_last",
    "envelope",
    "error_of",
    "framing",
    "last",
    "plain",
    "refusal",
    "refused",
    "request_id",
    "required",
    "streaming",
    "taken",
    "tidy",
    "unnamed",
    "usage_adds_up",
    "valid_body",
    "whole_shapes",
    "without_nulls",
]

Answer = TypeVar("Answer")
BUSY = {408, 429, 502, 503, 504}
"""The server, or what stands before it, says that it cannot answer now. That is no fault against any rule."""


def at(seen: Transcript, index: int) -> Exchange:
    """One exchange of the scenario."""
    if index >= len(seen.exchanges):
        raise Inconclusive("this request was not sent")
    return seen.exchanges[index]


def last(seen: Transcript) -> Exchange:
    """The exchange that most checks look at."""
    return at(seen, max(0, len(seen.exchanges) - 1))


def answered(exchange: Exchange) -> Exchange:
    """Go on only with a whole answer of this server to this client."""
    if exchange.error is not None or exchange.status == 0:
        raise Inconclusive(exchange.error or "there was no answer")
    if exchange.status in BUSY:
        raise Inconclusive(f"the server was busy: status {exchange.status}")
    if exchange.status in (401, 403):
        raise Inconclusive(f"the API key was not accepted: status {exchange.status}")
    return exchange


def accepted(exchange: Exchange) -> Exchange:
    """Go on only with a success: what a refused request looks like is the business of other checks."""
    answered(exchange)
    if exchange.status >= 500 and exchange.status != 501:
        raise Broken(Problem(expected="an answer", actual=f"status {exchange.status}", pointer="status"))
    if 200 < exchange.status < 300:
        raise Broken(Problem(expected="status 200", actual=f"status {exchange.status}", pointer="status"))
    if exchange.status < 400 and exchange.status != 200:
        raise Inconclusive(f"status {exchange.status} to {exchange.header('location') or 'nowhere'}")
    if exchange.status != 200:
        raise Rejected(f"status {exchange.status}: {refusal(exchange)}")
    if exchange.failure is not None:
        number, event = exchange.failure
        shown = repr(event.get("error") or event)[:200]
        raise Broken(Problem(expected="an answer", actual=shown, pointer=f"event {number}"))
    return exchange


def required(act: Callable[[], Answer]) -> Answer:
    """Of a rule that wants an answer: a failure breaks this very rule."""
    try:
        return act()
    except Broken as broken:
        raise Broken(broken.problem, own=True) from None


def refusal(exchange: Exchange) -> str:
    """What the server says of a refusal."""
    message = (error_of(exchange) or {}).get("message")
    return message[:200] if isinstance(message, str) else "no error object"


def refused(exchange: Exchange, *statuses: int) -> Iterator[Problem]:
    """The status of a refusal. What its body looks like is the business of `envelope`."""
    if answered(exchange).status not in statuses:
        if exchange.status == 404 and (error_of(exchange) or {}).get("code") == "model_not_found":
            raise Inconclusive("the server does not know the model, and looked no further")
        wanted = " or ".join(map(str, statuses))
        yield Problem(expected=f"status {wanted}", actual=f"status {exchange.status}", pointer="status")


def envelope(exchange: Exchange) -> Iterator[Problem]:
    """ERR-01: the error object, in all four keys."""
    if answered(exchange).status < 400:
        raise Inconclusive(f"the request was not refused: status {exchange.status}")
    if exchange.json is None:
        yield _no_json(exchange, "a JSON error object")
        return
    yield from violations("ErrorResponse", exchange.json)


def valid_body(exchange: Exchange, schema: str, where: str = "") -> Iterator[Problem]:
    """A body by its schema. One that is no JSON, as a stream that nobody asked for, is shown as it came."""
    if exchange.json is None:
        yield from breaking(rule_of(schema, ()), [_no_json(exchange, f"a valid {schema}", where)])
        return
    yield from violations(schema, exchange.json, where)


def _no_json(exchange: Exchange, wanted: str, where: str = "") -> Problem:
    shown = exchange.body[:80].decode("utf-8", "replace")
    return Problem(expected=wanted, actual=repr(shown), pointer=f"{where}body")


def error_of(exchange: Exchange) -> dict[str, Any] | None:
    """The error object, whatever is in it."""
    error = exchange.json.get("error") if isinstance(exchange.json, dict) else None
    return error if isinstance(error, dict) else None


def content_type(exchange: Exchange, wanted: str) -> Iterator[Problem]:
    """HTTP-01, HTTP-02: media types are compared without parameters and without regard to case."""
    found = exchange.header("content-type") or "none"
    if found.partition(";")[0].strip().lower() != wanted:
        rule = "HTTP-02" if wanted == "text/event-stream" else "HTTP-01"
        yield Problem(expected=wanted, actual=found, pointer="headers.content-type", rule=rule)


def plain(exchange: Exchange) -> Iterator[Problem]:
    """HTTP-01."""
    yield from content_type(exchange, "application/json")


def streaming(exchange: Exchange) -> Iterator[Problem]:
    """HTTP-02."""
    yield from content_type(exchange, "text/event-stream")


def unnamed(exchange: Exchange) -> Iterator[Problem]:
    """SSE-01, SSE-05: of chat completions and completions."""
    yield from framing(exchange, named=False)


def request_id(exchange: Exchange) -> Iterator[Problem]:
    """HTTP-03."""
    if not answered(exchange).header("x-request-id"):
        yield Problem(expected="a header x-request-id", actual="none", pointer="headers")


def tidy(exchange: Exchange) -> Iterator[Problem]:
    """SSE-02, SSE-03: legal for readers that follow the standard, and the end of those that split at line feeds."""
    if exchange.body.startswith(BYTE_ORDER_MARK):
        shown = "one at the start"
        yield Problem(expected="no byte order mark", actual=shown, pointer="body", rule="SSE-02")
    if b"\r" in exchange.body:
        wanted = "line ends of one line feed"
        yield Problem(expected=wanted, actual="carriage returns", pointer="body", rule="SSE-02")
    for index, event in enumerate(exchange.events):
        if "id" in event.fields:
            yield Problem(expected="no id field", actual="one", pointer=f"event {index}", rule="SSE-03")


def framing(exchange: Exchange, *, named: bool) -> Iterator[Problem]:
    """SSE-01, SSE-03, SSE-04, SSE-05: one JSON object per event, closed by a blank line, nothing clients choke on."""
    if not exchange.events:
        yield Problem(expected="events", actual=repr(exchange.body[:80]), pointer="body", rule="SSE-01")
    for index, event in enumerate(exchange.events):
        where = f"event {index}"
        if event.data is None and event.name is not None:
            shown = "a block without data"
            yield Problem(expected="data in every event", actual=shown, pointer=where, rule="SSE-03")
        if event.data not in (None, "[DONE]") and not isinstance(event.json, dict):
            shown = repr(event.data)[:80]
            yield Problem(expected="one JSON object", actual=shown, pointer=where, rule="SSE-01")
        if "retry" in event.fields:
            yield Problem(expected="no retry field", actual="one", pointer=where, rule="SSE-03")
        if not event.closed:
            wanted = "a blank line after the event"
            yield Problem(expected=wanted, actual="the end of the body", pointer=where, rule="SSE-01")
        if not named and event.name is not None:
            shown = repr(event.name)
            yield Problem(expected="no event name", actual=shown, pointer=where, rule="SSE-05")
        kind = event.json.get("type") if isinstance(event.json, dict) else event.name
        if named and event.data != "[DONE]" and event.name != kind:
            shown = f"event: {event.name}"
            yield Problem(expected=f"event: {kind}", actual=shown, pointer=where, rule="SSE-04")


def done_last(exchange: Exchange, *, required: bool = True) -> Iterator[Problem]:
    """SSE-05, SSE-07: exactly one `[DONE]`, and it is the last event."""
    places = [index for index, event in enumerate(exchange.events) if event.data == "[DONE]"]
    if places != [len(exchange.events) - 1] and (places or required):
        yield Problem(
            expected="one [DONE], as the last event",
            actual=f"{len(places)} of them, at {places[:5]} of {len(exchange.events)} events",
            pointer="events",
            rule="SSE-07" if places else "SSE-05",
        )


def usage_adds_up(usage: Any, *, prompt: str, completion: str) -> Iterator[Problem]:
    """CHAT-08, R-10: the total is the sum. Of chat completions and completions it is said that there is a prompt."""
    if not isinstance(usage, dict):
        yield Problem(expected="a usage object", actual=repr(usage), pointer="usage")
        return
    parts = [usage.get(name) for name in (prompt, completion, "total_tokens")]
    counts = [part for part in parts if isinstance(part, int) and part >= 0]
    if len(counts) != 3 or counts[0] + counts[1] != counts[2]:
        yield Problem(expected=f"{prompt} + {completion} = total_tokens", actual=repr(parts), pointer="usage")
    elif prompt == "prompt_tokens" and counts[0] < 1:
        yield Problem(
            expected="at least 1 token of a prompt", actual=repr(counts[0]), pointer=f"usage.{prompt}"
        )


def counted(exchange: Exchange, key: str) -> int:
    """One number of the usage of a whole answer."""
    body = accepted(exchange).json
    usage = body.get("usage") if isinstance(body, dict) else None
    count = usage.get(key) if isinstance(usage, dict) else None
    if not isinstance(count, int):
        raise Inconclusive("the answer has no usage; another check says so")
    return count


def taken(seen: Transcript, index: int) -> Iterator[Problem]:
    """What follows from an accepted request may not be refused: that something is offered includes its way back."""
    accepted(at(seen, 0))
    found = at(seen, index)
    if found.status in (400, 404, 422):
        yield Problem(expected="an answer", actual=f"status {found.status}", pointer="status")
        return
    required(lambda: accepted(found))


def whole_shapes(slug: str, schema: str, *places: int, rules: tuple[str, ...] = ()) -> None:
    """Register the check of the shape of several whole answers of a scenario; `rules` where one speaks of all of it."""

    @check(f"{slug}/shape", "Answer as the contract says", *(rules or rules_of_shape(schema)))
    def shape(seen: Transcript) -> Iterator[Problem]:
        for place in places:
            yield from valid_body(accepted(at(seen, place)), schema, f"answer {place}, ")


def without_nulls(value: Any) -> Any:
    """A null is the same as nothing where two objects are compared."""
    match value:
        case dict():
            return {key: without_nulls(member) for key, member in value.items() if member is not None}
        case list():
            return [without_nulls(member) for member in value]
    return value
