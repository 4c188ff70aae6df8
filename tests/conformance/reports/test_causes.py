"""A report describes each cause once, the most harmful first.

Laws:
- every result that does not pass is in exactly one group;
- a consequence has no problem that is not described, up to numbers and quoted values;
- a broken MUST is never folded under a SHOULD.
"""

from __future__ import annotations

import msgspec
from example_servers.good_server import transcripts
from hypothesis import given
from hypothesis import strategies as st

import plumbline_conformance.checks  # noqa: F401 - registers the suite
from plumbline_conformance.judge.verdicts import judge
from plumbline_conformance.recording.file import RecordingHeader
from plumbline_conformance.reports.causes import distinct, groups, with_causes
from plumbline_conformance.reports.formats.html import html
from plumbline_conformance.reports.formats.markdown import markdown
from plumbline_conformance.reports.report import Report, Result, report_of
from plumbline_conformance.suite.scenario import Problem

HEADER = RecordingHeader(base_url="http://h/v1", model="m", started="")
problems = st.builds(
    Problem,
    expected=st.sampled_from(["a", "b", "b1", "b2"]),
    actual=st.just("x"),
    rule=st.sampled_from(["HTTP-17", "CHAT-01", "HTTP-02", "SSE-01"]),
    exchange=st.sampled_from(["whole", "stream"]),
)
drawn = st.lists(
    st.tuples(st.sampled_from(["MUST", "SHOULD"]), st.lists(problems, min_size=1, max_size=3)), max_size=8
)


def report(rows: list[tuple[str, list[Problem]]]) -> Report:
    results = [
        Result(
            check=f"chat/a{n}/x",
            title="t",
            level=level,
            rules=["CHAT-01"],
            verdict="fail" if level == "MUST" else "warn",
            problems=found,
        )
        for n, (level, found) in enumerate(rows)
    ]
    return with_causes(Report(run=HEADER, results=results, rules={}, scenarios={}, evidence={}))


@given(drawn)
def test_every_result_is_in_one_group_with_its_cause(rows: list[tuple[str, list[Problem]]]) -> None:
    found = groups(made := report(rows))

    everything = [result.check for group in found for result in (group.result, *group.others)]
    assert sorted(everything) == sorted(result.check for result in made.results)
    for group in found:
        for other in group.others:
            assert other.verdict == group.result.verdict
    levels = [group.result.level for group in found]
    fatal = ["HTTP-17" in (problem.rule for problem in group.result.problems) for group in found]
    order = list(zip(fatal, levels, strict=True))
    assert order == sorted(order, key=lambda key: (not key[0], key[1]))


@given(drawn)
def test_every_problem_is_described(rows: list[tuple[str, list[Problem]]]) -> None:
    """Leave out the rules of event streams, whose problems count as one."""
    kept = [(level, [one for one in found if one.rule not in ("HTTP-02", "SSE-01")]) for level, found in rows]
    made = report([(level, found) for level, found in kept if found])

    described = {_plain(group.result, one) for group in groups(made) for one in group.result.problems}
    assert {_plain(result, one) for result in made.results for one in result.problems} == described


def _plain(result: Result, problem: Problem) -> tuple[str, str | None, str]:
    return result.verdict, problem.rule, problem.expected.rstrip("12")


def test_the_consequences_of_json_for_a_stream_are_folded() -> None:
    """A server that ignores `stream` fails six checks of a scenario, and two or more of most others."""
    seen = []
    for name in ("chat/stream-text", "responses/stream-text", "chat/tool"):
        transcript = transcripts()[name]
        whole = next(one for one in transcript.exchanges if one.name == "whole")
        exchanges = [
            msgspec.structs.replace(one, headers=whole.headers, frames=[(0.1, whole.body)])
            if one.name == "stream"
            else one
            for one in transcript.exchanges
        ]
        seen.append(msgspec.structs.replace(transcript, exchanges=exchanges))
    findings = [finding for transcript in seen for finding in judge(transcript)]
    made = with_causes(report_of(HEADER, seen, findings))

    broken = [group for group in groups(made) if group.result.verdict == "fail"]
    assert [group.result.check.rpartition("/")[2] for group in broken] == ["content-type"]
    assert len(broken[0].others) >= 9
    assert markdown(made).count("❌") == 1
    assert html(made).count("It has the same cause as") >= 9


def test_a_violation_that_is_not_a_consequence_is_described() -> None:
    same, other = Problem(expected="a", actual="x1"), Problem(expected="b", actual="x")
    made = report(
        [("MUST", [same]), ("MUST", [msgspec.structs.replace(same, actual="x2")]), ("MUST", [same, other])]
    )

    assert [result.cause for result in made.results] == [None, "chat/a0/x", None]


def test_a_sum_of_other_causes_is_a_consequence() -> None:
    one, other = Problem(expected="a", actual='"x"'), Problem(expected="b", actual="y")
    again = msgspec.structs.replace(one, actual='"z"')
    made = report([("MUST", [one, other]), ("MUST", [other]), ("MUST", [again])])

    assert [result.cause for result in made.results] == ["chat/a2/x", None, None]


def test_problems_that_differ_in_numbers_are_counted() -> None:
    many = [Problem(expected="no role", actual="assistant", pointer=f"event {n}") for n in range(39)]

    assert [(problem.pointer, count) for problem, count in distinct(many)] == [("event 0", 39)]
