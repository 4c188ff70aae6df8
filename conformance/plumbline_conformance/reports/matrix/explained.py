"""Read explanations of violations that a person has examined: request, contract, cause.

They are in a TOML file next to the recording, edited by hand. An explanation of a check that is not violated is stale.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from pathlib import Path

import msgspec

from plumbline_conformance.console.options import UnusableInput
from plumbline_conformance.reports.baseline import VIOLATIONS
from plumbline_conformance.suite.aliases import current

__all__ = ["Explanation", "Explanations", "UnreadableExplanations", "read_explanations"]


class UnreadableExplanations(UnusableInput):
    """The file is not a list of explanations."""


class Explanation(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One cause, and the checks that it breaks."""

    why: str
    checks: list[str]


class Explanations(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """All explanations for one server."""

    explanation: list[Explanation] = msgspec.field(default_factory=list)

    def of(self, check: str) -> str | None:
        """Return the explanation of a check."""
        return next((found.why for found in self.explanation if check in found.checks), None)

    def missing(self, verdicts: Mapping[str, str]) -> list[str]:
        """Return violations without an explanation, those of a SHOULD included.

        Args:
            verdicts: by check.
        """
        return [check for check, verdict in verdicts.items() if verdict in VIOLATIONS and not self.of(check)]

    def stale(self, verdicts: Mapping[str, str]) -> list[str]:
        """Return explained checks that are not violated, or explained twice."""
        broken = {check for check, verdict in verdicts.items() if verdict in VIOLATIONS}
        listed = [check for found in self.explanation for check in found.checks]
        return [check for place, check in enumerate(listed) if check not in broken or check in listed[:place]]


def read_explanations(path: Path) -> Explanations:
    """Read explanations.

    Raises:
        UnreadableExplanations: the file has another format.
        OSError: the file cannot be read.
    """
    try:
        found = msgspec.convert(tomllib.loads(path.read_text("utf-8")), Explanations)
    except (ValueError, RecursionError) as error:
        raise UnreadableExplanations(f"{path.name} is not a file of explanations: {error}") from error
    return Explanations(
        explanation=[
            Explanation(why=one.why, checks=[current(name) for name in one.checks])
            for one in found.explanation
        ]
    )
