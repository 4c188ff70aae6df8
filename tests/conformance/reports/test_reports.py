"""Test report formats: consistent with the JSON report, valid, and safe with any server output."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable
from functools import cache
from html import escape
from html.parser import HTMLParser
from importlib.resources import files
from itertools import pairwise
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import jsonschema_rs
import msgspec
import pytest
from example_servers.good_server import transcripts
from hypothesis import example, given
from hypothesis import strategies as st
from mutants import MUTANTS
from mutants.mutations import body, without

import plumbline_conformance.checks  # noqa: F401 - registers the suite
from plumbline_conformance.checks.laws import WHOLE
from plumbline_conformance.judge.verdicts import Finding, judge
from plumbline_conformance.recording.file import RecordingHeader
from plumbline_conformance.reports.conformance_classes import CLASSES, class_of, scores_by_class
from plumbline_conformance.reports.formats.badge import badge_json, badge_svg
from plumbline_conformance.reports.formats.html import html
from plumbline_conformance.reports.formats.junit import junit
from plumbline_conformance.reports.formats.markdown import markdown
from plumbline_conformance.reports.formats.sarif import sarif
from plumbline_conformance.reports.formats.text import failure_lines
from plumbline_conformance.reports.matrix.html import matrix_html
from plumbline_conformance.reports.matrix.table import NotComparable, columns_of, matrix_markdown, matrix_of
from plumbline_conformance.reports.report import (
    VERDICTS,
    Report,
    UnreadableReport,
    read_report,
    report_of,
)
from plumbline_conformance.reports.standing import UNASKED, blamed, status_of, whole
from plumbline_conformance.reports.timeline import moments
from plumbline_conformance.suite.contract import rules
from plumbline_conformance.suite.scenario import CHECKS, Problem
from plumbline_conformance.suite.selection import PROFILES
from plumbline_conformance.transcript.exchange import Exchange, Transcript
from plumbline_conformance.transcript.sse import parse_events

RUN = RecordingHeader.of("http://127.0.0.1:1/v1", "m", "sk-secret-key")
HOSTILE = "<script>alert(1)</script>\x1b[31m\u202e]]>&\ud800\x00|`` ```\n# x\n"
PRINTERS: list[Callable[[Report], str]] = [
    html,
    junit,
    sarif,
    markdown,
    badge_json,
    badge_svg,
    Report.to_json,
]


@cache
def schema() -> Any:
    path = files("plumbline_conformance.reports").joinpath("report.schema.json")
    return jsonschema_rs.Draft202012Validator(json.loads(path.read_text("utf-8")))


def reported(*seen: Transcript) -> Report:
    return report_of(RUN, seen, [finding for found in seen for finding in judge(found)])


def of(verdict: str, text: str = "why", name: str = "chat/text/shape") -> Report:
    """Return a report of one finding, with this text in every field that a server can set."""
    problems = [Problem(expected=text, actual=text, pointer=f"event 0, {text}")] if verdict == "fail" else []
    exchange = Exchange(
        method="POST",
        url=f"http://127.0.0.1:1/{text}",
        request_headers={"x-a": text},
        request_body=text.encode("utf-8", "replace"),
        status=200,
        headers=[("content-type", "text/event-stream"), (text, text)],
        frames=[(0.1, b"data: " + text.encode("utf-8", "surrogatepass") + b"\n\n")],
        error=text,
    )
    finding = Finding(check=name, verdict=verdict, problems=problems, reason=text)  # type: ignore[arg-type]
    return report_of(RUN, [Transcript(scenario="chat/text", exchanges=[exchange])], [finding])


class Page(HTMLParser):
    """Collect the elements of a page, and check that they are closed in order."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: set[str] = set()
        self.attributes: set[str] = set()
        self.text = ""
        self.bad = 0

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.attributes |= {name for name, _ in attrs}
        self.bad += ("class", "bad") in attrs
        if tag not in ("meta", "br"):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


def parsed(text: str) -> Page:
    page = Page()
    page.feed(text)
    page.close()
    assert page.open == []
    return page


@pytest.mark.parametrize("verdict", VERDICTS)
@pytest.mark.parametrize("printer", PRINTERS)
def test_every_verdict_can_be_printed(printer: Callable[[Report], str], verdict: str) -> None:
    assert printer(of(verdict))


@pytest.mark.parametrize("number", range(0, len(MUTANTS), 31))
def test_a_report_keeps_its_schema_and_is_read_as_it_was(number: int, tmp_path: Path) -> None:
    scenario, _, mutation, _ = MUTANTS[number]
    report = reported(mutation(transcripts()[scenario]))
    path = tmp_path / "report.json"
    path.write_text(report.to_json(), "utf-8")

    assert [error.message for error in schema().iter_errors(json.loads(report.to_json()))] == []
    assert read_report(path) == report
    assert html(read_report(path)) == html(report)


