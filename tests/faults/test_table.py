"""The table of faults names tests that exist, and its page is the one that is committed."""

from __future__ import annotations

import ast

import pytest
from support.servers.recovery import measured

from .table import FAULTS, ROOT, named_tests, page


def test_the_page_is_the_one_that_the_table_makes() -> None:
    made = "python tests/faults/table.py docs/reference/faults.md"
    assert (ROOT / "docs/reference/faults.md").read_text("utf-8") == page(), made


@pytest.mark.parametrize("test", named_tests())
def test_every_test_of_the_table_exists(test: str) -> None:
    file, _, name = test.partition("::")
    tree = ast.parse((ROOT / file).read_text("utf-8"))
    defined = {
        node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    }
    assert not name or name in defined
    # pytest does not find a test of a module that skips itself, and then runs none of the table.
    skips = [node for node in tree.body if "importorskip" in ast.unparse(node) and not hasattr(node, "body")]
    assert not name or not skips


def test_every_test_of_this_folder_is_in_the_table() -> None:
    for path in (ROOT / "tests/faults").glob("test_*.py"):
        if path.name not in ("test_table.py", "test_soak.py"):
            defined = ast.parse(path.read_text("utf-8")).body
            names = {getattr(node, "name", "") for node in defined}
            here = {f"tests/faults/{path.name}::{name}" for name in names if name.startswith("test_")}
            assert here <= set(named_tests())


def test_every_measured_time_belongs_to_a_fault() -> None:
    names = {fault.name for faults in FAULTS.values() for fault in faults}
    assert measured().keys() <= names


def test_every_fault_has_a_test() -> None:
    assert all(fault.tests for faults in FAULTS.values() for fault in faults)
