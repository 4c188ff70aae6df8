"""Run inside the pytest of a suite: leave tests out, and write the outcome of each as JSON.

It is loaded by `-p foreign_tests.plugin` and imports nothing of ours but `expected`.
"""

from __future__ import annotations

import os
from pathlib import Path

import msgspec
import pytest

from foreign_tests.expected import ForeignOutcome, read_expected

__all__ = ["EXPECTED", "OUTCOMES"]

EXPECTED = "PLUMBLINE_FOREIGN_EXPECTED"
"""The environment variable with the file of expected outcomes."""
OUTCOMES = "PLUMBLINE_FOREIGN_OUTCOMES"
"""The environment variable with the file to write."""
_LONGEST = 300
_found: dict[str, ForeignOutcome] = {}


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out the tests that do not apply."""
    expected = read_expected(Path(os.environ[EXPECTED]))
    kept = []
    for item in items:
        if expected.inapplicable_reason(item.nodeid) is None:
            kept.append(item)
        else:
            _found[item.nodeid] = ForeignOutcome(test=item.nodeid, result="left out")
    config.hook.pytest_deselected(items=[item for item in items if item not in kept])
    items[:] = kept


def pytest_collectreport(report: pytest.CollectReport) -> None:
    """Report a file that cannot be imported as one failed test."""
    if report.failed:
        _found[report.nodeid] = ForeignOutcome(test=report.nodeid, result="failed", why=_last_line(report))


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Keep the worst outcome of the phases of a test."""
    if report.failed:
        _found[report.nodeid] = ForeignOutcome(test=report.nodeid, result="failed", why=_last_line(report))
    elif report.skipped and report.nodeid not in _found:
        why = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
        _found[report.nodeid] = ForeignOutcome(
            test=report.nodeid, result="skipped", why=why.removeprefix("Skipped: ")
        )
    elif report.when == "call":
        _found.setdefault(report.nodeid, ForeignOutcome(test=report.nodeid, result="passed"))


def pytest_sessionfinish() -> None:
    """Write the outcomes."""
    Path(os.environ[OUTCOMES]).write_bytes(msgspec.json.encode(list(_found.values())))


def _last_line(report: pytest.CollectReport | pytest.TestReport) -> str:
    crash = getattr(report.longrepr, "reprcrash", None)
    text = crash.message if crash is not None else report.longreprtext.strip().rpartition("\n")[2]
    return str(text).replace("\n", " ")[:_LONGEST]