@given(st.text())
@example(HOSTILE)
def test_what_a_server_wrote_stays_text(text: str) -> None:
    """The text adds no element, attribute or control character."""
    plain, hostile = parsed(html(of("fail", "x"))), html(of("fail", text))

    found = parsed(hostile)
    assert found.tags <= plain.tags
    assert found.attributes <= plain.attributes
    assert not {"script", "img", "iframe", "link"} & found.tags
    assert all(char.isprintable() or char == "\n" for char in hostile.replace("\t", ""))
    for printer in PRINTERS:
        printer(of("fail", text)).encode()


@given(st.text())
@example(HOSTILE)
def test_sarif_names_the_rule_and_the_place_whatever_a_server_wrote(text: str) -> None:
    report = of("fail", text)
    [run] = json.loads(sarif(report))["runs"]

    [found] = run["results"]
    [place] = found["locations"]
    assert found["ruleId"] in {rule["id"] for rule in run["tool"]["driver"]["rules"]}
    assert found["level"] == "error"
    assert re.fullmatch(r"[\w.~%/-]+", place["physicalLocation"]["artifactLocation"]["uri"], re.ASCII)
    assert place["logicalLocations"][0]["fullyQualifiedName"] == "chat/text/shape"


@pytest.mark.parametrize("stale", [[], ["chat/text/usage"]])
@pytest.mark.parametrize("strict", [False, True])
@pytest.mark.parametrize(
    ("verdict", "why"), [*((verdict, "why") for verdict in VERDICTS), ("skipped", UNASKED)]
)
def test_sarif_has_an_error_where_the_exit_status_is_not_0(
    verdict: str, why: str, stale: list[str], *, strict: bool
) -> None:
    report = msgspec.structs.replace(of(verdict, why), stale=stale)
    [run] = json.loads(sarif(report, strict=strict))["runs"]
    [ran] = run["invocations"]

    errors = [found for found in run["results"] if found["level"] == "error"]
    notes = [found for found in ran["toolExecutionNotifications"] if found["level"] == "error"]
    assert bool(errors) == bool(blamed(report, strict=strict))
    assert bool(errors or notes) == bool(status_of(report, strict=strict))
    # A reader would take the missing results of an interrupted run for repaired defects.
    assert ran["executionSuccessful"] == (whole(report) and verdict != "error")


def test_the_schema_of_reports_has_every_profile() -> None:
    path = files("plumbline_conformance.reports").joinpath("report.schema.json")

    assert set(json.loads(path.read_text("utf-8"))["properties"]["profile"]["enum"]) == set(PROFILES)


def test_every_check_belongs_to_one_class_and_no_class_is_empty() -> None:
    found = Counter(map(class_of, CHECKS))

    assert set(found) == set(CLASSES)
    assert found.total() == len(CHECKS)


@pytest.mark.parametrize(
    ("verdict", "expected"),
    [("pass", "pass"), ("fail", "fail"), ("skipped", "not offered"), ("warn", "pass")],
)
def test_a_class_fails_only_by_a_broken_must(verdict: str, expected: str) -> None:
    by_name = {score.name: score for score in scores_by_class(of(verdict))}

    assert by_name[class_of("chat/text/shape")].verdict == expected
    assert {score.verdict for name, score in by_name.items() if name != "core"} == {"not offered"}


@given(st.text())
@example(HOSTILE)
def test_junit_is_xml_whatever_a_server_wrote(text: str) -> None:
    root = ElementTree.fromstring(junit(of("fail", text)).encode())

    [case] = root.iter("testcase")
    assert case.get("name") == "shape"
    assert [node.tag for node in case] == ["failure"]


@given(st.text())
@example(HOSTILE)
def test_failure_text_cannot_change_a_terminal(text: str) -> None:
    report = of("fail", text)

    assert all(line.isprintable() for line in failure_lines(report, report.results[0]))


def test_markdown_shows_hostile_text_as_text() -> None:
    shown = markdown(of("fail", "<script>|x|\n# heading"))

    assert "\\<script\\>" in shown
    assert "\n# heading" not in shown


