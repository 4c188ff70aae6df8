"""List the scenarios that a run skipped, by reason."""

from __future__ import annotations

from plumbline_conformance.reports.report import Report
from plumbline_conformance.reports.standing import UNASKED
from plumbline_conformance.suite.scenario import DIED, MUTE

__all__ = ["skip_lines"]


def skip_lines(report: Report) -> list[str]:
    """Return one line for each reason: the skipped scenarios, the number of their checks, and the reason.

    A server without Responses skips seventy scenarios for the same reason, so they share one line, and so do those
    left out by an interruption or after the death of the server.
    """
    skipped: dict[str, list[str]] = {}
    for result in report.results:
        if result.verdict == "skipped":
            skipped.setdefault(result.reason or "", []).append(result.scenario)
    return [
        f"{_names(reason, scenarios)}, {_amount(len(scenarios))}: {reason}"
        for reason, scenarios in skipped.items()
    ]


def _names(reason: str, scenarios: list[str]) -> str:
    names = list(dict.fromkeys(scenarios))
    if reason.startswith((UNASKED, DIED, MUTE)):
        return "the rest"
    return names[0] if len(names) == 1 else f"{len(names)} scenarios from {names[0]} to {names[-1]}"


def _amount(checks: int) -> str:
    return "1 check" if checks == 1 else f"{checks} checks"
