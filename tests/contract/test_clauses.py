"""Every clause of every rule has a check that detects a mutant without it, or a written reason."""

from __future__ import annotations

import re

from example_servers.good_server import transcripts
from mutants import MUTANTS

import plumbline_conformance.checks  # noqa: F401 - registers the suite
from plumbline_conformance.suite.clauses import PLACES, clauses, clauses_of
from plumbline_conformance.suite.contract import rules
from plumbline_conformance.suite.scenario import CHECKS
from plumbline_conformance.transcript.answer_fold import is_stream
from plumbline_conformance.transcript.exchange import Exchange

ZOO = {(scenario, name): (mutation, slugs) for scenario, name, mutation, slugs in MUTANTS}
APIS = {"createChatCompletion": "chat", "createCompletion": "completions", "createResponse": "responses"}
TRANSPORT = ("HTTP", "ERR", "SSE")
"""Families of rules about all routes. Their checks have evidence from several APIs, but not each clause from all."""
EVIDENCE = [
    (clause, place, one) for clause in clauses() for place, found in clause.evidence.items() for one in found
]


def test_a_rule_that_is_checked_has_clauses() -> None:
    """A rule without a check has a reason instead (`unchecked`)."""
    offenders = [rule for rule, found in rules().items() if any(clauses_of(rule)) == ("unchecked" in found)]
    assert offenders == []


def test_a_clause_has_checks_or_a_reason_for_each_kind_of_answer() -> None:
    for clause in clauses():
        name = clause.id
        assert re.fullmatch(rf"{clause.rule}[a-z]", name), name
        assert clause.clause.endswith((".", ").", "`.")), name
        assert clause.members, name
        assert clause.places, name
        assert all(clause.evidence.get(place) or clause.unchecked.get(place) for place in clause.places), name
        assert all(len(why) > 20 and not why.endswith(".") for why in clause.unchecked.values()), name


def test_a_rule_with_checks_has_a_clause_with_evidence() -> None:
    for rule in rules():
        found = list(clauses_of(rule))
        assert not found or any(clause.evidence for clause in found), rule


def test_evidence_is_a_mutant_that_its_check_detects() -> None:
    """The zoo's own tests prove that exactly the listed checks detect a mutant."""
    for clause, _, one in EVIDENCE:
        scenario, _, slug = one.check.rpartition("/")

        assert one.check in CHECKS, clause.id
        assert (scenario, one.mutant) in ZOO, clause.id
        assert slug in ZOO[scenario, one.mutant][1], (clause.id, one)


def test_evidence_is_about_the_kind_of_answer() -> None:
    """The mutant changes a whole answer, a stream or a refusal."""
    offenders = []
    for clause, place, one in EVIDENCE:
        scenario = one.check.rpartition("/")[0]
        good = transcripts()[scenario].exchanges
        bad = ZOO[scenario, one.mutant][0](transcripts()[scenario]).exchanges
        changed = {_kind(good[number]) for number in range(len(good)) if bad[number] is not good[number]}
        if place not in changed:
            offenders.append((clause.id, place, one))
    assert offenders == []


def _kind(exchange: Exchange) -> str:
    if exchange.status >= 400:
        return "refusal"
    streamed = is_stream(exchange) or exchange.method == "WEBSOCKET" or "stream=true" in exchange.url
    return "stream" if streamed else "whole"


def test_evidence_covers_every_api_of_the_rule() -> None:
    """A rule of several APIs has evidence from each of them, or says in `alike` why some show it for all."""
    for clause in clauses():
        wanted = {APIS[name] for name in rules()[clause.rule]["operations"] if name in APIS}
        if len(wanted) < 2 or clause.rule.partition("-")[0] in TRANSPORT:
            continue
        for place, found in clause.evidence.items():
            if place == "refusal":
                continue  # The scenarios below `errors/` send the requests of several APIs.
            missing = wanted - {one.check.partition("/")[0] for one in found}

            assert not missing or len(clause.alike) > 20, f"{clause.id}, {place}: nothing about {missing}"


def test_clauses_are_about_known_kinds_of_answers() -> None:
    keys = {key for rule in rules().values() for part in rule.get("clauses", ()) for key in part}

    assert keys <= {"id", "clause", "members", "alike", *PLACES}


def test_clauses_are_many() -> None:
    assert len(clauses()) >= 380
    assert len(EVIDENCE) >= 500


def test_each_rule_names_the_document_that_carries_it() -> None:
    """What no document says is a SHOULD, or its source says so."""
    vague = ("implied", "derived", "common practice", "the server-sent events format")

    assert [name for name, rule in rules().items() if rule["source"].lower().startswith(vague)] == []
