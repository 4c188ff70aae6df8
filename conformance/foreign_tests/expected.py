"""Compare the outcomes of others' tests with the lists of what is expected.

A test passes, or it is in a list with a reason. A listed difference that passes is an error, as is an entry that no
test matches, so that the lists stay true.
"""

from __future__ import annotations

from collections.abc import Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Literal

import msgspec

__all__ = ["Expected", "ForeignOutcome", "Listed", "Summary", "read_expected", "summary_of"]


class ForeignOutcome(msgspec.Struct, frozen=True, kw_only=True):
    """What one test did."""

    test: str
    """The id of pytest, with the path within the suite."""
    result: Literal["passed", "failed", "skipped", "left out"]
    why: str = ""


class Listed(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Tests with the same reason."""

    tests: tuple[str, ...]
    """Ids of pytest; `*` stands for any text."""
    reason: str

    def names(self, test: str) -> bool:
        """Return whether a test is one of these."""
        # Brackets are part of ids, and sets of characters in patterns.
        return any(fnmatchcase(test, name.replace("[", "[[]")) for name in self.tests)


class Expected(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The lists of one suite."""

    different: tuple[Listed, ...] = ()
    """Tests that fail, because our server does otherwise by design."""
    inapplicable: tuple[Listed, ...] = ()
    """Tests that are not run, because they are about another model or need what is not here."""

    def inapplicable_reason(self, test: str) -> str | None:
        """Return why a test is not run, or None."""
        return next((listed.reason for listed in self.inapplicable if listed.names(test)), None)


class Summary(msgspec.Struct, frozen=True, kw_only=True):
    """The result of one suite; `problems` is empty if everything is as expected."""

    passed: int
    different: dict[str, int]
    """How many tests fail by design, by reason."""
    inapplicable: dict[str, int]
    """How many tests are not run, by reason."""
    skipped: int
    """How many tests only call the other server's own code, or are skipped by themselves."""
    problems: tuple[str, ...] = ()

    @property
    def total(self) -> int:
        """Return the number of all tests."""
        listed = sum(self.different.values()) + sum(self.inapplicable.values())
        return self.passed + listed + self.skipped + len(self.problems)


def read_expected(path: Path) -> Expected:
    """Read the lists of one suite.

    Raises:
        msgspec.ValidationError: the file does not have the form.
    """
    return msgspec.toml.decode(path.read_bytes(), type=Expected)


def summary_of(expected: Expected, outcomes: Sequence[ForeignOutcome]) -> Summary:
    """Compare the outcomes of a suite with its lists."""
    passed = skipped = 0
    different: dict[str, int] = {}
    inapplicable: dict[str, int] = {}
    problems: list[str] = []
    for outcome in outcomes:
        listed = next((one for one in expected.different if one.names(outcome.test)), None)
        match outcome.result:
            case "left out":
                reason = expected.inapplicable_reason(outcome.test) or ""
                inapplicable[reason] = inapplicable.get(reason, 0) + 1
            case "skipped":
                skipped += 1
            case "failed" if listed is not None:
                different[listed.reason] = different.get(listed.reason, 0) + 1
            case "failed":
                problems.append(f"{outcome.test} failed: {outcome.why}")
            case _ if listed is not None:
                problems.append(f"{outcome.test} passes, and is listed as a difference")
            case _:
                passed += 1
    names = [outcome.test for outcome in outcomes]
    problems += [
        f"no test is {pattern}"
        for one in (*expected.different, *expected.inapplicable)
        for pattern in one.tests
        if not any(Listed(tests=(pattern,), reason="").names(name) for name in names)
    ]
    return Summary(
        passed=passed,
        different=different,
        inapplicable=inapplicable,
        skipped=skipped,
        problems=tuple(problems),
    )
