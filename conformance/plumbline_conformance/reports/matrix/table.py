"""Compare reports of several servers by rule and check; rows where they differ come first."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence

import msgspec

from plumbline_conformance.console.options import UnusableInput
from plumbline_conformance.reports.formats.markdown import MARKS, cell, code
from plumbline_conformance.reports.formats.text import by_rule
from plumbline_conformance.reports.matrix.explained import Explanations
from plumbline_conformance.reports.report import SCORED, VERDICTS, WORST_FIRST, Report, Result
from plumbline_conformance.suite.scenario import FAILED, broken_rules

__all__ = [
    "EXPLAINED",
    "NOTE",
    "Column",
    "NotComparable",
    "ServerMatrix",
    "anchor",
    "checks_of_servers",
    "columns_of",
    "counts_of_servers",
    "matrix_markdown",
    "matrix_of",
    "rules_of_servers",
    "violations_of",
    "why_of",
    "worst",
]

EXPLAINED = ("error", "fail", "untestable", "flaky", "warn")
"""Verdicts that are described below the tables; others get one line."""

NOTE = (
    "A rule is broken if a problem names it. If a check breaks on one of its rules, its other rules get no verdict "
    "from it; a check that could not be tested counts for all of its rules. A server that fails instead of answering "
    f"breaks {FAILED}, which every check that needs an answer observes."
)


class NotComparable(UnusableInput):
    """The reports are from different suites, or two have the same name."""


class Column(msgspec.Struct, frozen=True, kw_only=True):
    """One server."""

    name: str
    report: Report
    explanations: Explanations = Explanations()
    recording: str = ""
    """The recording, as a link from the page."""
    page: str = ""
    """The page with the evidence, as a link from the page; empty if it is the page itself."""

    @property
    def title(self) -> str:
        """The server's name and version."""
        return self.report.run.server or self.name


class ServerMatrix(msgspec.Struct, frozen=True, kw_only=True):
    """The tables."""

    columns: list[Column]
    rules: list[tuple[str, list[list[Result]]]]
    """(rule, its verdict for each server)."""
    rows: list[tuple[str, list[Result | None]]]
    """(check, its result for each server)."""


def columns_of(reports: dict[str, Report]) -> list[Column]:
    """Return columns without explanations."""
    return [Column(name=name, report=report) for name, report in reports.items()]


def matrix_of(columns: Sequence[Column]) -> ServerMatrix:
    """Compare reports, each under its name.

    Raises:
        NotComparable: the reports are from different suites, which could cause differences.
    """
    suites = {tuple(sorted(column.report.run.suite.items())) for column in columns}
    if len(suites) > 1:
        raise NotComparable(
            "The reports come from different suites; `plumbline judge` brings recordings up to date."
        )
    found = [{result.check: result for result in column.report.results} for column in columns]
    checks = dict.fromkeys(check for results in found for check in results)
    rows = [(check, [results.get(check) for results in found]) for check in checks]
    names = {rule for results in found for result in results.values() for rule in result.rules} | {FAILED}
    rules = [
        (rule, [_results_of_rule(rule, results.values()) for results in found])
        for rule in sorted(names, key=_natural)
    ]
    # The sort is stable: within a rank the order of the suite is kept.
    rows.sort(key=lambda row: _rank([result.verdict if result else None for result in row[1]]))
    rules.sort(key=lambda row: _rank([worst(results) for results in row[1]]))
    return ServerMatrix(columns=list(columns), rules=rules, rows=rows)


def _results_of_rule(rule: str, results: Iterable[Result]) -> list[Result]:
    """Return the verdicts of the checks of a rule; every check with a verdict observes that there is an answer."""
    observing = (r for r in results if rule in r.rules or (rule == FAILED and r.verdict in SCORED))
    return [_on_rule(rule, result) for result in observing]


def _on_rule(rule: str, result: Result) -> Result:
    """Return the verdict of a check on one of its rules; inconclusive if the check broke on another rule."""
    if result.verdict not in EXPLAINED or rule in result.rules_to_show:
        return result
    if rule == FAILED:  # There was an answer, but it has a problem.
        return msgspec.structs.replace(result, verdict="pass", problems=[])
    reason = f"{' and '.join(result.rules_to_show)} of the same check was broken"
    return msgspec.structs.replace(result, verdict="inconclusive", problems=[], reason=reason)


def worst(results: Sequence[Result]) -> str | None:
    """Return the worst verdict among the results of a rule."""
    verdicts = {result.verdict for result in results}
    return next((verdict for verdict in WORST_FIRST if verdict in verdicts), None)


def anchor(column: Column, check: str) -> str:
    """Return the anchor of the explanation of a cell."""
    return re.sub(r"[^a-z0-9]+", "-", f"{column.name}--{check}".lower()).strip("-")


def why_of(column: Column, result: Result) -> str:
    """Return one line about a cell that does not pass."""
    if (why := column.explanations.of(result.check)) is not None:
        return why
    return result.reason or ""


