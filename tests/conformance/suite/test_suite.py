"""Ids, levels and rules of the suite are consistent."""

from __future__ import annotations

import re
from collections.abc import Iterator

import msgspec
import pytest
from example_servers.good_server import transcripts

import plumbline_conformance.checks  # noqa: F401 - registers the suite
from plumbline_conformance.checks.common import usage_adds_up
from plumbline_conformance.judge.verdicts import Finding, judge
from plumbline_conformance.suite.contract import document, event_schemas, rules
from plumbline_conformance.suite.field_rules import rule_of, rules_of_shape
from plumbline_conformance.suite.scenario import CHECKS, SCENARIOS, Problem, check, scenario
from plumbline_conformance.transcript.exchange import Transcript

APIS = ("chat", "completions", "responses", "messages")
MILDER = {
    "chat/completion-limit/ordinary",
    "chat/choices/in-order",
    "chat/fields/ordinary",
    "completions/id-lists/ordinary",
    "completions/limits/ordinary",
    "messages/fields/ordinary",
    "messages/inputs/ordinary",
    "messages/members/ordinary",
    "messages/tool/ordinary",
    "models/list/once",
    *(f"{slug}/json" for slug in ("errors/responses-types", "errors/wrong-types", "messages/refused")),
    "responses/limits/reached",
    "responses/limits/stream-reached",
    "responses/reasoning-cut/reached",
    "responses/reasoning-cut/stream-reached",
    "messages/system-turns/read",
    "messages/bounds/refused",
    *(f"{api}/{slug}" for api in APIS for slug in ("bounds/taken", "fields/same-prompt")),
    *(f"{api}/repeats/{slug}" for api in ("chat", "responses") for slug in ("times", "model")),
    *(
        f"{api}/{slug}"
        for api in ("chat", "responses", "messages")
        for slug in ("members/same-prompt", "turns/read")
    ),
    "completions/echo-again/same",
    "messages/context/ending",
    "messages/context/stream-ending",
    "chat/stop-limit/reason",
    "messages/tool-error/marked",
    "responses/history-text/same",
    "websocket/errors/steps",
    "chat/function-role/read",
    "chat/stream-text/one-fingerprint",
    "errors/functions/called",
    "responses/item-forms/custom-call",
    "responses/stream-text/begun",
    "responses/stream-text/cache-writes",
    "responses/stream-text/steps",
    "responses/stream-text/terminator",
    "responses/tool/new-ids",
    "responses/tools/ended",
    "chat/tool/bare",
    "chat/tool/new-ids",
    "messages/tool/filled",
    "messages/tool/stream-filled",
    "responses/tool-result/call",
    *(
        f"{scenario}/{name}"
        for scenario in ("chat/tool-typed", "responses/tool-typed", "messages/tool-typed", "messages/tool")
        for name in ("arguments", "stream-arguments")
    ),
}
"""Checks that ask for less than their rule, each with the reason beside it in the code."""


def test_a_check_observes_rules_that_there_are() -> None:
    offenders = [
        name
        for name, found in CHECKS.items()
        if not found.rules or not set(found.rules) <= set(rules()) or len(set(found.rules)) < len(found.rules)
    ]
    assert offenders == []


def test_a_check_takes_its_level_from_its_first_rule() -> None:
    offenders = [
        name
        for name, found in CHECKS.items()
        if found.level
        != ("SHOULD" if name in MILDER else rules()[found.rules[0]]["level"].removesuffix(" NOT"))
    ]
    assert offenders == []


def test_ids_are_slugs_below_their_scenario() -> None:
    offenders = [
        name
        for name in CHECKS
        if not re.fullmatch(r"[a-z0-9-]+/[a-z0-9-]+/[a-z0-9-]+", name)
        or name.rsplit("/", 1)[0] not in SCENARIOS
    ]
    assert offenders == []


def test_titles_begin_with_a_capital_and_have_no_full_stop() -> None:
    titles = {name: found.title for name, found in CHECKS.items()}
    assert {n: title for n, title in titles.items() if not title[0].isupper() or title.endswith(".")} == {}


def test_a_scenario_has_checks() -> None:
    assert set(SCENARIOS) == {name.rsplit("/", 1)[0] for name in CHECKS}


def test_what_is_core_is_little() -> None:
    assert {name for name, found in SCENARIOS.items() if found.core} == {
        "chat/text",
        "chat/stream-text",
        "models/list",
    }


def test_nothing_is_registered_twice() -> None:
    with pytest.raises(ValueError, match="twice"):
        scenario("chat/text", "again")(SCENARIOS["chat/text"].steps)
    with pytest.raises(ValueError, match="twice"):
        check("chat/text/shape", "Again", "CHAT-01")(CHECKS["chat/text/shape"].judge)
    with pytest.raises(ValueError, match="before its scenario"):
        check("no/scenario/here", "Nothing", "CHAT-01")(CHECKS["chat/text/shape"].judge)


def test_every_event_has_a_schema() -> None:
    """RS-17."""
    assert event_schemas()["response.output_text.delta"] == "ResponseTextDeltaEvent"


