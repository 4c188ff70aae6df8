"""Test that faults are valid Python in the places that they name, and that a server runs with the changed module."""

from __future__ import annotations

import ast
import importlib
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.source_faults import Fault, faults_of

import plumbline_conformance.checks  # noqa: F401 - registers the suite
from plumbline_conformance.suite.scenario import CHECKS, SCENARIOS
from source_mutants.outcomes import (
    Draw,
    MutantOutcome,
    Survivor,
    append_outcome,
    counted,
    draws,
    read_outcomes,
    shares,
    survivors,
    wilson,
)
from source_mutants.run import FIRST, LEFT_OUT, PACKAGE, PACKAGES, UNCHANGED, parts
from source_mutants.swap import Change, Changed, NotSwappable, swap
from source_mutants.wide import SESSIONS

_SOURCE = '''
def f(a: int, b: str = "word") -> int:
    """Not a constant."""
    if a < 3 and not b:
        raise ValueError("a text that nobody compares" + "x")
    a += 1
    return g(one=a + 2, other=b)
'''


_MODULE = """\
VALUE = 1

def doubled(a):
    return a * 2

class Kind:
    name = "word"
    def inner(self, b):
        return b - 1

def counted():
    yield from range(3)

def adder(plus=1):
    def add(x):
        return x + plus
    return add

made = adder()
pair = (lambda a: a + 1, lambda a: a + 1)
"""


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The file of a module that can be imported."""
    path = tmp_path / "changed_module_of_a_test.py"
    path.write_text(_MODULE, "utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    yield path
    sys.modules.pop(path.stem, None)


def faults(tmp_path: Path) -> list[Fault]:
    path = tmp_path / "module.py"
    path.write_text(_SOURCE, "utf-8")
    return list(faults_of(path, tmp_path))


def test_each_kind_of_fault_is_found(tmp_path: Path) -> None:
    found = {fault.place.partition(": ")[2] for fault in faults(tmp_path)}
    for expected in (
        "a < 3 -> (a >= 3)",
        "a < 3 -> (a <= 3)",
        "a < 3 and (not b) -> (a < 3 or not b)",
        "a < 3 and (not b) -> True",
        "not b -> (b)",
        "3 -> 4",
        "'word' -> 'wordx'",
        "a += 1 -> pass",
        "a + 2 -> (a - 2)",
        "g(one=a + 2, other=b) -> g(one=b, other=a + 2)",
    ):
        assert expected in found
    texts = [place for place in found if not place.startswith("raise")]
    assert not any("nobody" in place or "Not a constant" in place for place in texts)


def test_every_fault_is_valid_python_and_changes_the_tree(tmp_path: Path) -> None:
    before = ast.dump(ast.parse(_SOURCE))
    for fault in faults(tmp_path):
        assert ast.dump(ast.parse(fault.apply(_SOURCE.encode()))) != before, fault.place


def test_a_module_is_imported_with_its_fault(module: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    change = Change(module.stem, str(module), "VALUE = 2")
    monkeypatch.setattr(sys, "meta_path", [Changed(change), *sys.meta_path])
    assert importlib.import_module(module.stem).VALUE == 2


def test_functions_that_others_have_imported_run_the_fault(module: Path) -> None:
    imported = importlib.import_module(module.stem)
    doubled, inner, counted = imported.doubled, imported.Kind().inner, imported.counted
    changed = _MODULE.replace("a * 2", "a * 3").replace("b - 1", "b - 2").replace("range(3)", "range(4)")
    swap(Change(module.stem, str(module), changed))
    assert (doubled(5), inner(5), list(counted())) == (15, 3, [0, 1, 2, 3])
    assert imported.made(10) == 11


def test_of_two_functions_of_one_name_on_one_line_the_changed_one_is_swapped(module: Path) -> None:
    pair = importlib.import_module(module.stem).pair
    swap(Change(module.stem, str(module), _MODULE.replace("lambda a: a + 1)", "lambda a: a + 2)")))
    assert [function(1) for function in pair] == [2, 3]


def test_a_function_whose_source_is_another_is_not_swapped(module: Path) -> None:
    imported = importlib.import_module(module.stem)
    imported.doubled.__code__ = imported.doubled.__code__.replace(co_consts=(None, 5))
    with pytest.raises(NotSwappable):
        swap(Change(module.stem, str(module), _MODULE.replace("a * 2", "a * 3")))


@pytest.mark.parametrize(
    ("old", "new"), [("VALUE = 1", "VALUE = 2"), ("plus=1", "plus=2"), ("x + plus", "x"), ("word", "other")]
)
def test_faults_that_only_an_import_shows_are_not_swapped(module: Path, old: str, new: str) -> None:
    importlib.import_module(module.stem)
    with pytest.raises(NotSwappable):
        swap(Change(module.stem, str(module), _MODULE.replace(old, new)))


def test_the_packages_exist_and_sessions_begin_with_a_request() -> None:
    assert all((PACKAGE / name).is_dir() for name in PACKAGES)
    assert all(list(PACKAGE.glob(f"{name}*")) for name in (*LEFT_OUT, UNCHANGED))
    names = [next(session()).name for session in SESSIONS.values()]
    assert all(names)


def test_each_survivor_is_listed_once_with_its_reason() -> None:
    rows = survivors()
    places = Counter(place for row in rows for place in row.faults)
    assert [place for place, count in places.items() if count > 1] == []
    assert all(row.why and not (row.legal and row.detected_by) for row in rows)
    assert {row.detected_by for row in rows if row.detected_by} <= set(CHECKS)


def test_each_listed_survivor_is_a_fault_of_the_source() -> None:
    listed = {place for row in survivors() for place in row.faults}
    files = {PACKAGE / place.split(" ")[0] for place in listed}
    assert [file for file in files if not file.is_file()] == []
    assert listed - {fault.place for file in files for fault in faults_of(file, PACKAGE)} == set()


def test_outcomes_are_kept_in_a_file_and_counted_by_their_reasons(tmp_path: Path) -> None:
    kinds = ("detected", "survived", "survived", "survived", "survived", "no change", "no start")
    file = tmp_path / "outcomes.jsonl"
    for number, kind in enumerate(kinds):
        append_outcome(file, MutantOutcome(seed=5, place=f"place {number}", kind=kind))
    append_outcome(file, MutantOutcome(seed=6, place="place 0", kind="survived"))
    reasons = [
        Survivor("", True, ["place 1"]),
        Survivor("", False, ["place 2"], detected_by="a check"),
        Survivor("", False, ["place 3"]),
    ]
    found = counted(read_outcomes(file, 5), reasons)
    assert found == Draw(seed=5, detected=1, legal=1, closed=1, missed=2)
    assert len(read_outcomes(file)) == len(kinds) + 1
    assert [line.partition(",")[0] for line in shares([found])] == [
        "5 faults of 1 seeds: 1 are legal",
        "detected when they were drawn: 1 of 4",
        "detected with the checks of today: 2 of 4",
    ]


def test_a_fault_that_is_tried_again_counts_once(tmp_path: Path) -> None:
    file = tmp_path / "outcomes.jsonl"
    for kind in ("survived", "detected"):
        append_outcome(file, MutantOutcome(seed=5, place="place", kind=kind))
    assert counted(read_outcomes(file), []) == Draw(seed=5, detected=1, legal=0, closed=0, missed=0)


def test_the_page_of_the_suite_has_the_counts_of_all_draws() -> None:
    page = Path(__file__).parents[3] / "docs" / "explanation" / "judge-suite.md"
    assert "\n".join(shares(draws())) in page.read_text("utf-8")


def test_the_interval_of_a_share_contains_it() -> None:
    for hits, total in ((0, 10), (5, 10), (10, 10), (95, 100)):
        low, high = wilson(hits, total)
        assert 0 <= low <= hits / total <= high <= 1
    assert wilson(0, 0) == (0.0, 1.0)


def test_faults_with_the_same_text_have_names_of_their_own(tmp_path: Path) -> None:
    path = tmp_path / "module.py"
    path.write_text("def f(a):\n    if a < 3:\n        return a < 3\n    return a < 3\n", "utf-8")
    places = [fault.place for fault in faults_of(path, tmp_path)]
    assert len(set(places)) == len(places)
    assert {"module.py f: a < 3 -> (a >= 3)", "module.py f: a < 3 -> (a >= 3) (2)"} <= set(places)


@given(st.lists(st.booleans(), max_size=40))
def test_each_scenario_is_in_one_run_of_the_judge_and_hostile_ones_come_last(hostile: list[bool]) -> None:
    groups = [[one for one in SCENARIOS.values() if one.hostile is kind] for kind in (False, True)]
    scenarios = [groups[kind].pop() for kind in hostile]
    runs = [list(part) for part in parts(scenarios)]
    sent = [one for part in runs for one in part]
    assert sorted(one.id for one in sent) == sorted(one.id for one in scenarios)
    assert [one.hostile for one in sent] == sorted(hostile)
    assert [len(part) for part in runs[:-1]] == [FIRST << number for number in range(len(runs) - 1)]
