"""Judging what passes: the laws of one exchange, and their counts.

Live traffic was not asked by us, so a law reads off the request what it has to know, and says nothing where it cannot.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable, Sequence

import msgspec

from plumbline_conformance.baseline import VIOLATIONS
from plumbline_conformance.case import CHECKS
from plumbline_conformance.checks.asked import OPERATIONS
from plumbline_conformance.credentials import redacted_exchange, secrets_of
from plumbline_conformance.discretion import shows, told
from plumbline_conformance.reports.model import VERDICTS
from plumbline_conformance.transcript import Exchange, Transcript
from plumbline_conformance.verdicts import Finding, judge_law
from plumbline_conformance.watch.laws import features_of, laws_of

__all__ = ["Tally", "judge_live", "kind_of"]

_SAMPLES = 5
_RANK = {
    name: place
    for place, name in enumerate(("pass", "skipped", "rejected", "inconclusive", "warn", "fail", "error"))
}


def kind_of(exchange: Exchange) -> str:
    """The operation that was asked for, under which its exchange is recorded."""
    return "watch/" + (
        "error" if exchange.status >= 400 else min(features_of(exchange) & OPERATIONS, default="other")
    )


def judge_live(exchange: Exchange) -> list[Finding]:
    """Apply the laws that hold of the exchange; its credentials are not in what is said. Never raises."""
    found = _judged(exchange)
    covered = redacted_exchange(exchange)
    if not shows(exchange, covered):
        return found
    return told(found, _judged(covered), secrets_of(exchange))


def _judged(exchange: Exchange) -> list[Finding]:
    findings = (judge_law(found, exchange) for found, _ in laws_of(exchange))
    return [_fair(finding) for finding in findings if finding is not None]


def _fair(finding: Finding) -> Finding:
    """A check that stumbles over traffic that nobody foresaw accuses nobody, neither the server nor the suite."""
    if finding.verdict != "error":
        return finding
    return msgspec.structs.replace(finding, verdict="inconclusive")


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
        bare = msgspec.structs.replace(exchange, frames=[], packed=msgspec.UNSET, request_body=b"")
        self.recent.append((bare, wrong))
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
