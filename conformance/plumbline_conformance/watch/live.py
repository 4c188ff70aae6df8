"""Judging what passes: the checks that need one exchange only, and their counts.

Live traffic was not asked by us, so only what must hold of any answer to any request is looked at.
"""

from __future__ import annotations

import json
from collections import Counter, deque
from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

import plumbline_conformance.checks  # noqa: F401 - registers the suite
from plumbline_conformance.baseline import VIOLATIONS
from plumbline_conformance.case import CHECKS
from plumbline_conformance.judge import Finding, judge_one
from plumbline_conformance.reports.model import VERDICTS
from plumbline_conformance.transcript import Exchange, Transcript

__all__ = ["LIVE", "Tally", "judge_live", "kind_of"]

_CHAT = "chat/stream-text"
_RESPONSES = "responses/stream-text"
LIVE: dict[str, tuple[str, ...]] = {
    "watch/chat": ("chat/text/shape", "chat/text/content-type", "chat/text/request-id", "chat/text/usage"),
    "watch/chat-stream": tuple(
        f"{_CHAT}/{name}"
        for name in (
            "content-type",
            "framing",
            "tidy",
            "done",
            "shape",
            "identity",
            "role-once",
            "finish-once",
        )
    ),
    "watch/responses": (f"{_RESPONSES}/shape", f"{_RESPONSES}/usage"),
    "watch/responses-stream": tuple(
        f"{_RESPONSES}/{name}"
        for name in (
            "content-type",
            "framing",
            "tidy",
            "done",
            "terminator",
            "event-shapes",
            "lifecycle",
            "sequence",
            "nesting",
            "sums",
        )
    ),
    "watch/models": ("models/list/shape",),
    "watch/error": ("errors/broken-json/envelope", "errors/broken-json/request-id"),
}
"""By the kind of an exchange, the checks that hold of every one of that kind."""
_OF_ONE_CHOICE = frozenset({f"{_CHAT}/finish-once"})
"""Hold only where one choice was asked for."""
_SAMPLES = 5
_RANK = {
    name: place
    for place, name in enumerate(("pass", "skipped", "rejected", "inconclusive", "warn", "fail", "error"))
}


def kind_of(exchange: Exchange) -> str | None:
    """What is judged of an exchange; None for what the suite says nothing of."""
    path = exchange.url.partition("?")[0].rstrip("/")
    request = _request(exchange)
    if exchange.status >= 400:
        return "watch/error"
    if path.endswith("/chat/completions"):
        return "watch/chat-stream" if request.get("stream") is True else "watch/chat"
    if path.endswith("/responses") and exchange.method == "POST":
        return "watch/responses-stream" if request.get("stream") is True else "watch/responses"
    if path.endswith("/models") and exchange.method == "GET":
        return "watch/models"
    return None


def judge_live(transcript: Transcript) -> list[Finding]:
    """Apply the checks of the transcript's kind. Never raises."""
    names = LIVE.get(transcript.scenario, ())
    if any(_request(exchange).get("n") not in (None, 1) for exchange in transcript.exchanges):
        names = tuple(name for name in names if name not in _OF_ONE_CHOICE)
    return [_fair(judge_one(CHECKS[name], transcript)) for name in names]


def _fair(finding: Finding) -> Finding:
    """A check that stumbles over traffic that nobody foresaw accuses nobody, neither the server nor the suite."""
    if finding.verdict != "error":
        return finding
    return msgspec.structs.replace(finding, verdict="inconclusive")


def _request(exchange: Exchange) -> dict[str, Any]:
    try:
        value = json.loads(exchange.request_body)
    except (ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}


class Tally:
    """Counts of all that passed, and a few samples of what was wrong: its size does not grow with the traffic."""

    def __init__(self) -> None:
        self.exchanges = 0
        self.unjudged = 0
        self.counts: dict[str, Counter[str]] = {}
        self.recent: deque[tuple[Exchange, list[Finding]]] = deque(maxlen=8)
        self._worst: dict[str, Finding] = {}
        self._samples: dict[str, list[Exchange]] = {}

    def add(self, transcript: Transcript, findings: Iterable[Finding]) -> list[Finding]:
        """Count an exchange; gives the findings that are violations."""
        [exchange] = transcript.exchanges
        found = list(findings)
        self.exchanges += 1
        wrong = [finding for finding in found if finding.verdict in VIOLATIONS]
        self.recent.append((msgspec.structs.replace(exchange, frames=exchange.frames[:1]), wrong))
        for finding in found:
            self.counts.setdefault(finding.check, Counter())[finding.verdict] += 1
            worst = self._worst.get(finding.check)
            if worst is None or _RANK.get(finding.verdict, 0) > _RANK.get(worst.verdict, 0):
                self._worst[finding.check] = self._sampled(finding, exchange)
        return wrong

    def _sampled(self, finding: Finding, exchange: Exchange) -> Finding:
        """The finding, pointing at its exchange among the samples of its scenario."""
        if finding.verdict == "pass":
            return finding
        samples = self._samples.setdefault(finding.check.rsplit("/", 1)[0], [])
        if not any(kept is exchange for kept in samples):
            if len(samples) >= _SAMPLES:
                return finding
            samples.append(exchange)
        place = next(number for number, kept in enumerate(samples) if kept is exchange)
        problems = [msgspec.structs.replace(problem, exchange=place) for problem in finding.problems]
        return msgspec.structs.replace(finding, problems=problems)

    def findings(self) -> list[Finding]:
        """The worst that each check said, with how often it said what."""
        found = []
        for name in CHECKS:
            if name in self._worst:
                worst, counts = self._worst[name], self.counts[name]
                said = ", ".join(f"{counts[verdict]} {verdict}" for verdict in VERDICTS if counts[verdict])
                reason = f"{worst.reason}; {said}" if worst.reason else said
                found.append(
                    worst if worst.verdict == "pass" else msgspec.structs.replace(worst, reason=reason)
                )
        return found

    def transcripts(self) -> Sequence[Transcript]:
        """The samples, under the scenarios whose checks they broke."""
        return [Transcript(scenario=name, exchanges=found) for name, found in self._samples.items()]
