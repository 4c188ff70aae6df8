"""Every rule has checks or a reason, and published checks never disappear."""

from __future__ import annotations

import hashlib

import pytest

from plumbline_conformance.cli import main
from plumbline_conformance.suite import selection
from plumbline_conformance.suite.contract import rules
from plumbline_conformance.suite.coverage import (
    UNCHECKED,
    as_markdown,
    as_published,
    manifest,
    published,
    revisions,
)
from plumbline_conformance.suite.scenario import CHECKS
from plumbline_conformance.suite.selection import Selection

CLOSED = {
    "2026-11": "7a9438cc3b0e4b408409fef63c8477f7f56f13e099194faf620bc7b8177c8bd6",
}
"""The digests of the sets that nothing is added to any more."""


def test_a_rule_has_checks_or_a_reason() -> None:
    assert [rule for rule, observed in manifest().items() if not observed] == []


def test_a_rule_with_checks_has_no_excuse() -> None:
    observed = {rule for found in CHECKS.values() for rule in found.rules}

    assert set(UNCHECKED) & observed == set()
    assert set(UNCHECKED) <= set(rules())
    assert observed <= set(rules())


def test_reasons_are_sentences() -> None:
    assert all(len(reason) > 20 and not reason.endswith(".") for reason in UNCHECKED.values())


def test_what_was_published_is_still_there() -> None:
    """Suites only grow: a check with other verdicts gets another id.

    Every id of every set is still an id, or an alias of one.
    """
    for name in revisions():
        assert set(published(name)) <= set(CHECKS), "a check that is called otherwise leaves an alias"


def test_new_checks_are_published() -> None:
    """If the last set is closed, new checks go into a new file named by its month."""
    assert set(CHECKS) <= set(published(revisions()[-1]))


def test_a_published_set_never_changes() -> None:
    """A published set always selects the same checks."""
    found = {
        name: hashlib.sha256("\n".join(sorted(as_published(name))).encode()).hexdigest()
        for name in revisions()
    }
    assert CLOSED.items() <= found.items()


def test_a_run_can_be_limited_to_a_set(monkeypatch: pytest.MonkeyPatch) -> None:
    """Newer checks are neither sent nor judged."""
    older = [name for name in CHECKS if not name.startswith("models/")]
    monkeypatch.setattr(selection, "published", lambda revision: older if revision == "2026-10" else [])

    assert Selection(requirements="2026-10").checks() == older
    assert Selection(requirements="2026-10", surfaces=["models"]).checks() == []
    assert set(Selection().checks()) == set(CHECKS)


def test_the_page_is_what_the_command_prints(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["checks", "--rules", "--markdown"]) == 0

    assert capsys.readouterr().out == as_markdown()


def test_the_rules_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["checks", "--rules"]) == 0

    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines if not line.startswith(" ")] == list(rules())
    assert any("not checked: " in line for line in lines)


@pytest.mark.parametrize("more", [[], ["--clauses"]])
def test_the_list_of_rules_fits_a_terminal(more: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["checks", "--rules", *more]) == 0

    assert all(len(line) <= 100 for line in capsys.readouterr().out.splitlines())
