"""What checks say of transcripts: pure functions, so that a recording is judged like a server.

A transcript may hold several attempts at its scenario: `record` repeats one whose answers broke a rule that depends on
what the model draws. Checks of such rules are folded over all attempts, the others look at the first alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Literal

import msgspec

from plumbline_conformance.checks.common import accepted
from plumbline_conformance.judge.exchange_tracker import ExchangeTracker, tracked
from plumbline_conformance.suite.model import (
    CHECKS,
    FAILED,
    Broken,
    Check,
    Inconclusive,
    NotRequested,
    Problem,
    Rejected,
    Untestable,
    broken_rules,
)
from plumbline_conformance.transcript.model import Exchange, Transcript

__all__ = ["Finding", "Verdict", "judge", "judge_law", "worth_repeating"]

Verdict = Literal[
    "pass", "fail", "warn", "flaky", "rejected", "untestable", "inconclusive", "skipped", "error"
]
"""`flaky`: of several attempts some broke the rule and some kept it. `rejected`: the server refused the request, so
there is nothing to hold the rule against. `untestable`: it accepted a request and did not deliver what the rule is
about. `inconclusive`: the wire, a busy server or a free choice of the model came between. `skipped`: the target has not
got the capability, or a budget did not allow it. `error`: the suite itself is at fault."""

_MAX_PROBLEMS = 50
"""A check does not say more often than this what is wrong with one transcript."""
_BROKEN = ("fail", "warn", "untestable")


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """What one check says of one transcript."""

    check: str
    verdict: Verdict
    problems: list[Problem] = msgspec.field(default_factory=list)
    reason: str | None = None
    crash: bool = False
    """The server failed, so that whatever the rule says could not be seen."""

    @property
    def broken(self) -> list[str]:
        """The rules that its problems name, each once."""
        return broken_rules(self.problems)


def judge(transcript: Transcript) -> list[Finding]:
    """Apply every check of the transcript's scenario. Never raises."""
    prefix = f"{transcript.scenario}/"
    wanted = [found for name, found in CHECKS.items() if name.startswith(prefix)]
    if transcript.skipped is not None:
        return [Finding(check=found.id, verdict="skipped", reason=transcript.skipped) for found in wanted]
    attempts = [_attempt(wanted, seen) for seen in transcript.attempts]
    findings = attempts[0]
    if len(attempts) == 1:
        return findings
    lengths = [len(seen.exchanges) for seen in transcript.attempts]
    return [
        _folded([attempt[place] for attempt in attempts], lengths) if found.sampled else findings[place]
        for place, found in enumerate(wanted)
    ]


def judge_law(found: Check, exchange: Exchange) -> Finding | None:
    """Apply a law to an exchange, whoever asked for it; None where it was not asked for what the law is about."""
    meant = True

    def claim(seen: Transcript) -> Iterator[Problem]:
        nonlocal meant
        assert found.law is not None
        try:
            yield from found.law(seen.last if found.of == "refusal" else accepted(seen.last))
        except NotRequested:
            meant = False

    seen = Transcript(scenario=found.id.rsplit("/", 1)[0], exchanges=[exchange])
    finding = _apply(msgspec.structs.replace(found, judge=claim), seen)
    return finding if meant else None


def worth_repeating(transcript: Transcript) -> list[str]:
    """The checks that want another attempt: a MUST was broken, and another draw of the model may keep it."""
    return [
        finding.check
        for finding in judge(transcript)
        if finding.verdict in ("fail", "untestable")
        and CHECKS[finding.check].sampled
        and CHECKS[finding.check].level == "MUST"
    ]


def _attempt(wanted: list[Check], transcript: Transcript) -> list[Finding]:
    findings = _report_crashes_once([_apply(found, transcript) for found in wanted])
    if any(finding.verdict == "fail" for finding in findings):
        # The answer is not of the documented shape, and the check of its shape says where. The others stumble over it.
        return [_forgiven(finding) if finding.verdict == "error" else finding for finding in findings]
    return findings