def _natural(rule: str) -> tuple[str, int, str]:
    letters, number, rest = re.fullmatch(r"(\D*)(\d*)(.*)", rule, re.DOTALL).groups()  # type: ignore[union-attr]
    return letters, int(number or 0), rest


def _rank(verdicts: Sequence[str | None]) -> int:
    """Rank rows: differences first, then rules that all servers break, then rules that all keep."""
    if len(set(verdicts)) > 1:
        return 0
    return 2 if set(verdicts) == {"pass"} else 1


def matrix_markdown(matrix: ServerMatrix) -> str:
    """Return the tables, and below them the evidence for every broken rule."""
    lines = ["# Servers by rules", "", *counts_of_servers(matrix), ""]
    lines += ["## Rules", "", NOTE, "", *rules_of_servers(matrix), ""]
    lines += ["## Checks", "", *checks_of_servers(matrix), ""]
    for column in matrix.columns:
        lines += violations_of(column)
    lines += [f"[{anchor(column, '')}]: {column.recording}" for column in matrix.columns if column.recording]
    return "\n".join(lines).rstrip() + "\n"


def counts_of_servers(matrix: ServerMatrix) -> Iterator[str]:
    """Yield the table of verdicts by server, and the meaning of the marks."""
    shown = [v for v in VERDICTS if any(column.report.counts[v] for column in matrix.columns)]
    yield "| server | judged on | " + " | ".join(shown) + " | bytes |"
    yield "|---|---|" + "--:|" * len(shown) + "---|"
    for column in matrix.columns:
        counts = " | ".join(str(column.report.counts[verdict] or "") for verdict in shown)
        link = f"[recording]({column.recording})" if column.recording else ""
        yield f"| {cell(column.title)} | {cell(column.report.run.started[:10])} | {counts} | {link} |"
    yield ""
    yield " ".join(f"{mark} {verdict}" for verdict, mark in MARKS.items())


def _heads(matrix: ServerMatrix, *first: str) -> Iterator[str]:
    yield "| " + " | ".join([*first, *(cell(column.title) for column in matrix.columns)]) + " |"
    yield "|" + "---|" * (len(first) + len(matrix.columns))


def rules_of_servers(matrix: ServerMatrix) -> Iterator[str]:
    """Yield the table of rules by servers."""
    yield from _heads(matrix, "rule")
    for rule, found in matrix.rules:
        cells = [_of_rule(column, results) for column, results in zip(matrix.columns, found, strict=True)]
        yield f"| {cell(rule)} | " + " | ".join(cells) + " |"


def _of_rule(column: Column, results: Sequence[Result]) -> str:
    verdict = worst(results)
    if verdict is None:
        return ""
    first = next(result for result in results if result.verdict == verdict)
    count = sum(result.verdict == verdict for result in results)
    text = f"{MARKS[verdict]} {count} of {len(results)}" if verdict in EXPLAINED else MARKS[verdict]
    return _linked(column, first, text)


def _linked(column: Column, result: Result, text: str) -> str:
    """Return the link of a cell: its explanation if there is one, otherwise the recording."""
    if result.verdict in EXPLAINED:
        return f"[{text}]({column.page}#{anchor(column, result.check)})"
    return f"[{text}][{anchor(column, '')}]" if column.recording else text


def checks_of_servers(matrix: ServerMatrix) -> Iterator[str]:
    """Yield the table of checks by servers, without checks that pass on every server."""
    kept = [
        check for check, results in matrix.rows if {r.verdict if r else None for r in results} == {"pass"}
    ]
    yield f"{len(kept)} of {len(matrix.rows)} checks pass on every server and are not listed."
    yield ""
    yield from _heads(matrix, "check", "level")
    for check, results in matrix.rows:
        if check in kept:
            continue
        level = next(result.level for result in results if result is not None)
        marks = [_of_check(column, result) for column, result in zip(matrix.columns, results, strict=True)]
        yield f"| {code(check)} | {level} | " + " | ".join(marks) + " |"


def _of_check(column: Column, result: Result | None) -> str:
    if result is None:
        return ""
    return _linked(column, result, MARKS.get(result.verdict, ""))


def violations_of(column: Column) -> list[str]:
    """Return the violations of one server, grouped by their explanation."""
    found = [result for result in column.report.results if result.verdict in EXPLAINED]
    if not found:
        return []
    lines = [f"## {cell(column.title)}", ""]
    groups: dict[str, list[Result]] = {}
    for result in found:
        groups.setdefault(column.explanations.of(result.check) or "", []).append(result)
    for why, results in groups.items():
        lines += [why, ""] if why else []
        for result in results:
            problem_text = result.reason or "; ".join(
                f"expected {problems[0].expected}, actual {problems[0].actual}"
                for _, problems in by_rule(result)[:1]
            )
            problem_text = problem_text if len(problem_text) <= 300 else problem_text[:300] + " …"
            place = f'<a id="{anchor(column, result.check)}"></a>'
            broken = f" {', '.join(map(cell, broken_rules(result.problems)))}" if result.problems else ""
            lines.append(
                f"- {place}{MARKS[result.verdict]} {code(result.check)}{broken}: {cell(problem_text)}"
            )
        lines.append("")
    return lines
