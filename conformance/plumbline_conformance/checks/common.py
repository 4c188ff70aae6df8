"""Provide assertions that checks of several APIs share."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

from plumbline_conformance.suite.field_rules import rule_of, rules_of_shape
from plumbline_conformance.suite.scenario import (
    Broken,
    Inconclusive,
    Law,
    Problem,
    Rejected,
    about,
    breaking,
    check,
)
from plumbline_conformance.suite.schema_validation import violations
from plumbline_conformance.suite.wording import as_json
from plumbline_conformance.transcript.exchange import UNABLE, Exchange, Transcript
from plumbline_conformance.transcript.sse import BYTE_ORDER_MARK

__all__ = [
    "accepted",
    "answered",
    "at",
    "broken",
    "content_type",
    "done_last",
    "envelope",
    "error_of",
    "follow_up_accepted",
    "framing",
    "framing_without_names",
    "group",
    "has_no_route",
    "json_content_type",
    "longer_prompt",
    "only",
    "portable_framing",
    "refusal",
    "refused",
    "request_id",
    "required",
    "sse_content_type",
    "usage_adds_up",
    "usage_count",
    "valid_body",
    "whole_shapes",
    "without_nulls",
]

Answer = TypeVar("Answer")


def at(seen: Transcript, name: str) -> Exchange:
    """Return the exchange of this name; inconclusive if its request was not sent."""
    for exchange in seen.exchanges:
        if exchange.name == name:
            return exchange
    raise Inconclusive("this request was not sent")


def only(seen: Transcript) -> Exchange:
    """Return the exchange of a scenario that sends one request; inconclusive if it was not sent."""
    for exchange in seen.exchanges:
        return exchange
    raise Inconclusive("this request was not sent")


def group(seen: Transcript, name: str, *, needed: bool = True) -> list[Exchange]:
    """Return the exchanges named `name`, `name/1`, `name/2` and so on, in order.

    Raises:
        Inconclusive: the group is needed, and none of its requests was sent.
    """
    found = [exchange for exchange in seen.exchanges if exchange.name.partition("/")[0] == name]
    if needed and not found:
        raise Inconclusive("this request was not sent")
    return found


def has_no_route(exchange: Exchange) -> bool:
    """Return whether the server refused the request because it does not have the operation.

    A framework answers an unknown route with 405, or with a 404 that has no error object and does not mention the
    resource.
    """
    if exchange.error is not None or exchange.method == "WEBSOCKET":
        return False
    if exchange.status in (405, 501):
        return True
    if exchange.status != 404:
        return False
    value = exchange.json
    if isinstance(value, dict) and ("detail" not in value or isinstance(value.get("error"), dict)):
        return False
    name = exchange.path.rpartition("/")[2]
    return name not in json.dumps(value) if value is not None else True


def answered(exchange: Exchange) -> Exchange:
    """Return the exchange if it has a complete answer; otherwise the check is inconclusive.

    Raises:
        Broken: no client can read the answer; or the server lives, and each time closed the connection, or did not end
            its answer.
    """
    if exchange.dropped:
        actual = f"twice a closed connection: {exchange.error}"
        raise broken(exchange, "an answer or a refusal", actual, "connection")
    if exchange.endless:
        actual = (
            f"twice no end: nothing came for {exchange.endless:.0f} s, while another request was answered"
        )
        raise broken(exchange, "the end of the answer", actual, "body")
    if exchange.unreadable:
        actual = exchange.error or "an answer that cannot be read"
        raise broken(exchange, "an answer that clients can read", actual, "body")
    if exchange.error is not None or exchange.status == 0:
        raise Inconclusive(exchange.error or "there was no answer")
    if exchange.status in UNABLE and not exchange.unavailable:
        raise Inconclusive(f"the server was busy: status {exchange.status}")
    if exchange.status in (401, 403):
        raise Inconclusive(f"the API key was not accepted: status {exchange.status}")
    return exchange


def accepted(exchange: Exchange) -> Exchange:
    """Return the exchange if it succeeded.

    Raises:
        Broken: a 5xx status, another 2xx status than 200, or a failure event in the stream.
        Rejected: the server refused the request; other checks examine refusals.
        Inconclusive: a redirect, a busy server or no complete answer.
    """
    answered(exchange)
    if exchange.status >= 500 and exchange.status != 501:
        actual = f"status {exchange.status}"
        if exchange.unavailable:
            actual += f" twice, while another request was answered: {refusal(exchange)}"
        raise broken(exchange, "an answer", actual, "status")
    if 200 < exchange.status < 300:
        raise broken(exchange, "status 200", f"status {exchange.status}", "status")
    if exchange.status < 400 and exchange.status != 200:
        raise Inconclusive(f"status {exchange.status} to {exchange.header('location') or 'nowhere'}")
    if exchange.status != 200:
        raise Rejected(f"status {exchange.status}: {refusal(exchange)}")
    if exchange.failure is not None:
        number, event = exchange.failure
        if exchange.asks_for_later:
            raise Inconclusive("the server was busy: its stream ends with an error event that says so")
        shown = as_json(event.get("error") or event)[:200]
        raise broken(exchange, "an answer", shown, f"event {number}")
    return exchange


def broken(exchange: Exchange, expected: str, actual: str, pointer: str) -> Broken:
    """Return the exception for a server that failed instead of answering this request."""
    return Broken(Problem(expected=expected, actual=actual, pointer=pointer, exchange=exchange.name))


def required(act: Callable[[], Answer]) -> Answer:
    """Attribute a failure to the check's own rule, for rules that require an answer."""
    try:
        return act()
    except Broken as failure:
        raise Broken(failure.problem, own=True) from None


