"""Apply checks to transcripts. All functions are pure, so a recording gives the same verdicts as the live run.

A transcript may have several attempts at its scenario, because `record` repeats a scenario if a rule that depends on
sampling was broken. Checks of such rules combine all attempts; the others look at the first one only.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Literal

import msgspec

from plumbline_conformance.checks.common import accepted, refusal
from plumbline_conformance.judge.missing_operations import missing_operation
from plumbline_conformance.suite.scenario import (
    CHECKS,
    DIED,
    FAILED,
    MUTE,
    SCENARIOS,
    SURVIVED,
    Broken,
    Check,
    Inconclusive,
    NotRequested,
    Problem,
    Rejected,
    Unsteady,
    Untestable,
    broken_rules,
    checks_of,
)
from plumbline_conformance.transcript.defects import summary_of, traceback_of
from plumbline_conformance.transcript.exchange import Exchange, Transcript, in_attempt

__all__ = [
    "Finding",
    "Verdict",
    "failed",
    "judge",
    "judge_law",
    "replaces",
    "worth_repeating",
    "worth_repeating_alone",
]

Verdict = Literal[
    "pass", "fail", "warn", "flaky", "rejected", "untestable", "inconclusive", "skipped", "error"
]
"""`flaky`: some attempts broke the rule and some kept it. `rejected`: the server refused the request, so there is
nothing to judge. `untestable`: the server accepted the request and did not deliver what the rule requires.
`inconclusive`: a lost connection, a busy server or a free choice of the model prevented a verdict. `skipped`: the
target lacks the capability, or the budget did not allow the scenario. `error`: the suite itself is at fault."""

_MAX_PROBLEMS = 50
"""Problems that one check reports for one transcript."""
_MISSING = re.compile(r"^KeyError: '(\w+)'$")
"""Matches the summary of the exception of a check that read a missing member."""
_LEVELS = ("MUST", "SHOULD", "MAY")
_BROKEN = ("fail", "warn", "untestable")


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """The verdict of one check on one transcript."""

    check: str
    verdict: Verdict
    problems: list[Problem] = msgspec.field(default_factory=list)
    reason: str | None = None
    crash: bool = False
    """The server failed, so the check could not look at its rules."""
    unsteady: bool = False
    """The server answered the same request in different ways, so the check is inconclusive."""
    traceback: str = ""
    """Where the suite itself failed, for the verdict `error`."""

    @property
    def broken(self) -> list[str]:
        """Return the rules that its problems name, each once."""
        return broken_rules(self.problems)


def judge(transcript: Transcript) -> list[Finding]:
    """Apply every check of the transcript's scenario. It never raises: a defect becomes the verdict `error`."""
    if transcript.defect:
        return failed(transcript.scenario, transcript.defect)
    try:
        return _judged(transcript)
    except Exception as error:
        return failed(transcript.scenario, traceback_of(error))


def failed(scenario: str, traceback: str) -> list[Finding]:
    """Return the verdict `error` for every check of a scenario that the suite could not run or judge."""
    reason = f"the judge failed: {traceback.rpartition(chr(10))[2]}"
    return [
        Finding(check=found.id, verdict="error", reason=reason, traceback=traceback)
        for found in checks_of(scenario)
    ]


def _judged(transcript: Transcript) -> list[Finding]:
    wanted = checks_of(transcript.scenario)
    if transcript.skipped is not None:
        return [Finding(check=found.id, verdict="skipped", reason=transcript.skipped) for found in wanted]
    if transcript.died is not None:
        return _killed(wanted, transcript)
    attempts = [_attempt(wanted, seen) for seen in transcript.attempts]
    findings = attempts[0]
    if len(attempts) == 1:
        return findings
    return [
        _folded([attempt[place] for attempt in attempts]) if found.sampled else findings[place]
        for place, found in enumerate(wanted)
    ]


