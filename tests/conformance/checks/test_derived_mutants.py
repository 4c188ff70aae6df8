"""Faults derived from answers and schemas are detected, or listed with a reason. `nox -s mutants` tries all of them."""

from __future__ import annotations

import pytest
from derived.faults import PAIR, faults, pairs
from derived.survivors import LISTED, PAIRS, Listed, _patterns, judged, survives
from derived.values import faults_of
from example_servers.good_server import transcripts
from hypothesis import given
from hypothesis import strategies as st

SAMPLE = (
    "chat/text",
    "chat/tool",
    "completions/logprobs",
    "responses/tool",
    "websocket/errors",
)
"""`nox -s mutants` takes all scenarios."""
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
)


@given(st.dictionaries(st.text(min_size=1, max_size=3), VALUES, min_size=1, max_size=4))
def test_every_fault_is_another_value_with_its_own_name(value: dict[str, object]) -> None:
    found = list(faults_of(value))

    assert all(changed != value or repr(changed) != repr(value) for _, changed in found)
    assert {name.split(" ")[0] for name, _ in found} >= {"drop"}


@pytest.mark.long
def test_no_fault_survives_without_a_reason_and_nearly_all_illegal_ones_are_detected() -> None:
    outcome = judged([transcripts()[scenario] for scenario in SAMPLE])

    assert outcome.unlisted == []
    assert outcome.errors == []
    assert outcome.total > 50 * len(SAMPLE)
    assert outcome.missed > 0
    assert outcome.share >= 0.98


def test_a_survivor_that_nothing_lists_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("derived.survivors.LISTED", [])

    outcome = judged([transcripts()["chat/text"]])

    assert outcome.listed == 0
    assert "chat/text whole whole: append id" in outcome.unlisted
    assert not any(name.split(": ")[1] == "drop choices" for name in outcome.unlisted)


def test_streams_have_faults_of_their_events() -> None:
    names = {fault.name for fault in faults(transcripts()["responses/tool"])}

    assert {"stream output_item.done: drop", "stream function_call_arguments.delta: repeat"} <= names
    assert "stream completed: drop response.usage" in names


def test_turns_of_a_websocket_have_the_faults_of_streams() -> None:
    good = transcripts()["websocket/queue"]
    found = {fault.name: fault for fault in faults(good)}

    assert len(found["stream created: drop"].exchange.frames) == len(good.exchanges[0].frames) - 1
    assert not survives(found["stream created: drop"], good)


@pytest.mark.parametrize("scenario", SAMPLE[:2])
def test_pairs_are_a_bounded_sample_and_always_the_same(scenario: str) -> None:
    good = transcripts()[scenario]
    names = [fault.id for fault in pairs(good, PAIRS)]

    assert 0 < len(names) <= PAIRS * len(good.exchanges)
    assert all(name.count(PAIR) == 1 for name in names)
    assert names == [fault.id for fault in pairs(good, PAIRS)]


def test_a_pair_is_listed_if_both_faults_are(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [
        Listed(why="", legal=True, faults=["*: append id"]),
        Listed(why="", legal=True, faults=["a 0 whole: drop x + whole: drop y"]),
    ]
    monkeypatch.setattr("derived.survivors.LISTED", rows)

    assert list(_patterns("a 0 whole: append id + whole: append id")) == ["*: append id"] * 2
    assert list(_patterns("a 0 whole: append id + whole: drop id")) == []
    assert list(_patterns("a 0 whole: drop id + whole: append id")) == []
    assert len(list(_patterns("a 0 whole: drop x + whole: drop y"))) == 1


def test_a_lost_delta_is_detected_only_if_the_server_repeats_itself() -> None:
    good = transcripts()["chat/stream-text"]
    fault = next(one for one in faults(good) if one.name == "stream content: drop")

    assert not survives(fault, good)


def test_reasons_are_sentences() -> None:
    assert all(len(row.why) > 60 and row.why.endswith(".") and row.faults for row in LISTED)
    patterns = [pattern for row in LISTED for pattern in row.faults]
    assert len(set(patterns)) == len(patterns)