def refusal(exchange: Exchange) -> str:
    """Return the message of a refusal, cut to 200 characters."""
    message = (error_of(exchange) or {}).get("message")
    return message[:200] if isinstance(message, str) else "no error object"


def refused(exchange: Exchange, *statuses: int) -> Iterator[Problem]:
    """Check the status of a refusal; `envelope` checks its body."""
    if answered(exchange).status not in statuses:
        if exchange.status == 404 and (error_of(exchange) or {}).get("code") == "model_not_found":
            raise Inconclusive("the server does not know the model and checked nothing else")
        wanted = " or ".join(map(str, statuses))
        shown = f"status {exchange.status}"
        yield Problem(expected=f"status {wanted}", actual=shown, pointer="status", exchange=exchange.name)


def envelope(exchange: Exchange) -> Iterator[Problem]:
    """Check the error object with its four keys (ERR-01)."""
    if answered(exchange).status < 400:
        raise Inconclusive(f"the request was not refused: status {exchange.status}")
    if exchange.json is None:
        yield _no_json(exchange, "a JSON error object")
        return
    yield from about(exchange, violations("ErrorResponse", exchange.json))


def valid_body(exchange: Exchange, schema: str) -> Iterator[Problem]:
    """Validate a body against its schema. A body that is not JSON, such as an unexpected stream, is a problem."""
    if exchange.json is None:
        yield from breaking(rule_of(schema, ()), [_no_json(exchange, f"a valid {schema}")])
        return
    yield from about(exchange, violations(schema, exchange.json))


def _no_json(exchange: Exchange, wanted: str) -> Problem:
    shown = exchange.body[:80].decode("utf-8", "replace")
    return Problem(expected=wanted, actual=as_json(shown), pointer="body", exchange=exchange.name)


def error_of(exchange: Exchange) -> dict[str, Any] | None:
    """Return the error object of the body, if there is one."""
    error = exchange.json.get("error") if isinstance(exchange.json, dict) else None
    return error if isinstance(error, dict) else None