def _killed(wanted: list[Check], transcript: Transcript) -> list[Finding]:
    """Accuse a server that a request killed, or silenced, under one check; no other check judges its last answers."""
    fatal = transcript.exchanges[transcript.died or 0]
    error = f"{DIED}: {fatal.error or 'its connections broke'}"
    if (answer := transcript.mute) is not None:
        outcome = answer.error or f"status {answer.status}: {refusal(answer)}"
        error = f"{MUTE}: from here on a valid request that it had answered gets {outcome}"
    if transcript.beside:
        error += f"; also in flight were {', '.join(transcript.beside)}"
    rule = SURVIVED if SCENARIOS[transcript.scenario].hostile else FAILED
    expected = "a refusal, and a server that lives on" if rule == SURVIVED else "an answer"
    problem = Problem(expected=expected, actual=error, pointer="connection", exchange=fatal.name, rule=rule)
    accusing = min(wanted, key=lambda found: _LEVELS.index(found.level))
    reason = f"{DIED if transcript.mute is None else MUTE}; reported by {accusing.id}"
    return [
        Finding(
            check=found.id,
            verdict="fail" if found.level == "MUST" else "warn",
            problems=[problem],
            crash=True,
        )
        if found is accusing
        else Finding(check=found.id, verdict="inconclusive", reason=reason)
        for found in wanted
    ]


def judge_law(found: Check, exchange: Exchange) -> Finding | None:
    """Apply a law to any exchange; return None if its request does not ask for the feature of the law."""
    requested = True

    def claim(seen: Transcript) -> Iterator[Problem]:
        nonlocal requested
        assert found.law is not None
        try:
            yield from found.law(exchange if found.of == "refusal" else accepted(exchange))
        except NotRequested:
            requested = False

    seen = Transcript(scenario=found.id.rsplit("/", 1)[0], exchanges=[exchange])
    finding = _apply(msgspec.structs.replace(found, judge=claim), seen)
    return finding if requested else None


def worth_repeating(transcript: Transcript) -> list[str]:
    """Return the checks that are worth another attempt: a MUST that depends on sampling was broken."""
    return [
        finding.check
        for finding in judge(transcript)
        if finding.verdict in ("fail", "untestable")
        and CHECKS[finding.check].sampled
        and CHECKS[finding.check].level == "MUST"
    ]


def worth_repeating_alone(transcript: Transcript, *, late: bool) -> list[str]:
    """Return the checks that may have become inconclusive because the server had other requests to answer.

    Args:
        transcript: a scenario that ran beside others.
        late: whether one of its answers did not end in time.
    """
    findings = judge(transcript)
    return [one.check for one in findings if one.unsteady or (late and one.verdict == "inconclusive")]


def replaces(repeated: Transcript, first: Transcript) -> bool:
    """Return whether a repeated scenario may stand for the first one: it breaks what that broke, and maybe more."""
    broken, again = (
        {finding.check for finding in judge(seen) if finding.verdict in (*_BROKEN, "flaky", "error")}
        for seen in (first, repeated)
    )
    return broken <= again


def _attempt(wanted: list[Check], transcript: Transcript) -> list[Finding]:
    names = [exchange.name for exchange in transcript.exchanges]
    if len(set(names)) < len(names):
        raise ValueError(f"exchanges of {transcript.scenario} share a name: {names}")
    findings = _report_crashes_once([_apply(found, transcript) for found in wanted])
    if any(finding.verdict == "fail" for finding in findings):
        # The answer is malformed and the check of its shape reports where; other checks raise errors because of it.
        return [_inconclusive(finding) if finding.verdict == "error" else finding for finding in findings]
    return findings


def _report_crashes_once(findings: Sequence[Finding]) -> list[Finding]:
    """Report a server crash under one check only: the first of the highest level. The others become inconclusive."""
    reporters: dict[tuple[str | None, str, str], str] = {}
    for level in _LEVELS:
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
            reason=f"{finding.problems[0].actual}; reported by {reporters[_crash(finding)]}",
        )
        for finding in findings
    ]


def _crash(finding: Finding) -> tuple[str | None, str, str]:
    [problem] = finding.problems
    return problem.exchange, problem.actual, problem.pointer


