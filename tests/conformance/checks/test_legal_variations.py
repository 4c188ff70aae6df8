"""Test that no check fails because of what SSE, HTTP and JSON allow.

- Every variation of the table leaves every verdict of every scenario, but for warnings that the table names.
- A variation changes something, so that the test shows something.
- What clients are judged by breaks no rule either.
- Where a refusal may be 400, it may be 422.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

import pytest
from example_servers.good_server import transcripts
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from mutants.mutations import changed
from support.about import about
from support.laws import EXPLORED

import plumbline_conformance.checks  # noqa: F401 - registers the suite
from plumbline_conformance.judge.verdicts import Finding, judge
from plumbline_conformance.suite.contract import rules
from plumbline_conformance.suite.scenario import CHECKS, SCENARIOS
from plumbline_conformance.transcript.exchange import Transcript
from plumbline_conformance.variations.contract import CONTRACT
from plumbline_conformance.variations.formats import FORMATS as VARIATIONS
from plumbline_conformance.variations.formats import Variation

NAMES = [f"{one.allowed_by}: {one.name}" for one in VARIATIONS]
LINE_ENDS = ("carriage returns and line feeds", "carriage returns", "mixed line ends")


def varied(scenario: str, *variations: Variation) -> Transcript:
    seen = transcripts()[scenario]
    exchanges = list(seen.exchanges)
    for variation in variations:
        exchanges = [variation.change(exchange) for exchange in exchanges]
    return Transcript(scenario=scenario, exchanges=exchanges)


@cache
def unvaried(scenario: str) -> Sequence[Finding]:
    return judge(transcripts()[scenario])


def findings(seen: Transcript) -> Sequence[Finding]:
    """Judge a transcript; most variations change only some scenarios, so the others are judged once."""
    same = seen.exchanges == transcripts()[seen.scenario].exchanges
    return unvaried(seen.scenario) if same else judge(seen)


def accused(seen: Transcript, warns: tuple[str, ...]) -> dict[str, tuple[Any, ...]]:
    """Return the findings that are neither a pass nor a warning of these rules."""
    return {
        finding.check: (finding.verdict, finding.reason, finding.problems[:2])
        for finding in findings(seen)
        if finding.verdict != "pass" and not (finding.verdict == "warn" and set(finding.broken) <= set(warns))
    }


@pytest.mark.parametrize("every", [False, pytest.param(True, marks=pytest.mark.long)])
@pytest.mark.parametrize("variation", VARIATIONS, ids=NAMES)
def test_what_a_format_allows_breaks_no_rule(variation: Variation, every: bool) -> None:
    """The long test varies all scenarios, the fast one every third, beginning with another for the next variation."""
    scenarios = list(SCENARIOS) if every else list(SCENARIOS)[VARIATIONS.index(variation) % 3 :: 3]
    wrong = {
        name: found for name in scenarios if (found := accused(varied(name, variation), variation.warns))
    }

    assert wrong == {}


REPEATS = "ids of one character"
"""In a scenario of several answers their ids become equal, which no server may send."""


@pytest.mark.parametrize(
    "variation", [one for one in CONTRACT if one.name != REPEATS], ids=lambda variation: variation.name
)
def test_what_clients_are_judged_by_breaks_no_rule(variation: Variation) -> None:
    scenarios = ("chat/text", "chat/tools", "completions/text", "responses/tool", "messages/text")
    fails = {
        check: found
        for name in scenarios
        for check, found in accused(varied(name, variation), ()).items()
        if found[0] == "fail"
    }

    assert fails == {}


@pytest.mark.parametrize("variation", VARIATIONS, ids=NAMES)
def test_a_variation_changes_something(variation: Variation) -> None:
    assert any(
        (old.frames, old.headers) != (new.frames, new.headers)
        for name in SCENARIOS
        for old, new in zip(transcripts()[name].exchanges, varied(name, variation).exchanges, strict=True)
    )


@settings(
    max_examples=EXPLORED or 25,
    deadline=None,
    database=None,
    derandomize=True,
    suppress_health_check=list(HealthCheck),
)
@given(
    st.sampled_from(sorted(SCENARIOS)),
    st.lists(st.sampled_from(VARIATIONS), min_size=2, max_size=3, unique_by=id),
)
def test_variations_together_break_no_rule(scenario: str, variations: list[Variation]) -> None:
    warns = tuple(rule for variation in variations for rule in variation.warns)

    # Values are rewritten before lines, line ends after lines, and a byte order mark is one at the beginning only.
    ends = [one for one in variations if one.name in LINE_ENDS]
    others = [one for one in variations if one not in ends[1:]]
    ordered = sorted(others, key=_order)

    assert accused(varied(scenario, *ordered), warns) == {}


def _order(variation: Variation) -> int:
    if variation.name == "a byte order mark":
        return 4
    if variation.name in LINE_ENDS:
        return 3
    return {"RFC 8259": 0}.get(variation.allowed_by, 1 if "over several" in variation.name else 2)


def test_warnings_are_of_rules_that_say_should() -> None:
    tidy = [found for name, found in CHECKS.items() if name.endswith("/tidy")]

    assert {found.level for found in tidy} == {"SHOULD"}
    assert {rule for one in VARIATIONS for rule in one.warns} <= {
        rule for found in tidy for rule in found.rules
    }
    assert {rule for one in VARIATIONS for rule in one.warns} <= set(rules())


def test_a_refusal_may_be_400_or_422() -> None:
    """Frameworks answer 422 to bodies that they cannot validate."""
    for scenario in SCENARIOS:
        with about(scenario):
            seen = transcripts()[scenario]
            exchanges = [
                changed(exchange, status=422) if exchange.status == 400 else exchange
                for exchange in seen.exchanges
            ]

            assert accused(Transcript(scenario=scenario, exchanges=exchanges), ()) == {}


@pytest.mark.parametrize(
    "error",
    [
        "RemoteProtocolError: Server disconnected without sending a response.",
        "ReadError",
    ],
)
def test_a_server_may_close_a_kept_connection_without_notice(error: str) -> None:
    """RFC 9112, section 9.5: the next request may be on its way already."""
    seen = transcripts()["chat/connection"]
    closed = [
        changed(one, status=0, headers=[], frames=[], error=error) if one.name == "after/2" else one
        for one in seen.exchanges
    ]
    found = judge(Transcript(scenario=seen.scenario, exchanges=closed))

    assert {one.verdict for one in found if one.check == "chat/connection/served"} == {"inconclusive"}
