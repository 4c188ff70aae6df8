"""Test that recordings from before requests had names get the names of today's requests."""

from __future__ import annotations

import msgspec
import pytest
from example_servers.good_server import MODEL, transcripts

import plumbline_conformance.checks  # noqa: F401 - registers the suite
from plumbline_conformance.recording.unnamed import name_exchanges
from plumbline_conformance.suite.scenario import SCENARIOS, Target
from plumbline_conformance.transcript.exchange import Exchange, Transcript

TARGET = Target(base_url="http://127.0.0.1/v1", model=MODEL)


def unnamed(exchanges: list[Exchange]) -> list[Exchange]:
    return [msgspec.structs.replace(one, name="") for one in exchanges]


def names(exchanges: list[Exchange]) -> list[str]:
    return [one.name for one in exchanges]


def test_exchanges_get_the_names_that_were_sent_in_each_attempt() -> None:
    for scenario in SCENARIOS:
        good = transcripts()[scenario].exchanges
        seen = Transcript(
            scenario=scenario, exchanges=unnamed(good), again=[unnamed(good), unnamed(good[:1])]
        )

        name_exchanges(seen, TARGET)

        assert names(seen.exchanges) == names(seen.again[0]) == names(good), scenario
        assert names(seen.again[1]) == names(good[:1]), scenario


@pytest.mark.parametrize(
    ("scenario", "last"),
    [("chat/stream-choices", "stream/13"), ("chat/nulls", "unknown/1")],
)
def test_exchanges_that_the_scenario_no_longer_sends_have_names(scenario: str, last: str) -> None:
    good = transcripts()[scenario].exchanges
    seen = Transcript(scenario=scenario, exchanges=unnamed([*good, good[-1]]))

    name_exchanges(seen, TARGET)

    assert names(seen.exchanges) == [*names(good), last]


def test_names_are_kept() -> None:
    good = transcripts()["chat/nulls"]
    seen = Transcript(scenario="chat/nulls", exchanges=[*reversed(good.exchanges)])

    name_exchanges(seen, TARGET)

    assert names(seen.exchanges) == [*reversed(names(good.exchanges))]
