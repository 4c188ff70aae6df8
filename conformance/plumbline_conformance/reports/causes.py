"""Find results with the same cause, so that a report describes each cause once, the most harmful first."""

from __future__ import annotations

import re
from collections.abc import Sequence

import msgspec

from plumbline_conformance.reports.baseline import VIOLATIONS
from plumbline_conformance.reports.report import Report, Result
from plumbline_conformance.suite.scenario import FAILED, SURVIVED, Problem, broken_rules

__all__ = ["CauseGroup", "distinct", "groups", "with_causes"]

_NO_STREAM = {"HTTP-02", "SSE-01"}
"""The rules for the form of an event stream: an answer that breaks one, such as plain JSON, breaks others by it."""
_ORDER = ("error", "fail", "untestable", "flaky", "warn", "rejected", "inconclusive")
_BY_REASON = ("untestable", "rejected", "inconclusive")
"""Verdicts that have a reason in place of problems."""

Signature = tuple[str, ...]


class CauseGroup(msgspec.Struct, frozen=True):
    """Results with one cause."""

    result: Result
    """The one to describe."""
    others: list[Result]

    @property
    def size(self) -> int:
        """The number of results."""
        return 1 + len(self.others)


def with_causes(report: Report) -> Report:
    """Return the report in which each consequence names the check that shows its cause.

    A result is a consequence if each of its problems is described by another one. Numbers and quoted values in them do
    not matter, nor do the exchanges. All problems of an answer that should be an event stream and is none count as one.
    Results with the fewest kinds of problems describe first, and among these the one with the shortest request.
    """
    broken: dict[tuple[str, str | None], set[str]] = {}
    for result in report.results:
        for problem in result.problems:
            broken.setdefault(_exchange(result, problem), set()).update(
                broken_rules([problem]) or result.rules
            )
    found = {result.check: _signatures(result, broken) for result in report.results}
    # A MUST explains a SHOULD, but not the reverse.
    ranked = sorted(
        report.results,
        key=lambda result: (
            result.level != "MUST",
            result.verdict == "warn",
            len(found[result.check]),
            _NO_STREAM.isdisjoint(result.rules_to_show),
            _request_size(report, result),
        ),
    )
    described: dict[Signature, str] = {}
    causes: dict[str, str] = {}
    for result in ranked:
        if not (own := found[result.check]):
            continue
        if own <= described.keys():
            causes[result.check] = described[min(own)]
            continue
        for signature in own:
            described.setdefault(signature, result.check)
    results = [
        msgspec.structs.replace(result, cause=causes[result.check]) if result.check in causes else result
        for result in report.results
    ]
    return msgspec.structs.replace(report, results=results)


def _request_size(report: Report, result: Result) -> int:
    """Return the characters of the requests that show a result."""
    named = {problem.exchange or "" for problem in result.problems}
    seen = report.evidence.get(result.scenario, ())
    return sum(len(evidence.request) for evidence in seen if evidence.name in named)


def groups(report: Report) -> list[CauseGroup]:
    """Return the results that do not pass by their cause, in the order of harm.

    What the baseline does not accept comes before what it does: a run fails for the former alone. A server that fails
    or dies comes first, then a broken MUST, then a SHOULD; among equals the cause of most results.
    """
    shown = [result for result in report.results if result.verdict not in ("pass", "skipped")]
    known = {result.check for result in shown}
    mains = [result for result in shown if result.cause not in known]
    others: dict[str, list[Result]] = {}
    for result in shown:
        if result.cause in known:
            others.setdefault(result.cause or "", []).append(result)
    return sorted((CauseGroup(result, others.get(result.check, [])) for result in mains), key=_harm)


def distinct(problems: Sequence[Problem]) -> list[tuple[Problem, int]]:
    """Return the first of the problems that differ in numbers alone, and how many there are."""
    counts: dict[Signature, int] = {}
    first: dict[Signature, Problem] = {}
    for problem in problems:
        signature = _plain(problem.rule or "", problem.expected, problem.actual, problem.pointer)
        counts[signature] = counts.get(signature, 0) + 1
        first.setdefault(signature, problem)
    return [(first[signature], count) for signature, count in counts.items()]


def _harm(group: CauseGroup) -> tuple[bool, bool, bool, bool, int, int]:
    result = group.result
    new = result.verdict in VIOLATIONS and result.expected is None
    fatal = not {FAILED, SURVIVED}.isdisjoint(broken_rules(result.problems))
    must = result.verdict in VIOLATIONS and result.verdict != "warn" and result.level == "MUST"
    return result.verdict != "error", not new, not fatal, not must, _ORDER.index(result.verdict), -group.size


def _signatures(result: Result, broken: dict[tuple[str, str | None], set[str]]) -> set[Signature]:
    """Return what a result's problems have in common with those of others; nothing if it is described by itself."""
    # Results of different standing are not folded.
    standing = (result.verdict, result.expected or "")
    if result.problems and result.verdict in VIOLATIONS:
        return {
            (*standing, "no event stream")
            if broken[_exchange(result, problem)] >= _NO_STREAM
            else (
                *standing,
                *_plain(problem.rule or result.rules_to_show[0], problem.expected, problem.actual),
            )
            for problem in result.problems
        }
    return {(*standing, *_plain(result.reason or ""))} if result.verdict in _BY_REASON else set()


def _exchange(result: Result, problem: Problem) -> tuple[str, str | None]:
    return problem.scenario or result.scenario, problem.exchange


def _plain(*parts: str) -> Signature:
    """Return texts without what differs between answers: numbers, and what they quote."""
    return tuple(re.sub(r"\d+", "0", re.sub(r'"(?:[^"\\]|\\.)*"', '""', part)) for part in parts)