def _folded(attempts: list[Finding]) -> Finding:
    """Combine the findings of several attempts.

    `flaky` means that some attempts broke the rule and some kept it; inconclusive attempts do not count.
    """
    broken = [place for place, finding in enumerate(attempts) if finding.verdict in _BROKEN]
    kept = sum(finding.verdict == "pass" for finding in attempts)
    if not broken:
        return next((finding for finding in attempts if finding.verdict == "pass"), attempts[0])
    worst = next((place for place in broken if attempts[place].problems), broken[0])
    found = attempts[worst]
    problems = [
        msgspec.structs.replace(problem, exchange=in_attempt(problem.exchange or "", worst + 1))
        for problem in found.problems
    ]
    if not kept:
        return msgspec.structs.replace(found, problems=problems)
    share = f"broken in {len(broken)}/{len(broken) + kept} attempts"
    reason = f"{share}; {found.reason}" if found.reason else share
    return Finding(check=found.check, verdict="flaky", problems=problems, reason=reason)


def _inconclusive(finding: Finding) -> Finding:
    reason = f"the answer is malformed: {_MISSING.sub(_as_member, finding.reason or '')}"
    return Finding(check=finding.check, verdict="inconclusive", reason=reason)


def _as_member(found: re.Match[str]) -> str:
    return f"a member {found[1]} is missing; other checks report where"


def _apply(found: Check, transcript: Transcript) -> Finding:
    problems: list[Problem] = []
    try:
        seen = islice(found.judge(transcript), _MAX_PROBLEMS)
        problems.extend(_completed(found, problem, transcript) for problem in seen)
    except Inconclusive as reason:
        unsteady = isinstance(reason, Unsteady)
        return Finding(check=found.id, verdict="inconclusive", reason=str(reason), unsteady=unsteady)
    except Rejected as reason:
        return Finding(check=found.id, verdict="rejected", reason=str(reason))
    except Untestable as reason:
        return Finding(check=found.id, verdict="untestable", reason=str(reason))
    except Broken as broken:
        verdict: Verdict = "fail" if found.level == "MUST" else "warn"
        crash = msgspec.structs.replace(broken.problem, rule=found.rules[0] if broken.own else FAILED)
        problems = [_placed(found, crash, transcript)]
        return Finding(check=found.id, verdict=verdict, problems=problems, crash=True)
    except Exception as error:  # A malformed answer that the check did not foresee, or a bug in the check.
        return Finding(
            check=found.id, verdict="error", reason=summary_of(error), traceback=traceback_of(error)
        )
    if not problems:
        return Finding(check=found.id, verdict="pass")
    if why := missing_operation(found, transcript, {problem.exchange for problem in problems}):
        return Finding(check=found.id, verdict="rejected", reason=why)
    return Finding(check=found.id, verdict="fail" if found.level == "MUST" else "warn", problems=problems)


def _completed(found: Check, problem: Problem, transcript: Transcript) -> Problem:
    """Return the problem with the rule that it breaks and the name of its exchange.

    Raises:
        ValueError: the check has several rules and the problem does not name one of them; or see `_placed`.
    """
    rule = problem.rule or (found.rules[0] if len(found.rules) == 1 else "")
    if rule not in found.rules:
        raise ValueError(f"a problem breaks {rule or 'no rule that is named'}, not one of {found.rules}")
    return _placed(found, msgspec.structs.replace(problem, rule=rule), transcript)


def _placed(found: Check, problem: Problem, transcript: Transcript) -> Problem:
    """Return the problem with its exchange: the one it names, the check's, or the only one of the scenario.

    Raises:
        ValueError: it does not name an exchange of the scenario.
    """
    names = [exchange.name for exchange in transcript.exchanges]
    name = problem.exchange
    if name is None:
        name = names[0] if len(names) == 1 else found.request
    if name not in names:
        raise ValueError(f"a problem names {name or 'no exchange'}, not one of {names}")
    return msgspec.structs.replace(problem, exchange=name)
