"""Show which groups of tests run and how many tests are left, and count skipped tests by reason.

A group is a folder of `tests/`. A terminal has one line that changes; a log gets a line every half minute.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable
from typing import Any

import pytest

_LOG_INTERVAL, _TERMINAL_INTERVAL = 30.0, 0.2
"""Seconds between two lines."""


def group_of(nodeid: str) -> str:
    """Return the folder of a test below `tests/`."""
    folder = nodeid.partition("::")[0].removeprefix("tests/").partition("/")[0]
    return folder.removesuffix(".py")


class Progress:
    """Plugin of the process that prints: the only one, or the controller of pytest-xdist."""

    def __init__(self, reporter: Any) -> None:
        self._reporter = reporter
        self._live = reporter.isatty
        reporter.showfspath = False
        self._left: Counter[str] = Counter()
        self._running: dict[str, str] = {}
        self._next = 0.0

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        self._begin(item.nodeid for item in session.items)

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_node_collection_finished(self, ids: list[str]) -> None:
        self._begin(ids)  # Each worker collects the same tests.

    def _begin(self, nodeids: Iterable[str]) -> None:
        if not self._running:
            self._left = Counter(map(group_of, nodeids))

    @pytest.hookimpl(tryfirst=True)
    def pytest_report_teststatus(self, report: Any) -> tuple[str, str, str] | None:
        """Print no dot for a passed test and no letter for a skipped one, but count them."""
        if isinstance(report, pytest.TestReport) and not hasattr(report, "wasxfail"):
            if report.passed:
                return "passed" if report.when == "call" else "", "", ""
            if report.skipped:
                return "skipped", "", ""
        return None

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self._write(f"FAILED {report.nodeid} ({report.when})", keep=True)
        if report.when != "teardown":
            return
        group = group_of(report.nodeid)
        self._left[group] -= 1
        self._running[getattr(report, "worker_id", "")] = group
        if time.monotonic() >= self._next:
            self._next = time.monotonic() + (_TERMINAL_INTERVAL if self._live else _LOG_INTERVAL)
            groups = ", ".join(f"{name} ({self._left[name]})" for name in sorted(set(self._running.values())))
            self._write(f"{self._left.total()} tests left; running: {groups}")

    def _write(self, line: str, *, keep: bool = False) -> None:
        if self._live:
            self._reporter.rewrite(line + "\n" * keep, erase=True)
        else:
            self._reporter.write_line(line)

    @pytest.hookimpl(tryfirst=True)
    def pytest_terminal_summary(self) -> None:
        if self._live:
            self._reporter.rewrite("", erase=True)
        skipped = Counter(report.longrepr[2] for report in self._reporter.stats.get("skipped", ()))
        for reason, count in skipped.most_common():
            self._reporter.write_line(f"{count} skipped: {reason.removeprefix('Skipped: ')}")
