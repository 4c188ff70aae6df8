"""Compute the exit status of a report, and the checks that cause it.

The exit status, the badge, JUnit and the pytest items use this module, so that they always agree.
"""

from __future__ import annotations

from collections.abc import Collection

from plumbline_conformance.reports.baseline import VIOLATIONS
from plumbline_conformance.reports.report import Report, Result
from plumbline_conformance.suite.scenario import CAPABILITIES, SCENARIOS
from plumbline_conformance.suite.selection import PROFILES, scenarios_that_show

__all__ = [
    "UNASKED",
    "UNJUDGED",
    "blamed",
    "core_of",
    "headline",
    "lacking",
    "refused",
    "status_of",
    "unjudged",
    "whole",
]

UNASKED = "the run was interrupted before the scenario had ended"
"""The skip reason of a scenario that an interruption left out or cut."""
UNJUDGED = "no check reached a verdict, or the run was interrupted"
"""Why a report is not `whole`."""
_NONE = {"inconclusive", "skipped"}


def status_of(report: Report, *, strict: bool) -> int:
    """Return 0 conforming, 1 violations, 2 no verdict on core scenarios, 3 the suite failed.

    A stale baseline is a violation only with `strict`: whoever repairs a defect must not break the build by it.
    """
    blame = set(blamed(report, strict=strict).values())
    if (report.stale and strict) or report.lacking:
        blame.add(1)
    if not whole(report):
        blame.add(2)
    return next((status for status in (3, 1, 2) if status in blame), 0)


def headline(report: Report) -> str:
    """Return one line: whether the server passes the profile, and how many checks pass and fail at each level."""
    status = status_of(report, strict=False)
    statement = {
        0: f"Passes the profile {report.profile}",
        1: f"Fails the profile {report.profile}",
        2: f"{'Interrupted, and so not' if _is_cut(report) else 'Could not be'} judged by the profile {report.profile}",
        3: "The judge itself failed",
    }[status]
    counts = []
    for level in ("MUST", "SHOULD", "MAY"):
        found = [result for result in report.results if result.level == level]
        broken = sum(result.verdict in VIOLATIONS for result in found)
        passed = sum(result.verdict == "pass" for result in found)
        if found:
            without = len(found) - broken - passed
            counts.append(
                f"{level}: {broken} broken, {passed} pass"
                + (f", {without} without a verdict" if without else "")
            )
    return f"{statement}. {'; '.join(counts)}."


def blamed(report: Report, *, strict: bool) -> dict[str, int]:
    """Return the checks that make the exit status non-zero, with the status of each."""
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
        return result.scenario in core and result.expected is None
    return result.verdict == "skipped" and result.scenario in lacked


def core_of(report: Report) -> frozenset[str]:
    """Return the scenarios that a server must not refuse.

    They are the core ones, those that show the profile's capabilities, and those whose capabilities are all declared.
    """
    always = {name for name, found in SCENARIOS.items() if found.core}
    declared = set(report.run.options.capabilities) if report.run.options is not None else set()
    shown = {name for name, found in SCENARIOS.items() if found.needs and declared.issuperset(found.needs)}
    return frozenset(always | shown | scenarios_that_show(report.profile))


def refused(report: Report) -> list[str]:
    """Return a sentence for each refusal that fails the run."""
    core = core_of(report)
    return [
        f"{result.check} was refused, but {result.scenario} must be answered: {result.reason}"
        for result in report.results
        if result.verdict == "rejected" and _is_refused(result, core, ())
    ]


def unjudged(report: Report) -> list[str]:
    """Return the required scenarios without any verdict."""
    core, verdicts = core_of(report), dict[str, set[str]]()
    # Live traffic is not a chosen set of requests, so missing scenarios mean nothing.
    for result in report.results if report.run.by == "check" else ():
        if result.scenario in core:
            verdicts.setdefault(result.scenario, set()).add(result.verdict)
    lacked = _lacked(report)  # A missing capability is reported separately.
    return [name for name, found in verdicts.items() if found <= _NONE and name not in lacked]


def _lacked(report: Report) -> set[str]:
    return {name for slug in report.lacking for name in PROFILES[report.profile].requires[slug]}


def lacking(report: Report) -> list[str]:
    """Return a sentence for each capability that the profile requires and the server lacks."""
    return [
        f"The profile {report.profile} requires what the server lacks, "
        f"{CAPABILITIES[name].title} (`{name}`): {why}"
        for name, why in report.lacking.items()
    ]


def whole(report: Report) -> bool:
    """Return whether any check has a verdict, and the run was not interrupted."""
    return not _is_cut(report) and any(result.verdict not in _NONE for result in report.results)


def _is_cut(report: Report) -> bool:
    return any(result.reason == UNASKED for result in report.results)
