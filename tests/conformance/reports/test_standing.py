"""Test that exit status, badge and JUnit agree, and that a profile requires its capabilities."""

from __future__ import annotations

import json
import re
from io import StringIO
from pathlib import Path
from typing import Any, cast
from xml.etree import ElementTree

import pytest
from example_servers.good_server import KEY, MODEL, app, serving
from example_servers.odd_servers import NOT_HERE, reference_but
from hypothesis import example, given
from hypothesis import strategies as st
from rich.console import Console

from plumbline_conformance.cli import main
from plumbline_conformance.judge.verdicts import Finding
from plumbline_conformance.recording.file import Options, RecordingHeader
from plumbline_conformance.reports.baseline import Baseline, BaselineEntry
from plumbline_conformance.reports.conclude import show
from plumbline_conformance.reports.formats.badge import badge_json, badge_svg
from plumbline_conformance.reports.formats.html import html
from plumbline_conformance.reports.formats.junit import junit
from plumbline_conformance.reports.formats.markdown import markdown
from plumbline_conformance.reports.report import VERDICTS, Report, report_of
from plumbline_conformance.reports.standing import UNASKED, core_of, status_of
from plumbline_conformance.suite.scenario import CHECKS, SCENARIOS
from plumbline_conformance.suite.selection import PROFILES
from plumbline_conformance.transcript.exchange import Transcript

NAMES = [
    "chat/text/shape",
    "chat/text/request-id",
    "models/list/shape",
    "responses/stream-text/shape",
    "chat/tool/shape",
    "chat/tool-named/called",
    "chat/stream-choices/shape",
    "responses/stream-text/lifecycle",
]
GREEN = "#4c1"

verdicts = st.dictionaries(st.sampled_from(NAMES), st.sampled_from(VERDICTS), max_size=4)
listed = st.dictionaries(st.sampled_from(NAMES), st.sampled_from(["fail", "warn", "flaky"]), max_size=2)


def reported(
    verdicts: dict[str, str], listed: dict[str, str], lacks: str = "", profile: str = "full", reason: str = ""
) -> Report:
    findings = [
        Finding(check=name, verdict=cast(Any, verdict), reason=reason or None)
        for name, verdict in verdicts.items()
    ]
    names = dict.fromkeys(name.rsplit("/", 1)[0] for name in verdicts)
    seen = [
        Transcript(scenario=name, exchanges=[], skipped="it is not there", lacks=lacks)
        for name in names
        if lacks and lacks in SCENARIOS[name].needs
    ]
    baseline = Baseline(expected={name: BaselineEntry(verdict=verdict) for name, verdict in listed.items()})
    return report_of(
        RecordingHeader.of("http://h/v1", "m"), seen, findings, baseline=baseline, profile=profile
    )


@given(
    verdicts,
    listed,
    st.sampled_from(["", "responses", "tools"]),
    st.sampled_from(list(PROFILES)),
    st.sampled_from(["", UNASKED]),
    st.booleans(),
)
@example({"models/list/shape": "rejected", "chat/stream-choices/shape": "pass"}, {}, "", "full", "", False)
@example(
    {"models/list/shape": "inconclusive", "chat/stream-choices/shape": "pass"}, {}, "", "full", "", False
)
@example({"models/list/shape": "error", "chat/stream-choices/shape": "pass"}, {}, "", "full", "", False)
@example({"chat/stream-choices/shape": "pass"}, {"chat/stream-choices/shape": "fail"}, "", "full", "", False)
@example({"chat/text/request-id": "warn"}, {}, "", "full", "", True)
def test_what_does_not_end_with_0_is_green_nowhere(
    verdicts: dict[str, str], listed: dict[str, str], lacks: str, profile: str, reason: str, strict: bool
) -> None:
    report = reported(verdicts, listed, lacks, profile, reason)

    status = status_of(report, strict=strict)

    badge = json.loads(badge_json(report, strict=strict))
    root = ElementTree.fromstring(junit(report, strict=strict).encode())
    failed = [node.tag for node in root.iter() if node.tag in ("failure", "error")]
    if status:
        assert badge["color"] != "brightgreen"
        assert GREEN not in badge_svg(report, strict=strict)
        assert failed
    else:
        assert failed == []
    # The counts of a suite are those of its cases.
    for suite in root.iter("testsuite"):
        for kind in ("failure", "error"):
            assert int(suite.get(f"{kind}s", "")) == len(suite.findall(f"testcase/{kind}"))


