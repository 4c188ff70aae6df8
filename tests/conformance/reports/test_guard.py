"""Test that a defect of the judge, or any recording, leads to a report.

- A report is written for every recording: truncated, empty and foreign ones.
- A defect in one scenario is the verdict `error` with its traceback; other scenarios keep their verdicts.
- The exit status of a defect is 3, and all formats agree with it.
- A WebSocket that closes without a message does not end the run.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Generator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from example_servers.good_server import MODEL, serving, transcripts
from example_servers.reference import application
from example_servers.reference.names import KEY
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from support.laws import EXPLORED

import plumbline_conformance.checks  # noqa: F401 - registers the suite
from plumbline_conformance.cli import main
from plumbline_conformance.judge.redacted_findings import judge_redacted
from plumbline_conformance.judge.verdicts import judge
from plumbline_conformance.recording.file import Recorder, Recording, RecordingHeader, read_recording
from plumbline_conformance.reports import timeline
from plumbline_conformance.reports.formats.badge import badge_json, badge_svg
from plumbline_conformance.reports.formats.har import har
from plumbline_conformance.reports.formats.html import html
from plumbline_conformance.reports.formats.junit import junit
from plumbline_conformance.reports.formats.markdown import markdown
from plumbline_conformance.reports.guard import render_all
from plumbline_conformance.reports.matrix.pages import matrix_pages
from plumbline_conformance.reports.matrix.table import Column, matrix_of
from plumbline_conformance.reports.report import Report, report_of
from plumbline_conformance.reports.standing import status_of
from plumbline_conformance.runner.run import record
from plumbline_conformance.suite.scenario import SCENARIOS, Request, Scenario, Target
from plumbline_conformance.transcript.exchange import Exchange, Transcript

SETTINGS = settings(
    max_examples=EXPLORED or 30,
    deadline=None,
    database=None,
    derandomize=True,
    suppress_health_check=list(HealthCheck),
)
RUN = RecordingHeader.of("http://127.0.0.1:1/v1", "m")
PRINTERS = [html, junit, markdown, badge_json, badge_svg, Report.to_json]
TEXT = st.text(max_size=8) | st.sampled_from(["", "\ud800", "\x00", "text/event-stream", "application/json"])
FRAMES = st.lists(
    st.tuples(
        st.sampled_from([0.0, 0.5, 1e9, -1.0]),
        st.binary(max_size=12) | st.sampled_from([b"", b"data: {}\n\n", b"{}", b"\n\n", b"[DONE]"]),
    ),
    max_size=5,
)
FOREIGN = st.builds(
    Exchange,
    method=st.sampled_from(["GET", "POST", "WEBSOCKET", "PATCH", ""]),
    url=st.sampled_from(["", "http://[", "ws://x/v1/responses", "http://x/v1/chat/completions?key=a"]),
    request_headers=st.dictionaries(TEXT, TEXT, max_size=2),
    request_body=st.binary(max_size=8) | st.sampled_from([b"{}", b"[", b'{"model":"m","stream":true}']),
    status=st.sampled_from([0, 101, 200, 204, 302, 400, 404, 500, 999, -1]),
    headers=st.lists(st.tuples(TEXT, TEXT), max_size=3),
    frames=FRAMES,
    error=st.none() | TEXT,
)


@st.composite
def truncated(draw: st.DrawFn, scenario: str) -> list[Exchange]:
    """Generate the exchanges of a good server, with frames, exchanges or both cut off."""
    exchanges = list(transcripts()[scenario].exchanges)
    kept = exchanges[: draw(st.integers(0, len(exchanges)))]
    for place, one in enumerate(kept):
        frames = one.frames[: draw(st.integers(0, len(one.frames)))]
        status = draw(st.sampled_from([one.status, 101, 200, 0]))
        kept[place] = Exchange(
            name=one.name,
            method=one.method,
            url=one.url,
            request_headers=one.request_headers,
            request_body=one.request_body,
            status=status,
            headers=one.headers,
            frames=frames,
            error=draw(st.none() | st.just("closed in the middle of a turn, with code None")),
        )
    return kept


def _numbered(exchanges: list[Exchange]) -> list[Exchange]:
    return [msgspec.structs.replace(one, name=f"unknown/{number}") for number, one in enumerate(exchanges, 1)]


@st.composite
def recorded(draw: st.DrawFn) -> Transcript:
    scenario = draw(st.sampled_from(sorted(SCENARIOS)))
    foreign = st.lists(FOREIGN, max_size=4).map(_numbered)
    exchanges = draw(truncated(scenario) | foreign)
    skipped = draw(st.sampled_from([None, None, None, "because"]))
    again: list[list[Exchange]] = draw(st.sampled_from([[], [], [exchanges], [[]]]))
    return Transcript(scenario=scenario, exchanges=exchanges, skipped=skipped, again=again)


@pytest.mark.long
@SETTINGS
@given(st.lists(recorded(), max_size=3, unique_by=lambda seen: seen.scenario))
@example([])
@example(
    [
        Transcript(
            scenario="websocket/turn",
            exchanges=[
                Exchange(method="WEBSOCKET", url="ws://x", request_headers={}, request_body=b"{}", status=101)
            ],
        )
    ]
)
def test_every_recording_has_a_report(seen: list[Transcript]) -> None:
    findings = [finding for one in seen for finding in judge_redacted(one)]
    report = report_of(RUN, seen, findings, everything=True)

    _, texts = render_all(report, PRINTERS)

    assert "error" not in {result.verdict for result in report.results}
    assert all(text.encode() and "defect of the judge" not in text for text in texts)
    assert json.loads(har(Recording(header=RUN, transcripts=seen)))
    assert all(
        matrix_pages(
            matrix_of([Column(name="one", report=report), Column(name="other", report=report)])
        ).values()
    )


@settings(SETTINGS, max_examples=EXPLORED or 20)
@given(
    st.lists(recorded(), max_size=2, unique_by=lambda seen: seen.scenario),
    st.sampled_from(["check", "watch", "another"]),
    st.sampled_from(["", "chat/no-such-scenario", "../x", "\x1b[31m"]),
)
def test_the_command_ends_with_a_documented_status(
    tmp_path_factory: pytest.TempPathFactory, seen: list[Transcript], by: str, strange: str
) -> None:
    folder = tmp_path_factory.mktemp("run")
    header = RecordingHeader.of("http://127.0.0.1:1/v1", "m", by=by)
    with Recorder(folder / "run.jsonl", header) as file:
        for one in [*seen, *([Transcript(scenario=strange, exchanges=[])] if strange else [])]:
            file.add(one)

    outputs = [f"--{kind}={folder / kind}" for kind in ("json", "junit", "markdown", "html", "badge")]
    status = main(["judge", str(folder / "run.jsonl"), *outputs])

    assert status in (0, 1, 2)
    assert main(["export", str(folder / "run.jsonl"), f"--har={folder / 'har'}"]) in (0, 2)


def broken_timeline(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the timeline fail for one body."""
    moments = timeline.moments

    def fails(exchange: Exchange, marked: frozenset[int] = frozenset()) -> Any:
        if b"chatcmpl" in exchange.body and not exchange.request_json.get("stream"):
            raise LookupError("an answer that nobody foresaw")
        return moments(exchange, marked)

    monkeypatch.setattr("plumbline_conformance.reports.report.moments", fails)


