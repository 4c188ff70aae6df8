"""Test that any bytes of a server lead to verdicts, never to an exception or an error of the suite."""

from __future__ import annotations

import json
from copy import deepcopy
from typing import Any

from example_servers.good_server import MODEL, transcripts
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from mutants.mutations import changed, with_body
from support.about import about
from support.laws import EXPLORED

import plumbline_conformance.checks  # noqa: F401 - registers the suite
from plumbline_conformance.judge.verdicts import Finding, judge
from plumbline_conformance.suite.scenario import SCENARIOS, Target
from plumbline_conformance.transcript.exchange import Exchange, Transcript

SETTINGS = settings(
    max_examples=EXPLORED or 50,
    deadline=None,
    database=None,
    derandomize=True,
    suppress_health_check=list(HealthCheck),
)
SCALARS = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5)
KEYS = st.sampled_from(
    ["id", "choices", "index", "delta", "type", "item", "usage", "error", "data", "output"]
)
JSON: st.SearchStrategy[Any] = st.recursive(
    SCALARS | st.sampled_from([{}, [], "[DONE]", "\ud800", 10**400]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=4),
    max_leaves=8,
)
SCENARIO = st.sampled_from(sorted(SCENARIOS))


def judged(scenario: str, exchanges: list[Exchange]) -> list[Finding]:
    found = judge(Transcript(scenario=scenario, exchanges=exchanges))
    assert [finding for finding in found if finding.verdict == "error"] == []
    json.dumps([finding.reason for finding in found])
    return found


@st.composite
def altered(draw: st.DrawFn, value: Any) -> Any:
    """Generate the value with one nested value replaced."""
    value = deepcopy(value)
    if not isinstance(value, dict | list) or not value or draw(st.integers(0, 9)) == 0:
        return draw(JSON)
    key = draw(st.sampled_from(sorted(value) if isinstance(value, dict) else range(len(value))))
    if draw(st.integers(0, 5)) == 0:
        del value[key]
    else:
        value[key] = draw(altered(value[key]))
    return value


@st.composite
def near_right(draw: st.DrawFn, exchange: Exchange) -> Exchange:
    """Generate slightly changed answers."""
    if exchange.json is not None:
        return with_body(exchange, json.dumps(draw(altered(exchange.json))).encode())
    events = [(event.name, event.json if event.data != "[DONE]" else "[DONE]") for event in exchange.events]
    for _ in range(draw(st.integers(1, 3)) if events else 0):
        place = draw(st.integers(0, len(events) - 1))
        name, data = events[place]
        match draw(st.integers(0, 3)):
            case 0:
                events[place] = (draw(st.none() | st.text(max_size=3)), data)
            case 1:
                events.insert(place, events[draw(st.integers(0, len(events) - 1))])
            case _:
                events[place] = (name, draw(altered(data)))
    lines = [(f"event: {name}\n" if name else "") + f"data: {json.dumps(data)}\n\n" for name, data in events]
    return with_body(exchange, "".join(lines).encode("utf-8", "surrogatepass"))


@SETTINGS
@given(SCENARIO, st.data())
def test_answers_of_nearly_the_right_shape_get_verdicts(scenario: str, data: st.DataObject) -> None:
    judged(scenario, [data.draw(near_right(exchange)) for exchange in transcripts()[scenario].exchanges])


@SETTINGS
@given(SCENARIO, st.data(), st.sampled_from([0, 200, 201, 204, 302, 400, 401, 404, 422, 429, 500, 501, 503]))
def test_any_status_with_any_bytes_gets_verdicts(scenario: str, data: st.DataObject, status: int) -> None:
    exchanges = [
        with_body(exchange, data.draw(st.binary())) for exchange in transcripts()[scenario].exchanges
    ]
    for exchange in exchanges:
        exchange.status = status
    judged(scenario, exchanges)


@given(SCENARIO, st.sampled_from([[], None, True, [None], {}, "x", [{}]]), st.integers(0, 1))
@SETTINGS
def test_answers_with_other_choices_get_verdicts(scenario: str, choices: Any, index: int) -> None:
    exchanges = list(transcripts()[scenario].exchanges)
    place = index % len(exchanges)
    if isinstance(exchanges[place].json, dict):
        changed = {**exchanges[place].json, "choices": choices, "output": choices, "data": choices}
        exchanges[place] = with_body(exchanges[place], json.dumps(changed).encode())
    judged(scenario, exchanges)


@SETTINGS
@given(SCENARIO, st.integers(0, 5000))
def test_cut_bodies_get_verdicts(scenario: str, length: int) -> None:
    judged(scenario, [with_body(e, e.body[:length]) for e in transcripts()[scenario].exchanges])


@SETTINGS
@given(SCENARIO, st.integers(0, 3))
def test_scenarios_that_ended_early_get_verdicts(scenario: str, count: int) -> None:
    judged(scenario, transcripts()[scenario].exchanges[:count])


@settings(SETTINGS, max_examples=20)
@given(SCENARIO, st.sampled_from([b"[" * 100_000, b'{"a":' * 100_000, b"1" * 100_000, b"data: " * 100_000]))
@example("chat/stream-text", b"data: " + b"[" * 100_000 + b"\n\n")
@example("chat/stream-text", b"data: " + b"[" * 600 + b"]" * 600 + b"\n\n")
@example("chat/text", b'{"choices":' + b"[" * 600 + b"]" * 600 + b"}")
def test_monstrous_bodies_get_verdicts(scenario: str, body: bytes) -> None:
    judged(scenario, [with_body(exchange, body) for exchange in transcripts()[scenario].exchanges])


@SETTINGS
@given(SCENARIO, JSON)
def test_scenarios_go_on_whatever_they_are_answered(scenario: str, answer: Any) -> None:
    steps = SCENARIOS[scenario].steps(Target(base_url="http://x/v1", model=MODEL))
    sent = [next(steps)]
    most = len(transcripts()[scenario].exchanges) + 20
    try:
        while len(sent) < most:
            sent.append(
                steps.send(with_body(transcripts()[scenario].exchanges[0], json.dumps(answer).encode()))
            )
    except StopIteration:
        return
    raise AssertionError("a scenario without an end")


def test_an_answer_beside_those_that_did_not_end_gets_verdicts() -> None:
    """Other requests get no answer, so only this unexpected one is checked."""
    for scenario in SCENARIOS:
        with about(scenario):
            every = transcripts()[scenario].exchanges
            late = [changed(one, error="TimeoutError", frames=[]) for one in every]
            for place, one in enumerate(every):
                for content in (b"data: {}\n\ndata: [DONE]\n\n", b"[]", b'"x"'):
                    answered = changed(one, status=200, frames=[(0.0, content)])
                    judged(scenario, [*late[:place], answered, *late[place + 1 :]])
