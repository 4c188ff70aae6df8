"""Test that every report attributes a violation to the broken rule, not to other rules of the check."""

from __future__ import annotations

import json
import re
from html import unescape

import pytest
from example_servers.good_server import transcripts
from mutants import MUTANTS

import plumbline_conformance.checks  # noqa: F401 - registers the suite
from plumbline_conformance.cli.explain import explain
from plumbline_conformance.judge.verdicts import judge
from plumbline_conformance.recording.file import RecordingHeader
from plumbline_conformance.reports.baseline import Baseline, BaselineEntry
from plumbline_conformance.reports.formats.html import html
from plumbline_conformance.reports.formats.junit import junit
from plumbline_conformance.reports.formats.markdown import markdown
from plumbline_conformance.reports.formats.text import failure_lines
from plumbline_conformance.reports.matrix.html import matrix_html
from plumbline_conformance.reports.matrix.table import Column, ServerMatrix, matrix_markdown, matrix_of, worst
from plumbline_conformance.reports.report import Report, report_of
from plumbline_conformance.suite.contract import rules
from plumbline_conformance.suite.scenario import CHECKS
from plumbline_conformance.transcript.exchange import Transcript

CHECK = "chat/text/shape"
RUN = RecordingHeader.of("http://127.0.0.1:1/v1", "m")


def broken(name: str, scenario: str = "chat/text") -> Transcript:
    """Return the transcript of the mutant with this name."""
    mutation = next(found[2] for found in MUTANTS if found[:2] == (scenario, name))
    return mutation(transcripts()[scenario])


def reported(*seen: Transcript) -> Report:
    findings = [finding for found in seen for finding in judge(found)]
    return report_of(RUN, seen, findings, everything=True)


NO_REFUSAL = reported(broken("no refusal"))


@pytest.mark.parametrize("write", [html, junit, markdown, Report.to_json])
def test_a_report_names_the_broken_rule_alone(write: object) -> None:
    text = unescape(write(NO_REFUSAL)).replace("\\", "")  # type: ignore[operator]

    sentences = {name: rules()[name]["sentence"].partition("`")[0].strip() for name in CHECKS[CHECK].rules}
    assert "CHAT-03" in text
    if write is not Report.to_json:
        assert [
            name for name in ("CHAT-01", "CHAT-04", "CHAT-21") if f"{name}:" in text or f"<b>{name}<" in text
        ] == []
        assert sentences["CHAT-21"] not in text


def test_json_names_the_rule_that_each_problem_breaks() -> None:
    [result] = [found for found in json.loads(NO_REFUSAL.to_json())["results"] if found["check"] == CHECK]

    assert [problem["rule"] for problem in result["problems"]] == ["CHAT-03"]
    assert result["rules"] == list(CHECKS[CHECK].rules)


def test_several_broken_rules_are_reported_one_after_the_other() -> None:
    seen = broken("an event without data", "chat/stream-text")
    report = reported(seen)
    [result] = [found for found in report.results if found.check == "chat/stream-text/framing"]

    lines = failure_lines(report, result)

    rules_told = [line.partition(":")[0] for line in lines if re.match(r"[A-Z]+-\d+: ", line)]
    assert rules_told == ["SSE-03", "SSE-05"]
    assert [line.startswith("expected") for line in lines].count(True) == len(result.problems)


def columns(recording: str = "") -> list[Column]:
    good = reported(*transcripts().values())
    seen = {**transcripts(), "chat/text": broken("no refusal")}
    return [
        Column(name="good", report=good, recording=recording),
        Column(name="bad", report=reported(*seen.values()), recording=recording),
    ]


def test_the_matrix_accuses_of_the_broken_rule_alone() -> None:
    table = matrix_of(columns())

    red = [rule for rule, found in table.rules if worst(found[1]) != "pass"]
    assert red == ["CHAT-03"]


def test_a_rule_whose_only_check_breaks_another_came_to_no_verdict() -> None:
    """A failed check does not show that its other rules are kept."""
    [column] = [Column(name="bad", report=NO_REFUSAL)]

    found = dict(matrix_of([column]).rules)

    assert worst(found["CHAT-04"][0]) == "inconclusive"
    assert "CHAT-03" in str(found["CHAT-04"][0][0].reason)
    assert found["CHAT-04"][0][0].problems == []


def links_of(table: ServerMatrix) -> tuple[list[str], set[str], int]:
    """Return the link targets of the cells, the anchors of the page, and the number of cells without a link."""
    page = matrix_html(table)
    cells = re.findall(r"<td>(.*?)</td>", page)
    bare = [cell for cell in cells if cell and "<a " not in cell and not re.fullmatch(r"[\d-]*", cell)]
    return re.findall(r'<a href="#([^"]+)"', page), set(re.findall(r'id="([^"]+)"', page)), len(bare)


def test_every_cell_of_the_page_leads_to_its_evidence() -> None:
    links, places, bare = links_of(matrix_of(columns()))

    assert bare == 0
    assert set(links) <= places
    assert "good-chat-text" in links
    assert "bad-chat-text-shape" in links


def test_cells_of_a_report_without_exchanges_lead_to_its_line() -> None:
    findings = [finding for seen in transcripts().values() for finding in judge(seen)]
    bare_report = report_of(RUN, list(transcripts().values()), findings)

    links, places, bare = links_of(matrix_of([Column(name="plain", report=bare_report)]))

    assert (bare, set(links)) == (0, {"plain"})
    assert "plain" in places


def test_every_cell_of_the_markdown_leads_to_the_bytes_or_to_its_explanation() -> None:
    page = matrix_markdown(matrix_of(columns("run.jsonl.gz")))

    rows = [line for line in page.splitlines() if re.match(r"\| (`|[A-Z]+\\-\d)", line)]
    cells = [cell.strip() for row in rows for cell in row.split(" | ")[-2:]]
    assert rows
    assert [cell for cell in cells if not re.match(r"\[.+\](\[(good|bad)\]|\(#[a-z0-9-]+\))", cell)] == []
    assert "[good]: run.jsonl.gz" in page.splitlines()


def test_another_broken_rule_of_a_listed_check_is_another_violation() -> None:
    [first] = [found for found in judge(broken("no refusal")) if found.check == CHECK]
    [second] = [found for found in judge(broken("finish reason null")) if found.check == CHECK]

    listed = Baseline().updated([first])

    assert listed.expected[CHECK].rules == ["CHAT-03"]
    assert listed.covers(first)
    assert not listed.covers(second)
    assert listed.stale([first]) == []
    assert listed.stale([second]) == [CHECK]


def test_an_entry_that_names_no_rule_covers_all() -> None:
    """Baselines written before problems named rules have no rules."""
    listed = Baseline(expected={CHECK: BaselineEntry(verdict="fail")})

    for name in ("no refusal", "finish reason null"):
        [found] = [found for found in judge(broken(name)) if found.check == CHECK]
        assert listed.covers(found)
        assert listed.stale([found]) == []


def test_an_explanation_has_no_heading_over_nothing() -> None:
    for name in CHECKS:
        lines = explain(name) or []

        if "How it looks:" in lines:
            line = lines[lines.index("How it looks:") + 1]
            assert re.sub(r"[A-Z]+-\d+|to|and|[,. ]", "", line) != "", name
        several = "Each problem names the rule that it breaks." in lines
        assert several == (len(CHECKS[name].rules) > 1), name
