"""Which exchange a check was reading when it found a problem.

A check of a scenario with several exchanges points into one of them, and a reader has to know into which. Hardly a
check says so itself: while it runs, its exchanges note when their answer is read, and a problem belongs to the last one
that was. A check that compares, and so reads on before it speaks, says `exchange=` itself.
"""

from __future__ import annotations

from typing import Any, cast

import msgspec

from plumbline_conformance.suite.model import Problem
from plumbline_conformance.transcript.model import Exchange, Transcript

__all__ = ["ExchangeTracker", "tracked"]


class ExchangeTracker:
    """The place of the exchange that was read last."""

    def __init__(self) -> None:
        self.place: int | None = None
        self.count = 0

    def placed(self, problem: Problem) -> Problem:
        """The problem with its exchange, where there are several and it does not say."""
        if problem.exchange is not None or self.count < 2 or self.place is None:
            return problem
        return msgspec.structs.replace(problem, exchange=self.place)


class _TrackedExchange:
    """An exchange that says when it is read."""

    __slots__ = ("_exchange", "_place", "_tracker")

    def __init__(self, exchange: Exchange, tracker: ExchangeTracker, place: int) -> None:
        self._exchange = exchange
        self._tracker = tracker
        self._place = place

    def __getattr__(self, name: str) -> Any:
        # What was asked is read to know what to look for, which is no look at the answer.
        if not name.startswith("request_"):
            self._tracker.place = self._place
        return getattr(self._exchange, name)


def tracked(transcript: Transcript, tracker: ExchangeTracker) -> Transcript:
    """The transcript, with exchanges that report to the tracker."""
    tracker.count = len(transcript.exchanges)
    seen = [_TrackedExchange(exchange, tracker, place) for place, exchange in enumerate(transcript.exchanges)]
    return Transcript(scenario=transcript.scenario, exchanges=cast("list[Exchange]", seen))
