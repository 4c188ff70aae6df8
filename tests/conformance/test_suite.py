"""What the suite says of itself: ids, levels, rules."""

from __future__ import annotations

import re

import pytest

import plumbline_conformance.checks  # noqa: F401 - registers the suite
from plumbline_conformance.case import CHECKS, SCENARIOS, check, scenario
from plumbline_conformance.contract import event_schemas, rules

MILDER = {"responses/stream-text/terminator"}
"""Checks that ask for less than their rule, each with the reason beside it in the code."""


@pytest.mark.parametrize("name", CHECKS)
def test_a_check_observes_rules_and_takes_its_level_from_the_first(name: str) -> None:
    found = CHECKS[name]

    assert found.rules
    assert set(found.rules) <= set(rules())
    assert len(set(found.rules)) == len(found.rules)
    level = rules()[found.rules[0]]["level"].removesuffix(" NOT")
    assert found.level == ("SHOULD" if name in MILDER else level)


@pytest.mark.parametrize("name", CHECKS)
def test_ids_are_slugs_below_their_scenario(name: str) -> None:
    assert re.fullmatch(r"[a-z0-9-]+/[a-z0-9-]+/[a-z0-9-]+", name)
    assert name.rsplit("/", 1)[0] in SCENARIOS
    assert CHECKS[name].title[0].isupper()
    assert not CHECKS[name].title.endswith(".")


@pytest.mark.parametrize("name", SCENARIOS)
def test_a_scenario_has_checks(name: str) -> None:
    assert any(found.startswith(f"{name}/") for found in CHECKS)


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
