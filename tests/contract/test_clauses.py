"""Every clause of every rule has a check that detects a mutant without it, or a written reason."""

from __future__ import annotations

import re

import pytest
from example_servers.good_server import transcripts
from mutants import MUTANTS

import plumbline_conformance.checks  # noqa: F401 - registers the suite
from plumbline_conformance.suite.clauses import PLACES, Clause, Evidence, clauses, clauses_of
from plumbline_conformance.suite.contract import rules
from plumbline_conformance.suite.model import CHECKS
from plumbline_conformance.transcript.answer_fold import is_stream
from plumbline_conformance.transcript.model import Exchange

ZOO = {(scenario, name): (mutation, slugs) for scenario, name, mutation, slugs in MUTANTS}
APIS = {"createChatCompletion": "chat", "createCompletion": "completions", "createResponse": "responses"}
TRANSPORT = ("HTTP", "ERR", "SSE")
"""Families of rules about all routes. Their checks have evidence from several APIs, but not each clause from all."""
EVIDENCE = [
    pytest.param(clause, place, one, id=f"{clause.id}-{place}-{one.check}-{one.mutant}")
    for clause in clauses()
    for place, found in clause.evidence.items()
    for one in found
]


@pytest.mark.parametrize("rule", rules())
def test_a_rule_that_is_checked_has_clauses(rule: str) -> None:
    """A rule without a check has a reason instead (`unchecked`)."""
    assert bool(list(clauses_of(rule))) != ("unchecked" in rules()[rule])


@pytest.mark.parametrize("clause", clauses(), ids=lambda clause: clause.id)
def test_a_clause_has_checks_or_a_reason_for_each_kind_of_answer(clause: Clause) -> None:
    assert re.fullmatch(rf"{clause.rule}[a-z]", clause.id)
    assert clause.clause.endswith((".", ").", "`."))
    assert clause.members
    assert clause.places
    assert all(clause.evidence.get(place) or clause.unchecked.get(place) for place in clause.places)
    assert all(len(why) > 20 and not why.endswith(".") for why in clause.unchecked.values())


@pytest.mark.parametrize("rule", [rule for rule in rules() if any(clauses_of(rule))])
def test_a_rule_with_checks_has_a_clause_with_evidence(rule: str) -> None:
    assert any(clause.evidence for clause in clauses_of(rule))


@pytest.mark.parametrize(("clause", "place", "one"), EVIDENCE)
def test_evidence_is_a_mutant_that_its_check_detects(clause: Clause, place: str, one: Evidence) -> None:
    """The zoo's own tests prove that exactly the listed checks detect a mutant."""
    scenario, _, slug = one.check.rpartition("/")

    assert one.check in CHECKS
    assert (scenario, one.mutant) in ZOO
    assert slug in ZOO[scenario, one.mutant][1]


@pytest.mark.parametrize(("clause", "place", "one"), EVIDENCE)
def test_evidence_is_about_the_kind_of_answer(clause: Clause, place: str, one: Evidence) -> None:
    """The mutant changes a whole answer, a stream or a refusal."""
    scenario = one.check.rpartition("/")[0]
    good = transcripts()[scenario].exchanges
    bad = ZOO[scenario, one.mutant][0](transcripts()[scenario]).exchanges

    changed = {_kind(good[number]) for number in range(len(good)) if bad[number] is not good[number]}
    assert place in changed


def _kind(exchange: Exchange) -> str:
    if exchange.status >= 400:
        return "refusal"
    streamed = is_stream(exchange) or exchange.method == "WEBSOCKET" or "stream=true" in exchange.url
    return "stream" if streamed else "whole"


@pytest.mark.parametrize("clause", clauses(), ids=lambda clause: clause.id)
def test_evidence_covers_every_api_of_the_rule(clause: Clause) -> None:
    """A rule of several APIs has evidence from each of them, or says in `alike` why some show it for all."""
    wanted = {APIS[name] for name in rules()[clause.rule]["operations"] if name in APIS}
    if len(wanted) < 2 or clause.rule.partition("-")[0] in TRANSPORT:
        return
    for place, found in clause.evidence.items():
        if place == "refusal":
            continue  # The scenarios below `errors/` send the requests of several APIs.
        missing = wanted - {one.check.partition("/")[0] for one in found}

        assert not missing or len(clause.alike) > 20, f"{place}: nothing about {missing}"


def test_clauses_are_about_known_kinds_of_answers() -> None:
    keys = {key for rule in rules().values() for part in rule.get("clauses", ()) for key in part}

    assert keys <= {"id", "clause", "members", "alike", *PLACES}


def test_clauses_are_many() -> None:
    assert len(clauses()) >= 380
    assert len(EVIDENCE) >= 500
