"""Write the evidence of one server as HTML: each check that does not pass, and its exchanges."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby

import msgspec

from plumbline_conformance.reports.formats.html import exchange_html, marks_of, safe, safe_text
from plumbline_conformance.reports.formats.text import by_rule
from plumbline_conformance.reports.matrix.table import EXPLAINED, Column, anchor, why_of
from plumbline_conformance.reports.report import Evidence, Result
from plumbline_conformance.reports.timeline import Moment
from plumbline_conformance.suite.scenario import Problem

__all__ = ["Detail", "evidence_html"]


class Detail(msgspec.Struct, frozen=True):
    """How much of the exchanges a page shows; the recording has all of it."""

    head: int = 4
    """Events at the beginning of an answer."""
    tail: int = 3
    """Events at its end."""
    same_marks: int = 4
    """Events of one answer that have the same marks (references to problems)."""
    longest: int = 300
    """Characters of one event."""
    brief: int = 160
    """Characters of each request, and of each answer, of a scenario without a failed check."""


def evidence_html(column: Column, detail: Detail, root: str = "") -> Iterator[str]:
    """Yield the sections of a server, in the order of the suite. A long sentence appears once, then as a link.

    Args:
        column: the server.
        detail: how much of the exchanges to show.
        root: the root of the site, as a link from the page.
    """
    writer = _Writer(column, detail, root)
    for scenario, results in groupby(column.report.results, lambda result: result.scenario):
        found = list(results)
        yield from (writer.result(result) for result in found if result.verdict != "pass")
        if any(result.verdict in EXPLAINED for result in found):
            yield writer.exchanges(scenario)
        elif scenario in column.report.evidence:
            yield writer.brief(scenario)


class _Writer:
    """Write sections; it remembers which sentences the page has already."""

    def __init__(self, column: Column, detail: Detail, root: str) -> None:
        self._column = column
        self._root = root
        self._detail = detail
        self._places: dict[str, str] = {}
        """Where a long text appeared first."""

    def result(self, result: Result) -> str:
        """Return a check that does not pass."""
        place = anchor(self._column, result.check)
        parts = [
            f'<section id="{place}"><h3><span class="v {safe(result.verdict)}">'
            f"{safe(result.verdict)}</span> <code>{safe(result.check)}</code></h3><p>{safe_text(result.title)}.</p>"
        ]
        if why := why_of(self._column, result):
            parts.append(f"<p>{self._once(why, place, 'the same cause as')}</p>")
        if result.verdict in EXPLAINED:
            for name, problems in by_rule(result) or [(name, []) for name in result.rules]:
                rule = self._column.report.rules[name]
                sentence = self._once(rule.sentence, place, "see")
                link = f'<a href="{safe(self._root + rule.url)}">{safe(rule.id)}</a>'
                parts.append(f"<blockquote><b>{link}</b> {safe(rule.level)}: {sentence}</blockquote>")
                parts += [self._problem(problem) for problem in problems[:3]]
        if result.scenario in self._column.report.evidence:
            there = anchor(self._column, result.scenario)
            parts.append(f'<p><a href="#{there}">requests and answers</a></p>')
        return "".join(parts) + "</section>"

    def _problem(self, problem: Problem) -> str:
        longest = self._detail.longest
        where = f" <code>{safe_text(problem.pointer)}</code>" if problem.pointer else ""
        return (
            f"<dl><dt>expected</dt><dd>{safe_text(problem.expected[:longest])}</dd>"
            f"<dt>actual</dt><dd>{safe_text(problem.actual[:longest])}{where}</dd></dl>"
        )

    def _once(self, text: str, place: str, again: str) -> str:
        """Return the text, or a link to where the page has it already, if the link is shorter."""
        first = self._places.setdefault(text, place)
        if first == place or len(text) < 80:
            return safe_text(text)
        check = next(r.check for r in self._column.report.results if anchor(self._column, r.check) == first)
        return f'{again} <a href="#{first}"><code>{safe(check)}</code></a>'

    def exchanges(self, scenario: str) -> str:
        """Return the exchanges of a scenario with violations."""
        report = self._column.report
        marked = [result for result in report.results if result.scenario == scenario and result.problems]
        seen = report.evidence.get(scenario, [])
        shown = "".join(
            exchange_html(self._short(found, marks_of(found, marked)), marked, named=len(seen) > 1)
            for found in seen
        )
        return self._folded(scenario, shown)

    def brief(self, scenario: str) -> str:
        """Return the exchanges of a scenario without violations: the beginnings of requests and answers."""
        parts = []
        for found in self._column.report.evidence[scenario]:
            outcome = found.error or f"status {found.status}"
            body = " ".join(moment.text for moment in found.moments[:2])
            parts.append(
                f"<p>{safe(found.method)} <code>{safe(found.url)}</code>: {safe_text(outcome)}</p>"
                f"<pre>{safe_text(_cut(found.request, self._detail.brief))}</pre>"
                f"<pre>{safe_text(_cut(body, self._detail.brief))}</pre>"
            )
        return self._folded(scenario, "".join(parts))

    def _folded(self, scenario: str, content: str) -> str:
        count = len(self._column.report.evidence.get(scenario, []))
        return (
            f'<details id="{anchor(self._column, scenario)}"><summary>{count} exchanges of '
            f"<code>{safe(scenario)}</code></summary>{content}</details>"
        )

    def _short(self, evidence: Evidence, marks: dict[int | None, list[str]]) -> Evidence:
        """Return the exchange with gaps for left-out events, and without the request if the command contains it."""
        detail, count = self._detail, len(evidence.moments)
        shown: dict[tuple[str, ...], int] = {}
        kept: list[Moment] = []
        for place, moment in enumerate(evidence.moments):
            own_marks = tuple(marks.get(moment.number, ()))
            shown[own_marks] = shown.get(own_marks, 0) + 1
            wanted = (
                shown[own_marks] <= detail.same_marks
                if own_marks
                else place < detail.head or place >= count - detail.tail
            )
            if wanted or (place == 0):
                kept.append(msgspec.structs.replace(moment, text=_cut(moment.text, detail.longest)))
                continue
            if not kept or kept[-1].kind != "gap":
                kept.append(Moment(kind="gap", at=moment.at, text=""))
            kept[-1] = _wider(kept[-1], moment, marked=bool(own_marks))
        command = _cut(evidence.command, 4 * detail.longest)
        request = "" if "--data" in evidence.command else _cut(evidence.request, detail.longest)
        return msgspec.structs.replace(evidence, moments=kept, command=command, request=request)


def _wider(gap: Moment, moment: Moment, *, marked: bool) -> Moment:
    """Add an event to a gap. The gap's text counts its marked events, whose marks are also on events that are shown."""
    count = int(gap.text.partition(" ")[0] or 0) + marked
    text = f"{count} more with the same marks" if count else ""
    return msgspec.structs.replace(gap, size=gap.size + moment.size, text=text)


def _cut(text: str, longest: int) -> str:
    return text if len(text) <= longest else text[:longest] + " …"
