"""Outcomes of others' tests are compared with the lists of what is expected, and the page has the last numbers.

Laws:
    1. A failure that is not listed is a problem, and so is a listed difference that passes.
    2. An entry that no test matches is a problem.
    3. Every test counts once.
    4. Every list has reasons, and no test is in two lists.
    5. The page shows the committed results, without problems.
"""

from __future__ import annotations

from itertools import combinations
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from foreign_tests.expected import Expected, ForeignOutcome, Listed, Summary, read_expected, summary_of
from foreign_tests.page import PAGE, RESULTS, page_with
from foreign_tests.run import run
from foreign_tests.suites import SUITES

LISTS = Expected(
    different=(Listed(tests=("a.py::differs",), reason="design"),),
    inapplicable=(Listed(tests=("a.py::model[*",), reason="model"),),
)
EXPECTED = [
    ForeignOutcome(test="a.py::passes", result="passed"),
    ForeignOutcome(test="a.py::differs", result="failed"),
    ForeignOutcome(test="a.py::model[x]", result="left out"),
    ForeignOutcome(test="a.py::unit", result="skipped"),
]


def test_what_is_expected_is_counted() -> None:
    found = summary_of(LISTS, EXPECTED)

    assert found == Summary(passed=1, different={"design": 1}, inapplicable={"model": 1}, skipped=1)
    assert found.total == 4


@pytest.mark.parametrize(
    ("outcomes", "problem"),
    [
        (
            [ForeignOutcome(test="a.py::passes", result="failed", why="no"), *EXPECTED[1:]],
            "a.py::passes failed: no",
        ),
        (
            [EXPECTED[0], ForeignOutcome(test="a.py::differs", result="passed"), *EXPECTED[2:]],
            "a.py::differs passes, and is listed as a difference",
        ),
        ([EXPECTED[0], *EXPECTED[2:]], "no test is a.py::differs"),
        (EXPECTED[:2] + EXPECTED[3:], "no test is a.py::model[*"),
    ],
)
def test_anything_else_is_a_problem(outcomes: list[ForeignOutcome], problem: str) -> None:
    assert summary_of(LISTS, outcomes).problems == (problem,)


@given(st.lists(st.sampled_from(["passed", "failed", "skipped", "left out"]), max_size=8))
def test_every_test_counts_once(results: list[str]) -> None:
    outcomes = [
        ForeignOutcome(test=f"a.py::{number}", result=result)  # type: ignore[arg-type]
        for number, result in enumerate(results)
    ]

    assert summary_of(Expected(), outcomes).total == len(results)


def test_brackets_and_stars_of_ids() -> None:
    assert Listed(tests=("a.py::t[*",), reason="").names("a.py::t[1-x]")
    assert not Listed(tests=("a.py::t[x]",), reason="").names("a.py::tx")


@pytest.mark.parametrize("name", SUITES)
def test_the_lists_have_reasons_and_name_files_of_the_suite(name: str) -> None:
    lists = read_expected(SUITES[name].expected)
    patterns = [pattern for one in (*lists.different, *lists.inapplicable) for pattern in one.tests]

    assert all(one.reason and one.tests for one in (*lists.different, *lists.inapplicable))
    assert len(patterns) == len(set(patterns))
    assert not [(a, b) for a, b in combinations(patterns, 2) if Listed(tests=(a,), reason="").names(b)]
    for pattern in patterns:
        path = pattern.partition("::")[0].partition("[")[0]
        assert any(Listed(tests=(path,), reason="").names(file) for file in SUITES[name].files), pattern


def test_the_page_has_the_last_results() -> None:
    found = msgspec.json.decode(RESULTS.read_bytes(), type=dict[str, Summary])
    page = PAGE.read_text("utf-8")

    assert list(found) == list(SUITES)
    assert not any(one.problems for one in found.values())
    assert page_with(page, found) == page
    for name, one in found.items():
        lists = read_expected(SUITES[name].expected)
        assert {*one.different} == {listed.reason for listed in lists.different}
        assert {*one.inapplicable} == {listed.reason for listed in lists.inapplicable}


def test_a_folder_without_the_tests_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["llama-cpp", "--source", str(tmp_path)]) == 2
    assert "test_compat_anthropic.py is not there" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (["other"], "there is no suite other"),
        (["--source", "x"], "name it"),
        (["--tests", "x", "--write"], "whole"),
    ],
)
def test_wrong_arguments_are_refused(
    arguments: list[str], why: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        run(arguments)
    assert why in capsys.readouterr().err
