"""Test that checks of clauses accept servers that keep a clause differently or refuse the feature."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from example_servers.good_server import transcripts
from mutants.basic import put
from mutants.mutations import Mutation, body, chunks, status, without

from plumbline_conformance.checks.laws import STREAM, WHOLE
from plumbline_conformance.judge.verdicts import judge
from plumbline_conformance.suite.scenario import SCENARIOS, Target


def verdicts(scenario: str, *changes: Mutation) -> dict[str, str]:
    """Return the verdicts by the last segment of each check, without `sound`, which is about the rest of the answer."""
    seen = transcripts()[scenario]
    for change in changes:
        seen = change(seen)
    found = {finding.check.rsplit("/", 1)[1]: finding.verdict for finding in judge(seen)}
    return {name: verdict for name, verdict in found.items() if name != "sound"}


def marked(answer: Any) -> None:
    """Add a start token that is listed but has no text."""
    for choice in answer["choices"]:
        lists = choice["logprobs"]
        lists["tokens"].insert(0, "<s>")
        lists["token_logprobs"].insert(0, None)
        lists["top_logprobs"].insert(0, None)
        lists["text_offset"].insert(0, 0)
        for kind in ("prompt", "total"):
            answer["usage"][f"{kind}_tokens"] += 1


def begun_unseen(answer: Any) -> None:
    """Add a start token that is counted but not listed."""
    for kind in ("prompt", "total"):
        answer["usage"][f"{kind}_tokens"] += len(answer["choices"])


@pytest.mark.parametrize("begins", [marked, begun_unseen])
def test_a_token_that_begins_every_text_is_no_chat_template(begins: Callable[[Any], None]) -> None:
    assert verdicts("completions/echo", body(begins))["bare"] == "pass"


def redrawn(answer: Any) -> None:
    """Return different texts in each run, despite the seed."""
    for place, choice in enumerate(answer["choices"]):
        choice["text"] = f"text {place}"
        choice["logprobs"]["token_logprobs"] = [-9.0] * len(choice["logprobs"]["tokens"])


def test_candidates_that_nobody_knows_accuse_nobody() -> None:
    found = verdicts(
        "completions/best-of", body(redrawn, "best"), body(put("usage", "completion_tokens", 1), "best")
    )

    assert found == {"n": "pass", "count": "pass", "best": "inconclusive", "counted": "inconclusive"}


def test_a_server_that_gives_one_choice_is_accused_of_that_alone() -> None:
    one = body(without("choices", slice(1, None)), None)

    found = verdicts("completions/best-of", one)

    assert found == {"n": "fail", "count": "inconclusive", "best": "inconclusive", "counted": "inconclusive"}


def test_an_echo_without_a_usage_is_no_fault_of_the_suite() -> None:
    assert verdicts("completions/echo", body(without("usage")))["bare"] == "inconclusive"


def test_a_tie_may_end_either_way() -> None:
    def tied(answer: Any) -> None:
        for choice in answer["choices"]:
            choice["logprobs"]["token_logprobs"] = [-0.5] * len(choice["logprobs"]["tokens"])

    assert verdicts("completions/best-of", body(tied, None))["best"] == "pass"


def test_a_model_that_calls_nothing_streams_no_arguments() -> None:
    def silent(found: list[Any]) -> None:
        for data in found:
            data["choices"][0]["delta"].pop("tool_calls", None)

    assert verdicts("chat/call-stream-long", chunks(silent)) == {"pieces": "inconclusive"}


def test_a_server_may_refuse_every_reference_to_an_item() -> None:
    assert verdicts("responses/item-reference", status(404, "with_reference")) == {"resolved": "rejected"}


def test_a_server_that_names_no_fingerprint_owes_none() -> None:
    def nameless(found: list[Any]) -> None:
        for data in found:
            del data["system_fingerprint"]

    found = verdicts("chat/stream-text", body(without("system_fingerprint"), WHOLE), chunks(nameless, STREAM))

    assert (found["fingerprint"], found["one-fingerprint"]) == ("inconclusive", "inconclusive")


def test_a_thought_before_what_goes_on_with_an_answer_is_no_fault() -> None:
    def thinks(answer: Any) -> None:
        answer["choices"][0]["message"]["reasoning_content"] = "Hm."

    assert verdicts("chat/prefill", body(thinks, WHOLE))["content"] == "pass"


@pytest.mark.parametrize("scenario", ["chat/stored", "responses/conversation", "responses/item-reference"])
def test_an_id_that_is_none_ends_the_conversation(scenario: str) -> None:
    """Ids that are unsafe in a path are not requested."""
    target = Target(base_url="http://127.0.0.1:1/v1", model="m")
    steps = SCENARIOS[scenario].steps(target)
    next(steps)
    named = [transcripts()[scenario].exchanges[0]]
    broken = body(lambda answer: answer.update(id="../x", output=[]))

    sent = 1
    try:
        while True:
            steps.send(broken(type(transcripts()[scenario])(scenario=scenario, exchanges=named)).exchanges[0])
            sent += 1
    except StopIteration:
        pass

    assert sent == (2 if scenario == "responses/item-reference" else 1)
