"""Test that sweeps accuse no server of what the API allows or leaves open, and still accuse of the rest.

A row is a legal server: its answers get no failure, and at most the warnings that the row names. Beside it stands what
an illegal server differs in, which the named check accuses.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from example_servers.good_server import transcripts
from mutants.mutations import Mutation, body, changed, with_body

import plumbline_conformance.checks  # noqa: F401 - registers the suite
from plumbline_conformance.judge.verdicts import Finding, judge
from plumbline_conformance.transcript.exchange import Exchange, Transcript

REFUSAL = {"error": {"message": "No.", "type": "invalid_request_error", "param": None, "code": None}}
MESSAGES_REFUSAL = {"type": "error", "error": {"type": "invalid_request_error", "message": "No."}}


def everywhere(change: Callable[[Exchange], Exchange], chosen: Callable[[Exchange], object]) -> Mutation:
    """Change the exchanges of a scenario that are chosen."""

    def mutate(seen: Transcript) -> Transcript:
        found = [change(one) if chosen(one) else one for one in seen.exchanges]
        assert found != list(seen.exchanges), "nothing was changed"
        return Transcript(scenario=seen.scenario, exchanges=found)

    return mutate


def refused(status: int, answer: Any = REFUSAL) -> Callable[[Exchange], Exchange]:
    """Return what makes an exchange a refusal."""
    kept = [("content-type", "application/json")]
    return lambda one: with_body(changed(one, status=status, headers=kept), json.dumps(answer).encode())


def filtered(answer: Any) -> None:
    for choice in answer["choices"]:
        choice["message"].update(content="", refusal=None)
        choice["finish_reason"] = "content_filter"


def broken(answer: Any) -> None:
    for choice in answer["choices"]:
        choice["message"]["content"] = "[]"


def thinking(one: Exchange) -> Exchange:
    answer = json.loads(one.body)
    answer["content"] = [
        {"type": "thinking", "thinking": "Hm", "signature": "x"},
        {"type": "text", "text": "x"},
    ]
    return with_body(one, json.dumps(answer).encode())


def tokens(count: int) -> Callable[[Any], None]:
    def change(answer: Any) -> None:
        usage = answer["usage"]
        usage.update(prompt_tokens=count, total_tokens=count + usage["completion_tokens"])
        usage.update(prompt_tokens_details=None)

    return change


def folded(answer: Any) -> None:
    for choice in answer["choices"]:
        choice["text"] = choice["text"].casefold().replace("🌊", "[UNK]")
        choice["logprobs"] = None


def cut_echo(answer: Any) -> None:
    for choice in answer["choices"]:
        choice["text"] = choice["text"][20:]
        choice["logprobs"] = None


def is_beyond(one: Exchange) -> bool:
    return one.name.startswith("top_p most, beyond")


def taken(scenario: str) -> Mutation:
    """Answer what is beyond a bound as what is at it."""
    base = next(one for one in transcripts()[scenario].exchanges if one.name == "top_p most")
    return everywhere(
        lambda one: changed(one, status=200, headers=base.headers, frames=base.frames), is_beyond
    )


LEGAL: list[tuple[str, str, Mutation, set[str]]] = [
    ("chat/json-keywords", "a content filter", body(filtered, "pattern"), set()),
    (
        "messages/stops",
        "no stop string of white space alone",
        everywhere(refused(400, MESSAGES_REFUSAL), lambda one: one.name.startswith("space")),
        set(),
    ),
    ("messages/stops", "thinking", everywhere(thinking, lambda one: one.name == "plain"), set()),
    (
        "chat/scripts",
        "estimated tokens",
        everywhere(lambda one: with_body(one, _estimated(one)), lambda _: True),
        set(),
    ),
    ("completions/echo-text", "a tokenizer that folds case and lacks the emoji", body(folded), set()),
    ("messages/bounds", "values beyond a bound", taken("messages/bounds"), {"messages/bounds/refused"}),
    (
        "chat/bounds",
        "no such field",
        everywhere(refused(501), lambda one: one.name.startswith("top_p most")),
        set(),
    ),
]
ILLEGAL: list[tuple[str, str, Mutation, str]] = [
    ("chat/json-keywords", "another value", body(broken, "pattern"), "chat/json-keywords/valid"),
    ("completions/echo-text", "a prompt that is cut", body(cut_echo), "completions/echo-text/whole"),
    ("chat/scripts", "letters that are lost", body(tokens(9), "Greek"), "chat/scripts/read"),
    ("chat/bounds", "values beyond a bound", taken("chat/bounds"), "chat/bounds/refused"),
]


def _estimated(one: Exchange) -> bytes:
    answer = json.loads(one.body)
    tokens(10 + len(json.dumps(one.request_json)) // 16)(answer)
    return json.dumps(answer).encode()


def accused(found: list[Finding]) -> dict[str, str]:
    return {one.check: one.verdict for one in found if one.verdict in ("fail", "warn", "error")}


@pytest.mark.parametrize(
    ("scenario", "_what", "mutation", "warned"), LEGAL, ids=[f"{s}: {w}" for s, w, _, _ in LEGAL]
)
def test_a_legal_server_is_not_accused(
    scenario: str, _what: str, mutation: Mutation, warned: set[str]
) -> None:
    assert accused(judge(mutation(transcripts()[scenario]))) == dict.fromkeys(warned, "warn")


@pytest.mark.parametrize(
    ("scenario", "_what", "mutation", "check"), ILLEGAL, ids=[f"{s}: {w}" for s, w, _, _ in ILLEGAL]
)
def test_what_is_illegal_beside_it_is_accused(
    scenario: str, _what: str, mutation: Mutation, check: str
) -> None:
    assert accused(judge(mutation(transcripts()[scenario]))).get(check) == "fail"
