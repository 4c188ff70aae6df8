"""Write the matrix as pages: a summary that fits one screen, the comparisons, and a page for each server."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from plumbline_conformance.reports.formats.html import page, safe, safe_text
from plumbline_conformance.reports.formats.markdown import cell
from plumbline_conformance.reports.matrix.areas import AREAS_NOTE, AreaScore, scores_of
from plumbline_conformance.reports.matrix.evidence import Detail, evidence_html
from plumbline_conformance.reports.matrix.html import tables
from plumbline_conformance.reports.matrix.table import (
    NOTE,
    Column,
    ServerMatrix,
    anchor,
    counts_of_servers,
)

__all__ = ["LONGEST_PAGE", "matrix_pages", "summary_markdown"]

LONGEST_PAGE = 1_000_000
"""Bytes of an HTML page; the page of a server shows less of its exchanges to stay below."""
_DETAILS = (
    Detail(),
    Detail(same_marks=2),
    Detail(head=2, tail=2, same_marks=1, longest=200),
    Detail(head=1, tail=1, same_marks=1, longest=120, brief=80),
    Detail(head=1, tail=0, same_marks=0, longest=40, brief=0),
)
_STYLE = """
body{max-width:90rem}.summary td{text-align:center;white-space:nowrap}.summary tr>th{max-width:12rem}
.summary thead th,.wide tr:first-child th{font-weight:600;font-size:.85rem;vertical-align:bottom}
.wide{max-height:85vh;overflow:auto}.wide tr:first-child th{position:sticky;top:0;background:Canvas;max-width:8rem}
.wide th:first-child{position:sticky;left:0;background:Canvas}td{font-size:.85rem}
a.v{text-decoration:none}td a.v:hover{text-decoration:underline}
"""
_OTHER_PAGES = {"matrix": "summary", "matrix-rules": "servers by rules", "matrix-checks": "servers by checks"}


def matrix_pages(matrix: ServerMatrix, notes: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return the HTML pages by path, all relative to the folder that the links of the matrix start from.

    The folder is one below the root of the site, which has a page for each rule.

    Args:
        matrix: the servers; their recordings are links from that folder.
        notes: links from that folder to the pages with notes on a server, by the server's name.
    """
    notes = notes or {}
    scores = scores_of(matrix)
    linked = _with_pages(matrix)
    pages = {
        "matrix.html": _summary_html(linked, scores, notes),
        "matrix-rules.html": _comparison_html(linked, "rules"),
        "matrix-checks.html": _comparison_html(linked, "checks"),
    }
    for place, column in enumerate(linked.columns):
        away = msgspec.structs.replace(column, recording=column.recording and f"../{column.recording}")
        own = {area: found[place] for area, found in scores.items()}
        pages[column.page] = _server_html(away, own, notes.get(column.name, ""))
    return pages


def summary_markdown(matrix: ServerMatrix, notes: Mapping[str, str]) -> str:
    """Return the summary as Markdown; it links only to recordings and notes.

    Args:
        matrix: the servers.
        notes: links to the pages with notes on a server, by the server's name.
    """
    scores = scores_of(matrix)
    lines = ["# Servers by areas", "", AREAS_NOTE, ""]
    lines += ["| server | " + " | ".join(scores) + " |", "|---|" + "--:|" * len(scores)]
    for place, column in enumerate(matrix.columns):
        cells = " | ".join(found[place].short for found in scores.values())
        note = notes.get(column.name)
        title = cell(column.title)
        lines.append(f"| {f'[{title}]({note})' if note else title} | {cells} |")
    lines += ["", "## Verdicts", "", *counts_of_servers(matrix)]
    return "\n".join(lines) + "\n"


def _with_pages(matrix: ServerMatrix) -> ServerMatrix:
    columns = [
        msgspec.structs.replace(column, page=f"servers/{anchor(column, '')}.html")
        for column in matrix.columns
    ]
    return msgspec.structs.replace(matrix, columns=columns)


def _without_recordings(matrix: ServerMatrix) -> ServerMatrix:
    """Return a matrix without links in passing cells, which would be most of a large page."""
    columns = [msgspec.structs.replace(column, recording="") for column in matrix.columns]
    return msgspec.structs.replace(matrix, columns=columns)


# The summary


def _summary_html(matrix: ServerMatrix, scores: dict[str, list[AreaScore]], notes: Mapping[str, str]) -> str:
    heads = "".join(f"<th>{safe(area)}</th>" for area in scores)
    rows = []
    for place, column in enumerate(matrix.columns):
        cells = "".join(f"<td>{_score_html(column, found[place])}</td>" for found in scores.values())
        note = f' <a href="{safe(notes[column.name])}">notes</a>' if column.name in notes else ""
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


def _score_html(column: Column, score: AreaScore) -> str:
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


def _comparison_html(matrix: ServerMatrix, kind: str) -> str:
    parts = [f"<h1>Servers by {kind}</h1>", _navigation(f"matrix-{kind}", "")]
    parts += [f"<p>{NOTE}</p>"] if kind == "rules" else []
    return page(f"Plumbline: servers by {kind}", [*parts, tables(_without_recordings(matrix))[kind]], _STYLE)


# A page for each server


def _server_html(column: Column, scores: dict[str, AreaScore], note: str) -> str:
    """Return the page with the most detail that stays below the limit."""
    found_at = {"notes": note and f"../{note}", "recording": column.recording}
    links = [f'<a href="{safe(link)}">{text}</a>' for text, link in found_at.items() if link]
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
        _navigation("", "../"),
        f"<p>{' · '.join(links)}</p>",
        '<div class="scroll"><table><tr><th>area</th><th>checks that pass</th><th>rules broken</th></tr>',
        *rows,
        "</table></div>",
    ]
    for detail in _DETAILS:
        text = page(f"Plumbline: {column.title}", [*head, *evidence_html(column, detail, "../../")], _STYLE)
        if len(text.encode()) < LONGEST_PAGE:
            break
    return text
