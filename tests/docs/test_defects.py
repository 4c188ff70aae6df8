"""Check that the rules, checks, scripts and tests that docs/reference/defects.md names exist."""

from __future__ import annotations

import re
from pathlib import Path

import yaml

import plumbline_conformance.checks  # noqa: F401 - registers the suite
from plumbline_conformance.suite.contract import rules
from plumbline_conformance.suite.scenario import CHECKS

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "docs" / "reference" / "defects.md").read_text("utf-8")
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


def test_what_is_named_exists_and_something_is() -> None:
    for number, report, wrong, broken, seen_by in ROWS:
        named = re.findall(r"`([^`]+)`", seen_by)
        checks = [name for name in named if name.count("/") == 2 and "::" not in name]
        tests = [name for name in named if name.startswith("tests/")]
        scripts = [
            name
            for told in re.findall(r"exact: ([^;]*)", seen_by)
            for name in re.findall(r"\*([^*]+)\*", told)
        ]

        assert re.search(r"#\d|CVE", report), number
        assert wrong.endswith("."), number
        assert broken == "–" or set(broken.split(", ")) <= set(rules()), number
        assert [name for name in checks if name not in CHECKS and name not in tests] == [], number
        assert set(scripts) <= NAMES, number
        assert [name for name in tests if not there(name)] == [], number
        assert checks or scripts or tests, number


def there(name: str) -> bool:
    """Whether there is such a file, and in it such a test."""
    path, _, test = name.partition("::")
    file = ROOT / path
    return file.is_file() and (not test or f"def {test}(" in file.read_text("utf-8"))


def test_a_check_that_is_named_observes_a_rule_that_is_named() -> None:
    """At least one check of a row belongs to the rule of that row."""
    offenders = []
    for number, _, _, broken, seen_by in ROWS:
        told = set(broken.split(", "))
        named = [CHECKS[name] for name in re.findall(r"`([^`]+)`", seen_by) if name in CHECKS]
        if named and not told & {"–", "HTTP-17", "HTTP-14"}:
            offenders += [number] if not any(told & set(found.rules) for found in named) else []
    assert offenders == []


def test_the_page_is_linked() -> None:
    assert "(../reference/defects.md)" in (ROOT / "docs" / "explanation" / "judge-suite.md").read_text(
        "utf-8"
    )