def test_a_failure_shows_rule_expected_actual_pointer_and_how_to_see_it_again() -> None:
    report = of("fail", "thing")

    text = "\n".join(failure_lines(report, report.results[0]))
    assert "CHAT-01: `object" in text
    assert f"source   {rules()['CHAT-01']['source']}" in text
    assert "expected thing" in text
    assert "actual   thing  (event 0, thing)" in text
    assert "see it   curl -sS -N -i http://127.0.0.1:1/thing" in text
    assert '"authorization: Bearer $OPENAI_API_KEY"' in text
    assert "again    plumbline check http://127.0.0.1:1/v1 chat/text/shape --model m" in text


def test_the_offending_event_is_marked_and_no_other() -> None:
    scenario, _, mutation, _ = next(found for found in MUTANTS if found[1] == "another id")
    report = reported(mutation(transcripts()[scenario]))
    assert parsed(html(report)).bad == 0  # This check points at a field, not at an event.

    scenario, _, mutation, _ = next(found for found in MUTANTS if found[3] == ("role-once",))
    page = parsed(html(reported(mutation(transcripts()[scenario]))))
    assert page.bad >= 1
    assert "chat/stream-text/role-once, CS-02: expected" in page.text


def test_a_page_of_ours_needs_nothing_else() -> None:
    text = html(reported(*transcripts().values()))

    page = parsed(text)
    assert "script" not in page.tags
    assert "src" not in page.attributes
    assert set(re.findall(r'href="(.)', text)) == {"#"}
    assert "default-src 'none'" in text
    assert 'name="viewport"' in text


def test_green_runs_carry_no_evidence() -> None:
    report = reported(*transcripts().values())

    assert report.evidence == {}
    assert report.counts == {"pass": len(CHECKS)}


BLOCKS = [b"data: {}\n\n", b": keep\n\n", b"event: a\ndata: 1\n\n", b"\n", b"x", b"data: 2\n: c\nid: 3\n\n"]
BLOCKS += [b"\xef\xbb\xbf: no comment\n\n", b"\xef\xbb\xbfdata: 4\n\n"]


@given(
    st.lists(st.tuples(st.sampled_from(BLOCKS), st.sampled_from([b"\n", b"\r\n", b"\r"]))),
    st.sets(st.integers(0, 200)),
)
@example([(b"event: a\ndata: 1\n\n", b"\r\n")], set())
@example([(b"event: a\ndata: 1\n\n", b"\r")], set())
def test_the_timeline_numbers_events_as_problems_do(
    blocks: list[tuple[bytes, bytes]], cuts: set[int]
) -> None:
    """An event's time is that of the read with its last byte, for all line ends and cuts."""
    body = b"data: 0\n\n" + b"".join(block.replace(b"\n", end) for block, end in blocks)
    edges = [0, *sorted(cut for cut in cuts if 0 < cut < len(body)), len(body)]
    frames = [(float(i), body[a:b]) for i, (a, b) in enumerate(pairwise(edges))]
    exchange = Exchange(method="POST", url="", request_headers={}, request_body=b"", frames=frames)

    found = [moment for moment in moments(exchange, frozenset(range(300))) if moment.kind == "event"]

    events = parse_events(body)
    assert [moment.number for moment in found][:20] == list(range(len(events)))[:20]
    # The text of a moment is exactly the event with its number.
    read = [parse_events(b"\n" + moment.text.encode()) for moment in found[:20]]
    assert [(e.data, e.name, e.fields, e.comments) for [e] in read] == [
        (e.data, e.name, e.fields, e.comments) for e in events[:20]
    ]
    assert [moment.at for moment in found] == sorted(moment.at for moment in found)


def test_a_long_stream_is_shortened_around_what_is_marked() -> None:
    body = b"".join(b"data: %d\n\n" % number for number in range(5000))
    frames = [(0.5, body)]
    exchange = Exchange(method="POST", url="", request_headers={}, request_body=b"", frames=frames)

    found = moments(exchange, frozenset({2500}))

    assert len(found) < 100
    assert "data: 2500" in [moment.text for moment in found]
    assert sum(moment.size for moment in found) == len(body)


def test_a_badge_has_the_colour_of_the_worst() -> None:
    assert json.loads(badge_json(of("pass")))["color"] == "brightgreen"
    assert json.loads(badge_json(of("warn", name="chat/text/request-id")))["message"] == "chat 0/1"
    assert json.loads(badge_json(of("fail")))["color"] == "red"
    assert json.loads(badge_json(of("inconclusive")))["message"] == "not judged"
    assert ElementTree.fromstring(badge_svg(of("fail"))).tag.endswith("svg")


