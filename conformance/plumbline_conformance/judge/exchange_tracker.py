"""Find out which exchange a check was reading when it found a problem.

A problem has to point at one exchange of its scenario, and few checks name it. While a check runs, its exchanges record
that their answer is read; a problem belongs to the exchange that was read last. A check that compares several answers
before it yields a problem sets `exchange=` itself.
"""

from __future__ import annotations

from typing import Any, cast

import msgspec

from plumbline_conformance.suite.model import Problem
from plumbline_conformance.transcript.model import Exchange, Transcript

__all__ = ["ExchangeTracker", "tracked"]


class ExchangeTracker:
    """Remember the place of the exchange that was read last."""

    def __init__(self) -> None:
        self.place: int | None = None
        self.count = 0

    def placed(self, problem: Problem) -> Problem:
        """Return the problem with its exchange, if there are several and it names none."""
        if problem.exchange is not None or self.count < 2 or self.place is None:
            return problem
        return msgspec.structs.replace(problem, exchange=self.place)


class _TrackedExchange:
    """Report reads of an exchange to the tracker."""

    __slots__ = ("_exchange", "_place", "_tracker")

    def __init__(self, exchange: Exchange, tracker: ExchangeTracker, place: int) -> None:
        self._exchange = exchange
        self._tracker = tracker
        self._place = place

    def __getattr__(self, name: str) -> Any:
        # A check reads the request to know what to look for; only reads of the answer count.
        if not name.startswith("request_"):
            self._tracker.place = self._place
        return getattr(self._exchange, name)


def tracked(transcript: Transcript, tracker: ExchangeTracker) -> Transcript:
    """Return the transcript with exchanges that report to the tracker."""
    tracker.count = len(transcript.exchanges)
    seen = [_TrackedExchange(exchange, tracker, place) for place, exchange in enumerate(transcript.exchanges)]
    return Transcript(scenario=transcript.scenario, exchanges=cast("list[Exchange]", seen))
