"""Load the differences that are known, and why they stay."""

from __future__ import annotations

from collections.abc import Sequence
from fnmatch import fnmatchcase
from pathlib import Path

import msgspec

from real_templates.report import Difference, Report

__all__ = ["EXCEPTIONS", "Exemption", "unexplained", "unused"]


class Exemption(msgspec.Struct, frozen=True):
    """A difference that is allowed, with the reason."""

    template: str
    """Matches names of templates, with `*` for any characters."""
    probe: str
    """Matches names of probes."""
    reason: str


EXCEPTIONS = msgspec.json.decode(
    Path(__file__).with_name("exceptions.json").read_bytes(), type=tuple[Exemption, ...]
)


def unexplained(report: Report, exemptions: Sequence[Exemption]) -> list[Difference]:
    """Return the differences of a template that no exemption allows."""
    return [
        difference
        for difference in report.differences
        if not any(_allows(exemption, report, difference) for exemption in exemptions)
    ]


def unused(reports: Sequence[Report], exemptions: Sequence[Exemption]) -> list[Exemption]:
    """Return the exemptions with templates among the reports, none of which has such a difference."""
    return [
        exemption
        for exemption in exemptions
        if (named := [report for report in reports if fnmatchcase(report.name, exemption.template)])
        and not any(_allows(exemption, report, each) for report in named for each in report.differences)
    ]


def _allows(exemption: Exemption, report: Report, difference: Difference) -> bool:
    return fnmatchcase(report.name, exemption.template) and fnmatchcase(difference.probe, exemption.probe)
