"""Check ids and creation times of answers, which a constant would satisfy in one answer.

Ids are compared across the answers of a scenario, times with the clock of the server.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from email.utils import parsedate_to_datetime
from typing import Any

from plumbline_conformance.checks.common import accepted
from plumbline_conformance.suite.scenario import Inconclusive, Problem
from plumbline_conformance.suite.wording import as_json
from plumbline_conformance.transcript.exchange import Exchange, Transcript

__all__ = ["EARLIEST", "LATEST", "at_no_time", "distinct_ids", "distinct_request_ids", "made_now"]

HOUR = 3600
"""Tolerance in seconds: a queue or loading a model may delay the creation."""
EARLIEST, LATEST = 10**9, 10**11
"""Plausible times in seconds, from 2001 on; excludes zero and milliseconds."""


def at_no_time(body: dict[str, Any], where: str, rule: str) -> Iterator[Problem]:
    """Check that the creation time of an answer, or of a chunk, is a plausible number of seconds."""
    made = body.get("created")
    if isinstance(made, int) and not EARLIEST <= made < LATEST:
        yield Problem(expected="seconds since 1970", actual=str(made), pointer=f"{where}created", rule=rule)


def distinct_ids(seen: Transcript) -> Iterator[Problem]:
    """Check that no two answers share an id, even if their requests are equal."""
    yield from _distinct({one.name: _id(accepted(one)) for one in seen.exchanges}, "id")


def distinct_request_ids(seen: Transcript) -> Iterator[Problem]:
    """Check that request ids differ (HTTP-03); another check reports missing ids, and the judge sends no ids."""
    found = {one.name: accepted(one).header("x-request-id") for one in seen.exchanges}
    yield from _distinct(found, "headers.x-request-id")


def _distinct(found: dict[str, str | None], pointer: str) -> Iterator[Problem]:
    """Check that the values, by the names of their requests, differ."""
    given = {name: value for name, value in found.items() if value is not None}
    if len(given) < 2:
        raise Inconclusive("fewer than two answers have one; another check reports this")
    first: dict[str, str] = {}
    for name, value in given.items():
        if (other := first.setdefault(value, name)) != name:
            wanted = f"a different one than request {other}"
            yield Problem(expected=wanted, actual=as_json(value)[:200], pointer=pointer, exchange=name)


def _id(exchange: Exchange) -> str | None:
    """Return the id of a non-streaming answer, of the first chunk, or of the response in the first event."""
    values = [exchange.json, *exchange.chunks[:1]]
    body = next((value for value in values if isinstance(value, dict)), {})
    response = body.get("response")
    found = (response if isinstance(response, dict) else body).get("id")
    return found if isinstance(found, str) else None


def made_now(key: str) -> Callable[[Exchange], Iterator[Problem]]:
    """Return a law: the time under this key is the current time.

    The reference is the server's header `date`, because a wrong clock is not a fault of the API. Without the header,
    the law only checks that the value can be a time in seconds.
    """

    def law(exchange: Exchange) -> Iterator[Problem]:
        body = exchange.json
        yield from _fresh(exchange, body.get(key) if isinstance(body, dict) else None, key)

    law.__doc__ = made_now.__doc__
    return law


def streamed_now(key: str, *inside: str) -> Callable[[Exchange], Iterator[Problem]]:
    """Return the law of `made_now` for the first event of a stream, whose object is below these members."""

    def law(exchange: Exchange) -> Iterator[Problem]:
        found = next((one for one in exchange.chunks if isinstance(one, dict)), None)
        for name in inside:
            found = found.get(name) if isinstance(found, dict) else None
        where = ".".join(("event 0", *inside, key))
        yield from _fresh(exchange, found.get(key) if isinstance(found, dict) else None, where)

    law.__doc__ = made_now.__doc__
    return law


def _fresh(exchange: Exchange, made: Any, where: str) -> Iterator[Problem]:
    if not isinstance(made, int | float) or isinstance(made, bool):
        raise Inconclusive("there is no such time; another check reports this")
    now = _clock(exchange)
    if now is None and not EARLIEST <= made < LATEST:
        yield Problem(expected="seconds since 1970", actual=as_json(made), pointer=where)
    if now is not None and not abs(made - now) <= HOUR:
        wanted = f"about {now}, as the header date says"
        yield Problem(expected=wanted, actual=as_json(made), pointer=where)


def _clock(exchange: Exchange) -> int | None:
    try:
        return int(parsedate_to_datetime(exchange.header("date") or "").timestamp())
    except (ValueError, TypeError, LookupError, OverflowError):
        return None
