"""The suite inside a server author's own tests: `pytest --plumbline-url URL --plumbline-model NAME`.

Every check becomes one test item. The requests are sent once, when the first of them
runs. Without the option nothing is collected and nothing of the suite is imported.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NoReturn

import pytest

if TYPE_CHECKING:
    from plumbline_conformance.case import Target
    from plumbline_conformance.judge import Finding
    from plumbline_conformance.reports.model import Report
    from plumbline_conformance.selection import Selection

__all__ = ["pytest_addoption", "pytest_collection"]


def pytest_addoption(parser: pytest.Parser) -> None:
    """Register the options."""
    group = parser.getgroup("plumbline", "judge an OpenAI-compatible server")
    group.addoption("--plumbline-url", metavar="URL", help="such as http://127.0.0.1:8000/v1")
    group.addoption("--plumbline-model", metavar="NAME", help="the model to ask for")
    group.addoption("--plumbline-api-key", metavar="KEY", help="default: OPENAI_API_KEY")
    group.addoption("--plumbline-profile", metavar="NAME", default="full")
    group.addoption(
        "--plumbline-check",
        action="append",
        default=[],
        metavar="ID",
        help="a check, pattern or rule; repeatable",
    )
    group.addoption("--plumbline-strict", action="store_true", help="a broken SHOULD fails as well")
    group.addoption(
        "--plumbline-trials", type=int, default=3, metavar="N", help="further attempts at a broken MUST"
    )
    group.addoption("--plumbline-timeout", type=float, default=60.0, metavar="SECONDS")


@pytest.hookimpl(wrapper=True)
def pytest_collection(session: pytest.Session) -> Iterator[None]:
    """Add the checks to whatever else is collected."""
    result = yield
    url = session.config.getoption("--plumbline-url")
    if url:
        session.items += _Suite.from_parent(session, name="plumbline", nodeid="plumbline").items()
        session.testscollected = len(session.items)
    return result


class _Suite(pytest.Collector):
    """The whole run: asked once, when the first of its items needs it."""

    _reports: dict[str, tuple[Report, Finding]] | None = None

    def items(self) -> list[pytest.Item]:
        """One for each chosen check."""
        import plumbline_conformance.checks  # noqa: F401 - registers the suite
        from plumbline_conformance.inputs import UnusableInput, target_of
        from plumbline_conformance.selection import PROFILES, Selection, UnknownChoice

        option = self.config.getoption
        if not option("--plumbline-model"):
            raise pytest.UsageError("--plumbline-url needs --plumbline-model")
        if option("--plumbline-profile") not in PROFILES:
            raise pytest.UsageError(f"--plumbline-profile is one of {', '.join(PROFILES)}")
        self._selection: Selection = Selection(
            ids=option("--plumbline-check"), profile=option("--plumbline-profile")
        )
        key = option("--plumbline-api-key") or os.environ.get("OPENAI_API_KEY")
        url, model = option("--plumbline-url"), option("--plumbline-model")
        try:
            names = self._selection.checks()
            self._target: Target = target_of(url, model, key, "--plumbline-api-key")
        except (UnknownChoice, UnusableInput) as error:
            raise pytest.UsageError(str(error)) from None
        return [_Item.from_parent(self, name=name, nodeid=f"plumbline::{name}") for name in names]

    def collect(self) -> list[pytest.Item]:
        """Nothing beyond `items`, which are collected beside the files."""
        return []

    def result(self, name: str) -> tuple[Report, Finding]:
        """What a check found."""
        if self._reports is None:
            self._reports = self._run()
        return self._reports[name]

    def _run(self) -> dict[str, tuple[Report, Finding]]:
        from plumbline_conformance.credentials import redacted_exchange, redacted_url
        from plumbline_conformance.discovery import apis_of, discovered
        from plumbline_conformance.discretion import judge_discreetly
        from plumbline_conformance.judge import record
        from plumbline_conformance.recording import Header, Options
        from plumbline_conformance.reports.model import report_of
        from plumbline_conformance.selection import scenarios_of

        option = self.config.getoption
        target, key = self._target, self._target.api_key
        wanted = scenarios_of(self._selection.checks())
        patience, trials = option("--plumbline-timeout"), max(0, option("--plumbline-trials"))
        known = asyncio.run(discovered(target, apis_of(wanted), patience=patience))
        if known.why is not None:
            _end(known.why)
        target = known.target
        seen = asyncio.run(record(wanted, target, concurrency=4, patience=patience, trials=trials))
        exchanges = [exchange for transcript in seen for exchange in transcript.exchanges]
        if exchanges and all(exchange.status == 0 for exchange in exchanges):
            first = redacted_exchange(exchanges[0], [key] if key else [])
            _end(f"{redacted_url(target.base_url)} cannot be reached: {first.error or ''}")
        secrets = [key] if key else []
        findings = [finding for transcript in seen for finding in judge_discreetly(transcript, secrets)]
        profile = self._selection.profile
        options = Options(trials=trials, concurrency=4, timeout=patience, profile=profile, limit=target.limit)
        header = Header.of(target.base_url, target.model, key, options=options)
        report = report_of(header, seen, findings, secrets=secrets, profile=profile)
        return {finding.check: (report, finding) for finding in findings}


def _end(why: str) -> NoReturn:
    """A server that cannot be judged is no success, and a hundred items that all say so are no help."""
    pytest.exit(f"plumbline: {why}", returncode=2)


class _Broken(Exception):  # noqa: N818 - a rule is
    """The check says so."""


class _Item(pytest.Item):
    """One check."""

    def runtest(self) -> None:
        """Pass, fail, or skip where there was no verdict."""
        from plumbline_conformance.baseline import VIOLATIONS
        from plumbline_conformance.reports.standing import blamed
        from plumbline_conformance.reports.text import failure_lines

        assert isinstance(self.parent, _Suite)
        report, finding = self.parent.result(self.name)
        [result] = [result for result in report.results if result.check == self.name]
        text = "\n".join(
            [f"{finding.verdict} {result.check}  {result.title}", *failure_lines(report, result)]
        )
        strict = self.config.getoption("--plumbline-strict")
        if finding.verdict == "pass":
            return
        if self.name in blamed(report, strict=strict):
            # What every server has to serve is neither skipped nor passed: `plumbline check` ends with 1 or 2.
            raise _Broken(text)
        if finding.verdict in VIOLATIONS:
            self.add_report_section("call", "plumbline", text)
            pytest.xfail(f"SHOULD: {result.title}")
        pytest.skip(f"{finding.verdict}: {finding.reason}")

    def repr_failure(self, excinfo: pytest.ExceptionInfo[BaseException], style: Any = None) -> Any:
        """The judge's text instead of a traceback of the judge."""
        if isinstance(excinfo.value, _Broken):
            return str(excinfo.value)
        return super().repr_failure(excinfo, style)

    def reportinfo(self) -> tuple[str, int | None, str]:
        """Where pytest says that it is."""
        return "plumbline", None, self.name
