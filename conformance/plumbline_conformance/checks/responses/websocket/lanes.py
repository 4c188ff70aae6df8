"""Check lanes: turns of one WebSocket that may take place at once (WS-10)."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from typing import Any

from plumbline_conformance.checks.common import only
from plumbline_conformance.checks.responses.websocket.connection import NEEDS, create, messages_of
from plumbline_conformance.checks.responses.websocket.turns import FAILED, TERMINAL, flaws
from plumbline_conformance.suite.scenario import (
    Inconclusive,
    Problem,
    Rejected,
    Request,
    Target,
    breaking,
    check,
    scenario,
)
from plumbline_conformance.suite.wording import as_json
from plumbline_conformance.transcript.exchange import Exchange, Transcript

_TURNS = {"agent_1": 2, "agent_2": 1}
"""How many turns the scenario requests, by lane."""


@scenario("websocket/lanes", "Three turns on two lanes, requested at once", needs=NEEDS)
def lanes(target: Target) -> Generator[Request, Exchange, None]:
    asked = [
        create(target, question, stream_id=lane)
        for lane, question in (("agent_1", "One"), ("agent_2", "Two"), ("agent_1", "Three"))
    ]
    yield Request(name="all", path="/responses", method="WEBSOCKET", socket="a", json=asked, turns=3)


def _events(seen: Transcript) -> list[dict[str, Any]]:
    found = messages_of(only(seen))
    for event in found:
        error = event.get("error")
        if event.get("type") == "error" and isinstance(error, dict) and error.get("param") == "stream_id":
            raise Rejected("it refuses stream_id")
    return found


@check("websocket/lanes/named", "Name the lane in every event", "WS-10")
def named(seen: Transcript) -> Iterator[Problem]:
    for number, event in enumerate(_events(seen)):
        if event.get("stream_id") not in _TURNS:
            shown = as_json(event.get("stream_id"))[:100]
            yield Problem(
                expected="'agent_1' or 'agent_2'", actual=shown, pointer=f"event {number}, stream_id"
            )


@check(
    "websocket/lanes/as-stream",
    "Send the turns of each lane one after the other, as streams",
    "WS-10",
    "WS-03",
)
def in_order(seen: Transcript) -> Iterator[Problem]:
    found = _events(seen)
    by_lane = {lane: [event for event in found if event.get("stream_id") == lane] for lane in _TURNS}
    if sum(map(len, by_lane.values())) != len(found):
        raise Inconclusive("an event names no lane; another check reports this")
    for lane, events in by_lane.items():
        ends = [number for number, event in enumerate(events) if event.get("type") in (*TERMINAL, *FAILED)]
        begins = [number for number, event in enumerate(events) if event.get("type") == "response.created"]
        if begins != [0, *(end + 1 for end in ends[:-1])] or len(ends) != _TURNS[lane]:
            yield Problem(
                expected=f"{_TURNS[lane]} turns on {lane}, one after the other",
                actual=f"begun at {begins}, ended at {ends} of its events",
                pointer="events",
                rule="WS-10",
            )
            continue
        for begin, end in zip(begins, ends, strict=True):
            yield from breaking("WS-03", flaws(events[begin : end + 1]))
