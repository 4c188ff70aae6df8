"""Write the matrix as one HTML page, with the exchange behind every cell."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby

import msgspec

from plumbline_conformance.reports.html import exchange_html, page, safe
from plumbline_conformance.reports.matrix import EXPLAINED, NOTE, Column, Matrix, anchor, why_of, worst
from plumbline_conformance.reports.model import VERDICTS, Evidence, Result, event_of
from plumbline_conformance.reports.text import by_rule
from plumbline_conformance.reports.timeline import Moment

__all__ = ["matrix_html"]

_HEAD = 4
_TAIL = 3
_BRIEF = 160
_LONGEST = 300
"""Characters shown of one event; the recording has all of them."""


def matrix_html(matrix: Matrix) -> str:
    """Return the page, which has no scripts and loads nothing."""
    parts = ["<h1>Servers by rules</h1>", *_servers(matrix)]
    parts += [f"<h2>Rules</h2><p>{NOTE}</p>", '<div class="scroll"><table>', _heads(matrix), *_rules(matrix)]
    parts += ["</table></div>"]
    parts += [
        '<h2>Checks</h2><div class="scroll"><table>',
        _heads(matrix),
        *_checks(matrix),
        "</table></div>",
    ]
    for column in matrix.columns:
        parts += _behind(column)
    return page("Plumbline: servers by rules", parts)


def _servers(matrix: Matrix) -> Iterator[str]:
    shown = [v for v in VERDICTS if any(column.report.counts[v] for column in matrix.columns)]
    heads = "".join(f"<th>{verdict}</th>" for verdict in shown)
    yield f'<div class="scroll"><table><tr><th>server</th><th>judged on</th>{heads}<th>bytes</th></tr>'
    for column in matrix.columns:
        counts = "".join(f'<td class="n {v}">{column.report.counts[v] or ""}</td>' for v in shown)
        link = f'<a href="{safe(column.recording)}">recording</a>' if column.recording else ""
        yield (
            f'<tr id="{anchor(column, "")}"><th>{safe(column.title)}</th>'
            f"<td>{safe(column.report.run.started[:10])}</td>{counts}<td>{link}</td></tr>"
        )
    yield "</table></div>"


def _heads(matrix: Matrix) -> str:
    names = "".join(f"<th>{safe(column.title)}</th>" for column in matrix.columns)
    return f"<tr><th></th>{names}</tr>"


def _rules(matrix: Matrix) -> Iterator[str]:
    for rule, found in matrix.rules:
        cells = [_of_rule(column, results) for column, results in zip(matrix.columns, found, strict=True)]
        yield f"<tr><th>{safe(rule)}</th>{''.join(cells)}</tr>"


def _of_rule(column: Column, results: Sequence[Result]) -> str:
    verdict = worst(results)
    if verdict is None:
        return "<td></td>"
    first = next(result for result in results if result.verdict == verdict)
    count = sum(result.verdict == verdict for result in results)
    said = f"{verdict} {count} of {len(results)}" if verdict in EXPLAINED else verdict
    return f"<td>{_link(column, first, said)}</td>"


def _checks(matrix: Matrix) -> Iterator[str]:
    for check, results in matrix.rows:
        title = next(result.title for result in results if result is not None)
        cells = "".join(
            f"<td>{_link(column, result, result.verdict) if result else ''}</td>"
            for column, result in zip(matrix.columns, results, strict=True)
        )
        yield f'<tr><th title="{safe(title)}"><code>{safe(check)}</code></th>{cells}</tr>'


def _link(column: Column, result: Result, said: str) -> str:
    """Return the link of a cell: the exchange of a passing check, otherwise the description of the problem.

    A JSON report has no exchanges of passing checks; then the link leads to the server's line.
    """
    green = result.scenario if result.scenario in column.report.evidence else ""
    place = anchor(column, green if result.verdict == "pass" else result.check)
    return f'<a href="#{place}" class="v {safe(result.verdict)}">{safe(said)}</a>'


def _behind(column: Column) -> Iterator[str]:
    yield f"<h2>{safe(column.title)}</h2>"
    for scenario, results in groupby(column.report.results, lambda result: result.scenario):
        found = list(results)
        yield from (_result(column, result) for result in found if result.verdict != "pass")
        if any(result.verdict in EXPLAINED for result in found):
            yield _exchanges(column, scenario)
        elif scenario in column.report.evidence:
            yield _brief(column, scenario)


def _result(column: Column, result: Result) -> str:
    why = why_of(column, result)
    parts = [
        f'<section id="{anchor(column, result.check)}"><h3><span class="v {safe(result.verdict)}">'
        f"{safe(result.verdict)}</span> <code>{safe(result.check)}</code></h3><p>{safe(result.title)}."
        f"{' ' + safe(why) if why else ''}</p>"
    ]
    if result.verdict in EXPLAINED:
        for name, problems in by_rule(result) or [(name, []) for name in result.rules]:
            rule = column.report.rules[name]
            parts.append(
                f"<blockquote><b>{safe(rule.id)}</b> {safe(rule.level)}: {safe(rule.sentence)}</blockquote>"
            )
            for problem in problems[:3]:
                where = f" <code>{safe(problem.pointer)}</code>" if problem.pointer else ""
                parts.append(
                    f"<dl><dt>expected</dt><dd>{safe(problem.expected[:_LONGEST])}</dd>"
                    f"<dt>actual</dt><dd>{safe(problem.actual[:_LONGEST])}{where}</dd></dl>"
                )
    if result.scenario in column.report.evidence:
        parts.append(f'<p><a href="#{anchor(column, result.scenario)}">what was sent and what came</a></p>')
    return "".join(parts) + "</section>"


def _exchanges(column: Column, scenario: str) -> str:
    marked = [result for result in column.report.results if result.scenario == scenario and result.problems]
    places = {
        place for result in marked for problem in result.problems if (place := event_of(problem)) is not None
    }
    seen = [_short(evidence, places) for evidence in column.report.evidence.get(scenario, [])]
    shown = "".join(exchange_html(number, found, len(seen), marked) for number, found in enumerate(seen))
    return (
        f'<details id="{anchor(column, scenario)}"><summary>{len(seen)} exchanges of <code>{safe(scenario)}</code>'
        f"</summary>{shown}</details>"
    )


def _brief(column: Column, scenario: str) -> str:
    """Return the exchanges of a passing scenario: the requests, and the beginnings of the answers."""
    seen = column.report.evidence[scenario]
    parts = [
        f'<details id="{anchor(column, scenario)}"><summary>{len(seen)} exchanges of <code>{safe(scenario)}</code>'
        "</summary>"
    ]
    for found in seen:
        said = found.error or f"status {found.status}"
        body = " ".join(moment.text for moment in found.moments[:2])
        parts.append(
            f"<p>{safe(found.method)} <code>{safe(found.url)}</code>: {safe(said)}</p>"
            f"<pre>{safe(_cut(found.request))}</pre><pre>{safe(_cut(body))}</pre>"
        )
    return "".join(parts) + "</details>"


def _cut(text: str) -> str:
    return text if len(text) <= _BRIEF else text[:_BRIEF] + " …"


def _short(evidence: Evidence, marked: set[int]) -> Evidence:
    count = len(evidence.moments)
    kept: list[Moment] = []
    for place, moment in enumerate(evidence.moments):
        if place < _HEAD or place >= count - _TAIL or moment.number in marked:
            text = moment.text if len(moment.text) <= _LONGEST else moment.text[:_LONGEST] + " …"
            kept.append(msgspec.structs.replace(moment, text=text))
        elif kept[-1].kind == "gap":
            kept[-1] = msgspec.structs.replace(kept[-1], size=kept[-1].size + moment.size)
        else:
            kept.append(Moment(kind="gap", at=moment.at, text="", size=moment.size))
    command = (
        evidence.command if len(evidence.command) <= 4 * _LONGEST else evidence.command[: 4 * _LONGEST] + " …"
    )
    return msgspec.structs.replace(
        evidence, moments=kept, command=command, request=evidence.request[:_LONGEST]
    )
