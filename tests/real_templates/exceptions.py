"""Load the differences that are known, and why they stay."""

from __future__ import annotations

from collections.abc import Sequence
from fnmatch import fnmatchcase
from pathlib import Path

import msgspec

from real_templates.probes import PROBES
from real_templates.report import Difference, Report

__all__ = ["EVERY_CALL", "EXCEPTIONS", "Exemption", "unexplained", "unused"]

EVERY_CALL = "every call"
"""Stands for all probes with calls."""
_CALLS = frozenset(probe.name for probe in PROBES if probe.calls)


class Exemption(msgspec.Struct, frozen=True):
    """Differences that are allowed, with the reason."""

    template: str
    """Matches names of templates, with `*` for any characters; with the name of the folder before it where two
    projects have a template of one name."""
    probes: tuple[str, ...]
    """Names of probes, or `every call`."""
    reason: str


EXCEPTIONS = msgspec.json.decode(
    Path(__file__).with_name("exceptions.json").read_bytes(), type=tuple[Exemption, ...]
)


def unexplained(report: Report, exemptions: Sequence[Exemption]) -> list[Difference]:
    """Return the differences of a template that no exemption allows."""
    allowed = [each for each in exemptions if _names(each, report)]
    return [
        difference
        for difference in report.differences
        if not any(_matches(probe, difference) for each in allowed for probe in each.probes)
    ]


def unused(reports: Sequence[Report], exemptions: Sequence[Exemption]) -> list[Exemption]:
    """Return the exemptions of templates among the reports, cut down to the probes in which none of these differs."""
    found = []
    for each in exemptions:
        named = [report for report in reports if _names(each, report)]
        differences = [difference for report in named for difference in report.differences]
        idle = tuple(p for p in each.probes if not any(_matches(p, difference) for difference in differences))
        if named and idle:
            found.append(msgspec.structs.replace(each, probes=idle))
    return found


def _names(exemption: Exemption, report: Report) -> bool:
    """Return whether an exemption is about a template."""
    name = report.name if "/" in exemption.template else report.name.rpartition("/")[2]
    return fnmatchcase(name, exemption.template)


def _matches(probe: str, difference: Difference) -> bool:
    return difference.probe == probe or (probe == EVERY_CALL and difference.probe in _CALLS)
