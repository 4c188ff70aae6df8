"""The pages of the matrix show every verdict, have no dead links and stay small.

Laws:
- every cell of a comparison is the verdict of the column;
- every link within the pages leads to a page and a place that exist;
- a server that passes everything has 100 in every area, a broken rule counts in its own area alone;
- pages of fourteen servers stay below the limit.
"""

from __future__ import annotations

import json
import posixpath
import re
import sys
from functools import cache
from html import unescape
from pathlib import Path

import msgspec
import pytest
from example_servers.good_server import transcripts
from mutants import MUTANTS

import plumbline_conformance.checks  # noqa: F401 - registers the suite
from plumbline_conformance.judge.verdicts import judge
from plumbline_conformance.recording.file import RecordingHeader
from plumbline_conformance.reports.formats.html import html
from plumbline_conformance.reports.formats.markdown import markdown
from plumbline_conformance.reports.matrix.areas import AREAS, area_of, scores_of
from plumbline_conformance.reports.matrix.pages import LONGEST_PAGE, matrix_pages, summary_markdown
from plumbline_conformance.reports.matrix.table import Column, ServerMatrix, anchor, matrix_of
from plumbline_conformance.reports.report import Report, report_of
from plumbline_conformance.suite.clauses import clauses_of
from plumbline_conformance.suite.contract import rules
from plumbline_conformance.transcript.exchange import Transcript

ROOT = Path(__file__).parents[3]
sys.path.insert(0, str(ROOT / "conformance" / "reference_servers"))

from history import history_lines, past_of, with_past  # noqa: E402
from pages import recordings  # noqa: E402
from rule_pages import rule_pages  # noqa: E402

from plumbline_conformance.cli.matrix import columns_from  # noqa: E402

RUN = RecordingHeader.of("http://127.0.0.1:1/v1", "m")


def reported(*seen: Transcript) -> Report:
    findings = [finding for found in seen for finding in judge(found)]
    return report_of(RUN, seen, findings, everything=True)


@cache
def columns() -> list[Column]:
    mutation = next(found[2] for found in MUTANTS if found[:2] == ("chat/text", "no refusal"))
    seen = transcripts()
    return [
        Column(name="good", report=reported(*seen.values()), recording="good.jsonl.gz"),
        Column(
            name="bad",
            report=reported(*{**seen, "chat/text": mutation(seen["chat/text"])}.values()),
            recording="b",
        ),
    ]


NOTES = {"bad": "notes/bad.md"}


@cache
def matrix() -> ServerMatrix:
    return matrix_of(columns())


@cache
def pages() -> dict[str, str]:
    return matrix_pages(matrix(), NOTES)


def test_every_rule_has_an_area() -> None:
    assert {area_of(rule) for rule in rules()} <= set(AREAS.values())


def test_a_server_without_violations_has_the_full_share_everywhere() -> None:
    assert {(good.short, good.check) for good, _ in scores_of(matrix()).values()} == {("100", "")}


def test_a_broken_rule_counts_in_its_own_area() -> None:
    broken = {area: bad.broken for area, (_, bad) in scores_of(matrix()).items() if bad.broken}

    assert broken == {area_of("CHAT-03"): ["CHAT-03"]}
    score = scores_of(matrix())["Chat"][1]
    assert score.passed < score.judged
    assert score.short in pages()["matrix.html"]
    assert f"| {score.short} |" in summary_markdown(matrix(), NOTES)


def test_every_cell_of_the_comparison_is_the_verdict() -> None:
    rows = re.findall(r"<tr><th[^>]*><code>(.*?)</code></th>(.*)</tr>", pages()["matrix-checks.html"])
    shown = {unescape(check): re.findall(r"<td[^>]*>(?:<a[^>]*>)?([^<]*)", cells) for check, cells in rows}

    assert shown == {
        check: [result.verdict if result else "" for result in results] for check, results in matrix().rows
    }