def content_type(exchange: Exchange, wanted: str) -> Iterator[Problem]:
    """Check the media type, ignoring case, and that a stream names no charset but UTF-8 (HTTP-01, HTTP-02)."""
    found = exchange.header("content-type") or "none"
    if found.partition(";")[0].strip().lower() != wanted:
        rule = "HTTP-02" if wanted == "text/event-stream" else "HTTP-01"
        yield Problem(expected=wanted, actual=found, pointer="headers.content-type", rule=rule)
    charset = found.lower().partition("charset=")[2].partition(";")[0].strip(' "')
    if wanted == "text/event-stream" and charset not in ("", "utf-8"):  # A charset of JSON has no effect.
        where = "headers.content-type"
        yield Problem(expected="the charset utf-8", actual=charset[:80], pointer=where, rule="HTTP-02")


def json_content_type(exchange: Exchange) -> Iterator[Problem]:
    """Check that the answer is `application/json` (HTTP-01)."""
    yield from content_type(exchange, "application/json")


def sse_content_type(exchange: Exchange) -> Iterator[Problem]:
    """Check that the answer is `text/event-stream` (HTTP-02)."""
    yield from content_type(exchange, "text/event-stream")


def framing_without_names(exchange: Exchange) -> Iterator[Problem]:
    """Check the framing of chat completions and completions, without event names (SSE-01, SSE-05)."""
    yield from framing(exchange, named=False)


def request_id(exchange: Exchange) -> Iterator[Problem]:
    """Check that the answer has an `x-request-id` (HTTP-03)."""
    if not answered(exchange).header("x-request-id"):
        yield Problem(expected="a header x-request-id", actual="none", pointer="headers")


def portable_framing(exchange: Exchange) -> Iterator[Problem]:
    """Check for a byte order mark, carriage returns, ids and blocks that are not events (SSE-02, SSE-03).

    The SSE standard allows them, but clients that split at line feeds, or decode the data of every block, fail on them.
    """
    if exchange.body.startswith(BYTE_ORDER_MARK):
        shown = "one at the start"
        yield Problem(expected="no byte order mark", actual=shown, pointer="body", rule="SSE-02")
    if b"\r" in exchange.body:
        wanted = "line ends of one line feed"
        yield Problem(expected=wanted, actual="carriage returns", pointer="body", rule="SSE-02")
    for index, event in enumerate(exchange.events):
        if "id" in event.fields:
            yield Problem(expected="no id field", actual="one", pointer=f"event {index}", rule="SSE-03")
    for block in exchange.blocks:
        if not block.data and block.name is None:
            shown = f"a block of {', '.join(block.fields) or 'empty data'} alone"
            yield Problem(expected="data in every block", actual=shown, pointer="body", rule="SSE-03")


def framing(exchange: Exchange, *, named: bool) -> Iterator[Problem]:
    """Check that each event is one JSON object and ends with a blank line (SSE-01, SSE-03, SSE-04, SSE-05)."""
    if not exchange.events:
        yield Problem(expected="events", actual=as_json(exchange.body[:80]), pointer="body", rule="SSE-01")
    for index, event in enumerate(exchange.events):
        where = f"event {index}"
        if not event.data and event.name is not None:
            shown = "a block without data"
            yield Problem(expected="data in every event", actual=shown, pointer=where, rule="SSE-03")
        if event.data not in (None, "", "[DONE]") and not isinstance(event.json, dict):
            shown = as_json(event.data)[:80]
            yield Problem(expected="one JSON object", actual=shown, pointer=where, rule="SSE-01")
        if not event.closed:
            wanted = "a blank line after the event"
            yield Problem(expected=wanted, actual="the end of the body", pointer=where, rule="SSE-01")
        if not named and event.name is not None:
            shown = as_json(event.name)
            yield Problem(expected="no event name", actual=shown, pointer=where, rule="SSE-05")
        kind = event.json.get("type") if isinstance(event.json, dict) else event.name
        if named and event.data != "[DONE]" and event.name != kind:
            shown = f"event: {event.name}"
            yield Problem(expected=f"event: {kind}", actual=shown, pointer=where, rule="SSE-04")


