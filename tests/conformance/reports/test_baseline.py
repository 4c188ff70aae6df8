"""Test baselines: listed violations do not fail a run, and stale entries fail a strict one."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import plumbline_conformance.checks  # noqa: F401 - registers the suite
from plumbline_conformance.judge.verdicts import Finding
from plumbline_conformance.recording.file import RecordingHeader
from plumbline_conformance.reports.baseline import VIOLATIONS, Baseline, BaselineEntry, UnreadableBaseline
from plumbline_conformance.reports.report import VERDICTS, report_of
from plumbline_conformance.reports.standing import status_of
from plumbline_conformance.suite.scenario import CHECKS, Problem

NAMES = sorted(CHECKS)[:5]
findings = st.dictionaries(st.sampled_from(NAMES), st.sampled_from(VERDICTS)).map(
    lambda found: [Finding(check=name, verdict=verdict) for name, verdict in found.items()]  # type: ignore[arg-type]
)
baselines = st.dictionaries(
    st.sampled_from([*NAMES, "chat/gone/away"]),
    st.builds(BaselineEntry, verdict=st.sampled_from(sorted(VIOLATIONS)), why=st.text()),
).map(lambda found: Baseline(expected=found))


@given(findings, baselines)
def test_an_updated_baseline_accepts_what_was_seen(seen: list[Finding], old: Baseline) -> None:
    new = old.updated(seen)

    assert new.stale(seen) == []
    assert all(new.covers(finding) for finding in seen if finding.verdict in VIOLATIONS)
    report = report_of(RecordingHeader.of("u", "m"), [], seen, baseline=new)
    assert [r.check for r in report.results if r.verdict in VIOLATIONS and r.expected is None] == []
    assert status_of(report, strict=True) in (0, 2) or report.counts["error"], "a refused core check, too"


@given(findings, baselines)
def test_reasons_and_what_was_not_looked_at_survive_an_update(seen: list[Finding], old: Baseline) -> None:
    new = old.updated(seen)

    settled = {finding.check for finding in seen if finding.verdict in {"pass", "rejected", *VIOLATIONS}}
    for name, entry in old.expected.items():
        if name in CHECKS and name not in settled:
            assert new.expected[name] == entry
        if name in new.expected:
            assert new.expected[name].why == entry.why


@given(baselines)
def test_what_is_saved_is_loaded(tmp_path_factory: pytest.TempPathFactory, found: Baseline) -> None:
    path = tmp_path_factory.mktemp("baseline") / "b.json"
    found.write(path)

    assert Baseline.read(path) == found


@pytest.mark.parametrize("verdict", ["pass", "warn"])
def test_an_entry_that_is_no_longer_true_is_stale(verdict: str) -> None:
    baseline = Baseline(expected={NAMES[0]: BaselineEntry(verdict="fail")})

    finding = Finding(check=NAMES[0], verdict=verdict)  # type: ignore[arg-type]
    assert baseline.stale([finding]) == [NAMES[0]]


@pytest.mark.parametrize("verdict", ["inconclusive", "rejected", "skipped", "error"])
def test_no_verdict_makes_nothing_stale(verdict: str) -> None:
    baseline = Baseline(expected={NAMES[0]: BaselineEntry(verdict="fail")})

    assert baseline.stale([Finding(check=NAMES[0], verdict=verdict)]) == []  # type: ignore[arg-type]
    assert baseline.stale([]) == []


def test_checks_that_no_longer_exist_are_stale() -> None:
    assert Baseline(expected={"a/b/c": BaselineEntry(verdict="fail")}).stale([]) == ["a/b/c"]


@pytest.mark.parametrize("content", ["", "[]", '{"format": 2}', '{"expected": {"a": {}}}', "[" * 100_000])
def test_a_file_that_is_no_baseline_is_refused(tmp_path: Path, content: str) -> None:
    path = tmp_path / "b.json"
    path.write_text(content, "utf-8")

    with pytest.raises(UnreadableBaseline):
        Baseline.read(path)


SAMPLED = [name for name, found in CHECKS.items() if found.sampled][:4]
STEADY = [name for name, found in CHECKS.items() if not found.sampled][:4]
rules = st.sampled_from([("TOOL-01",), ("TOOL-02",), ("TOOL-01", "TOOL-02")])


def found(check: str, verdict: str, named: tuple[str, ...]) -> Finding:
    problems = [Problem(expected="x", actual="y", rule=rule) for rule in named]
    return Finding(check=check, verdict=verdict, problems=problems if verdict != "pass" else [])  # type: ignore[arg-type]


@given(st.sampled_from(SAMPLED), rules, st.lists(st.sampled_from(["pass", "flaky", "fail"]), min_size=1))
def test_a_violation_that_comes_and_goes_is_one_entry(
    check: str, named: tuple[str, ...], runs: list[str]
) -> None:
    """After a flaky result, no later run is a new violation, makes the entry stale, or loses its reason."""
    baseline = Baseline(expected={check: BaselineEntry(verdict="flaky", why="issue 7", rules=list(named))})
    for verdict in runs:
        finding = found(check, verdict, named)

        assert baseline.stale([finding]) == []
        assert baseline.covers(finding) == (verdict != "pass")
        assert (
            status_of(report_of(RecordingHeader.of("u", "m"), [], [finding], baseline=baseline), strict=True)
            == 0
        )
        assert baseline.updated([finding]) == baseline


@given(st.sampled_from(SAMPLED), rules, rules)
def test_a_failure_that_is_flaky_now_is_the_same_if_its_rules_are(
    check: str, before: tuple[str, ...], now: tuple[str, ...]
) -> None:
    baseline = Baseline(expected={check: BaselineEntry(verdict="fail", why="issue 7", rules=list(before))})
    finding = found(check, "flaky", now)

    # Fewer broken rules are no new violation, but the entry is not true any more.
    assert baseline.covers(finding) == (set(now) <= set(before))
    assert (baseline.stale([finding]) == []) == (set(before) == set(now))
    assert baseline.updated([finding]).expected[check].verdict == "flaky"


@pytest.mark.parametrize("check", [SAMPLED[0], STEADY[0]])
@pytest.mark.parametrize("verdict", ["fail", "warn", "flaky", "untestable"])
def test_one_pass_ends_every_entry_but_one_of_chance(check: str, verdict: str) -> None:
    baseline = Baseline(expected={check: BaselineEntry(verdict=verdict)})
    finding = Finding(check=check, verdict="pass")

    by_chance = verdict == "flaky" and check in SAMPLED
    assert baseline.stale([finding]) == ([] if by_chance else [check])
    assert (check in baseline.updated([finding]).expected) == by_chance
