"""What is known to be broken: listed violations do not fail a run, and listed ones that have gone do.

A baseline is a JSON file that people edit: every entry says which check, what it said, and why it is accepted. An entry
that no longer holds is stale and ends the run with status 1, so that the list can only tell the truth.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import msgspec

from plumbline_conformance.judge.verdicts import Finding
from plumbline_conformance.suite.aliases import current
from plumbline_conformance.suite.client_claims import claim_of

__all__ = ["VIOLATIONS", "Baseline", "Entry", "UnreadableBaseline"]

VIOLATIONS = frozenset({"fail", "warn", "flaky", "untestable"})
"""Verdicts that say a rule was not kept."""
_FORMAT = 1
_UNEXPLAINED = "not explained yet"


class UnreadableBaseline(Exception):  # noqa: N818 - it says what the file is
    """The file is no baseline."""


class Entry(msgspec.Struct, frozen=True, kw_only=True):
    """One violation that is accepted for now."""

    verdict: str
    why: str = _UNEXPLAINED
    """For people: the issue, the reason, the date by which it should be gone."""
    rules: list[str] = msgspec.field(default_factory=list)
    """Which of the check's rules are broken; another one is another violation. Empty where that was never said."""

    def is_true(self, finding: Finding) -> bool:
        """Whether this is what was found.

        Chance decides whether a rule that a model breaks now and then is broken in every attempt of a run, in some of
        them (`flaky`), or in none: the same rules of the same check are the same violation.
        """
        if finding.verdict == "pass":
            return (
                self.verdict == "flaky" and (found := claim_of(finding.check)) is not None and found.sampled
            )
        same = self.verdict == finding.verdict or "flaky" in (self.verdict, finding.verdict)
        return same and (not self.rules or set(self.rules) == set(finding.broken))


class Baseline(msgspec.Struct, frozen=True, kw_only=True):
    """The violations that are accepted, by check."""

    expected: dict[str, Entry] = msgspec.field(default_factory=dict)
    format: int = _FORMAT
    former: tuple[str, ...] = ()
    """The former ids under which a file lists checks; it is written with those of today."""

    @staticmethod
    def read(path: Path) -> Baseline:
        """Read a file.

        Raises:
            UnreadableBaseline: it is none, or of a later format.
            OSError: it cannot be read.
        """
        try:
            found = msgspec.convert(json.loads(path.read_bytes()), Baseline)
        except (ValueError, RecursionError) as error:
            raise UnreadableBaseline(f"{path.name} is no baseline: {error}") from error
        if found.format != _FORMAT:
            raise UnreadableBaseline(f"{path.name} has format {found.format}; this version reads {_FORMAT}")
        today = {current(name): entry for name, entry in found.expected.items()}
        # An entry under the id of today was written after one under the former id.
        today |= {name: entry for name, entry in found.expected.items() if current(name) == name}
        return Baseline(
            expected=today, former=tuple(name for name in found.expected if current(name) != name)
        )

    def write(self, path: Path) -> None:
        """Write a file that is pleasant to edit and to compare."""
        value: dict[str, Any] = msgspec.to_builtins(self)
        ordered = {"format": value["format"], "expected": dict(sorted(value["expected"].items()))}
        path.write_text(json.dumps(ordered, indent=2) + "\n", "utf-8")

    def covers(self, finding: Finding) -> bool:
        """Whether this very violation is listed. A warning that became a failure is another one."""
        entry = self.expected.get(finding.check)
        return entry is not None and finding.verdict in VIOLATIONS and entry.is_true(finding)

    def stale(self, findings: Iterable[Finding]) -> list[str]:
        """Listed checks that pass now, that say something else, or that the suite does not have.

        What came to no verdict this time is not stale, nor is what comes and goes: nobody knows.
        """
        settled = {f.check: f for f in findings if f.verdict in {"pass", *VIOLATIONS}}
        return sorted(
            name
            for name, entry in self.expected.items()
            if claim_of(name) is None or (name in settled and not entry.is_true(settled[name]))
        )

    def updated(self, findings: Sequence[Finding]) -> Baseline:
        """The list with what was seen now: reasons are kept, and so is what was not looked at."""
        settled = {f.check: f for f in findings if f.verdict in {"pass", *VIOLATIONS}}
        known = {name: entry for name, entry in self.expected.items() if claim_of(name)}
        # One run in which a flaky violation does not show itself does not show that it is gone.
        kept = {
            name: entry
            for name, entry in known.items()
            if name not in settled or (settled[name].verdict == "pass" and entry.is_true(settled[name]))
        }
        seen = {
            name: Entry(
                verdict="flaky" if _was_flaky(known.get(name), finding) else finding.verdict,
                why=known[name].why if name in known else _UNEXPLAINED,
                rules=finding.broken,
            )
            for name, finding in settled.items()
            if finding.verdict in VIOLATIONS
        }
        return Baseline(expected=kept | seen)


def _was_flaky(entry: Entry | None, finding: Finding) -> bool:
    """Whether a violation was seen to come and go before: once in every attempt does not unsay it."""
    return entry is not None and entry.verdict == "flaky" and entry.is_true(finding)
