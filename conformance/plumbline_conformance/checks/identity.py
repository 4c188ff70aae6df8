"""What tells one answer from another: its id, its time, and the id of its request.

A constant in any of these passes every check of one answer, so that several answers of one scenario are held against
each other, and times against the clock of the server itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from email.utils import parsedate_to_datetime

from plumbline_conformance.checks.common import accepted
from plumbline_conformance.suite.model import Inconclusive, Problem
from plumbline_conformance.transcript.model import Exchange, Transcript

__all__ = ["distinct_ids", "distinct_request_ids", "made_now"]

HOUR = 3600
"""A queue, or a model that has to be loaded first, may lie between the head of an answer and its creation."""
EARLIEST, LATEST = 10**9, 10**11
"""Times in seconds from 2001 on. Zero is none, and milliseconds lie beyond it."""


def distinct_ids(seen: Transcript) -> Iterator[Problem]:
    """No two answers share an id, be they whole or streamed.

    The request may be the same each time: an answer is one of its own all the same, and logs and stores find it by
    its id.
    """
    yield from _apart([_id(accepted(exchange)) for exchange in seen.exchanges], "id")


def distinct_request_ids(seen: Transcript) -> Iterator[Problem]:
    """HTTP-03. A server that sends none is told so elsewhere; the judge sends none that could be sent back."""
    found = [accepted(exchange).header("x-request-id") for exchange in seen.exchanges]
    yield from _apart(found, "headers.x-request-id")


def _apart(found: list[str | None], pointer: str) -> Iterator[Problem]:
    if sum(one is not None for one in found) < 2:
        raise Inconclusive("fewer than two answers have one; another check says so")
    for place, one in enumerate(found):
        if one is not None and one in found[:place]:
            wanted = f"another than that of answer {found.index(one)}"
            yield Problem(expected=wanted, actual=repr(one)[:200], pointer=pointer, exchange=place)


def _id(exchange: Exchange) -> str | None:
    """The id of a whole answer, of the first chunk, or of the response in the first event."""
    values = [exchange.json, *exchange.chunks[:1]]
    body = next((value for value in values if isinstance(value, dict)), {})
    held = body.get("response")
    found = (held if isinstance(held, dict) else body).get("id")
    return found if isinstance(found, str) else None


def made_now(key: str) -> Callable[[Exchange], Iterator[Problem]]:
    """A law: the time under this key is that of the answer.

    The server's own clock is asked, because a wrong one is no fault of the API: the header `date` says its time. Where
    there is none, all that is claimed is that it could be a time in seconds.
    """

    def law(exchange: Exchange) -> Iterator[Problem]:
        body = exchange.json
        made = body.get(key) if isinstance(body, dict) else None
        if not isinstance(made, int | float) or isinstance(made, bool):
            raise Inconclusive("there is no such time; another check says so")
        now = _clock(exchange)
        if now is None and not EARLIEST <= made < LATEST:
            yield Problem(expected="seconds since 1970", actual=repr(made), pointer=key)
        if now is not None and not abs(made - now) <= HOUR:
            wanted = f"about {now}, as the header date says"
            yield Problem(expected=wanted, actual=repr(made), pointer=key)

    law.__doc__ = made_now.__doc__
    return law


def _clock(exchange: Exchange) -> int | None:
    try:
        return int(parsedate_to_datetime(exchange.header("date") or "").timestamp())
    except (ValueError, TypeError, LookupError, OverflowError):
        return None
