"""The text of a failure, in h2spec's shape: the rule's sentence, expected, actual, how to see it again."""

from __future__ import annotations

import shlex
from collections.abc import Iterator

from plumbline_conformance.recording.file import TIMEOUT, TRIALS
from plumbline_conformance.reports.model import Evidence, Report, Result, event_of
from plumbline_conformance.suite.client_claims import CLAIMS
from plumbline_conformance.suite.model import GONE, SEED, Problem, broken_rules

__all__ = ["by_rule", "command_of", "failure_lines", "numbers", "place_of", "printable", "requests_of"]

_MOST = 3


def failure_lines(report: Report, result: Result) -> list[str]:
    """The lines below a result's headline; nothing in them can change a terminal."""
    lines = [printable(result.reason)] if result.reason else []
    if result.expected is not None:
        lines.append(f"accepted by the baseline: {printable(result.expected)}")
    for name, problems in by_rule(result):
        rule = report.rules[name]
        lines.append(f"{rule.id}: {rule.sentence}")
        for problem in problems[:_MOST]:
            place = place_of(problem)
            where = f"  ({printable(place)})" if place else ""
            lines.append(f"expected {printable(problem.expected)}")
            lines.append(f"actual   {printable(problem.actual)}{where}")
        if len(problems) > _MOST:
            lines.append(f"and {len(problems) - _MOST} more of this kind")
    if result.problems:
        lines += [f"see it   {printable(evidence.command)}" for evidence in requests_of(report, result)]
        lines.append(f"again    {printable(command_of(report, result))}")
    return lines


def by_rule(result: Result) -> list[tuple[str, list[Problem]]]:
    """The problems of a result under the rules that they break; all under the first where they name none."""
    if not result.problems:
        return []
    first = result.rules_to_show[0]
    return [
        (name, [problem for problem in result.problems if (problem.rule or first) == name])
        for name in broken_rules(result.problems) or [first]
    ]


def place_of(problem: Problem) -> str:
    """Where a problem is: in which request of its scenario, counted from 0, and where in its answer."""
    request = "" if problem.exchange in (None, GONE) else f"request {problem.exchange}"
    return ", ".join(part for part in (problem.scenario, request, problem.pointer) if part)


def requests_of(report: Report, result: Result) -> list[Evidence]:
    """The exchanges that a result is about: those that its problems name, or all of its scenario."""
    elsewhere = list(dict.fromkeys((p.scenario, p.exchange) for p in result.problems if p.scenario))
    if elsewhere:
        # Of a claim about all scenarios; its problems can be as many as there are exchanges.
        evidence = [(report.evidence.get(scenario, []), place or 0) for scenario, place in elsewhere[:_MOST]]
        return [seen[place] for seen, place in evidence if place < len(seen)]
    seen = report.evidence.get(result.scenario, [])
    named = {p.exchange for p in result.problems if p.exchange is not None and p.exchange < len(seen)}
    if named:
        return [seen[place] for place in sorted(named - {GONE})]
    if any(event_of(problem) is not None for problem in result.problems):
        streams = [evidence for evidence in seen if any(m.kind == "event" for m in evidence.moments)]
        return streams[-1:] or seen[-1:]
    return seen[:6]


def numbers(report: Report) -> str:
    """The two numbers of a run: what engineers can mend, and what depends on what a model wrote as well."""
    kinds = {"protocol": report.kept(sampled=False), "behaviour": report.kept(sampled=True)}
    return ", ".join(f"{kind} {passed}/{scored}" for kind, (passed, scored) in kinds.items())


def command_of(report: Report, result: Result) -> str:
    """The command that runs this check alone."""
    run = report.run
    # A name that begins with a dash would be an option of its own.
    sign = "=" if run.model.startswith("-") else " "
    address = f"--base-url {shlex.quote(run.base_url)} --model{sign}{shlex.quote(run.model)}"
    return " ".join(["plumbline check", address, *_given(report), *_choices(result)])


def _choices(result: Result) -> list[str]:
    """What to choose for this result; of a client's, the scenarios whose answers it stumbled over."""
    if result.check not in CLAIMS:
        return [result.check]
    named = dict.fromkeys(problem.scenario for problem in result.problems if problem.scenario)
    return [f"--sdk {result.scenario.partition('/')[2]}", *named]


def _given(report: Report) -> Iterator[str]:
    """The options on which a verdict depends, where they were not left as they are."""
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
    """What a server wrote, fit for a terminal: no control characters, no halves of characters."""
    return "".join(char if char.isprintable() else ascii(char)[1:-1] for char in text)
