"""Each check passes a good server and is tripped by a bad one."""

from __future__ import annotations

import pytest
from good_server import transcripts
from mutants import MUTANTS
from mutations import Mutation

import plumbline_conformance.checks  # noqa: F401 - registers the suite
from plumbline_conformance.case import CHECKS, SCENARIOS
from plumbline_conformance.judge import judge

NAMES = [f"{scenario}: {name}" for scenario, name, _, _ in MUTANTS]


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_a_good_server_passes_every_check(scenario: str) -> None:
    found = judge(transcripts()[scenario])

    assert found
    assert [finding for finding in found if finding.verdict != "pass"] == []


@pytest.mark.parametrize(("scenario", "_name", "mutation", "tripped"), MUTANTS, ids=NAMES)
def test_a_broken_server_trips_the_checks_of_the_rule(
    scenario: str, _name: str, mutation: Mutation, tripped: tuple[str, ...]
) -> None:
    found = {finding.check: finding for finding in judge(mutation(transcripts()[scenario]))}

    for slug in tripped:
        name = f"{scenario}/{slug}"
        assert found[name].verdict == ("fail" if CHECKS[name].level == "MUST" else "warn"), found[name]
        assert found[name].problems
    assert "error" not in {finding.verdict for finding in found.values()}


def test_every_check_is_tripped_by_some_broken_server() -> None:
    tripped = {f"{scenario}/{slug}" for scenario, _, _, slugs in MUTANTS for slug in slugs}

    assert sorted(set(CHECKS) - tripped) == []
    assert sorted(tripped - set(CHECKS)) == []


def test_names_of_mutants_are_unique() -> None:
    assert len(set(NAMES)) == len(NAMES)
