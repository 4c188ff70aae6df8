"""Test that `watch` applies every law to live traffic, without false violations."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

from example_servers.good_server import transcripts
from hypothesis import given
from hypothesis import strategies as st
from mutants import MUTANTS
from mutants.mutations import changed

from plumbline_conformance.checks.selected_laws import laws_of, watched
from plumbline_conformance.suite.scenario import CHECKS, SCENARIOS
from plumbline_conformance.transcript.exchange import Exchange
from plumbline_conformance.watch.live import judge_live

FIELDS = [
    "tools",
    "tool_choice",
    "n",
    "stop",
    "response_format",
    "stream_options",
    "text",
    "include",
    "prompt",
]
FIELDS += ["reasoning", "max_tokens", "structured_outputs", "logprobs", "metadata", "top_logprobs"]
MEMBERS = [
    "type",
    "name",
    "tools",
    "format",
    "json_schema",
    "schema",
    "strict",
    "function",
    "choice",
    "regex",
]
STRANGE = st.recursive(
    st.none()
    | st.integers()
    | st.text(max_size=3)
    | st.booleans()
    | st.sampled_from(["json_schema", "function"]),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from(MEMBERS), inner, max_size=2),
    max_leaves=6,
)


def lone(exchange: Exchange) -> dict[str, str]:
    """Return the verdicts for an exchange of another client."""
    return {finding.check: finding.verdict for finding in judge_live(exchange)}


def test_the_references_traffic_is_clean_for_every_client_and_every_law_is_met() -> None:
    met: Counter[str] = Counter()
    for transcript in transcripts().values():
        for exchange in transcript.exchanges:
            found = lone(exchange)
            # Answers to a wrong key get no verdict, and neither do laws without enough information.
            wrong = {
                name: verdict for name, verdict in found.items() if verdict not in ("pass", "inconclusive")
            }
            assert wrong == {}, (transcript.scenario, exchange.request_body)
            met.update(name for name, verdict in found.items() if verdict == "pass")

    assert {CHECKS[name].law for name in watched()} - {CHECKS[name].law for name in met} == set()


def test_most_checks_are_laws_and_all_laws_are_watched() -> None:
    assert len(watched()) > 400
    assert set(watched()) == {name for name, found in CHECKS.items() if found.law is not None}


def test_a_law_is_reported_once_under_the_scenario_that_requests_most() -> None:
    for transcript in transcripts().values():
        for exchange in transcript.exchanges:
            laws = [law for _, law in laws_of(exchange)]
            assert len(set(laws)) == len(laws)
    whole, stream = transcripts()["chat/tool-required"].exchanges
    assert {"chat/tool-required/called", "chat/tool-required/shape"} <= set(lone(whole))
    assert {"chat/tool-required/stream-called", "chat/tool-required/wire"} <= set(lone(stream))


def test_live_judging_sees_what_the_mutants_break() -> None:
    """An answer that breaks a law in a scenario also breaks it in live traffic."""
    tried = 0
    for scenario, name, mutation, slugs in MUTANTS:
        good, bad = transcripts()[scenario].exchanges, mutation(transcripts()[scenario]).exchanges
        broken = [one for place, one in enumerate(bad) if place >= len(good) or one is not good[place]]
        findings = [finding for one in broken for finding in judge_live(one)]
        laws = {CHECKS[f.check].law for f in findings if f.verdict in ("fail", "warn", "untestable")}
        for slug in slugs:
            found = CHECKS[f"{scenario}/{slug}"]
            # Laws do not report crashes, because live requests need not be valid.
            crashed = any(one.status >= 500 for one in broken)
            if found.law is not None and found.of != "refusal" and not crashed:
                assert found.law in laws, (scenario, name, slug)
                tried += 1
    assert tried > 400


@given(st.sampled_from(sorted(SCENARIOS)), st.sampled_from(sorted(SCENARIOS)), st.data())
def test_no_answer_stops_the_judge(one: str, other: str, data: st.DataObject) -> None:
    """Answers to other requests get verdicts, but no errors of the suite."""
    request = data.draw(st.sampled_from(transcripts()[one].exchanges))
    answer = data.draw(st.sampled_from(transcripts()[other].exchanges))
    mixed = changed(answer, method=request.method, url=request.url, request_body=request.request_body)

    assert "error" not in set(lone(mixed).values())


@given(
    st.dictionaries(st.sampled_from(FIELDS), STRANGE, max_size=4),
    st.sampled_from(["chat/stream-text", "responses/stream-text", "completions/text", "chat/json-schema"]),
)
def test_no_request_stops_the_judge(strange: dict[str, Any], scenario: str) -> None:
    for exchange in transcripts()[scenario].exchanges:
        asked = {**exchange.request_json, **strange}
        found = lone(changed(exchange, request_body=json.dumps(asked).encode()))
        assert found
        assert "error" not in set(found.values())
