"""Read and write baselines: known violations do not fail a run, but entries that no longer occur do.

A baseline is a JSON file to edit by hand: every entry has a check, its verdict, and the reason why it is accepted. An
entry that no longer occurs is stale and ends the run with status 1, so that the list stays correct.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import msgspec

from plumbline_conformance.console.options import UnusableInput
from plumbline_conformance.judge.verdicts import Finding
from plumbline_conformance.suite.aliases import current
from plumbline_conformance.suite.client_claims import claim_of
from plumbline_conformance.suite.scenario import SCENARIOS

__all__ = ["VIOLATIONS", "Baseline", "BaselineEntry", "UnreadableBaseline"]

VIOLATIONS = frozenset({"fail", "warn", "flaky", "untestable"})
"""Verdicts for a broken rule."""
_FORMAT = 1
_UNEXPLAINED = "not explained yet"


class UnreadableBaseline(UnusableInput):
    """The file is not a baseline."""


class BaselineEntry(msgspec.Struct, frozen=True, kw_only=True):
    """One accepted violation."""

    verdict: str
    why: str = _UNEXPLAINED
    """A note: the issue, the reason, the date by which it should be fixed."""
    rules: list[str] = msgspec.field(default_factory=list)
    """The broken rules of the check; another rule is another violation. Empty if the entry does not name any."""

    def is_true(self, finding: Finding) -> bool:
        """Return whether this entry matches a result.

        A rule that a model breaks only sometimes may fail in all, some (`flaky`) or no attempts of a run, so
        the same rules of the same check are the same violation.
        """
        if finding.verdict == "pass":
            return (
                self.verdict == "flaky" and (found := claim_of(finding.check)) is not None and found.sampled
            )
        same = self.verdict == finding.verdict or "flaky" in (self.verdict, finding.verdict)
        return same and (not self.rules or set(self.rules) == set(finding.broken))


class Baseline(msgspec.Struct, frozen=True, kw_only=True):
    """The accepted violations, by check."""

    expected: dict[str, BaselineEntry] = msgspec.field(default_factory=dict)
    format: int = _FORMAT
    former: tuple[str, ...] = ()
    """Former check ids in the file; it is written with the current ones."""

    @staticmethod
    def read(path: Path) -> Baseline:
        """Read a baseline.

        Raises:
            UnreadableBaseline: the file is not a baseline, or of a later format.
            OSError: the file cannot be read.
        """
        try:
            found = msgspec.convert(json.loads(path.read_bytes()), Baseline)
        except (ValueError, RecursionError) as error:
            raise UnreadableBaseline(f"{path.name} is not a baseline: {error}") from error
        if found.format != _FORMAT:
            raise UnreadableBaseline(f"{path.name} has format {found.format}; this version reads {_FORMAT}")
        today = {current(name): entry for name, entry in found.expected.items()}
        # An entry under the current id is newer than one under the former id.
        today |= {name: entry for name, entry in found.expected.items() if current(name) == name}
        return Baseline(
            expected=today, former=tuple(name for name in found.expected if current(name) != name)
        )

    def write(self, path: Path) -> None:
        """Write the baseline, formatted for editing and diffs."""
        value: dict[str, Any] = msgspec.to_builtins(self)
        ordered = {"format": value["format"], "expected": dict(sorted(value["expected"].items()))}
        path.write_text(json.dumps(ordered, indent=2) + "\n", "utf-8")

    def covers(self, finding: Finding) -> bool:
        """Return whether this violation is listed. A warning that became a failure is a different one.

        A check that breaks fewer of the listed rules than before is no new violation: one defect of it was repaired.
        """
        entry = self.expected.get(finding.check)
        if entry is None or not (finding.verdict in VIOLATIONS or _refuses_core(finding)):
            return False
        left = msgspec.structs.replace(entry, rules=[rule for rule in entry.rules if rule in finding.broken])
        return entry.is_true(finding) or (bool(left.rules) and left.is_true(finding))

    def stale(self, findings: Iterable[Finding]) -> list[str]:
        """Return listed checks that now pass, have another verdict, or do not exist.

        Checks without a verdict in this run and flaky ones are not stale.
        """
        settled = {f.check: f for f in findings if f.verdict in {"pass", *VIOLATIONS}}
        return sorted(
            name
            for name, entry in self.expected.items()
            if claim_of(name) is None or (name in settled and not entry.is_true(settled[name]))
        )

    def updated(self, findings: Sequence[Finding]) -> Baseline:
        """Return the baseline updated with these results; reasons and entries of unselected checks are kept."""
        settled = {f.check: f for f in findings if f.verdict in {"pass", *VIOLATIONS}}
        known = {name: entry for name, entry in self.expected.items() if claim_of(name)}
        # A flaky violation that does not occur in one run may still occur in the next.
        kept = {
            name: entry
            for name, entry in known.items()
            if name not in settled or (settled[name].verdict == "pass" and entry.is_true(settled[name]))
        }
        seen = {
            name: BaselineEntry(
                verdict="flaky" if _was_flaky(known.get(name), finding) else finding.verdict,
                why=known[name].why if name in known else _UNEXPLAINED,
                rules=finding.broken,
            )
            for name, finding in settled.items()
            if finding.verdict in VIOLATIONS
        }
        seen |= {
            finding.check: BaselineEntry(
                verdict=finding.verdict,
                why=known[finding.check].why if finding.check in known else _UNEXPLAINED,
            )
            for finding in findings
            if _refuses_core(finding)
        }
        return Baseline(expected=kept | seen)


def _refuses_core(finding: Finding) -> bool:
    """Return whether the server refused what every server must answer, which fails a run as a violation does."""
    scenario = SCENARIOS.get(finding.check.rpartition("/")[0])
    return finding.verdict == "rejected" and scenario is not None and scenario.core


def _was_flaky(entry: BaselineEntry | None, finding: Finding) -> bool:
    """Return whether a violation has been flaky before; failing in every attempt once does not change that."""
    return entry is not None and entry.verdict == "flaky" and entry.is_true(finding)
