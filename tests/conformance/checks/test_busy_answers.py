"""Test that a server may be busy now and then: no check accuses it, whichever of its answers says so.

- By a status that asks to come later (429, 503, 529), in every scenario and for every request.
- By an error event in a stream that had begun.
- An event that says something else is a failure.
"""

from __future__ import annotations

import json
from typing import Any

import pytest
from example_servers.good_server import transcripts
from mutants.mutations import changed
from support.about import about

import plumbline_conformance.checks  # noqa: F401 - registers the suite
from plumbline_conformance.judge.verdicts import judge
from plumbline_conformance.suite.scenario import SCENARIOS
from plumbline_conformance.transcript.exchange import LATER, Exchange, Transcript
from plumbline_conformance.variations.formats import is_stream, with_body


def refused(exchange: Exchange, status: int) -> Exchange:
    kind = "rate_limit_error" if status == 429 else "overloaded_error"
    error: dict[str, Any] = {"type": kind, "message": "Come later."}
    said = {"type": "error", "error": error} if "/messages" in exchange.path else {"error": error}
    headers = [("content-type", "application/json"), ("retry-after", "1")]
    return changed(exchange, status=status, headers=headers, frames=[(0.0, json.dumps(said).encode())])


def interrupted(exchange: Exchange, kind: str) -> Exchange:
    """End a stream in its middle with an error event of its API."""
    blocks = exchange.body.split(b"\n\n")
    sent = blocks[: max(1, len(blocks) // 2)]
    error = {"type": kind, "code": kind, "message": "Come later."}
    said: dict[str, Any] = {"error": error}
    if exchange.path.endswith("/messages"):
        said["type"] = "error"
    elif "/responses" in exchange.path:
        said = {**error, "type": "error", "sequence_number": len(sent), "param": None}
    name = f"event: {said['type']}\n" if "type" in said else ""
    last = f"{name}data: {json.dumps(said)}\n\n".encode()
    return with_body(exchange, b"\n\n".join([*sent, last]))


def accused(scenario: str, place: int, one: Exchange) -> dict[str, Any]:
    exchanges = [*transcripts()[scenario].exchanges]
    exchanges[place] = one
    found = judge(Transcript(scenario=scenario, exchanges=exchanges))
    return {each.check: each.problems[:2] for each in found if each.verdict in ("fail", "warn")}


@pytest.mark.parametrize("every", [False, pytest.param(True, marks=pytest.mark.long)])
def test_a_busy_answer_breaks_no_rule(every: bool) -> None:
    """The long test answers each request with each status, the fast one with one of them in turn."""
    statuses = sorted(LATER)
    number = 0
    for scenario in SCENARIOS:
        for place, one in enumerate(transcripts()[scenario].exchanges):
            number += 1
            for status in statuses if every else [statuses[number % len(statuses)]]:
                with about((scenario, one.name, status)):
                    assert accused(scenario, place, refused(one, status)) == {}


def test_a_stream_that_ends_because_the_server_is_busy_breaks_no_rule() -> None:
    for scenario in SCENARIOS:
        for place, one in enumerate(transcripts()[scenario].exchanges):
            if one.method != "WEBSOCKET" and one.status == 200 and is_stream(one) and one.body:
                with about((scenario, one.name)):
                    assert accused(scenario, place, interrupted(one, "overloaded_error")) == {}


@pytest.mark.parametrize(
    "scenario", ["chat/stream-text", "completions/stream", "responses/stream-text", "messages/text"]
)
def test_another_failure_in_a_stream_is_one(scenario: str) -> None:
    place, one = next(
        (place, one) for place, one in enumerate(transcripts()[scenario].exchanges) if is_stream(one)
    )

    assert accused(scenario, place, interrupted(one, "server_error")) != {}
