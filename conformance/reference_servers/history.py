"""Keep the results of earlier recordings of a server: which checks passed and which rules broke, not the exchanges."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec

from plumbline_conformance.reports.baseline import VIOLATIONS
from plumbline_conformance.reports.report import SCORED, Report

__all__ = ["Past", "history_lines", "past_of", "read_history", "with_past"]


class Past(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The results of one run."""

    server: str
    """Its title, with the release."""
    date: str
    checks: int
    """The number of checks with a verdict."""
    passed: int
    broken: dict[str, int]
    """The number of checks that break each rule."""


def past_of(report: Report) -> Past:
    """Return the results of a report."""
    broken = Counter(
        rule for result in report.results if result.verdict in VIOLATIONS for rule in result.rules_to_show
    )
    verdicts = [result.verdict for result in report.results]
    return Past(
        server=report.run.server,
        date=report.run.started[:10],
        checks=sum(verdict in SCORED for verdict in verdicts),
        passed=verdicts.count("pass"),
        broken=dict(sorted(broken.items())),
    )


def read_history(path: Path) -> list[Past]:
    """Return the earlier runs, oldest first; none if the file does not exist."""
    return msgspec.json.decode(path.read_bytes(), type=list[Past]) if path.is_file() else []


def with_past(known: Sequence[Past], past: Past) -> list[Past]:
    """Return the runs with one more. It replaces a run of the same release on the same day."""
    kept = [one for one in known if (one.server, one.date) != (past.server, past.date)]
    return sorted([*kept, past], key=lambda one: one.date)


def history_lines(runs: Sequence[Past]) -> Iterator[str]:
    """Yield a table of the runs in Markdown, newest first.

    Args:
        runs: the runs, oldest first.
    """
    yield "| judged on | release | checks that pass | broken rules | repaired | newly broken |"
    yield "|---|---|--:|--:|---|---|"
    for place, run in reversed(list(enumerate(runs))):
        before = runs[place - 1].broken if place else run.broken
        repaired = sorted(before.keys() - run.broken.keys())
        fresh = sorted(run.broken.keys() - before.keys())
        cells = (
            run.date,
            run.server,
            f"{run.passed} of {run.checks}",
            str(len(run.broken)),
            ", ".join(repaired),
            ", ".join(fresh),
        )
        yield f"| {' | '.join(cells)} |"