def test_a_defect_of_one_scenario_leaves_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    broken_timeline(monkeypatch)
    seen = [transcripts()["chat/text"], transcripts()["models/list"]]

    report = report_of(RUN, seen, [f for one in seen for f in judge(one)], everything=True)

    verdicts = {name: {r.verdict for r in report.results if r.scenario == name} for name in report.scenarios}
    assert verdicts == {"chat/text": {"error"}, "models/list": {"pass"}}
    assert status_of(report, strict=False) == 3
    assert "models/list" in report.evidence
    for print_report in (html, junit, markdown, Report.to_json):
        assert "an answer that nobody foresaw" in print_report(report)
        assert "reports/report.py" in print_report(report).replace("\\_", "_")


@pytest.mark.parametrize("text", ["chat/text", "models/list"])
def test_a_scenario_that_a_format_cannot_show_is_an_error_in_all(text: str) -> None:
    def fails(report: Report) -> str:
        for result in report.results:
            if result.scenario == text and result.verdict == "pass":
                raise LookupError("not to be shown")
        return "shown"

    seen = [transcripts()["chat/text"], transcripts()["models/list"]]
    report = report_of(RUN, seen, [f for one in seen for f in judge(one)])

    report, [shown, page] = render_all(report, [fails, html])

    assert shown == "shown"
    assert "not to be shown" in page
    assert {r.scenario for r in report.results if r.verdict == "error"} == {text}


def test_a_format_that_fails_always_gives_its_traceback() -> None:
    def fails(report: Report) -> str:
        raise LookupError("never")

    report = report_of(RUN, [transcripts()["chat/text"]], judge(transcripts()["chat/text"]))

    report, [text, page] = render_all(report, [fails, html])

    assert "LookupError: never" in text
    assert status_of(report, strict=False) == 3
    assert "<html" in page


def test_a_scenario_with_a_defect_ends_alone() -> None:
    def steps(target: Target) -> Generator[Request, Exchange, None]:
        answer = yield Request(path="/models", method="GET")
        raise LookupError(f"status {answer.status}")

    broken = Scenario(id="chat/text", title="x", steps=steps)
    with serving(application()) as base_url:
        target = Target(base_url=base_url, model=MODEL, api_key=KEY)
        found = asyncio.run(record([broken, SCENARIOS["models/list"]], target))

    assert "LookupError: status 200" in found[0].defect
    assert "test_guard.py" in found[0].defect
    assert {(f.verdict, f.reason) for f in judge(found[0])} == {
        ("error", "the judge failed: LookupError: status 200")
    }
    assert {f.verdict for f in judge(found[1])} == {"pass"}


def test_a_defect_is_recorded(tmp_path: Path) -> None:
    seen = Transcript(scenario="chat/text", exchanges=[], defect="run.py:1 in f: x\nLookupError: sk-secret-1")
    with Recorder(tmp_path / "run.jsonl", RUN, secrets=["sk-secret-1"]) as file:
        file.add(seen)

    [again] = read_recording(tmp_path / "run.jsonl").transcripts

    assert again.defect.startswith("run.py:1 in f: x\nLookupError: sha256:")


def test_a_websocket_that_closes_without_a_message_does_not_end_the_run(tmp_path: Path) -> None:
    inner = application()

    async def serve(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "websocket":
            await receive()
            await send({"type": "websocket.accept"})
            await send({"type": "websocket.close", "code": 1011})
        else:
            await inner(scope, receive, send)

    page = tmp_path / "page.html"
    with serving(serve) as base_url:
        common = (base_url, "--model", MODEL, "--api-key", KEY, "--html", str(page))
        status = main(["check", *common, "websocket", "models", "--record", str(tmp_path / "run.jsonl")])

    assert status in (0, 1)
    assert "closed in the middle of a turn, with code 1011" in page.read_text()
    assert main(["judge", str(tmp_path / "run.jsonl")]) == status