@pytest.mark.parametrize(
    ("verdicts", "listed", "words"),
    [
        ({"models/list/shape": "rejected"}, {}, "models/list refused"),
        ({"models/list/shape": "inconclusive"}, {}, "models/list not judged"),
        ({"models/list/shape": "error"}, {}, "the suite failed"),
        ({}, {"chat/stream-choices/shape": "fail"}, "stale baseline"),
    ],
)
def test_a_badge_shows_what_its_numbers_do_not(
    verdicts: dict[str, str], listed: dict[str, str], words: str
) -> None:
    report = reported({**verdicts, "chat/stream-choices/shape": "pass"}, listed)

    badge = json.loads(badge_json(report, strict=True))
    assert badge["message"] == f"chat 1/1 · {words}"


@given(st.dictionaries(st.sampled_from(list(CHECKS)), st.sampled_from(VERDICTS), min_size=1, max_size=20))
def test_protocol_and_behaviour_stand_side_by_side_and_only_one_enters_the_badge(
    verdicts: dict[str, str],
) -> None:
    report = reported(verdicts, {})

    counted = {kind: [0, 0] for kind in (False, True)}
    for name, verdict in verdicts.items():
        if verdict in ("pass", "fail", "warn", "flaky", "untestable"):
            counted[CHECKS[name].sampled][0] += verdict == "pass"
            counted[CHECKS[name].sampled][1] += 1
    (kept, of), (well, all_of) = counted[False], counted[True]
    line = f"protocol {kept}/{of}, behaviour {well}/{all_of}"
    out = StringIO()
    show(Console(file=out, width=200), report)
    for text in (out.getvalue(), html(report), markdown(report)):
        assert line in text
    message = json.loads(badge_json(report))["message"]
    numbers = [(int(a), int(b)) for a, b in re.findall(r"(\d+)/(\d+)", message)]
    assert (sum(a for a, _ in numbers), sum(b for _, b in numbers)) == (kept, of)


def test_a_badge_is_red_for_behaviour_that_its_number_does_not_have() -> None:
    behaviour = next(name for name, one in CHECKS.items() if one.sampled and one.level == "MUST")

    badge = json.loads(badge_json(reported({"chat/text/shape": "pass", behaviour: "flaky"}, {})))

    assert (badge["message"], badge["color"]) == ("chat 1/1 · behaviour broken", "red")


def checked(changes: Any, *options: str, folder: Path) -> tuple[int, dict[str, Any], str]:
    """Run `check`; return exit status, report and badge colour."""
    report, badge = folder / "r.json", folder / "b.json"
    with serving(reference_but(changes) if changes else app()) as base_url:
        words = ["check", base_url, "--model", MODEL, "--trials", "0", *options]
        key = ["--api-key", KEY] if changes else []
        status = main([*words, *key, "--json", str(report), "--badge", str(badge)])
    colour = json.loads(badge.read_text("utf-8"))["color"]
    return status, json.loads(report.read_text("utf-8")), colour


NONE: Any = lambda *_: None  # noqa: E731
CHAT_ONLY: Any = lambda path, _: (404, NOT_HERE) if path.startswith("/v1/responses") else None  # noqa: E731
NO_TOOLS: Any = lambda path, body: (  # noqa: E731
    (400, NOT_HERE) if body.get("tools") and path == "/v1/chat/completions" else None
)
REFUSING: Any = lambda path, _: (400, NOT_HERE) if path == "/v1/responses" else None  # noqa: E731
FEW = ["models", "responses/stream-text", "chat/text", "chat/tool/"]


