"""What a report comes to: the exit status, and what of it is to blame.

The exit status, the badge's colour, JUnit and the items of pytest are all taken from here, so that none of them is
green where another one is not.
"""

from __future__ import annotations

from collections.abc import Collection

from plumbline_conformance.reports.baseline import VIOLATIONS
from plumbline_conformance.reports.model import Report, Result
from plumbline_conformance.suite.model import CAPABILITIES, SCENARIOS
from plumbline_conformance.suite.selection import PROFILES, scenarios_that_show

__all__ = ["UNASKED", "blamed", "core_of", "lacking", "status_of", "unjudged", "whole"]

UNASKED = "the run was interrupted before the scenario had ended"
"""Why a scenario was skipped of which an interruption left nothing or a part."""
_NONE = {"inconclusive", "skipped"}


def status_of(report: Report, *, strict: bool) -> int:
    """0 conforming, 1 violations or a stale baseline, 2 no verdict on what is core, 3 the suite itself failed."""
    blame = set(blamed(report, strict=strict).values())
    if report.stale or report.lacking:
        blame.add(1)
    if not whole(report):
        blame.add(2)
    return next((status for status in (3, 1, 2) if status in blame), 0)


def blamed(report: Report, *, strict: bool) -> dict[str, int]:
    """The checks for which the exit status is not 0, and the status that each asks for."""
    core, unknown, lacked = core_of(report), set(unjudged(report)), _lacked(report)
    found: dict[str, int] = {}
    for result in report.results:
        if result.verdict == "error":
            found[result.check] = 3
        elif _is_broken(result, strict) or _is_refused(result, core, lacked):
            found[result.check] = 1
        elif result.scenario in unknown:
            found[result.check] = 2
    return found


def _is_broken(result: Result, strict: bool) -> bool:
    return result.verdict in VIOLATIONS and result.expected is None and (strict or result.level == "MUST")


def _is_refused(result: Result, core: Collection[str], lacked: Collection[str]) -> bool:
    if result.verdict == "rejected":
        return result.scenario in core
    return result.verdict == "skipped" and result.scenario in lacked


def core_of(report: Report) -> frozenset[str]:
    """The scenarios that nobody may refuse: what is core, and what shows that a profile's capabilities are there."""
    always = {name for name, found in SCENARIOS.items() if found.core}
    return frozenset(always | scenarios_that_show(report.profile))


def unjudged(report: Report) -> list[str]:
    """The scenarios that nobody may refuse, and of which no check came to a verdict."""
    core, verdicts = core_of(report), dict[str, set[str]]()
    # Live traffic was not asked for, and its worst moment says nothing of the rest.
    for result in report.results if report.run.by == "check" else ():
        if result.scenario in core:
            verdicts.setdefault(result.scenario, set()).add(result.verdict)
    lacked = _lacked(report)  # That something is lacking is a verdict of its own.
    return [name for name, found in verdicts.items() if found <= _NONE and name not in lacked]


def _lacked(report: Report) -> set[str]:
    return {name for slug in report.lacking for name in PROFILES[report.profile].requires[slug]}


def lacking(report: Report) -> list[str]:
    """A sentence for each capability that the profile requires and the server has not got."""
    return [
        f"The profile {report.profile} requires what the server lacks, "
        f"{CAPABILITIES[name].title} (`{name}`): {why}"
        for name, why in report.lacking.items()
    ]


def whole(report: Report) -> bool:
    """Whether something came to a verdict, and nothing was left out by an interruption."""
    cut = any(result.reason == UNASKED for result in report.results)
    return not cut and any(result.verdict not in _NONE for result in report.results)
