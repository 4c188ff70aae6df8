"""Test the tally of live traffic: it is independent of the order, and shows the faulty exchanges."""

from __future__ import annotations

import json
import re
from html import unescape
from io import StringIO
from itertools import permutations

import msgspec
import pytest
from example_servers.good_server import transcripts
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from plumbline_conformance.checks.selected_laws import watched
from plumbline_conformance.judge.verdicts import Finding
from plumbline_conformance.recording.file import RecordingHeader
from plumbline_conformance.reports.formats.html import html
from plumbline_conformance.reports.formats.text import failure_lines, requests_of
from plumbline_conformance.reports.report import WORST_FIRST, Report, report_of
from plumbline_conformance.suite.scenario import Problem
from plumbline_conformance.transcript.exchange import Exchange, Transcript
from plumbline_conformance.watch.display import picture
from plumbline_conformance.watch.live import Tally, judge_live

SCENARIO = "chat/stream-text"
LAWS = [name for name in watched() if name.startswith(f"{SCENARIO}/")]
LIVE = ("pass", "fail", "warn", "untestable", "rejected", "inconclusive")
DONE = b"data: [DONE]\n\n"


def stream(number: int) -> Exchange:
    """Return a stream with its number in the request and in every event."""
    asked = {"model": "m", "stream": True, "messages": [{"role": "user", "content": f"stream {number}"}]}
    return Exchange(
        method="POST",
        url="http://127.0.0.1:1/v1/chat/completions",
        request_headers={"content-type": "application/json"},
        request_body=json.dumps(asked).encode(),
        status=200,
        headers=[("content-type", "text/event-stream")],
        frames=[(0.1, b"".join(b'data: {"of": %d, "n": %d}\n\n' % (number, at) for at in range(9)))],
    )


def report_for(tally: Tally) -> Report:
    run = RecordingHeader.of("http://127.0.0.1:1/v1", "m", by="watch")
    return report_of(run, tally.transcripts(), tally.findings())


def add(tally: Tally, exchange: Exchange, *findings: Finding) -> None:
    tally.add(Transcript(scenario="watch/chat", exchanges=[exchange]), findings)


def fault(check: str, number: int, verdict: str = "fail") -> Finding:
    """Return a finding about this event of this stream."""
    problem = Problem(expected="x", actual=f"stream {number}", pointer=f"event {number}", rule="CS-02")
    return Finding(check=check, verdict=verdict, problems=[problem])  # type: ignore[arg-type]


@pytest.mark.parametrize("room", [1, 3, 8])
@pytest.mark.parametrize("others", ["pass", "inconclusive"])
def test_what_is_shown_is_the_stream_at_fault(
    room: int, others: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Kept exchanges of seven faulty streams are shown; missing ones are mentioned in the reason."""
    monkeypatch.setattr("plumbline_conformance.watch.live._SAMPLES", room)
    tally = Tally()
    for number, check in enumerate(LAWS[:7]):
        innocent = [Finding(check=name, verdict=others) for name in LAWS if name != check]  # type: ignore[arg-type]
        add(tally, stream(number), *innocent, fault(check, number))

    report = report_for(tally)

    broken = [result for result in report.results if result.problems]
    assert len(broken) == 7
    assert sum(len(kept.exchanges) for kept in tally.transcripts()) == min(room, 7)
    shown = 0
    for result in broken:
        whose = result.problems[0].actual
        lines = failure_lines(report, result)
        commands = [line for line in lines if line.startswith("see it")]
        assert [whose in command for command in commands] == [True] * len(commands)
        shown += len(commands)
        assert (not commands) == any("its exchange was not kept" in line for line in lines)
        assert "request -1" not in "\n".join(lines)
    assert shown == min(room, 7)
    # The mark is at the faulty event, and only in the stream of the fault.
    marked = re.findall(r"<li class=bad>.*?<pre>(.*?)</pre>.*?actual stream (\d)", html(report))
    assert len(marked) == shown
    for text, number in marked:
        assert json.loads(unescape(text).removeprefix("data: ")) == {"of": int(number), "n": int(number)}


def test_a_milder_sample_makes_place_for_a_worse_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("plumbline_conformance.watch.live._SAMPLES", 2)
    for order in permutations([(0, "warn"), (1, "warn"), (2, "fail"), (3, "untestable")]):
        tally = Tally()
        for number, verdict in order:
            add(tally, stream(number), fault(LAWS[number], number, verdict))

        report = report_for(tally)

        shown = {result.verdict for result in report.results if requests_of(report, result)}
        assert shown == {"fail", "untestable"}


def test_the_evidence_of_a_verdict_that_grew_worse_is_given_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("plumbline_conformance.watch.live._SAMPLES", 1)
    tally = Tally()
    for number, verdict in enumerate(("warn", "untestable", "fail")):
        add(tally, stream(number), fault(LAWS[0], number, verdict))

    [kept] = tally.transcripts()
    assert [exchange.request_body for exchange in kept.exchanges] == [stream(2).request_body]


@given(st.lists(st.tuples(st.sampled_from(LAWS[:4]), st.sampled_from(LIVE)), max_size=12), st.randoms())
def test_the_verdicts_of_a_tally_do_not_depend_on_the_order(
    verdicts_seen: list[tuple[str, str]], luck: object
) -> None:
    def verdicts(order: list[tuple[str, str]]) -> dict[str, str]:
        tally = Tally()
        for number, (check, verdict) in enumerate(order):
            findings = fault(check, number, verdict) if verdict in ("fail", "warn") else None
            add(tally, stream(number), findings or Finding(check=check, verdict=verdict))  # type: ignore[arg-type]
        return {finding.check: finding.verdict for finding in tally.findings()}

    shuffled = verdicts_seen.copy()
    luck.shuffle(shuffled)  # type: ignore[attr-defined]
    found = verdicts(verdicts_seen)

    assert verdicts(shuffled) == found
    for check, verdict in found.items():
        assert verdict == next(w for w in WORST_FIRST if (check, w) in verdicts_seen)


def test_a_client_that_leaves_takes_no_pass_away() -> None:
    """A truncated stream does not change the results of the others."""
    [whole, *_] = [e for e in transcripts()[SCENARIO].exchanges if e.body.endswith(DONE)]
    cut = msgspec.structs.replace(whole, frames=whole.frames[:1], error="the client left")

    def verdicts(exchanges: list[Exchange]) -> dict[str, str]:
        tally = Tally()
        for exchange in exchanges:
            add(tally, exchange, *judge_live(exchange))
        return {finding.check: finding.verdict for finding in tally.findings()}

    alone, both = verdicts([whole]), verdicts([whole, cut, whole])
    assert "inconclusive" in verdicts([cut]).values()
    assert {name: both[name] for name in alone} == alone
    assert both == verdicts([cut, whole, whole])


def test_every_verdict_of_live_traffic_has_a_column() -> None:
    tally = Tally()
    for verdict in LIVE:
        add(tally, stream(0), *(Finding(check=name, verdict=verdict) for name in LAWS[:1]))  # type: ignore[arg-type]
    console = Console(width=150, record=True, file=StringIO())
    console.print(picture(tally, 0))

    text = console.export_text()
    [row] = [line for line in text.splitlines() if line.startswith(LAWS[0])]
    assert row.split()[1:] == ["1"] * len(LIVE)
