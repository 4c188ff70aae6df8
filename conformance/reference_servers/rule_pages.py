"""Make a page for each rule: its clauses with checks and mutants, its source, and the servers that break it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from plumbline_conformance.reports.formats.markdown import MARKS, cell
from plumbline_conformance.reports.matrix.areas import area_of
from plumbline_conformance.reports.matrix.table import EXPLAINED, Column, ServerMatrix, anchor, worst
from plumbline_conformance.reports.report import Result
from plumbline_conformance.suite.clauses import Clause, clauses_of
from plumbline_conformance.suite.client_claims import CLAIMS
from plumbline_conformance.suite.contract import rules
from plumbline_conformance.suite.coverage import UNCHECKED
from plumbline_conformance.suite.scenario import CHECKS

__all__ = ["rule_pages"]

EVIDENCE = "../../evidence/servers"
"""The folder with the exchanges of each server, as an address from the page of a rule."""


def rule_pages(matrix: ServerMatrix) -> dict[str, str]:
    """Return the pages in Markdown by name, with a list of all as `index.md`."""
    found = dict(matrix.rules)
    pages = {f"{name}.md": _page(name, matrix.columns, found.get(name, [])) for name in rules()}
    return {"index.md": _index(matrix.columns, found), **pages}


def _index(columns: Sequence[Column], found: dict[str, list[list[Result]]]) -> str:
    lines = [
        "# Rules",
        "",
        "Each rule has a page with its clauses, its source, its checks, and the servers that break it. The address of",
        "a page, such as `/rules/CHAT-05/`, does not change.",
    ]
    area = ""
    for name, rule in rules().items():
        if area_of(name) != area:
            area = area_of(name)
            lines += ["", f"## {area}", ""]
        foreign = [
            results for column, results in zip(columns, found.get(name, []), strict=False) if _judged(results)
        ]
        broken = sum(worst(results) in EXPLAINED for results in foreign)
        said = f" ({broken} of {len(foreign)} servers break it)" if broken else ""
        lines.append(f"- [{name}]({name}.md) {rule['level']}: {rule['sentence']}{said}")
    return "\n".join(lines) + "\n"


def _judged(results: Sequence[Result]) -> bool:
    return worst(results) in (*EXPLAINED, "pass")


def _page(name: str, columns: Sequence[Column], found: Sequence[Sequence[Result]]) -> str:
    rule = rules()[name]
    operations = ", ".join(f"`{one}`" for one in rule["operations"]) or "all"
    fields = [
        f"`{schema}`: {', '.join(f'`{one}`' for one in of)}" for schema, of in rule.get("fields", {}).items()
    ]
    lines = [
        f"# {name}",
        "",
        f"{rule['level']}: {rule['sentence']}",
        "",
        f"- Source: {rule['source']}",
        *([f"- Why: {rule['why']}"] if rule.get("why") else []),
        f"- Operations: {operations}",
        *(f"- Fields of {text}" for text in fields),
        "",
        *_commands(name),
        "",
        "## Servers",
        "",
        *_servers(name, columns, found),
        "",
    ]
    if known := list(clauses_of(name)):
        lines += ["## Clauses", "", *_clauses(known), ""]
    lines += ["## Checks", ""]
    observers = [one for one in (*CHECKS.values(), *CLAIMS.values()) if name in one.rules]
    lines += [f"- `{one.id}`: {one.title}." for one in observers] or [
        f"No check observes it by itself: {UNCHECKED[name]}."
    ]
    return "\n".join(lines) + "\n"


def _commands(name: str) -> Iterator[str]:
    yield "```sh"
    yield f"plumbline check http://127.0.0.1:8000/v1 {name}"
    yield f"plumbline explain {name}"
    yield "```"


def _servers(name: str, columns: Sequence[Column], found: Sequence[Sequence[Result]]) -> Iterator[str]:
    """Yield the servers that break the rule, with a link to the first exchange, and a sentence about the others."""
    kept = []
    broken = 0
    for column, results in zip(columns, found, strict=False):
        verdict = worst(results)
        if verdict == "pass":
            kept.append(column)
        if verdict not in EXPLAINED:
            continue
        if not broken:
            yield "| server | checks | cause |"
            yield "|---|---|---|"
        broken += 1
        first = next(result for result in results if result.verdict == verdict)
        count = sum(result.verdict in EXPLAINED for result in results)
        page = f"{EVIDENCE}/{anchor(column, '')}.html#{anchor(column, first.check)}"
        link = f'<a href="{page}">{MARKS[verdict]} {count} of {len(results)}</a>'
        # Explanations are Markdown; a reason may quote the server.
        why = column.explanations.of(first.check) or (cell(first.reason) if first.reason else first.title)
        yield f"| [{cell(column.title)}](../reference/servers/{column.name}.md) | {link} | {_bars(why)} |"
    if not broken:
        yield "No server that was judged breaks it." if kept else "No server has a verdict."
    elif kept:
        yield ""
        yield f"These keep it: {'; '.join(cell(column.title) for column in kept)}."


def _bars(text: str) -> str:
    """Return Markdown for a cell of a table."""
    return text.replace("|", "\\|")


def _clauses(known: Sequence[Clause]) -> Iterator[str]:
    yield "| clause | requires | answer | checks, each with a mutant that it detects |"
    yield "|---|---|---|---|"
    for clause in known:
        for number, place in enumerate(clause.places):
            found = [f"`{one.check}` ({_bars(one.mutant)})" for one in clause.evidence.get(place, ())]
            text = ", ".join(found) or f"*{_bars(clause.unchecked[place])}*"
            head = f"{clause.id} | {_bars(clause.clause)}" if number == 0 else " | "
            yield f"| {head} | {place} | {text} |"
