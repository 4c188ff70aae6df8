"""Rules, checks and requirement sets belong together: nothing dangles, and nothing that was published goes."""

from __future__ import annotations

from pathlib import Path

import pytest

from plumbline_conformance.case import CHECKS
from plumbline_conformance.cli import main
from plumbline_conformance.contract import rules
from plumbline_conformance.manifest import UNCHECKED, as_markdown, manifest, published

PAGE = Path(__file__).parents[2] / "docs" / "rules.md"


@pytest.mark.parametrize("rule", rules())
def test_a_rule_has_checks_or_a_reason(rule: str) -> None:
    assert manifest()[rule]


def test_a_rule_with_checks_has_no_excuse() -> None:
    observed = {rule for found in CHECKS.values() for rule in found.rules}

    assert set(UNCHECKED) & observed == set()
    assert set(UNCHECKED) <= set(rules())
    assert observed <= set(rules())


def test_reasons_say_something() -> None:
    assert all(len(reason) > 20 and not reason.endswith(".") for reason in UNCHECKED.values())


def test_what_was_published_is_still_there() -> None:
    """Suites only grow: a check with another verdict is another check, with an id of its own."""
    assert set(published()) <= set(CHECKS)


def test_new_checks_are_published() -> None:
    assert set(CHECKS) <= set(published())


def test_the_page_is_what_the_command_prints(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["list", "--rules", "--markdown"]) == 0

    assert capsys.readouterr().out == as_markdown() == PAGE.read_text("utf-8")


def test_the_rules_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["list", "--rules"]) == 0

    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == list(rules())
    assert any("not checked: " in line for line in lines)
