"""Check that the rules, checks, scripts and tests that docs/defects.md names exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

import plumbline_conformance.checks  # noqa: F401 - registers the suite
from plumbline_conformance.suite.contract import rules
from plumbline_conformance.suite.model import CHECKS

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "docs" / "defects.md").read_text("utf-8")
ROWS = [
    [cell.strip() for cell in line.strip("|").split("|")]
    for line in TEXT.splitlines()
    if line.startswith("| ") and not line.startswith(("| |", "| –"))
]
SCRIPTS = yaml.safe_load((ROOT / "src" / "plumbline" / "scripted_model" / "default.yaml").read_text("utf-8"))
NAMES = {script["name"] for script in SCRIPTS["scripts"]}


def test_every_report_has_its_row() -> None:
    assert [int(row[0]) for row in ROWS] == list(range(1, 104))
    assert {len(row) for row in ROWS} == {5}


@pytest.mark.parametrize("row", ROWS, ids=[row[0] for row in ROWS])
def test_what_is_named_exists_and_something_is(row: list[str]) -> None:
    _, report, wrong, broken, seen_by = row
    named = re.findall(r"`([^`]+)`", seen_by)
    checks = [name for name in named if name.count("/") == 2 and "::" not in name]
    tests = [name for name in named if name.startswith("tests/")]
    scripts = [
        name for told in re.findall(r"exact: ([^;]*)", seen_by) for name in re.findall(r"\*([^*]+)\*", told)
    ]

    assert re.search(r"#\d|CVE", report)
    assert wrong.endswith(".")
    assert broken == "–" or set(broken.split(", ")) <= set(rules())
    assert [name for name in checks if name not in CHECKS and name not in tests] == []
    assert set(scripts) <= NAMES
    assert [name for name in tests if not there(name)] == []
    assert checks or scripts or tests


def there(name: str) -> bool:
    """Whether there is such a file, and in it such a test."""
    path, _, test = name.partition("::")
    file = ROOT / path
    return file.is_file() and (not test or f"def {test}(" in file.read_text("utf-8"))


@pytest.mark.parametrize("row", ROWS, ids=[row[0] for row in ROWS])
def test_a_check_that_is_named_observes_a_rule_that_is_named(row: list[str]) -> None:
    """At least one check of a row belongs to the rule of that row."""
    told = set(row[3].split(", "))
    named = [CHECKS[name] for name in re.findall(r"`([^`]+)`", row[4]) if name in CHECKS]

    assert not named or told & {"–", "HTTP-17", "HTTP-14"} or any(told & set(found.rules) for found in named)


def test_the_page_is_linked() -> None:
    assert "(defects.md)" in (ROOT / "docs" / "judge-suite.md").read_text("utf-8")
