"""Format a failure as text: the rule's sentence, expected, actual, how to reproduce it (as h2spec does)."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence

from plumbline_conformance.recording.file import TIMEOUT, TRIALS
from plumbline_conformance.reports.causes import distinct
from plumbline_conformance.reports.report import Evidence, Report, Result
from plumbline_conformance.suite.client_claims import CLAIMS
from plumbline_conformance.suite.scenario import GONE, SEED, Problem, broken_rules

__all__ = [
    "by_rule",
    "command_of",
    "failure_lines",
    "name_of",
    "place_of",
    "printable",
    "requests_of",
    "same_cause",
    "scores",
    "times",
]

_MOST = 3


def failure_lines(report: Report, result: Result) -> list[str]:
    """Return the lines below a result's headline, without control characters."""
    lines = [printable(result.reason)] if result.reason else []
    lines += [printable(line) for line in result.traceback.splitlines()]
    if result.expected is not None:
        lines.append(f"accepted by the baseline: {printable(result.expected)}")
    for name, problems in by_rule(result):
        rule = report.rules[name]
        lines.append(f"{rule.id}: {rule.sentence}")
        if rule.source:
            lines.append(f"source   {rule.source}")
        different = distinct(problems)
        for problem, count in different[:_MOST]:
            place = place_of(report, result, problem)
            where = f"  ({printable(place)})" if place else ""
            lines.append(f"expected {printable(problem.expected)}")
            lines.append(f"actual   {printable(problem.actual)}{where}{times(count)}")
        if len(different) > _MOST:
            lines.append(f"and {len(different) - _MOST} other problems")
    if result.problems:
        lines += [f"see it   {printable(evidence.command)}" for evidence in requests_of(report, result)]
    if result.problems or result.verdict == "untestable":
        lines.append(f"again    {printable(command_of(report, result))}")
    return lines


def times(count: int) -> str:
    """Return how often a problem occurs, if more than once."""
    return f", {count} times" if count > 1 else ""


def same_cause(others: Sequence[Result]) -> str:
    """Return one line about the results that are not described, because they have the same cause."""
    ids = ", ".join(result.check for result in others)
    return f"the same cause in {len(others)} other {'check' if len(others) == 1 else 'checks'}: {ids}"


def by_rule(result: Result) -> list[tuple[str, list[Problem]]]:
    """Group the problems of a result by the rule that they break; one without a rule breaks the check's first."""
    if not result.problems:
        return []
    first = result.rules_to_show[0]
    return [
        (name, [problem for problem in result.problems if (problem.rule or first) == name])
        for name in broken_rules(result.problems) or [first]
    ]


def place_of(report: Report, result: Result, problem: Problem) -> str:
    """Return where a problem is: the request, if its scenario sent several, and the field of its answer."""
    several = len(report.evidence.get(problem.scenario or result.scenario, ())) > 1
    known = several and problem.exchange not in (None, "", GONE)
    request = f"request {problem.exchange}" if known else ""
    return ", ".join(part for part in (problem.scenario, request, problem.pointer) if part)


def requests_of(report: Report, result: Result) -> list[Evidence]:
    """Return the exchanges of a result: the ones that its problems name, or all of its scenario."""
    elsewhere = list(dict.fromkeys((p.scenario, p.exchange) for p in result.problems if p.scenario))
    if elsewhere:
        # A claim about all scenarios can have a problem in every exchange, so only the first are shown.
        return [
            evidence
            for scenario, name in elsewhere[:_MOST]
            for evidence in report.evidence.get(scenario, [])
            if evidence.name == (name or "")
        ]
    seen = report.evidence.get(result.scenario, [])
    if not result.problems:
        return seen[:6]
    named = {problem.exchange or "" for problem in result.problems}
    return [evidence for evidence in seen if evidence.name in named]


def name_of(report: Report) -> str:
    """Return the name of the server for a title, or its address if the run has no name, and the model."""
    return f"{report.run.server or report.run.base_url}, {report.run.model}"


def scores(report: Report) -> str:
    """Return the two scores of a run: protocol, and behaviour, which also depends on the model."""
    kinds = {"protocol": report.kept(sampled=False), "behaviour": report.kept(sampled=True)}
    return ", ".join(f"{kind} {passed}/{scored}" for kind, (passed, scored) in kinds.items())


def command_of(report: Report, result: Result) -> str:
    """Return the command that runs only this check."""
    run = report.run
    # A name that begins with a dash would be an option.
    sign = "=" if run.model.startswith("-") else " "
    model = f"--model{sign}{shlex.quote(run.model)}"
    selected = [result.check]
    if result.check in CLAIMS:  # Of a client: the scenarios of its problems.
        named = dict.fromkeys(problem.scenario for problem in result.problems if problem.scenario)
        selected = [*named, f"--sdk {result.scenario.partition('/')[2]}"]
    return " ".join(["plumbline check", shlex.quote(run.base_url), *selected, model, *_options(report)])


def _options(report: Report) -> Iterator[str]:
    """Return the options that affect verdicts, where they differ from the defaults."""
    if report.profile != "full":
        yield f"--profile {report.profile}"
    if (options := report.run.options) is None:
        return
    if options.capabilities:
        # The first name may have a minus.
        yield f"--capabilities={shlex.quote(','.join(options.capabilities))}"
    if options.trials != TRIALS:
        yield f"--trials {options.trials}"
    if options.timeout != TIMEOUT:
        yield f"--timeout {options.timeout:g}"
    if options.seed != SEED:
        yield f"--seed {options.seed}"


def printable(text: str) -> str:
    """Return text of a server for a terminal, without control characters and lone surrogates."""
    return "".join(char if char.isprintable() else ascii(char)[1:-1] for char in text)
