"""Run the suite as pytest items: `pytest --plumbline-url URL --plumbline-model NAME`.

Every check is one test item, which pytest selects, orders and reports like any other. Requests are sent once, when the
first item runs, and only those that the selected items need. Under pytest-xdist the workers run the other tests, and
the controller runs the checks afterwards, so that the requests are not sent once per worker. Without the option nothing
is collected and nothing of the suite is imported.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NoReturn

import pytest

if TYPE_CHECKING:
    from plumbline_conformance.judge.verdicts import Finding
    from plumbline_conformance.reports.report import Report
    from plumbline_conformance.suite.scenario import Target

__all__ = [
    "pytest_addoption",
    "pytest_collection",
    "pytest_collection_modifyitems",
    "pytest_configure",
    "pytest_report_header",
    "pytest_runtestloop",
]

_NAME = "plumbline"
_PREFIX = f"{_NAME}::"
"""Prefix of an item's node id; the check id follows."""
_CHOICE: pytest.StashKey[tuple[Target, list[str]]] = pytest.StashKey()
_NOTES: pytest.StashKey[list[str]] = pytest.StashKey()


def pytest_addoption(parser: pytest.Parser) -> None:
    """Register the options."""
    group = parser.getgroup("plumbline", "judge an OpenAI-compatible server")
    group.addoption(
        "--plumbline-url", metavar="URL", help="root of the API, such as http://127.0.0.1:8000/v1"
    )
    group.addoption("--plumbline-model", metavar="NAME", help="model name to request")
    group.addoption(
        "--plumbline-api-key", metavar="KEY", help="API key (default: the variable OPENAI_API_KEY)"
    )
    group.addoption(
        "--plumbline-profile", metavar="NAME", default="full", help="set of checks (default full)"
    )
    group.addoption(
        "--plumbline-check",
        action="append",
        default=[],
        metavar="ID",
        help="id of a check or rule, a prefix or a pattern; repeatable",
    )
    group.addoption("--plumbline-strict", action="store_true", help="broken SHOULD rules fail as well")
    group.addoption(
        "--plumbline-trials",
        type=int,
        default=3,
        metavar="N",
        help="repetitions of a scenario that broke a MUST (default 3)",
    )
    group.addoption(
        "--plumbline-timeout",
        type=float,
        default=60.0,
        metavar="SECONDS",
        help="time limit of one request (default 60)",
    )


def pytest_configure(config: pytest.Config) -> None:
    """Read the options before collection and before workers start."""
    config.addinivalue_line("markers", f"{_NAME}: a check of the server at --plumbline-url")
    if config.getoption("--plumbline-url"):
        # Remove check ids from the arguments, because pytest would look for files of these names.
        asked = [found for found in config.args if found.startswith(_PREFIX)]
        config.args = [found for found in config.args if found not in asked]
        config.stash[_CHOICE] = _choice(config, [found.removeprefix(_PREFIX) for found in asked])


def pytest_report_header(config: pytest.Config) -> list[str]:
    """Report which selected ids are former ones."""
    return config.stash.get(_NOTES, [])


@pytest.hookimpl(wrapper=True)
def pytest_collection(session: pytest.Session) -> Iterator[None]:
    """Collect the checks in the controller of pytest-xdist, which collects nothing else."""
    result = yield
    if _leads(session.config):
        # Call the selection hook, so that -k, -m, --deselect and --lf work as without workers.
        session.items = []
        session.config.hook.pytest_collection_modifyitems(
            session=session, config=session.config, items=session.items
        )
        if _all_failed_elsewhere(session.config, here=True):
            session.items = []
    return result


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(
    session: pytest.Session, config: pytest.Config, items: list[pytest.Item]
) -> None:
    """Add the checks to the collected items, before selection."""
    if _CHOICE not in config.stash:
        return
    if not hasattr(config, "workerinput"):
        items += session.genitems(_Suite.from_parent(session, name=_NAME, nodeid=_NAME))
    elif _all_failed_elsewhere(config, here=False):
        items.clear()


@pytest.hookimpl(wrapper=True)
def pytest_runtestloop(session: pytest.Session) -> Iterator[None]:
    """Run the checks here, which the workers do not have."""
    result = yield
    if _leads(session.config):
        # The count so far comes from one worker; with 0, pytest would report that no tests ran.
        session.testscollected += len(session.items)
        followers: list[pytest.Item | None] = [*session.items[1:], None]
        for item, following in zip(session.items, followers, strict=False):
            item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
            if session.shouldfail:
                raise session.Failed(session.shouldfail)
            if session.shouldstop:
                raise session.Interrupted(session.shouldstop)
    return result


def _leads(config: pytest.Config) -> bool:
    """Return whether this process is the controller of workers, and the suite is enabled."""
    return _CHOICE in config.stash and config.pluginmanager.hasplugin("dsession")


def _all_failed_elsewhere(config: pytest.Config, *, here: bool) -> bool:
    """Return whether --lf selects only items of the other processes, the controller or the workers.

    pytest runs all items if it collects none of the failed ones, and each process collects only its part.
    """
    if not config.getoption("lf", False):
        return False
    failed = config.cache.get("cache/lastfailed", {})
    return bool(failed) and not any(name.startswith(_PREFIX) == here for name in failed)


