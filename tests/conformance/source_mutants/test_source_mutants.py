"""Test that faults are valid Python in the places that they name, and that a server runs with the changed module."""

from __future__ import annotations

import ast
import importlib
import sys
import tomllib
from collections import Counter
from pathlib import Path

import pytest
from support.source_faults import Fault, faults_of

from source_mutants.run import PACKAGE, PACKAGES, SURVIVORS, wilson
from source_mutants.server import _Changed
from source_mutants.wide import SESSIONS

_SOURCE = '''
def f(a: int, b: str = "word") -> int:
    """Not a constant."""
    if a < 3 and not b:
        raise ValueError("a text that nobody compares" + "x")
    a += 1
    return g(one=a + 2, other=b)
'''


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


def test_a_module_is_imported_with_its_fault(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "changed_module_of_a_test.py").write_text("VALUE = 1\n", "utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    path = str(tmp_path / "changed_module_of_a_test.py")
    monkeypatch.setattr(
        sys, "meta_path", [_Changed("changed_module_of_a_test", path, "VALUE = 2"), *sys.meta_path]
    )
    assert importlib.import_module("changed_module_of_a_test").VALUE == 2
    del sys.modules["changed_module_of_a_test"]


def test_the_packages_exist_and_sessions_begin_with_a_request() -> None:
    assert all((PACKAGE / name).is_dir() for name in PACKAGES)
    names = [next(session()).name for session in SESSIONS.values()]
    assert all(names)


def test_each_survivor_is_listed_once_with_its_reason() -> None:
    rows = tomllib.loads(SURVIVORS.read_text("utf-8")).get("survivor", [])
    places = Counter(place for row in rows for place in row["faults"])
    assert [place for place, count in places.items() if count > 1] == []
    assert all(row["why"] and isinstance(row["legal"], bool) for row in rows)


def test_the_interval_of_a_share_contains_it() -> None:
    for hits, total in ((0, 10), (5, 10), (10, 10), (95, 100)):
        low, high = wilson(hits, total)
        assert 0 <= low <= hits / total <= high <= 1
    assert wilson(0, 0) == (0.0, 1.0)
