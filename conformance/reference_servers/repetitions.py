"""Compare the verdicts of several runs on one server: a verdict that changes between runs is unreliable."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import msgspec

from plumbline_conformance.reports.report import Report

__all__ = ["Repetitions", "read_repetitions", "repetitions_of"]


class Repetitions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The results of several runs, each on a newly started server."""

    server: str
    """Its title, with the version."""
    date: str
    runs: int
    checks: int
    """The number of checks with a verdict in every run."""
    changed: dict[str, list[str]]
    """For each check with differing verdicts: its verdicts, in the order of the runs."""

    @property
    def sentence(self) -> str:
        """Report how many verdicts changed."""
        said = f"{self.runs} runs on {self.date}, {self.checks} checks with a verdict: "
        if not self.changed:
            return f"{said}no verdict changed."
        listed = "; ".join(f"`{check}` ({', '.join(found)})" for check, found in self.changed.items())
        return f"{said}{len(self.changed)} changed: {listed}."


def repetitions_of(server: str, reports: Sequence[Report]) -> Repetitions:
    """Return the verdicts that differ between runs on one server."""
    found = [{result.check: str(result.verdict) for result in report.results} for report in reports]
    names = [result.check for result in reports[0].results]
    rows = {name: [run.get(name, "skipped") for run in found] for name in names}
    return Repetitions(
        server=server,
        date=reports[0].run.started[:10],
        runs=len(reports),
        checks=sum("skipped" not in row for row in rows.values()),
        changed={name: row for name, row in rows.items() if len(set(row)) > 1},
    )


def read_repetitions(path: Path) -> Repetitions | None:
    """Return the results of several runs; None if the file does not exist."""
    return msgspec.json.decode(path.read_bytes(), type=Repetitions) if path.is_file() else None