def _sloppy(rule: str) -> Finding:
    """Judge a check of two rules that reports a problem for this rule."""

    def judge_(seen: Transcript) -> Iterator[Problem]:
        yield Problem(expected="a", actual="b", rule=rule)

    found = msgspec.structs.replace(CHECKS["chat/text/shape"], rules=("CHAT-01", "CHAT-03"), judge=judge_)
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(CHECKS, "chat/text/shape", found)
        seen = transcripts()["chat/text"]
        [finding] = [one for one in judge(seen) if one.check == found.id]
    return finding


def test_a_problem_of_one_of_several_rules_names_it() -> None:
    assert _sloppy("CHAT-03").verdict == "fail"
    assert [problem.rule for problem in _sloppy("CHAT-03").problems] == ["CHAT-03"]


def _placed(exchange: str | None, request: str | None) -> Finding:
    """Judge a check of a scenario with two requests, whose problem names this exchange."""

    def judge_(seen: Transcript) -> Iterator[Problem]:
        yield Problem(expected="a", actual="b", exchange=exchange)

    found = msgspec.structs.replace(CHECKS["chat/nulls/taken"], judge=judge_, request=request)
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(CHECKS, found.id, found)
        [finding] = [one for one in judge(transcripts()["chat/nulls"]) if one.check == found.id]
    return finding


@pytest.mark.parametrize(
    ("exchange", "request_", "named"),
    [("plain", None, "plain"), (None, "with_nulls", "with_nulls"), ("plain", "with_nulls", "plain")],
)
def test_a_problem_is_about_its_exchange_or_that_of_its_check(
    exchange: str | None, request_: str | None, named: str
) -> None:
    assert [problem.exchange for problem in _placed(exchange, request_).problems] == [named]


@pytest.mark.parametrize("exchange", [None, "", "no such request"])
def test_a_problem_that_names_no_exchange_of_several_is_a_fault_of_the_suite(exchange: str | None) -> None:
    assert _placed(exchange, None).verdict == "error"


def test_two_exchanges_with_one_name_are_a_fault_of_the_suite() -> None:
    [one, _] = transcripts()["chat/nulls"].exchanges

    found = judge(Transcript(scenario="chat/nulls", exchanges=[one, one]))

    assert {finding.verdict for finding in found} == {"error"}


def test_a_check_is_about_a_request_of_its_scenario() -> None:
    offenders = []
    for name, found in CHECKS.items():
        sent = [one.name for one in transcripts()[name.rsplit("/", 1)[0]].exchanges]
        if found.request is not None and found.request not in {
            *sent,
            *(one.partition("/")[0] for one in sent),
        }:
            offenders.append(name)
    assert offenders == []


def test_requests_of_a_scenario_have_names_that_differ() -> None:
    for name, seen in transcripts().items():
        sent = [one.name for one in seen.exchanges]
        assert len(set(sent)) == len(sent), name
        assert "" not in sent or len(sent) == 1, name


@pytest.mark.parametrize("rule", ["", "CHAT-04", "no rule"])
def test_a_problem_that_names_none_of_them_is_a_fault_of_the_suite(rule: str) -> None:
    assert _sloppy(rule).verdict == "error"


@pytest.mark.parametrize("schema", ["CreateChatCompletionResponse", "Response"])
def test_rule_of_a_field(schema: str) -> None:
    """Every rule of a shape can be named, and what no sentence speaks of has a rule as well."""
    members = document()["components"]["schemas"][schema]["properties"]
    named = {rule_of(schema, [member]) for member in members} | {
        rule_of(schema, ["choices", 0, "message", "role"])
    }
    named |= {rule_of(schema, ["choices", 3, "finish_reason"])}

    assert named == set(rules_of_shape(schema))
    assert (
        rule_of(schema, []) == rule_of(schema, ["what", "nobody", 1, "knows"]) == rules_of_shape(schema)[-1]
    )
    assert rule_of("ErrorResponse", ["error"]) == ""


@pytest.mark.parametrize(
    ("counts", "expected"),
    [
        ((1, 2, 3), []),
        ((1, 2, 4), ["prompt_tokens + completion_tokens = total_tokens"]),
        ((0, 2, 2), ["at least 1 token of a prompt"]),
        ((1, 2, None), ["prompt_tokens + completion_tokens = total_tokens"]),
    ],
)
def test_a_problem_of_usage_names_the_fault(counts: tuple[int | None, ...], expected: list[str]) -> None:
    usage = dict(zip(("prompt_tokens", "completion_tokens", "total_tokens"), counts, strict=True))

    found = list(usage_adds_up(usage, prompt="prompt_tokens", completion="completion_tokens"))

    assert [problem.expected for problem in found] == expected


def test_a_prompt_has_tokens_in_responses_as_well() -> None:
    usage = {"input_tokens": 0, "output_tokens": 16, "total_tokens": 16}

    (problem,) = usage_adds_up(usage, prompt="input_tokens", completion="output_tokens")
    assert problem.pointer == "usage.input_tokens"
