"""Test that late answers are asked for again, also those of scenarios that were repeated."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

import plumbline_conformance.checks  # noqa: F401 - registers the suite
from plumbline_conformance.runner.run import _Schedule
from plumbline_conformance.runner.session import DISTURBED
from plumbline_conformance.suite.scenario import SCENARIOS, Scenario
from plumbline_conformance.transcript.exchange import Exchange, Transcript

NAME = "chat/text"


class Attempts:
    """Return these transcripts, one for each attempt."""

    def __init__(self, *found: Transcript) -> None:
        self._found = list(found)

    async def of(self, scenario: Scenario) -> Transcript:
        return self._found.pop(0)

    def is_undecided(self, seen: Transcript) -> bool:
        return False


class Session:
    """Remember which transcripts are asked for again."""

    def __init__(self) -> None:
        self.insisted_on: list[str] = []

    async def silenced(self, seen: list[Transcript]) -> None:
        return None

    async def insisted(self, seen: Transcript) -> Transcript:
        self.insisted_on.append(seen.scenario)
        return seen


class Watch:
    over = ""


@pytest.mark.parametrize("disturbed", [False, True])
def test_a_late_answer_of_any_attempt_is_asked_for_again(disturbed: bool) -> None:
    late = Exchange(
        method="POST", url="http://a", request_headers={}, request_body=b"", error="TimeoutError: no end"
    )
    found = [Transcript(scenario=NAME, exchanges=[late])]
    if disturbed:
        found.insert(0, Transcript(scenario=NAME, exchanges=[], skipped=DISTURBED))
    session: Any = Session()
    attempts: Any = Attempts(*found)
    watch: Any = Watch()
    ended: list[str] = []

    schedule = _Schedule(attempts, session, watch, lambda seen: ended.append(seen.scenario))
    asyncio.run(schedule.run([SCENARIOS[NAME]]))

    assert session.insisted_on == ended == [NAME]
