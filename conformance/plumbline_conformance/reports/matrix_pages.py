"""Write the matrix as a set of small pages: a summary of one screen, the comparisons, and a page for each server."""

from __future__ import annotations

from collections.abc import Collection, Iterator

import msgspec

from plumbline_conformance.reports.areas import AREAS_NOTE, Score, scores_of
from plumbline_conformance.reports.evidence_html import Detail, evidence_html
from plumbline_conformance.reports.html import page, safe, safe_text
from plumbline_conformance.reports.markdown import MARKS, cell, code
from plumbline_conformance.reports.matrix import (
    EXPLAINED,
    NOTE,
    Column,
    Matrix,
    anchor,
    behind,
    checks_of_servers,
    counts_of_servers,
    matrix_of,
    rules_of_servers,
    worst,
)
from plumbline_conformance.reports.matrix_html import tables
from plumbline_conformance.suite.contract import rules

__all__ = ["LONGEST_PAGE", "matrix_pages"]

LONGEST_PAGE = 1_000_000
"""Bytes of an HTML page; the page of a server shows less of its exchanges to stay below."""
_DETAILS = (
    Detail(),
    Detail(alike=2),
    Detail(head=2, tail=2, alike=1, longest=200),
    Detail(head=1, tail=1, alike=1, longest=120, brief=80),
    Detail(head=1, tail=0, alike=0, longest=40, brief=0),
)
_STYLE = """
body{max-width:90rem}.summary td{text-align:center;white-space:nowrap}.summary tr>th{max-width:12rem}
.summary thead th,.wide tr:first-child th{font-weight:600;font-size:.85rem;vertical-align:bottom}
.wide{max-height:85vh;overflow:auto}.wide tr:first-child th{position:sticky;top:0;background:Canvas;max-width:8rem}
.wide th:first-child{position:sticky;left:0;background:Canvas}td{font-size:.85rem}
a.v{text-decoration:none}td a.v:hover{text-decoration:underline}
"""
_OTHER_PAGES = {"matrix": "summary", "matrix-rules": "servers by rules", "matrix-checks": "servers by checks"}


def matrix_pages(matrix: Matrix, written: Collection[str] = ()) -> dict[str, str]:
    """Return the pages by path, all relative to the folder that the links of the matrix start from.

    Args:
        matrix: the servers; their recordings are links from that folder.
        written: names of servers with a page `servers/NAME.md` that a person wrote.
    """
    scores = scores_of(matrix)
    named = _with_pages(matrix, "servers/{}.rules.md")
    by_html = _with_pages(matrix, "servers/{}.html")
    pages = {
        "matrix.md": _summary_markdown(named, scores, written),
        "matrix.html": _summary_html(by_html, scores, written),
        "matrix-rules.md": _comparison_markdown(named, "rules"),
        "matrix-checks.md": _comparison_markdown(named, "checks"),
        "matrix-rules.html": _comparison_html(by_html, "rules"),
        "matrix-checks.html": _comparison_html(by_html, "checks"),
    }
    for place, column in enumerate(matrix.columns):
        away = msgspec.structs.replace(column, recording=column.recording and f"../{column.recording}")
        own = {area: found[place] for area, found in scores.items()}
        name = anchor(column, "")
        pages[f"servers/{name}.rules.md"] = _server_markdown(away, own, column.name in written)
        pages[f"servers/{name}.html"] = _server_html(away, own, column.name in written)
    return pages


def _with_pages(matrix: Matrix, path: str) -> Matrix:
    columns = [
        msgspec.structs.replace(column, page=path.format(anchor(column, ""))) for column in matrix.columns
    ]
    return msgspec.structs.replace(matrix, columns=columns)


def _without_recordings(matrix: Matrix) -> Matrix:
    """Return a matrix whose passing cells have no links, which would be most of a large page."""
    columns = [msgspec.structs.replace(column, recording="") for column in matrix.columns]
    return msgspec.structs.replace(matrix, columns=columns)


# The summary


def _summary_markdown(matrix: Matrix, scores: dict[str, list[Score]], written: Collection[str]) -> str:
    lines = ["# Servers by areas", "", AREAS_NOTE, ""]
    lines += ["| server | " + " | ".join(scores) + " | read |", "|---|" + "--:|" * len(scores) + "---|"]
    for place, column in enumerate(matrix.columns):
        cells = [_score_markdown(column, found[place]) for found in scores.values()]
        name = anchor(column, "")
        links = [f"[notes](servers/{column.name}.md)"] if column.name in written else []
        links += [f"[violations]({column.page})", f"[exchanges](servers/{name}.html)"]
        lines.append(f"| {cell(column.title)} | {' | '.join(cells)} | {', '.join(links)} |")
    lines += [
        "",
        "All verdicts: [servers by rules](matrix-rules.md), [servers by checks](matrix-checks.md); the same as HTML, "
        "with requests and answers: [summary](matrix.html), [rules](matrix-rules.html), "
        "[checks](matrix-checks.html).",
        "",
        "## Verdicts",
        "",
        *counts_of_servers(matrix),
    ]
    return "\n".join(lines) + "\n"


def _score_markdown(column: Column, score: Score) -> str:
    return f"[{score.short}]({column.page}#{anchor(column, score.check)})" if score.check else score.short


