"""Write the matrix as one HTML page, with a link from each cell to its exchange."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from plumbline_conformance.reports.formats.html import page, safe
from plumbline_conformance.reports.matrix.evidence import Detail, evidence_html
from plumbline_conformance.reports.matrix.table import EXPLAINED, NOTE, Column, ServerMatrix, anchor, worst
from plumbline_conformance.reports.report import VERDICTS, Result

__all__ = ["matrix_html", "tables"]


def matrix_html(matrix: ServerMatrix) -> str:
    """Return the page, which has no scripts and loads nothing."""
    found = tables(matrix)
    parts = ["<h1>Servers by rules</h1>", found["servers"], f"<h2>Rules</h2><p>{NOTE}</p>", found["rules"]]
    parts += ["<h2>Checks</h2>", found["checks"]]
    for column in matrix.columns:
        parts += [f"<h2>{safe(column.title)}</h2>", *evidence_html(column, Detail())]
    return page("Plumbline: servers by rules", parts)


def tables(matrix: ServerMatrix) -> dict[str, str]:
    """Return the tables of servers, rules and checks."""
    found = {"servers": _servers(matrix), "rules": [_heads(matrix), *_rules(matrix)]}
    rows = {**found, "checks": [_heads(matrix), *_checks(matrix)]}
    return {
        name: "\n".join(['<div class="scroll wide"><table>', *lines, "</table></div>"])
        for name, lines in rows.items()
    }


def _servers(matrix: ServerMatrix) -> Iterator[str]:
    shown = [v for v in VERDICTS if any(column.report.counts[v] for column in matrix.columns)]
    heads = "".join(f"<th>{verdict}</th>" for verdict in shown)
    yield f"<tr><th>server</th><th>judged on</th>{heads}<th>bytes</th></tr>"
    for column in matrix.columns:
        counts = "".join(f'<td class="n {v}">{column.report.counts[v] or ""}</td>' for v in shown)
        link = f'<a href="{safe(column.recording)}">recording</a>' if column.recording else ""
        yield (
            f'<tr id="{anchor(column, "")}"><th>{_title(column)}</th>'
            f"<td>{safe(column.report.run.started[:10])}</td>{counts}<td>{link}</td></tr>"
        )


def _heads(matrix: ServerMatrix) -> str:
    names = "".join(f"<th>{_title(column)}</th>" for column in matrix.columns)
    return f"<tr><th></th>{names}</tr>"


def _title(column: Column) -> str:
    return f'<a href="{safe(column.page)}">{safe(column.title)}</a>' if column.page else safe(column.title)


def _rules(matrix: ServerMatrix) -> Iterator[str]:
    for rule, found in matrix.rules:
        cells = [_of_rule(column, results) for column, results in zip(matrix.columns, found, strict=True)]
        yield f"<tr><th>{safe(rule)}</th>{''.join(cells)}</tr>"


def _of_rule(column: Column, results: Sequence[Result]) -> str:
    verdict = worst(results)
    if verdict is None:
        return "<td></td>"
    first = next(result for result in results if result.verdict == verdict)
    count = sum(result.verdict == verdict for result in results)
    text = f"{verdict} {count} of {len(results)}" if verdict in EXPLAINED else verdict
    return _cell(column, first, text)


def _checks(matrix: ServerMatrix) -> Iterator[str]:
    for check, results in matrix.rows:
        title = next(result.title for result in results if result is not None)
        cells = "".join(
            _cell(column, result, result.verdict) if result else "<td></td>"
            for column, result in zip(matrix.columns, results, strict=True)
        )
        yield f'<tr><th title="{safe(title)}"><code>{safe(check)}</code></th>{cells}</tr>'


def _cell(column: Column, result: Result, text: str) -> str:
    """Return a cell, with a link to the exchange of a passing check, or to the description of the problem.

    A JSON report has no exchanges of passing checks; then the link leads to the server's line. In a page without the
    evidence only violations have links, which keeps the page small.
    """
    verdict = safe(result.verdict)
    if column.page and result.verdict not in EXPLAINED:
        return f'<td class="{verdict}">{safe(text)}</td>'
    if column.page:
        place = anchor(column, result.check)
        return f'<td><a class="{verdict}" href="{safe(column.page)}#{place}">{safe(text)}</a></td>'
    green = result.scenario if result.scenario in column.report.evidence else ""
    place = anchor(column, green if result.verdict == "pass" else result.check)
    return f'<td><a href="#{place}" class="v {verdict}">{safe(text)}</a></td>'