def test_every_link_leads_to_a_place() -> None:
    places = {path: set(re.findall(r'id="([^"]+)"', text)) for path, text in pages().items()}
    for path, text in pages().items():
        links = re.findall(r'href="([^"]+)"', text)
        missing = []
        for link in links:
            target, _, place = link.partition("#")
            there = posixpath.normpath(posixpath.join(posixpath.dirname(path), target)) if target else path
            if there in {"good.jsonl.gz", "b", "notes/bad.md"}:
                continue
            if there.startswith("../rules/"):
                assert there.rpartition("/")[2] in rules()
                continue
            if there not in places or (place and place not in places[there]):
                missing.append(link)

        assert links, path
        assert missing == [], path


def test_violations_lead_to_the_page_of_their_server() -> None:
    place = anchor(columns()[1], "chat/text/shape")

    assert f"servers/bad.html#{place}" in pages()["matrix-checks.html"]


def test_a_sentence_of_a_rule_appears_once_on_the_page_of_a_server() -> None:
    sentence = unescape(rules()["CHAT-03"]["sentence"])[:60]
    page = unescape(pages()["servers/bad.html"])

    assert page.count(f"CHAT-03</a></b> MUST: {sentence}") == 1


@pytest.mark.long
def test_pages_of_fourteen_servers_stay_below_the_limit() -> None:
    found = columns_from([str(path) for path in recordings(ROOT).values()])
    many = [msgspec.structs.replace(found[n % len(found)], name=f"server-{n}") for n in range(14)]
    pages = matrix_pages(matrix_of(many))

    assert {path: len(text) for path, text in pages.items() if len(text.encode()) >= LONGEST_PAGE} == {}
    assert len(pages["matrix.html"].encode()) < 50_000


def test_the_summary_links_to_notes_and_recordings_alone() -> None:
    links = re.findall(r"\]\(([^) ]+)\)", summary_markdown(matrix(), NOTES))

    assert set(links) == {"notes/bad.md", "good.jsonl.gz", "b"}


def test_the_page_of_a_rule_names_the_servers_that_break_it() -> None:
    pages = rule_pages(matrix())

    assert set(pages) == {"index.md", *(f"{name}.md" for name in rules())}
    place = anchor(columns()[1], "chat/text/shape")
    assert f'<a href="../../evidence/servers/bad.html#{place}">' in pages["CHAT-03.md"]
    assert "[CHAT-03](CHAT-03.md) MUST" in pages["index.md"]
    assert "(1 of 2 servers break it)" in pages["index.md"]
    assert "No server that was judged breaks it." in pages["CHAT-04.md"]
    for found in clauses_of("CHAT-03"):
        assert found.clause in pages["CHAT-03.md"]


def test_a_report_links_each_broken_rule_to_its_page() -> None:
    report = columns()[1].report

    assert report.rules["CHAT-03"].url == "rules/CHAT-03/"
    assert '<a href="rules/CHAT-03/"><b>CHAT-03</b>' in html(report)
    assert "> [CHAT-03](rules/CHAT-03/): " in markdown(report)
    assert json.loads(report.to_json())["rules"]["CHAT-03"]["url"] == "rules/CHAT-03/"


def test_history_keeps_the_last_run_of_a_day_and_names_what_changed() -> None:
    good, bad = (
        msgspec.structs.replace(past_of(column.report), server="x 1", date=date)
        for column, date in zip(columns(), ("2026-01-02", "2026-01-03"), strict=True)
    )
    runs = with_past(with_past(with_past([], good), bad), bad)
    rows = [line.split(" | ") for line in history_lines(runs)][2:]

    assert [(row[0], row[-1]) for row in rows] == [("| 2026-01-03", "CHAT-03 |"), ("| 2026-01-02", " |")]
    assert " | CHAT-03 |  |" in list(history_lines([bad, good]))[2]
    assert bad.passed < bad.checks == good.checks
