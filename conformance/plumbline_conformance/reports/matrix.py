"""Servers by checks: several reports side by side. Rows on which servers disagree come first."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from plumbline_conformance.reports.html import page, safe
from plumbline_conformance.reports.markdown import MARKS, cell, code
from plumbline_conformance.reports.model import Report, Result

__all__ = ["Matrix", "NotComparable", "matrix_html", "matrix_markdown", "matrix_of"]


class NotComparable(Exception):  # noqa: N818 - it says what the reports are
    """The reports come from different suites, or two have the same name."""


class Matrix(msgspec.Struct, frozen=True, kw_only=True):
    """A table."""

    names: list[str]
    """Columns."""
    reports: list[Report]
    rows: list[tuple[str, list[Result | None]]]
    """(check, what each server got)."""


def matrix_of(reports: dict[str, Report]) -> Matrix:
    """Put reports side by side, each under its name.

    Raises:
        NotComparable: they come from suites that differ, so that a difference could be the suite's.
    """
    suites = {tuple(sorted(report.run.suite.items())) for report in reports.values()}
    if len(suites) > 1:
        raise NotComparable(
            "The reports come from different suites; `plumbline judge` brings recordings up to date."
        )
    found = [{result.check: result for result in report.results} for report in reports.values()]
    checks = dict.fromkeys(check for results in found for check in results)
    rows = [(check, [results.get(check) for results in found]) for check in checks]
    # A stable sort: within a rank the order of the suite stays.
    rows.sort(key=lambda row: _rank([result.verdict if result else None for result in row[1]]))
    return Matrix(names=list(reports), reports=list(reports.values()), rows=rows)


def _rank(verdicts: Sequence[str | None]) -> int:
    """Disagreement first, then what everybody breaks, then what everybody keeps."""
    if len(set(verdicts)) > 1:
        return 0
    return 2 if set(verdicts) == {"pass"} else 1


def matrix_markdown(matrix: Matrix) -> str:
    """The table, with what each mark means below."""
    lines = ["| check | level | " + " | ".join(cell(name) for name in matrix.names) + " |"]
    lines.append("|---|---|" + "---|" * len(matrix.names))
    for check, results in matrix.rows:
        level = next(result.level for result in results if result is not None)
        marks = (MARKS.get(result.verdict, "") if result else "" for result in results)
        lines.append(f"| {code(check)} | {level} | " + " | ".join(marks) + " |")
    lines += ["", " ".join(f"{mark} {verdict}" for verdict, mark in MARKS.items()), ""]
    lines += [
        f"- {cell(name)}: {cell(report.run.model)}, {cell(report.run.started)}"
        for name, report in zip(matrix.names, matrix.reports, strict=True)
    ]
    return "\n".join(lines) + "\n"


def matrix_html(matrix: Matrix) -> str:
    """The table as a page; a cell that is not green says why where it is touched or pointed at."""
    heads = "".join(
        f"<th>{safe(name)}<br><small>{safe(report.run.started[:10])}</small></th>"
        for name, report in zip(matrix.names, matrix.reports, strict=True)
    )
    rows = []
    for check, results in matrix.rows:
        title = next(result.title for result in results if result is not None)
        cells = "".join(f"<td>{_cell(result)}</td>" for result in results)
        rows.append(f'<tr><th title="{safe(title)}"><code>{safe(check)}</code></th>{cells}</tr>')
    table = f'<div class="scroll"><table><tr><th></th>{heads}</tr>{"".join(rows)}</table></div>'
    return page("Plumbline: matrix", ["<h1>Servers by checks</h1>", table])


def _cell(result: Result | None) -> str:
    if result is None:
        return ""
    said = f'<span class="v {safe(result.verdict)}">{safe(result.verdict)}</span>'
    why = result.reason or "; ".join(
        f"expected {problem.expected}, actual {problem.actual} {problem.pointer}".rstrip()
        for problem in result.problems[:2]
    )
    return f"<details><summary>{said}</summary>{safe(why)}</details>" if why else said