@pytest.mark.parametrize(
    ("changes", "options", "lacks"),
    [
        (CHAT_ONLY, ["--profile", "responses"], ["responses"]),
        (NONE, ["--profile", "responses", "--capabilities=-responses"], ["responses"]),
        (CHAT_ONLY, ["--profile", "agent"], ["responses"]),
        (NO_TOOLS, ["--profile", "agent"], ["tools"]),
    ],
)
def test_who_lacks_what_a_profile_requires_does_not_keep_it(
    changes: Any, options: list[str], lacks: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A capability that `--capabilities` declares missing fails the profile, too."""
    run = tmp_path / "run.jsonl"
    status, report, colour = checked(changes, *FEW, *options, "--record", str(run), folder=tmp_path)

    assert status == 1
    assert list(report["lacking"]) == lacks
    assert colour == "red"
    out = capsys.readouterr().out
    assert f"The profile {options[1]} requires what the server lacks" in out
    assert f"(`{lacks[0]}`)" in out
    # The recording has the profile.
    assert main(["judge", str(run)]) == 1
    assert f"The profile {options[1]} requires" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("changes", "options"),
    [
        (NONE, ["--profile", "agent"]),
        (NONE, ["--profile", "responses"]),
        (CHAT_ONLY, ["--profile", "full"]),
        (CHAT_ONLY, ["--profile", "chat"]),
        (NO_TOOLS, ["--profile", "responses"]),
    ],
)
def test_what_a_profile_does_not_require_may_be_lacking(
    changes: Any, options: list[str], tmp_path: Path
) -> None:
    status, report, _ = checked(changes, *FEW, *options, folder=tmp_path)

    assert status == 0
    assert report["lacking"] == {}


def test_refusing_all_that_a_profile_is_about_is_no_way_to_keep_it(tmp_path: Path) -> None:
    """The probe finds the API, but the server refuses every valid request."""
    options = ["models", "responses/stream-text", "errors/responses-types"]

    assert checked(REFUSING, *options, folder=tmp_path)[0] == 0
    assert checked(REFUSING, *options, "--profile", "responses", folder=tmp_path)[0] == 1


def test_what_a_profile_requires_is_shown_by_scenarios_that_need_it() -> None:
    for name, profile in PROFILES.items():
        for slug, shown in profile.requires.items():
            assert shown
            for scenario in shown:
                assert slug in SCENARIOS[scenario].needs
                checks = [found for found in CHECKS.values() if found.id.startswith(f"{scenario}/")]
                assert any(profile.has(found) for found in checks), (name, scenario)
    assert core_of(reported({}, {})) == {name for name, found in SCENARIOS.items() if found.core}


def test_a_declared_capability_must_not_be_refused() -> None:
    """With `--capabilities tools` the server says that it has tools, so a refusal is no choice of its own."""
    options = Options(trials=0, concurrency=1, timeout=1.0, capabilities=["tools", "-reasoning"])
    header = RecordingHeader.of("http://h/v1", "m", options=options)
    seen = [Transcript(scenario="chat/tool", exchanges=[])]
    for verdict, status in (("rejected", 1), ("pass", 0)):
        finding = Finding(check="chat/tool/shape", verdict=verdict)  # type: ignore[arg-type]
        good = Finding(check="models/list/shape", verdict="pass")
        report = report_of(header, seen, [finding, good], baseline=Baseline(expected={}))
        assert status_of(report, strict=False) == status
    assert "chat/tool" in core_of(report)
    assert not any("reasoning" in SCENARIOS[name].needs for name in core_of(report))


def test_a_capability_that_is_not_found_out_is_not_called_lacking(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    busy: Any = lambda path, _: (502, NOT_HERE) if path == "/v1/responses" else None  # noqa: E731
    status, report, _ = checked(
        busy, "models", "responses/stream-text", "--profile", "responses", folder=tmp_path
    )

    assert (status, report["lacking"]) == (2, {})
    out = capsys.readouterr().out
    assert re.search(
        r"No check of responses/stream-text reached a verdict, but profile responses requires", out
    )
