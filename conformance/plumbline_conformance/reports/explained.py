"""Sentences about violations that a person has looked at: what was sent, what the contract says, where it comes from.

They are kept beside a recording in a TOML file that people edit. An explanation of something that is no violation is
stale, so that the file can only tell the truth about the recording.
"""

from __future__ import annotations

import tomllib
from pathlib import Path

import msgspec

from plumbline_conformance.reports.baseline import VIOLATIONS
from plumbline_conformance.reports.model import Report
from plumbline_conformance.suite.aliases import current

__all__ = ["Explanation", "Explanations", "UnreadableExplanations", "read_explanations"]


class UnreadableExplanations(Exception):  # noqa: N818 - it says what the file is
    """The file is no list of explanations."""


class Explanation(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One cause, and everything that it breaks."""

    why: str
    checks: list[str]


class Explanations(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """All that is said about one server."""

    explanation: list[Explanation] = msgspec.field(default_factory=list)

    def of(self, check: str) -> str | None:
        """What is said about a check."""
        return next((found.why for found in self.explanation if check in found.checks), None)

    def missing(self, report: Report) -> list[str]:
        """Violations of a MUST about which nothing is said."""
        return [
            result.check
            for result in report.results
            if result.verdict in VIOLATIONS and result.level == "MUST" and self.of(result.check) is None
        ]

    def stale(self, report: Report) -> list[str]:
        """Checks about which something is said although they are not violated, or that are said twice."""
        broken = {result.check for result in report.results if result.verdict in VIOLATIONS}
        told = [check for found in self.explanation for check in found.checks]
        return [check for place, check in enumerate(told) if check not in broken or check in told[:place]]


def read_explanations(path: Path) -> Explanations:
    """Read a file.

    Raises:
        UnreadableExplanations: it is none.
        OSError: it cannot be read.
    """
    try:
        found = msgspec.convert(tomllib.loads(path.read_text("utf-8")), Explanations)
    except (ValueError, RecursionError) as error:
        raise UnreadableExplanations(f"{path.name} has no explanations: {error}") from error
    return Explanations(
        explanation=[
            Explanation(why=one.why, checks=[current(name) for name in one.checks])
            for one in found.explanation
        ]
    )
