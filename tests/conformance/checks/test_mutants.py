"""Test that each check passes the reference and detects its mutants."""

from __future__ import annotations

import pytest
from example_servers.good_server import transcripts
from mutants import MUTANTS
from mutants.mutations import Mutant
from mutants.named_rules import NAMED, named
from run_mutants import rule_of
from support.about import about

import plumbline_conformance.checks  # noqa: F401 - registers the suite
from plumbline_conformance.judge.verdicts import Finding, judge
from plumbline_conformance.suite.contract import rules
from plumbline_conformance.suite.scenario import CHECKS, FAILED, SCENARIOS, Check
from plumbline_conformance.transcript.exchange import Transcript

ACCUSING = ("fail", "warn", "untestable")
NAMES = [f"{scenario}: {name}" for scenario, name, _, _ in MUTANTS]


def test_a_good_server_passes_every_check() -> None:
    for scenario in SCENARIOS:
        with about(scenario):
            found = judge(transcripts()[scenario])

            assert found
            assert [finding for finding in found if finding.verdict != "pass"] == []


COMPARING = {
    *(name for name in CHECKS if name.endswith("/same-as-whole")),
    "models/list/retrievable",
    "models/list/every",
    "responses/inputs/text",
    "responses/inputs/chat",
    "completions/logprobs/stream-tokens",
    "responses/background/states",
    "responses/background-cancel/again",
    "responses/background-stream/resumed",
    "responses/conversation-changes/learnt",
}
"""Checks of two answers that differ. Either can be wrong; problems name one of them."""


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_a_broken_server_trips_its_checks_which_name_the_exchange_and_the_rule(scenario: str) -> None:
    """Each mutant is judged once, because there are many."""
    good = transcripts()[scenario]
    for name, mutation, tripped in (row[1:] for row in MUTANTS if row[0] == scenario):
        with about(name):
            bad = mutation(good)
            found = judge(bad)
            _exactly_the_listed_checks_accuse(scenario, tripped, found)
            _problems_name_the_broken_exchange(good, bad, found)
            _problems_name_the_broken_rules(scenario, name, tripped, found)


def _exactly_the_listed_checks_accuse(scenario: str, tripped: tuple[str, ...], found: list[Finding]) -> None:
    accused = {finding.check.rsplit("/", 1)[1]: finding for finding in found if finding.verdict in ACCUSING}
    assert set(accused) == set(tripped)
    assert accused[tripped[0]].problems
    for slug, finding in accused.items():
        must = CHECKS[f"{scenario}/{slug}"].level == "MUST"
        assert finding.verdict == "untestable" or finding.verdict == ("fail" if must else "warn"), finding
    assert "error" not in {finding.verdict for finding in found}


def _problems_name_the_broken_exchange(good: Transcript, bad: Transcript, found: list[Finding]) -> None:
    broken = {one.name for one in bad.exchanges if not any(one is other for other in good.exchanges)}
    named_exchanges = {
        problem.exchange
        for finding in found
        for problem in finding.problems
        if finding.check not in COMPARING
    }
    assert named_exchanges <= broken


def _problems_name_the_broken_rules(
    scenario: str, name: str, tripped: tuple[str, ...], found: list[Finding]
) -> None:
    for finding in found:
        slug, rules_of_check = finding.check.rsplit("/", 1)[1], CHECKS[finding.check].rules
        accused = {problem.rule for problem in finding.problems}
        assert accused <= {*rules_of_check, FAILED}
        if slug in tripped and finding.problems and len(rules_of_check) > 1:
            named_rules = named(scenario, slug, name)
            assert named_rules[:1] != []
            assert named_rules[0] in accused
            assert accused <= set(named_rules)


def test_a_mutant_is_counted_for_a_rule_that_its_check_observes() -> None:
    """`nox -s mutants` has a row for each rule that is the only one of a mutant's first check."""
    counted = {rule_of(scenario, name, slugs[0]) for scenario, name, _, slugs in MUTANTS}
    alone = {found.rules[0] for found in (_first(row) for row in MUTANTS) if len(found.rules) == 1}

    assert alone <= counted
    for scenario, name, _, slugs in MUTANTS:
        assert rule_of(scenario, name, slugs[0]) in (*CHECKS[f"{scenario}/{slugs[0]}"].rules, FAILED)


def _first(row: Mutant) -> Check:
    scenario, _, _, slugs = row
    return CHECKS[f"{scenario}/{slugs[0]}"]


def test_rules_are_named_of_mutants_that_there_are() -> None:
    used = set()
    for scenario, name, _, slugs in MUTANTS:
        surface = scenario.partition("/")[0]
        used |= {f"{place}/{slug}: {name}" for slug in slugs for place in (scenario, f"{surface}/*")}

    assert set(NAMED) - used == set()


def test_every_check_is_tripped_by_some_broken_server() -> None:
    tripped = {f"{scenario}/{slug}" for scenario, _, _, slugs in MUTANTS for slug in slugs}

    assert sorted(set(CHECKS) - tripped) == []
    assert sorted(tripped - set(CHECKS)) == []


def test_names_of_mutants_are_unique() -> None:
    assert len(set(NAMES)) == len(NAMES)


def test_every_must_that_is_checked_is_broken_by_somebody() -> None:
    """For each rule of a check, a mutant has a problem that names it."""
    broken = set()
    for scenario, name, _, slugs in MUTANTS:
        for slug in slugs:
            several = CHECKS[f"{scenario}/{slug}"].rules[1:]
            broken.add(named(scenario, slug, name)[0] if several else CHECKS[f"{scenario}/{slug}"].rules[0])
    observed = {rule for found in CHECKS.values() for rule in found.rules} | {FAILED}

    assert {rule for rule in observed if rules()[rule]["level"].startswith("MUST")} <= broken


def test_there_are_many_mutants() -> None:
    assert len(MUTANTS) >= 700
    assert len(CHECKS) >= 600
