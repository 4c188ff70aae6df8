"""Show live traffic: a table on a terminal, a line per violation in a pipe."""

from __future__ import annotations

from rich.console import Console, Group, RenderableType
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from plumbline_conformance.judge.verdicts import Finding
from plumbline_conformance.recording.redaction import redacted_exchange
from plumbline_conformance.reports.conclude import STYLES
from plumbline_conformance.reports.formats.text import printable
from plumbline_conformance.suite.scenario import CHECKS
from plumbline_conformance.transcript.exchange import Exchange
from plumbline_conformance.watch.live import Tally

__all__ = ["picture", "print_violation"]

_SHOWN = ("pass", "fail", "warn", "untestable", "rejected", "inconclusive")
"""Verdicts of live traffic, which is never repeated or skipped."""


def picture(tally: Tally, under_way: int) -> RenderableType:
    """Return the counts by check, and the last exchanges."""
    table = Table(box=None, pad_edge=False)
    table.add_column("check")
    for name in _SHOWN:
        table.add_column(name, justify="right", style=STYLES[name])
    for name in CHECKS:
        if name in tally.counts:
            counts = tally.counts[name]
            table.add_row(Text(name), *(str(counts[verdict] or "") for verdict in _SHOWN))
    # The judging thread continues counting; copying is atomic.
    lines = [_line(exchange, wrong) for exchange, wrong in tally.recent.copy()]
    unjudged = f", {tally.unjudged} not judged" if tally.unjudged else ""
    head = Text(f"{tally.exchanges} exchanges, {under_way} under way{unjudged}", style="bold")
    return Group(head, table, *lines)


def print_violation(out: Console, exchange: Exchange, wrong: list[Finding]) -> None:
    """Print a line for an exchange that breaks a rule."""
    names = ", ".join(f"{finding.verdict} {finding.check}" for finding in wrong)
    problem = next((problem for finding in wrong for problem in finding.problems), None)
    why = f": expected {problem.expected}, actual {problem.actual}" if problem else ""
    where = f"{exchange.method} {redacted_exchange(exchange).url} {exchange.status}"
    out.print(escape(printable(f"{where}: {names}{why}")))


def _line(exchange: Exchange, wrong: list[Finding]) -> Text:
    covered = redacted_exchange(exchange)
    status = covered.error or str(exchange.status)
    names = " ".join(finding.check for finding in wrong)
    style = "red" if wrong else "dim"
    return Text(
        printable(f"{exchange.method} {covered.url} {status} {names}"), style=style, overflow="ellipsis"
    )
