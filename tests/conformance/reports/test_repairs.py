"""What is new, and what to repair first: the greedy order turns as many checks green at each step as any rule can."""

from __future__ import annotations

from collections.abc import Collection

from hypothesis import given
from hypothesis import strategies as st

from plumbline_conformance.recording.file import RecordingHeader
from plumbline_conformance.reports.causes import groups
from plumbline_conformance.reports.repairs import new_lines, repair_lines, repairs
from plumbline_conformance.reports.report import Report, Result, Rule

RULES = ("CHAT-01", "CHAT-02", "SSE-01", "R-01")
broken = st.lists(st.sets(st.sampled_from(RULES), min_size=1).map(sorted), max_size=9)


def report(checks: list[list[str]], expected: str | None = None, accepted: Collection[int] = ()) -> Report:
    results = [
        Result(
            check=f"chat/a/{n}",
            title="t",
            level="MUST",
            rules=rules,
            verdict="fail",
            expected="known" if n in accepted else expected,
        )
        for n, rules in enumerate(checks)
    ]
    known = {rule: Rule(id=rule, level="MUST", sentence=f"Keep {rule}.") for rule in RULES}
    header = RecordingHeader(base_url="http://h/v1", model="m", started="")
    return Report(run=header, results=results, rules=known, scenarios={}, evidence={})


@given(broken)
def test_repairs_turn_green_what_they_say(checks: list[list[str]]) -> None:
    kept: set[str] = set()
    green: set[str] = set()
    for one in repairs(report(checks), most=9):
        best = max(sum(set(rules) <= kept | {rule} for rules in checks) for rule in RULES if rule not in kept)
        kept.add(one.rule)
        now = {f"chat/a/{n}" for n, rules in enumerate(checks) if set(rules) <= kept}
        assert set(one.checks) == now - green
        # Where no rule turns any green, the most frequent one is next.
        assert len(now) == best
        green = now
    assert green == {f"chat/a/{n}" for n in range(len(checks))}


def test_a_few_failures_need_no_order() -> None:
    assert repair_lines(report([["CHAT-01"]] * 3)) == []
    assert repair_lines(report([["CHAT-01"]] * 9, expected="known")) == []
    assert repair_lines(report([["CHAT-01"]] * 3 + [["SSE-01"]])) == [
        "4 failing checks have 4 causes, each described once.",
        "Repair CHAT-01 first, and 3 of 4 failing checks will pass: Keep CHAT-01.",
        "Then repair SSE-01, and 1 more will pass: Keep SSE-01.",
    ]


@given(broken, st.sets(st.integers(0, 8)))
def test_what_a_baseline_does_not_accept_is_named_and_comes_first(
    checks: list[list[str]], accepted: set[int]
) -> None:
    made = report(checks, accepted=accepted)
    new = [f"chat/a/{n}" for n in range(len(checks)) if n not in accepted]

    assert [group.result.check for group in groups(made)][: len(new)] == new
    assert new_lines(made) == (
        [f"{len(new)} of {len(checks)} violations are not in the baseline: {', '.join(new)}"]
        if 0 < len(new) < len(checks)
        else []
    )