def _report_crashes_once(findings: Sequence[Finding]) -> list[Finding]:
    """Leave a crash with the first MUST that it kept from being seen; what else it hid came to no verdict."""
    reporters: dict[tuple[int | None, str, str], str] = {}
    for level in ("MUST", "SHOULD", "MAY"):
        for finding in findings:
            if finding.crash and CHECKS[finding.check].level == level:
                reporters.setdefault(_crash(finding), finding.check)
    return [
        finding
        if not finding.crash or reporters[_crash(finding)] == finding.check
        else msgspec.structs.replace(
            finding,
            verdict="inconclusive",
            problems=[],
            reason=f"{finding.problems[0].actual}; {reporters[_crash(finding)]} says so",
        )
        for finding in findings
    ]


def _crash(finding: Finding) -> tuple[int | None, str, str]:
    [problem] = finding.problems
    return problem.exchange, problem.actual, problem.pointer


def _folded(attempts: list[Finding], lengths: list[int]) -> Finding:
    """One finding of several attempts: what all that came to a verdict agree on, or `flaky`.

    Args:
        attempts: what the check said of each attempt.
        lengths: how many exchanges each attempt has, by which its problems are found among those of all.
    """
    starts = [sum(lengths[:place]) for place in range(len(lengths))]
    broken = [place for place, finding in enumerate(attempts) if finding.verdict in _BROKEN]
    kept = sum(finding.verdict == "pass" for finding in attempts)
    if not broken:
        return next((finding for finding in attempts if finding.verdict == "pass"), attempts[0])
    worst = next((place for place in broken if attempts[place].problems), broken[0])
    found = attempts[worst]
    problems = [_moved(problem, starts[worst]) for problem in found.problems]
    if not kept:
        return msgspec.structs.replace(found, problems=problems)
    said = f"broken in {len(broken)}/{len(broken) + kept} attempts"
    reason = f"{said}; {found.reason}" if found.reason else said
    return Finding(check=found.check, verdict="flaky", problems=problems, reason=reason)


def _moved(problem: Problem, start: int) -> Problem:
    if problem.exchange is None or not start:
        return problem
    return msgspec.structs.replace(problem, exchange=problem.exchange + start)


def _forgiven(finding: Finding) -> Finding:
    return Finding(
        check=finding.check, verdict="inconclusive", reason=f"an answer of another shape: {finding.reason}"
    )


def _apply(found: Check, transcript: Transcript) -> Finding:
    tracker = ExchangeTracker()
    problems: list[Problem] = []
    try:
        said = islice(found.judge(tracked(transcript, tracker)), _MAX_PROBLEMS)
        # One by one, as they are found: afterwards nobody knows which exchange was being read.
        problems.extend(_named(found, tracker.placed(problem)) for problem in said)
    except Inconclusive as reason:
        return Finding(check=found.id, verdict="inconclusive", reason=str(reason))
    except Rejected as reason:
        return Finding(check=found.id, verdict="rejected", reason=str(reason))
    except Untestable as reason:
        return Finding(check=found.id, verdict="untestable", reason=str(reason))
    except Broken as broken:
        verdict: Verdict = "fail" if found.level == "MUST" else "warn"
        crash = msgspec.structs.replace(broken.problem, rule=found.rules[0] if broken.own else FAILED)
        problems = [tracker.placed(crash)]
        return Finding(check=found.id, verdict=verdict, problems=problems, crash=True)
    except Exception as error:  # An answer that the check did not foresee, or a fault of the check.
        return Finding(check=found.id, verdict="error", reason=f"{type(error).__name__}: {error}")
    if not problems:
        return Finding(check=found.id, verdict="pass")
    return Finding(check=found.id, verdict="fail" if found.level == "MUST" else "warn", problems=problems)


def _named(found: Check, problem: Problem) -> Problem:
    """The problem with the rule that it breaks: nobody is accused of breaking all that a check looks at.

    Raises:
        ValueError: the check does not say which of its rules it means, or names another one.
    """
    rule = problem.rule or (found.rules[0] if len(found.rules) == 1 else "")
    if rule not in found.rules:
        raise ValueError(f"a problem breaks {rule or 'no rule that is named'}, not one of {found.rules}")
    return problem if problem.rule else msgspec.structs.replace(problem, rule=rule)