def _summary_html(matrix: Matrix, scores: dict[str, list[Score]], written: Collection[str]) -> str:
    heads = "".join(f"<th>{safe(area)}</th>" for area in scores)
    rows = []
    for place, column in enumerate(matrix.columns):
        cells = "".join(f"<td>{_score_html(column, found[place])}</td>" for found in scores.values())
        note = f' <a href="servers/{safe(column.name)}.md">notes</a>' if column.name in written else ""
        rows.append(f'<tr><th><a href="{safe(column.page)}">{safe(column.title)}</a>{note}</th>{cells}</tr>')
    parts = [
        "<h1>Servers by areas</h1>",
        _navigation("matrix", ""),
        f"<p>{safe_text(AREAS_NOTE)}</p>",
        f'<div class="scroll summary"><table><thead><tr><th>server</th>{heads}</tr></thead>',
        *rows,
        "</table></div><h2>Verdicts</h2>",
        tables(matrix)["servers"],
    ]
    return page("Plumbline: servers by areas", parts, _STYLE)


def _score_html(column: Column, score: Score) -> str:
    if not score.check:
        return f'<span class="v pass">{score.short}</span>'
    place = anchor(column, score.check)
    title = f"{score.area}: {score.passed} of {score.judged}; {', '.join([*score.broken, *score.lacking])}"
    return f'<a class="v {score.verdict}" title="{safe(title)}" href="{safe(column.page)}#{place}">{score.short}</a>'


def _navigation(here: str, folder: str) -> str:
    """Return the links to the pages of all servers."""
    links = [
        f'<a href="{folder}{name}.html">{text}</a>' for name, text in _OTHER_PAGES.items() if name != here
    ]
    return f"<nav>{' · '.join(links)}</nav>"


# The comparisons


def _comparison_markdown(matrix: Matrix, kind: str) -> str:
    bare = _without_recordings(matrix)
    marks = " ".join(f"{mark} {verdict}" for verdict, mark in MARKS.items())
    lines = [f"# Servers by {kind}", "", "[Summary](matrix.md)", "", marks, ""]
    lines += [NOTE, "", *rules_of_servers(bare)] if kind == "rules" else [*checks_of_servers(bare)]
    return "\n".join(lines) + "\n"


def _comparison_html(matrix: Matrix, kind: str) -> str:
    parts = [f"<h1>Servers by {kind}</h1>", _navigation(f"matrix-{kind}", "")]
    parts += [f"<p>{NOTE}</p>"] if kind == "rules" else []
    return page(f"Plumbline: servers by {kind}", [*parts, tables(_without_recordings(matrix))[kind]], _STYLE)


# A page for each server


def _server_markdown(column: Column, scores: dict[str, Score], written: bool) -> str:
    name = anchor(column, "")
    links = ["[Summary](../matrix.md)", f"[requests and answers]({name}.html)"]
    links += [f"[notes]({column.name}.md)"] if written else []
    links += [f"[recording]({column.recording})"] if column.recording else []
    lines = [f"# {cell(column.title)}: violations", "", ", ".join(links) + ".", ""]
    lines += ["| area | checks that pass | MUST rules broken | SHOULD rules broken |", "|---|--:|---|---|"]
    for area, found in scores.items():
        broken, lacking = (
            ", ".join(f"[{cell(rule)}](#{_rule_place(rule)})" for rule in names)
            for names in (found.broken, found.lacking)
        )
        passed = f"{found.passed} of {found.judged}" if found.judged else "no verdict"
        lines.append(f"| {cell(area)} | {passed} | {broken} | {lacking} |")
    lines += ["", *_broken_rules(column, scores)]
    return "\n".join([*lines, *_violations(column)]).rstrip() + "\n"


def _rule_place(rule: str) -> str:
    return f"rule-{rule.lower()}"


def _broken_rules(column: Column, scores: dict[str, Score]) -> Iterator[str]:
    """Yield the sentence of each broken rule, with links to the checks that break it."""
    found = matrix_of([column]).rules
    wanted = {rule for score in scores.values() for rule in (*score.broken, *score.lacking)}
    if wanted:
        yield "## Rules"
        yield ""
    for rule, [results] in found:
        if rule not in wanted:
            continue
        verdict = worst(results)
        checks = ", ".join(
            f"[{code(r.check)}](#{anchor(column, r.check)})" for r in results if r.verdict in EXPLAINED
        )
        sentence = rules()[rule]["sentence"]
        yield f'- <a id="{_rule_place(rule)}"></a>{MARKS[verdict or "fail"]} **{cell(rule)}** {cell(sentence)} {checks}'
    yield ""


def _violations(column: Column) -> list[str]:
    lines = behind(column)
    return ["## Checks", "", *lines[2:]] if lines else ["No check is violated."]


def _server_html(column: Column, scores: dict[str, Score], written: bool) -> str:
    """Return the page with the most detail that stays below the limit."""
    name = anchor(column, "")
    links = [_navigation("", "../"), f'<p><a href="{name}.rules.md">violations as Markdown</a>']
    links += [f' · <a href="{safe(column.name)}.md">notes</a>'] if written else []
    links += [f' · <a href="{safe(column.recording)}">recording</a>'] if column.recording else []
    rows = []
    for area, found in scores.items():
        broken = ", ".join(map(safe, [*found.broken, *found.lacking]))
        shown = (
            f'<a class="v {found.verdict}" href="#{anchor(column, found.check)}">{broken}</a>'
            if found.check
            else ""
        )
        passed = f"{found.passed} of {found.judged}" if found.judged else "no verdict"
        rows.append(f"<tr><th>{safe(area)}</th><td>{passed}</td><td>{shown}</td></tr>")
    head = [
        f"<h1>{safe(column.title)}</h1>",
        *links,
        '</p><div class="scroll"><table><tr><th>area</th><th>checks that pass</th><th>rules broken</th></tr>',
        *rows,
        "</table></div>",
    ]
    for detail in _DETAILS:
        text = page(f"Plumbline: {column.title}", [*head, *evidence_html(column, detail)], _STYLE)
        if len(text.encode()) < LONGEST_PAGE:
            break
    return text
