"""Test stop-string checks on servers that repeat themselves and on others."""

from __future__ import annotations

import json
from copy import deepcopy

import pytest
from example_servers.good_server import transcripts
from mutants.mutations import with_body

import plumbline_conformance.checks  # noqa: F401 - registers the suite
from plumbline_conformance.checks.chat.stop import _stop_of
from plumbline_conformance.checks.stopped_text import same_answer
from plumbline_conformance.judge.verdicts import judge
from plumbline_conformance.transcript.exchange import Exchange, Transcript

GOOD = transcripts()["chat/stop"].exchanges
PLAIN = GOOD[0].json["choices"][0]["message"]["content"]
WORD = _stop_of(GOOD[0])
KEPT = PLAIN[: PLAIN.find(WORD)]


def saying(exchange: Exchange, text: str) -> Exchange:
    """Return the answer, streaming or not, with this text."""
    if exchange.json is not None:
        answer = json.loads(exchange.body)
        answer["choices"][0]["message"]["content"] = text
        return with_body(exchange, json.dumps(answer).encode())
    events = [deepcopy(event.json) for event in exchange.events if event.data != "[DONE]"]
    texts = iter([text])
    for event in events:
        for choice in event["choices"]:
            if choice["delta"].get("content"):
                choice["delta"]["content"] = next(texts, "")
    lines = [f"data: {json.dumps(event)}\n\n" for event in events]
    return with_body(exchange, "".join([*lines, "data: [DONE]\n\n"]).encode())


def verdicts(*texts: str) -> tuple[str, str]:
    """Return the verdicts of the two prefix checks for these three answers with a stop string."""
    exchanges = [GOOD[0], *(saying(one, text) for one, text in zip(GOOD[1:], texts, strict=True))]
    found = {one.check: one.verdict for one in judge(Transcript(scenario="chat/stop", exchanges=exchanges))}
    return found["chat/stop/prefix"], found["chat/stop/stream-prefix"]


def test_a_server_that_stops_in_the_right_place_passes() -> None:
    assert len(KEPT) > 1
    assert len(WORD) > 1
    assert verdicts(KEPT, KEPT, KEPT) == ("pass", "pass")


def test_a_full_stop_at_the_end_takes_witnesses() -> None:
    """A short rest may end any text, a longer one does not."""
    assert not same_answer("One two.", " two", "One.", ["On"])
    assert not same_answer("One two.", " two", "One.", [])
    assert same_answer("One two.", " two", "One.", ["One", "One."])
    assert same_answer("One two three.", " two", "One three.", [])


@pytest.mark.parametrize("early", [KEPT[:-1], KEPT[:1], KEPT + WORD[:1]])
def test_a_server_that_repeats_itself_and_ends_elsewhere_is_accused(early: str) -> None:
    assert verdicts(early, KEPT, KEPT) == ("fail", "pass")
    assert verdicts(KEPT, early, KEPT) == ("pass", "fail")
    assert verdicts(early, early, early) == ("fail", "fail")


@pytest.mark.parametrize("other", [KEPT[:-1], KEPT[:1], KEPT + WORD[:1], KEPT + "\u2603 and others"])
def test_a_text_that_only_begins_alike_accuses_nobody(other: str) -> None:
    """The third answer shows that the server does not repeat itself at temperature 0."""
    assert verdicts(other, "Something else.", "Quite another.") == ("inconclusive", "inconclusive")


def test_a_different_text_is_another_answer_whatever_the_others_are() -> None:
    assert verdicts(KEPT + "\u2603 and others", KEPT, KEPT) == ("inconclusive", "pass")


@pytest.mark.parametrize("on", [KEPT + WORD, PLAIN, KEPT + PLAIN[len(KEPT) + len(WORD) :]])
def test_a_server_that_goes_on_is_accused_without_witnesses(on: str) -> None:
    assert verdicts(on, "Something else.", "Quite another.")[0] == "fail"


COMPLETIONS = transcripts()["completions/stop"].exchanges


def of_completions(whole: str, streamed: str) -> tuple[str, str]:
    """Return the verdicts of the two prefix checks."""
    answer = json.loads(COMPLETIONS[1].body)
    answer["choices"][0]["text"] = whole
    events = [deepcopy(event.json) for event in COMPLETIONS[2].events if event.data != "[DONE]"]
    texts = iter([streamed])
    for event in events:
        for choice in event["choices"]:
            if choice["text"]:
                choice["text"] = next(texts, "")
    lines = [f"data: {json.dumps(event)}\n\n" for event in events]
    exchanges = [
        COMPLETIONS[0],
        with_body(COMPLETIONS[1], json.dumps(answer).encode()),
        with_body(COMPLETIONS[2], "".join([*lines, "data: [DONE]\n\n"]).encode()),
    ]
    seen = Transcript(scenario="completions/stop", exchanges=exchanges)
    found = {one.check: one.verdict for one in judge(seen)}
    return found["completions/stop/prefix"], found["completions/stop/stream-prefix"]


def test_completions_that_only_begin_alike_accuse_nobody() -> None:
    plain = COMPLETIONS[0].json["choices"][0]["text"]
    kept = plain[:3]

    assert of_completions(kept, kept) == ("pass", "pass")
    assert of_completions(plain[:2], kept) == ("fail", "pass")
    assert of_completions(plain[:2], plain[:2]) == ("fail", "fail")
    assert of_completions(kept, plain) == ("pass", "fail")
    assert of_completions(plain[:2], plain[:1]) == ("inconclusive", "inconclusive")
    assert of_completions(kept + "\u2603!", kept) == ("inconclusive", "pass")