def test_junit_counts_failures_errors_and_skips() -> None:
    def tallies(report: Report, *, strict: bool = False) -> dict[str, str]:
        [suite] = ElementTree.fromstring(junit(report, strict=strict).encode()).iter("testsuite")
        return suite.attrib

    assert tallies(of("fail"))["failures"] == "1"
    assert tallies(of("error"))["errors"] == "1"
    assert tallies(of("rejected", name="chat/stop/prefix"))["skipped"] == "1"
    assert tallies(of("rejected"))["failures"] == "1"  # A server must not refuse core scenarios.
    assert tallies(of("pass"))["skipped"] == "0"


def test_a_matrix_puts_disagreement_first() -> None:
    good = reported(*transcripts().values())
    scenario, _, mutation, _ = next(found for found in MUTANTS if found[3] == ("done",))
    changed = {**transcripts(), scenario: mutation(transcripts()[scenario])}
    bad = reported(*changed.values())

    table = matrix_of(columns_of({"good": good, "a|b": bad}))

    assert table.rows[0][0] == "chat/stream-text/done"
    assert "| `chat/stream-text/done` | MUST | ✅ | [❌](#a-b-chat-stream-text-done) |" in matrix_markdown(
        table
    )
    assert "a\\|b" in matrix_markdown(table)
    assert "one [DONE], as the last event" in parsed(matrix_html(table)).text


def test_reports_of_different_suites_are_not_compared() -> None:
    report = of("pass")
    run = RecordingHeader(base_url="u", model="m", started="2026", suite={"version": "0"})
    other = report_of(run, [], [])

    with pytest.raises(NotComparable):
        matrix_of(columns_of({"a": report, "b": other}))


@pytest.mark.parametrize("content", ["", "[]", '{"format": 2}', '{"format": 1}', "[" * 100_000])
def test_a_file_that_is_no_report_is_refused(tmp_path: Path, content: str) -> None:
    path = tmp_path / "x.json"
    path.write_text(content, "utf-8")

    with pytest.raises(UnreadableReport):
        read_report(path)


def test_a_report_names_the_request_of_a_problem() -> None:
    problem = Problem(expected="x", actual="y", pointer="event 3", exchange="stream")
    finding = Finding(check="chat/stream-text/shape", verdict="fail", problems=[problem])
    report = report_of(RUN, [transcripts()["chat/stream-text"]], [finding])

    assert "actual   y  (request stream, event 3)" in failure_lines(report, report.results[0])
    assert "request stream, event 3" in html(report)
    assert "request stream, event 3" in markdown(report)
    assert "request stream, event 3" in junit(report)


def first_page() -> str:
    """Return the page of a run with one failure of two checks."""
    seen = {**transcripts(), "chat/text": body(without("object"))(transcripts()["chat/text"])}
    return html(reported(*seen.values()))


def test_a_page_begins_with_whether_the_server_passes() -> None:
    good, bad = html(reported(*transcripts().values())), first_page()

    assert re.search(
        r"<h1>[^<]*</h1>\n<p class=\"v pass\">Passes the profile full\. MUST: 0 broken, \d+ pass", good
    )
    assert re.search(
        r"<h1>[^<]*</h1>\n<p class=\"v fail\">Fails the profile full\. MUST: 1 broken, \d+ pass", bad
    )


def test_a_page_of_an_interrupted_run_says_so() -> None:
    assert "Interrupted, and so not judged by the profile full." in html(of("skipped", UNASKED))


def test_a_page_gives_the_reason_of_skipped_scenarios_before_them() -> None:
    text = html(of("skipped", "there is no POST /responses: status 404"))

    assert "1 check: there is no POST /responses: status 404</li>" in text.partition("<nav>")[0]
    assert "<h2>Skipped</h2>" not in html(of("pass"))


def test_failures_come_first_and_green_scenarios_are_folded() -> None:
    places = re.findall(r'<(h2|details) id="s-([a-z0-9-]+)"', first_page())

    assert places[0] == ("h2", "chat-text")
    assert ("details", "chat-tool") in places


def test_every_link_of_a_page_has_its_place() -> None:
    text = first_page()

    places = re.findall(r' id="([^"]+)"', text)
    links = re.findall(r'href="#([^"]+)"', text)
    assert {"s-chat-text", "fail-chat", "pass-chat"} <= set(links)
    assert set(links) <= set(places)
    assert len(set(places)) == len(places)


def test_a_sentence_appears_once() -> None:
    changed = {
        name: body(without("object"), WHOLE)(transcripts()[name]) for name in ("chat/text", "chat/tool")
    }
    text = html(reported(*{**transcripts(), **changed}.values()))

    assert text.count(escape(rules()["CHAT-01"]["sentence"])) == 1
    assert text.count('href="#r-CHAT-01"') == 1
