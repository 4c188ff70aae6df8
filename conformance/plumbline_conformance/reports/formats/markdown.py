"""Write a report as Markdown, for pull requests and job summaries."""

from __future__ import annotations

import re
from collections.abc import Sequence

from plumbline_conformance.reports.causes import distinct, groups
from plumbline_conformance.reports.conformance_classes import classes_line
from plumbline_conformance.reports.formats.text import (
    by_rule,
    command_of,
    name_of,
    place_of,
    printable,
    requests_of,
    same_cause,
    scores,
    times,
)
from plumbline_conformance.reports.repairs import new_lines, repair_lines
from plumbline_conformance.reports.report import VERDICTS, Report, Result
from plumbline_conformance.reports.standing import lacking

__all__ = ["MARKS", "cell", "code", "markdown"]

MARKS = {
    "pass": "✅",
    "fail": "❌",
    "warn": "⚠️",
    "flaky": "🎲",
    "untestable": "🚧",
    "rejected": "🚫",
    "inconclusive": "❔",
    "skipped": "➖",
    "error": "💥",
}
_SPECIAL = re.compile(r"([\\`*_{}\[\]<>()#+!|~&-])")


def markdown(report: Report) -> str:
    """Return the report: a table by part of the API, then the checks that do not pass."""
    run = report.run
    lines = [
        f"# Plumbline: {cell(name_of(report))}",
        "",
        f"{code(run.base_url)} on {cell(run.started)}, suite {cell(run.suite.get('version', 'unknown'))}.",
        "",
        "| surface | " + " | ".join(VERDICTS) + " |",
        "|---|" + "---|" * len(VERDICTS),
    ]
    surfaces = dict.fromkeys(result.surface for result in report.results)
    for surface in surfaces:
        verdicts = [result.verdict for result in report.results if result.surface == surface]
        lines.append(f"| {surface} | " + " | ".join(str(verdicts.count(v) or "") for v in VERDICTS) + " |")
    lines += ["", f"By class: {classes_line(report)}."]
    lines += ["", f"Checks that pass, of those with a verdict: {scores(report)}.", ""]
    lines += [
        f"- {code(name)} is in the baseline and no longer broken as listed: `--update-baseline` corrects it."
        for name in report.stale
    ]
    lines += [f"- {cell(sentence)}" for sentence in lacking(report)]
    lines += [f"- {cell(line)}" for line in (*new_lines(report), *repair_lines(report))]
    for group in groups(report):
        lines += _failure(report, group.result)
        lines += [f"{cell(same_cause(group.others))}.", ""] if group.others else []
    for result in report.results:
        if result.verdict == "skipped":
            lines += _failure(report, result)
    return "\n".join(lines).rstrip() + "\n"


def _failure(report: Report, result: Result) -> Sequence[str]:
    lines = [
        f"## {MARKS.get(result.verdict, '')} {result.check}",
        "",
        f"{result.verdict}: {result.title}",
        "",
    ]
    if result.reason:
        lines += [cell(result.reason), ""]
    if result.traceback:
        lines += [*_fenced([printable(line) for line in result.traceback.splitlines()]), ""]
    if result.expected is not None:
        lines += [f"Accepted by the baseline: {cell(result.expected)}", ""]
    if not result.problems:
        return lines
    for name, problems in by_rule(result):
        rule = report.rules[name]
        source = f" ({rule.source})" if rule.source else ""
        lines += [f"> {f'[{name}]({rule.url})' if rule.url else name}: {rule.sentence}{source}", ""]
        different = distinct(problems)
        lines += ["| expected | actual | where |", "|---|---|---|"]
        lines += [
            f"| {cell(problem.expected)} | {cell(problem.actual)} "
            f"| {cell(place_of(report, result, problem) + times(count))} |"
            for problem, count in different[:5]
        ]
        lines += ["", *([f"and {len(different) - 5} other problems", ""] if len(different) > 5 else [])]
    commands = [printable(evidence.command) for evidence in requests_of(report, result)]
    return [*lines, *_fenced([*commands, printable(command_of(report, result))]), ""]


def _fenced(lines: Sequence[str]) -> list[str]:
    """Return a code block with a fence longer than any in its text."""
    longest = max((len(run) for line in lines for run in re.findall("`+", line)), default=0)
    fence = "`" * max(3, longest + 1)
    return [f"{fence}sh", *lines, fence]


def cell(text: str) -> str:
    """Return text with its markup escaped."""
    return _SPECIAL.sub(r"\\\1", printable(text))


def code(text: str) -> str:
    """Return inline code for any text; in a table, bars are escaped as well."""
    text = printable(text).replace("|", "\\|")
    fence = "`" * (1 + max((len(run) for run in re.findall("`+", text)), default=0))
    pad = " " if text.startswith("`") or text.endswith("`") else ""
    return f"{fence}{pad}{text}{pad}{fence}"
