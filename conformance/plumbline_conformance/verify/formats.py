"""Write what a verification found: for a terminal, as JUnit XML, and as a page."""

from __future__ import annotations

from html import escape
from xml.etree import ElementTree

from plumbline_conformance.verify.report import Figure, Findings, percent

__all__ = ["html", "junit", "lines"]

_SHOWN = 20
"""Rows that a terminal shows."""


def _shown(figure: Figure) -> str:
    between = f"[{100 * figure.low:.1f}, {100 * figure.high:.1f}]"
    text = f"{figure.name:17} {percent(figure.value):>8}  {between} of {figure.of}"
    if figure.baseline is not None:
        text += f", baseline {percent(figure.baseline)}"
    if figure.p is not None:
        text += f", p = {figure.p:.3g}"
    return f"{text}  {figure.verdict}".rstrip()


def lines(findings: Findings) -> list[str]:
    """Return the report for a terminal."""
    found = [f"{findings.server}: {findings.answers} answers to {findings.rows} rows"]
    for figure in findings.figures:
        found.append(f"  {_shown(figure)}")
        if figure.note:
            found.append(f"    {figure.note}")
    for wanted, row in findings.finish_reasons.items():
        found.append(f"  baseline {wanted}: " + ", ".join(f"{count} {name}" for name, count in row.items()))
    found += [f"  cause: {cause.kind}. {cause.says}" for cause in findings.causes]
    for failure in findings.failures[:_SHOWN]:
        found.append(f"  row {failure.row}: {'; '.join(failure.problems)}")
        found.append(f"    again: {failure.command}")
    if len(findings.failures) > _SHOWN:
        found.append(f"  and {len(findings.failures) - _SHOWN} more rows (--json has them)")
    return found


def junit(findings: Findings) -> str:
    """Return JUnit XML: a case for each figure, and one for each row that fails."""
    root = ElementTree.Element("testsuites", name="plumbline compare")
    suite = ElementTree.SubElement(root, "testsuite", name="figures", tests=str(len(findings.figures)))
    for figure in findings.figures:
        case = ElementTree.SubElement(suite, "testcase", classname="verify", name=figure.name)
        if figure.verdict == "worse":
            says = " ".join(cause.says for cause in findings.causes)
            ElementTree.SubElement(case, "failure", message=_legal(_shown(figure))).text = _legal(says)
    rows = ElementTree.SubElement(root, "testsuite", name="rows", tests=str(len(findings.failures)))
    for failure in findings.failures:
        case = ElementTree.SubElement(rows, "testcase", classname="verify.rows", name=f"row {failure.row}")
        # A row is one draw: only the figures say whether the server is wrong.
        ElementTree.SubElement(case, "skipped", message=_legal("; ".join(failure.problems)))
    ElementTree.indent(root)
    return '<?xml version="1.0" encoding="utf-8"?>\n' + ElementTree.tostring(root, encoding="unicode") + "\n"


def _legal(text: str) -> str:
    return "".join(char if char in "\t\n" or char.isprintable() else " " for char in text)


_STYLE = """
:root{color-scheme:light dark}body{font:16px/1.5 system-ui,sans-serif;max-width:64rem;margin:0 auto;padding:1rem}
h1{font-size:1.4rem}.s{overflow-x:auto}table{border-collapse:collapse;font-variant-numeric:tabular-nums}
td,th{border-bottom:1px solid #8884;padding:.25rem .7rem;text-align:left}.worse{color:#c0392b;font-weight:600}
code{white-space:pre-wrap;overflow-wrap:anywhere}
"""


def html(findings: Findings) -> str:
    """Return one self-contained page."""
    figures = "".join(
        f'<tr class="{figure.verdict}"><td>{escape(figure.name)}<td>{percent(figure.value)}'
        f"<td>{100 * figure.low:.1f} to {100 * figure.high:.1f}<td>{figure.of}<td>{percent(figure.baseline)}"
        f"<td>{'' if figure.p is None else format(figure.p, '.3g')}<td>{figure.verdict}<td>{escape(figure.note)}"
        for figure in findings.figures
    )
    reasons = sorted({name for row in findings.finish_reasons.values() for name in row})
    confusion = "".join(
        f"<tr><th>{escape(wanted)}" + "".join(f"<td>{row.get(name, 0)}" for name in reasons)
        for wanted, row in findings.finish_reasons.items()
    )
    causes = "".join(f"<li><b>{cause.kind}</b>: {escape(cause.says)}" for cause in findings.causes)
    failures = "".join(
        f"<tr><td>{failure.row}<td>{escape('; '.join(failure.problems))}<td><code>{escape(failure.command)}</code>"
        for failure in findings.failures
    )
    return (
        f'<!doctype html><html lang="en"><meta charset="utf-8"><meta name="viewport" content="width=device-width">'
        f"<title>{escape(findings.server)} beside its baseline</title><style>{_STYLE}</style>"
        f"<h1>{escape(findings.server)}: {findings.answers} answers to {findings.rows} rows</h1>"
        '<div class="s"><table><tr><th>figure<th>value<th>95 %<th>of<th>baseline<th>p<th>verdict<th>'
        f"{figures}</table></div>"
        f"<h2>Causes</h2><ul>{causes or '<li>none'}</ul>"
        f'<h2>Finish reasons</h2><div class="s"><table><tr><th>baseline'
        f"{''.join(f'<th>{escape(name)}' for name in reasons)}{confusion}</table></div>"
        '<h2>Rows that fail</h2><div class="s"><table><tr><th>row<th>problem<th>command'
        f"{failures}</table></div></html>\n"
    )
