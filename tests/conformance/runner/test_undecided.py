"""A scenario without a verdict because of other requests is repeated alone.

- Answers that differ while others run, and not alone, get the verdict of the answers alone.
- Answers that differ always stay inconclusive, and are asked for twice.
- A late answer makes the inconclusive checks of its scenario worth repeating.
- A repetition that keeps a rule which the first attempt broke does not replace it.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from example_servers.good_server import MODEL, serving, target_at, transcripts
from example_servers.odd_servers import answering
from mutants import MUTANTS

from plumbline_conformance.judge.verdicts import judge, replaces, worth_repeating_alone
from plumbline_conformance.runner.run import record
from plumbline_conformance.suite.scenario import SCENARIOS
from plumbline_conformance.transcript.exchange import Transcript

NAME = "chat/stream-text"
SAME = f"{NAME}/same-as-whole"


def varying(text: Callable[[int], str | None]) -> tuple[Any, list[int]]:
    """The reference, whose answers without `stream` have this text by their number; and the numbers of all."""
    asked: list[int] = []

    def change(path: str, body: Any) -> Any:
        if path != "/chat/completions" or body.get("stream") or "temperature" not in body:
            return None
        asked.append(len(asked))
        found = text(asked[-1])
        if found is None:
            return None
        message = {"role": "assistant", "content": found, "refusal": None}
        choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": "stop"}
        usage = {"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5}
        answer = {
            "id": f"chatcmpl-v{asked[-1]}",
            "object": "chat.completion",
            "created": int(time.time()),
            "system_fingerprint": "fp_1",
        }
        return (
            200,
            {"x-request-id": f"v{asked[-1]}"},
            {**answer, "model": MODEL, "choices": [choice], "usage": usage},
        )

    return answering(change), asked


def recorded(server: Any, patience: float = 60.0) -> Transcript:
    with serving(server) as base_url:
        [seen] = asyncio.run(record([SCENARIOS[NAME]], target_at(base_url), patience=patience))
    return seen


def verdict(seen: Transcript) -> str:
    [found] = [one.verdict for one in judge(seen) if one.check == SAME]
    return found


@pytest.mark.parametrize(
    ("text", "wanted", "requests"),
    [
        (lambda number: f"Text {number}" if number < 2 else None, "pass", 3),
        (lambda number: f"Text {number}", "inconclusive", 4),
        (lambda number: "Another text", "fail", 2),
    ],
    ids=["differs at first", "differs always", "differs from the stream"],
)
def test_answers_that_differ_are_asked_for_again_alone(
    text: Callable[[int], str | None], wanted: str, requests: int
) -> None:
    server, asked = varying(text)

    assert verdict(recorded(server)) == wanted
    assert len(asked) == requests


@pytest.mark.parametrize("mutation", [one[2] for one in MUTANTS if one[0] == NAME])
def test_a_repetition_that_keeps_a_broken_rule_does_not_replace(
    mutation: Callable[[Transcript], Transcript],
) -> None:
    good = transcripts()[NAME]
    bad = mutation(good)
    broken = any(one.verdict in ("fail", "warn", "untestable") for one in judge(bad))

    assert replaces(good, bad) is not broken
    assert replaces(bad, good)
    assert replaces(bad, bad)


@pytest.mark.parametrize("late", [False, True])
def test_a_late_answer_makes_a_scenario_worth_repeating(late: bool) -> None:
    seen = transcripts()[NAME]
    whole, stream = seen.exchanges
    cut = msgspec.structs.replace(stream, error="TimeoutError: no end") if late else stream
    found = Transcript(scenario=NAME, exchanges=[whole, cut])

    assert bool(worth_repeating_alone(found, late=late)) is late
