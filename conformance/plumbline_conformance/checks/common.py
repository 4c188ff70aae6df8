"""Claims that several surfaces share."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from plumbline_conformance.case import Inconclusive, Problem
from plumbline_conformance.schema import violations
from plumbline_conformance.transcript import Exchange

__all__ = ["accepted", "done_last", "envelope", "framing", "request_id", "usage_adds_up"]


def accepted(exchange: Exchange) -> Exchange:
    """Go on only with a success: what a refused request looks like is not this check's business."""
    if exchange.status != 200:
        raise Inconclusive(f"the request was answered with status {exchange.status}")
    return exchange


def envelope(exchange: Exchange, *statuses: int) -> Iterator[Problem]:
    """ERR-01, ERR-02: an error status with the error object."""
    if exchange.status not in statuses:
        wanted = " or ".join(map(str, statuses))
        yield Problem(expected=f"status {wanted}", actual=f"status {exchange.status}", pointer="status")
        return
    if exchange.json is None:
        shown = exchange.body[:80].decode("utf-8", "replace")
        yield Problem(expected="a JSON error object", actual=repr(shown), pointer="body")
        return
    yield from violations("ErrorResponse", exchange.json)


def request_id(exchange: Exchange) -> Iterator[Problem]:
    """HTTP-03."""
    if not exchange.header("x-request-id"):
        yield Problem(expected="a header x-request-id", actual="none", pointer="headers")


def framing(exchange: Exchange, *, named: bool) -> Iterator[Problem]:
    """SSE-01, SSE-03, SSE-04, SSE-05: one JSON object per event, closed by a blank line, nothing clients choke on."""
    if exchange.body.startswith(b"\xef\xbb\xbf"):
        yield Problem(expected="no byte order mark", actual="one at the start", pointer="body")
    for index, event in enumerate(exchange.events):
        where = f"event {index}"
        if event.data is None:
            yield Problem(expected="data in every event", actual="a block without data", pointer=where)
        elif event.data != "[DONE]" and not isinstance(event.json, dict):
            yield Problem(expected="one JSON object", actual=event.data[:80], pointer=where)
        if event.fields:
            yield Problem(
                expected="data and event fields only", actual=", ".join(event.fields), pointer=where
            )
        if not event.closed:
            yield Problem(
                expected="a blank line after the event", actual="the end of the body", pointer=where
            )
        if not named and event.name is not None:
            yield Problem(expected="no event name", actual=event.name, pointer=where)
        if (
            named
            and event.data != "[DONE]"
            and isinstance(event.json, dict)
            and event.name != event.json.get("type")
        ):
            yield Problem(
                expected=f"event: {event.json.get('type')}", actual=f"event: {event.name}", pointer=where
            )


def done_last(exchange: Exchange) -> Iterator[Problem]:
    """SSE-05, SSE-06, SSE-07: exactly one `[DONE]`, and it is the last event."""
    places = [index for index, event in enumerate(exchange.events) if event.data == "[DONE]"]
    if places != [len(exchange.events) - 1]:
        yield Problem(
            expected="one [DONE], as the last event",
            actual=f"{len(places)} of them, at {places[:5]} of {len(exchange.events)} events",
            pointer="events",
        )


def usage_adds_up(usage: Any, *, prompt: str, completion: str) -> Iterator[Problem]:
    """CHAT-08, R-10: the total is the sum, and there is a prompt."""
    if not isinstance(usage, dict):
        yield Problem(expected="a usage object", actual=repr(usage), pointer="usage")
        return
    parts = [usage.get(name) for name in (prompt, completion, "total_tokens")]
    counts = [part for part in parts if isinstance(part, int)]
    if len(counts) != 3 or counts[0] < 1 or counts[0] + counts[1] != counts[2]:
        yield Problem(expected=f"{prompt} + {completion} = total_tokens", actual=repr(parts), pointer="usage")
