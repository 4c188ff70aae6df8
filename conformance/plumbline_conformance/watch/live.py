"""Apply laws to live exchanges, and count the results.

The requests come from other clients, so laws read their expectations from the request and are skipped without them.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable, Mapping, Sequence

import msgspec

from plumbline_conformance.checks.request_reader import OPERATIONS
from plumbline_conformance.checks.selected_laws import features_of, laws_of
from plumbline_conformance.judge.redacted_findings import redact_findings, shows_secrets
from plumbline_conformance.judge.verdicts import Finding, judge_law
from plumbline_conformance.recording.redaction import redacted_exchange, secrets_of
from plumbline_conformance.reports.baseline import VIOLATIONS
from plumbline_conformance.reports.report import VERDICTS, WORST_FIRST
from plumbline_conformance.suite.scenario import CHECKS, GONE
from plumbline_conformance.transcript.exchange import Exchange, Transcript

__all__ = ["Tally", "judge_live", "kind_of"]

_SAMPLES = 8
"""Maximum number of exchanges to keep per scenario, as evidence."""
_BADNESS = {verdict: -place for place, verdict in enumerate(WORST_FIRST)}


class _Worst(msgspec.Struct):
    """The worst finding of a check."""

    finding: Finding
    exchange: Exchange | None = None
    """The exchange of the finding, if it is kept."""

    @property
    def badness(self) -> int:
        return _BADNESS[self.finding.verdict]


def kind_of(exchange: Exchange) -> str:
    """Return the scenario name to record an exchange under, by its operation."""
    return "watch/" + (
        "error" if exchange.status >= 400 else min(features_of(exchange) & OPERATIONS, default="other")
    )


def judge_live(exchange: Exchange) -> list[Finding]:
    """Apply the laws for an exchange; findings have no credentials. Never raises."""
    found = _judged(exchange)
    covered = redacted_exchange(exchange)
    if not shows_secrets(exchange, covered):
        return found
    return redact_findings(found, _judged(covered), secrets_of(exchange))


def _judged(exchange: Exchange) -> list[Finding]:
    findings = (judge_law(found, exchange) for found, _ in laws_of(exchange))
    return [_fair(finding) for finding in findings if finding is not None]


def _fair(finding: Finding) -> Finding:
    """Make a crash of a check inconclusive: unexpected traffic is a fault of neither the server nor the suite."""
    if finding.verdict != "error":
        return finding
    return msgspec.structs.replace(finding, verdict="inconclusive")


class Tally:
    """Count results and keep a few samples of violations; the size does not grow with the traffic."""

    def __init__(self) -> None:
        self.exchanges = 0
        self.unjudged = 0
        self.counts: dict[str, Counter[str]] = {}
        self.recent: deque[tuple[Exchange, list[Finding]]] = deque(maxlen=8)
        self._worst: dict[str, dict[str, _Worst]] = {}
        """By scenario and check."""

    def add(self, transcript: Transcript, findings: Iterable[Finding]) -> list[Finding]:
        """Count an exchange; return the findings that are violations."""
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
        """Keep the finding if it is the worst of its check, and its exchange if there is room."""
        found = _Worst(finding)
        checks = self._worst.setdefault(_scenario(finding.check), {})
        known = checks.get(finding.check)
        is_evidence = finding.verdict in VIOLATIONS
        if known is not None:
            # Of equally bad findings, prefer one with its exchange.
            unseen = is_evidence and known.exchange is None
            if found.badness < known.badness or (found.badness == known.badness and not unseen):
                return
        # Drop the earlier finding first, because its exchange may be the one to replace.
        checks.pop(finding.check, None)
        if is_evidence and _makes_place(checks, exchange, found.badness):
            found.exchange = exchange
        checks[finding.check] = found

    def findings(self) -> list[Finding]:
        """Return the worst finding of each check, with the counts of its verdicts."""
        found = []
        for name in CHECKS:
            if name not in self.counts:
                continue
            checks, counts = self._worst[_scenario(name)], self.counts[name]
            worst = checks[name].finding
            if worst.verdict == "pass":
                found.append(worst)
                continue
            samples = _samples(checks).items()
            at = next((sample for sample, kept in samples if kept is checks[name].exchange), GONE)
            notes = [", ".join(f"{counts[verdict]} {verdict}" for verdict in VERDICTS if counts[verdict])]
            if worst.problems and at == GONE:
                notes.append(f"its exchange was not kept: there is room for {_SAMPLES} of {_scenario(name)}")
            reason = "; ".join([*([worst.reason] if worst.reason else []), *notes])
            problems = [msgspec.structs.replace(problem, exchange=at) for problem in worst.problems]
            found.append(msgspec.structs.replace(worst, reason=reason, problems=problems))
        return found

    def transcripts(self) -> Sequence[Transcript]:
        """Return the samples, by the scenarios of the checks that they broke."""
        found = {name: _samples(checks).items() for name, checks in self._worst.items()}
        return [
            Transcript(
                scenario=name,
                exchanges=[msgspec.structs.replace(kept, name=sample) for sample, kept in samples],
            )
            for name, samples in found.items()
            if samples
        ]


def _scenario(check: str) -> str:
    return check.rsplit("/", 1)[0]


def _samples(checks: Mapping[str, _Worst]) -> dict[str, Exchange]:
    """Return the exchanges kept for the worst findings of a scenario's checks, each once, by name."""
    kept = {id(worst.exchange): worst.exchange for worst in checks.values() if worst.exchange}
    return {f"sample/{number}": exchange for number, exchange in enumerate(kept.values(), 1)}


def _makes_place(checks: Mapping[str, _Worst], exchange: Exchange, badness: int) -> bool:
    """Return whether the exchange can be kept; if necessary, drop a milder sample."""
    samples = _samples(checks).values()
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