def _choice(config: pytest.Config, asked: list[str]) -> tuple[Target, list[str]]:
    """Return the target and the checks of the options, restricted to the ones that node ids select."""
    import plumbline_conformance.checks  # noqa: F401 - registers the suite
    from plumbline_conformance.client.target_input import target_of
    from plumbline_conformance.console.options import UnusableInput
    from plumbline_conformance.suite.aliases import notes
    from plumbline_conformance.suite.selection import PROFILES, Selection, UnknownChoice, named

    option = config.getoption
    if not option("--plumbline-model"):
        raise pytest.UsageError("--plumbline-url needs --plumbline-model")
    if option("--plumbline-profile") not in PROFILES:
        raise pytest.UsageError(f"--plumbline-profile must be one of {', '.join(PROFILES)}")
    key = option("--plumbline-api-key") or os.environ.get("OPENAI_API_KEY")
    url, model = option("--plumbline-url"), option("--plumbline-model")
    try:
        names = Selection(ids=option("--plumbline-check"), profile=option("--plumbline-profile")).checks()
        target: Target = target_of(url, model, key, "--plumbline-api-key")
    except (UnknownChoice, UnusableInput) as error:
        raise pytest.UsageError(str(error)) from None
    config.stash[_NOTES] = [f"plumbline: {note}" for note in notes([*option("--plumbline-check"), *asked])]
    wanted = {one: {found.id for found in named(one)} & set(names) for one in asked}
    for one, found in wanted.items():
        if not found:
            raise pytest.UsageError(f"not found: {_PREFIX}{one} (`plumbline checks` shows all checks)")
    return target, [name for name in names if not asked or any(name in found for found in wanted.values())]


class _Suite(pytest.Collector):
    """Run the requests once, when the first item needs them."""

    _reports: dict[str, tuple[Report, Finding]] | None = None

    def collect(self) -> list[pytest.Item]:
        """Return one item per selected check."""
        _, names = self.config.stash[_CHOICE]
        return [_Item.from_parent(self, name=name, nodeid=f"{_PREFIX}{name}") for name in names]

    def result(self, name: str) -> tuple[Report, Finding]:
        """Return the finding of a check."""
        if self._reports is None:
            self._reports = self._run()
        return self._reports[name]

    def _run(self) -> dict[str, tuple[Report, Finding]]:
        from plumbline_conformance.judge.redacted_findings import judge_redacted
        from plumbline_conformance.recording.file import Options, RecordingHeader
        from plumbline_conformance.recording.redaction import redacted_exchange, redacted_url
        from plumbline_conformance.reports.report import report_of
        from plumbline_conformance.runner.preflight import apis_of, discovered
        from plumbline_conformance.runner.run import record
        from plumbline_conformance.suite.selection import scenarios_of

        option = self.config.getoption
        target, _ = self.config.stash[_CHOICE]
        key = target.api_key
        # Scenarios of deselected items are not requested.
        wanted = scenarios_of([item.name for item in self.session.items if item.parent is self])
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
        findings = [finding for transcript in seen for finding in judge_redacted(transcript, secrets)]
        profile = option("--plumbline-profile")
        options = Options(trials=trials, concurrency=4, timeout=patience, profile=profile, limit=target.limit)
        header = RecordingHeader.of(target.base_url, target.model, key, options=options)
        report = report_of(header, seen, findings, secrets=secrets, profile=profile)
        return {finding.check: (report, finding) for finding in findings}


def _end(why: str) -> NoReturn:
    """Fail once if the server cannot be judged, instead of in every item."""
    pytest.exit(f"plumbline: {why}", returncode=2)


class _Broken(Exception):  # noqa: N818 - a rule is
    """The check failed."""


class _Item(pytest.Item):
    """A check as a test item."""

    def __init__(self, **given: Any) -> None:
        super().__init__(**given)
        self.add_marker(_NAME)

    def runtest(self) -> None:
        """Pass, fail, or skip without a verdict."""
        from plumbline_conformance.reports.baseline import VIOLATIONS
        from plumbline_conformance.reports.formats.text import failure_lines
        from plumbline_conformance.reports.standing import blamed

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
            # A required check without a verdict fails, as `plumbline check` exits with 1 or 2.
            raise _Broken(text)
        if finding.verdict in VIOLATIONS:
            self.add_report_section("call", "plumbline", text)
            pytest.xfail(f"SHOULD: {result.title}")
        pytest.skip(f"{finding.verdict}: {finding.reason}")

    def repr_failure(self, excinfo: pytest.ExceptionInfo[BaseException], style: Any = None) -> Any:
        """Return the judge's text instead of a traceback."""
        if isinstance(excinfo.value, _Broken):
            return str(excinfo.value)
        return super().repr_failure(excinfo, style)

    def reportinfo(self) -> tuple[str, int | None, str]:
        """Return the location that pytest shows."""
        return "plumbline", None, self.name
