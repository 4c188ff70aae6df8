"""Judging what passes: the laws of one exchange, and their counts.

Live traffic was not asked by us, so a law reads off the request what it has to know, and says nothing where it cannot.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable, Mapping, Sequence

import msgspec

from plumbline_conformance.checks.request_reader import OPERATIONS
from plumbline_conformance.judge.redacted_findings import redact_findings, shows_secrets
from plumbline_conformance.judge.verdicts import Finding, judge_law
from plumbline_conformance.recording.redaction import redacted_exchange, secrets_of
from plumbline_conformance.reports.baseline import VIOLATIONS
from plumbline_conformance.reports.model import VERDICTS, WORST_FIRST
from plumbline_conformance.suite.model import CHECKS, GONE
from plumbline_conformance.transcript.model import Exchange, Transcript
from plumbline_conformance.watch.laws import features_of, laws_of

__all__ = ["Tally", "judge_live", "kind_of"]

_SAMPLES = 8
"""Exchanges that are kept of a scenario, as evidence."""
_BADNESS = {verdict: -place for place, verdict in enumerate(WORST_FIRST)}


class _Worst(msgspec.Struct):
    """The worst that a check said."""

    finding: Finding
    exchange: Exchange | None = None
    """What it was said of, if that is kept."""

    @property
    def badness(self) -> int:
        return _BADNESS[self.finding.verdict]


def kind_of(exchange: Exchange) -> str:
    """The operation that was asked for, under which its exchange is recorded."""
    return "watch/" + (
        "error" if exchange.status >= 400 else min(features_of(exchange) & OPERATIONS, default="other")
    )


def judge_live(exchange: Exchange) -> list[Finding]:
    """Apply the laws that hold of the exchange; its credentials are not in what is said. Never raises."""
    found = _judged(exchange)
    covered = redacted_exchange(exchange)
    if not shows_secrets(exchange, covered):
        return found
    return redact_findings(found, _judged(covered), secrets_of(exchange))


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
        self._worst: dict[str, dict[str, _Worst]] = {}
        """By scenario and check."""

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
            self._keep(finding, exchange)
        return wrong

    def _keep(self, finding: Finding, exchange: Exchange) -> None:
        """Remember the finding if it is the worst of its check, and its exchange if it is worth a place."""
        found = _Worst(finding)
        checks = self._worst.setdefault(_scenario(finding.check), {})
        known = checks.get(finding.check)
        is_evidence = finding.verdict in VIOLATIONS
        if known is not None:
            # Of what is as bad, one that can be shown is better than one that cannot.
            unseen = is_evidence and known.exchange is None
            if found.badness < known.badness or (found.badness == known.badness and not unseen):
                return
        # What this check said before needs its evidence no longer, which may be the place that is wanted.
        checks.pop(finding.check, None)
        if is_evidence and _makes_place(checks, exchange, found.badness):
            found.exchange = exchange
        checks[finding.check] = found

    def findings(self) -> list[Finding]:
        """The worst that each check said, with how often it said what."""
        found = []
        for name in CHECKS:
            if name not in self.counts:
                continue
            checks, counts = self._worst[_scenario(name)], self.counts[name]
            worst = checks[name].finding
            if worst.verdict == "pass":
                found.append(worst)
                continue
            samples = _samples(checks)
            at = next((at for at, kept in enumerate(samples) if kept is checks[name].exchange), GONE)
            said = [", ".join(f"{counts[verdict]} {verdict}" for verdict in VERDICTS if counts[verdict])]
            if worst.problems and at == GONE:
                said.append(f"its exchange was not kept: there is room for {_SAMPLES} of {_scenario(name)}")
            reason = "; ".join([*([worst.reason] if worst.reason else []), *said])
            problems = [msgspec.structs.replace(problem, exchange=at) for problem in worst.problems]
            found.append(msgspec.structs.replace(worst, reason=reason, problems=problems))
        return found

    def transcripts(self) -> Sequence[Transcript]:
        """The samples, under the scenarios whose checks they broke."""
        found = {name: _samples(checks) for name, checks in self._worst.items()}
        return [Transcript(scenario=name, exchanges=kept) for name, kept in found.items() if kept]


def _scenario(check: str) -> str:
    return check.rsplit("/", 1)[0]


def _samples(checks: Mapping[str, _Worst]) -> list[Exchange]:
    """What is kept of a scenario, each once: what its checks say the worst of, and nothing else."""
    return list({id(worst.exchange): worst.exchange for worst in checks.values() if worst.exchange}.values())


def _makes_place(checks: Mapping[str, _Worst], exchange: Exchange, badness: int) -> bool:
    """Whether there is a place for the exchange among the samples; if need be, a milder one gives way."""
    samples = _samples(checks)
    if len(samples) < _SAMPLES or any(kept is exchange for kept in samples):
        return True

    def worth(kept: Exchange) -> int:
        return max(worst.badness for worst in checks.values() if worst.exchange is kept)

    mildest = min(samples, key=worth)
    if worth(mildest) >= badness:
        return False
    for worst in checks.values():
        if worst.exchange is mildest:
            worst.exchange = None
    return True