def done_last(exchange: Exchange, *, required: bool = True) -> Iterator[Problem]:
    """Check that there is exactly one `[DONE]`, as the last event (SSE-05, SSE-07)."""
    places = [index for index, event in enumerate(exchange.events) if event.data == "[DONE]"]
    if places != [len(exchange.events) - 1] and (places or required):
        yield Problem(
            expected="one [DONE], as the last event",
            actual=f"{len(places)} of them, at {places[:5]} of {len(exchange.events)} events",
            pointer="events",
            rule="SSE-07" if places else "SSE-05",
        )


def usage_adds_up(usage: Any, *, prompt: str, completion: str) -> Iterator[Problem]:
    """Check that a prompt has tokens, the total is the sum, and no part is larger than its whole (CHAT-08, R-10)."""
    if not isinstance(usage, dict):
        yield Problem(expected="a usage object", actual=as_json(usage), pointer="usage")
        return
    parts = [usage.get(name) for name in (prompt, completion, "total_tokens")]
    counts = [part for part in parts if isinstance(part, int) and part >= 0]
    if len(counts) != 3 or counts[0] + counts[1] != counts[2]:
        yield Problem(
            expected=f"{prompt} + {completion} = total_tokens", actual=as_json(parts), pointer="usage"
        )
    elif counts[0] < 1:
        yield Problem(
            expected="at least 1 token of a prompt", actual=as_json(counts[0]), pointer=f"usage.{prompt}"
        )
    for name, part in (
        (prompt, "cached_tokens"),
        (prompt, "cache_write_tokens"),
        (completion, "reasoning_tokens"),
    ):
        details = usage.get(f"{name}_details")
        count, most = details.get(part) if isinstance(details, dict) else None, usage.get(name)
        if isinstance(count, int) and isinstance(most, int) and not 0 <= count <= most:
            where = f"usage.{name}_details.{part}"
            yield Problem(expected=f"at most {most}, which is {name}", actual=str(count), pointer=where)


def usage_count(exchange: Exchange, key: str) -> int:
    """Return one number of the usage of a non-streaming answer."""
    body = accepted(exchange).json
    usage = body.get("usage") if isinstance(body, dict) else None
    count = usage.get(key) if isinstance(usage, dict) else None
    if not isinstance(count, int):
        raise Inconclusive("the answer has no usage; another check reports this")
    return count


def longer_prompt(seen: Transcript, short: str, long: str, key: str = "input_tokens") -> Iterator[Problem]:
    """Check that the request `long` counts more tokens than `short`: its prompt contains all of the shorter one."""
    fewer, more = usage_count(at(seen, short), key), usage_count(at(seen, long), key)
    if more <= fewer:
        where = f"usage.{key}"
        yield Problem(expected=f"more than {fewer}", actual=str(more), pointer=where, exchange=long)


def follow_up_accepted(seen: Transcript, first: str, name: str) -> Iterator[Problem]:
    """Check that the server accepts the request `name`, a follow-up of the request `first` that it accepted.

    A server that returns items, such as calls, must accept them as input.
    """
    accepted(at(seen, first))
    found = at(seen, name)
    if found.status in (400, 404, 422):
        shown = f"status {found.status}"
        yield Problem(expected="an answer", actual=shown, pointer="status", exchange=name)
        return
    required(lambda: accepted(found))


def whole_shapes(
    slug: str, schema: str, *names: str, rules: tuple[str, ...] = (), law: Law | None = None
) -> None:
    """Register the schema check of several non-streaming answers.

    Args:
        slug: the id of the scenario.
        schema: the name of the schema.
        names: the names of the requests.
        rules: the rules of the check; by default those of the schema's fields.
        law: the check of each answer; by default the schema alone.
    """

    @check(f"{slug}/shape", "Answer as the contract requires", *(rules or rules_of_shape(schema)))
    def shape(seen: Transcript) -> Iterator[Problem]:
        for name in names:
            exchange = accepted(at(seen, name))
            yield from about(exchange, valid_body(exchange, schema) if law is None else law(exchange))


def without_nulls(value: Any) -> Any:
    """Remove null fields, to compare two objects."""
    match value:
        case dict():
            return {key: without_nulls(member) for key, member in value.items() if member is not None}
        case list():
            return [without_nulls(member) for member in value]
    return value
