"""Test that servers which differ from ours but keep the rules pass."""

from __future__ import annotations

import re
from typing import Any

import msgspec
import pytest
from example_servers.good_server import transcripts
from mutants.basic import counted
from mutants.mutations import (
    Event,
    Mutation,
    body,
    body_bytes,
    chunk,
    chunks,
    events,
    header,
    renamed,
    status,
)
from mutants.typed import answered_all_the_same

import plumbline_conformance.checks  # noqa: F401 - registers the suite
from plumbline_conformance.checks.laws import STREAM, WHOLE
from plumbline_conformance.judge.verdicts import Finding, judge
from plumbline_conformance.suite.schema_validation import violations


def answers_with(text: str | None, reason: str = "stop", tokens: int = 1) -> Mutation:
    """Replace text, finish reason and number of tokens of a non-streaming answer."""

    def change(answer: Any) -> None:
        for choice in answer["choices"]:
            choice["message"]["content"] = text
            choice["finish_reason"] = reason
        answer["usage"].update(
            completion_tokens=tokens, total_tokens=answer["usage"]["prompt_tokens"] + tokens
        )

    return body(change)


def nulls(answer: Any) -> None:
    """Send every optional field as null, as servers do that serialize whole models."""
    answer.update(service_tier=None, system_fingerprint=None, usage={**answer["usage"]})
    answer["usage"].update(prompt_tokens_details=None, completion_tokens_details=None)
    for choice in answer["choices"]:
        choice["message"].update(annotations=None, audio=None, function_call=None, tool_calls=None)


def extensions(answer: Any) -> None:
    answer.update(prompt_logprobs=None, kv_transfer_params=None, timings={"prompt_ms": 1.0})
    answer["choices"][0].update(stop_reason=None, token_ids=None)
    answer["choices"][0]["message"]["reasoning_content"] = "Hm."


def end_token(answer: Any) -> None:
    """Add an entry for the token that ended the answer."""
    choice = answer["choices"][0]
    choice["finish_reason"] = "stop"
    entry = {"token": "<end>", "logprob": 0.0, "bytes": list(b"<end>"), "top_logprobs": []}
    choice["logprobs"]["content"].append(entry)


def no_bytes(answer: Any) -> None:
    for entry in answer["choices"][0]["logprobs"]["content"]:
        entry["bytes"] = None


def empty(answer: Any) -> None:
    answer["choices"][0].update(finish_reason="stop", logprobs={"content": [], "refusal": None})
    answer["choices"][0]["message"]["content"] = ""


def full_context(answer: Any) -> None:
    """End an answer far from its limit because prompt and answer fill the context."""
    answer["usage"].update(input_tokens=4000, output_tokens=1, total_tokens=4001)


def ended_call(answer: Any) -> None:
    """End a call whose arguments are not JSON before the limit, as a model without a grammar may."""
    answer.update(status="completed", incomplete_details=None, completed_at=answer["created_at"])
    answer["output"][-1]["status"] = "completed"
    counted("output_tokens", 12)(answer)


def one_by_one(found: list[Event]) -> list[Event]:
    """Send all chunks of the first choice, then all of the second."""
    order = [data["choices"][0]["index"] if data != "[DONE]" else 2 for _, data in found]
    return [event for _, event in sorted(zip(order, found, strict=True), key=lambda pair: pair[0])]


def at_once(found: list[Event]) -> list[Event]:
    """Send role, text and finish reason in one chunk."""
    chunks = [data for _, data in found[:-1]]
    text = "".join(data["choices"][0]["delta"].get("content") or "" for data in chunks)
    chunks[-1]["choices"][0]["delta"] = {"role": "assistant", "content": text}
    return [(None, chunks[-1]), found[-1]]


def second_item(found: list[Event]) -> list[Event]:
    """Add a second item that is open at the same time as the first."""
    item = {"type": "function_call", "id": "fc_1", "call_id": "c", "name": "f", "arguments": ""}
    added = {
        "type": "response.output_item.added",
        "output_index": 1,
        "item": {**item, "status": "in_progress"},
    }
    done = {"type": "response.output_item.done", "output_index": 1, "item": {**item, "status": "completed"}}
    delta = {
        "type": "response.function_call_arguments.delta",
        "output_index": 1,
        "item_id": "fc_1",
        "delta": "",
    }
    for _, event in found[:-1]:  # Only the last item may be incomplete.
        ended = [event.get("item", {}), *event.get("response", {}).get("output", [])]
        for one in ended if event["type"] != "response.output_item.added" else ():
            one["status"] = "completed"
    found[-2][1]["response"]["output"].append(done["item"])
    places = {3: added, 6: delta, len(found) - 3: done}
    for place, event in sorted(places.items()):
        found.insert(place, (str(event["type"]), event))
    for number, (_, event) in enumerate(found[:-1]):
        event["sequence_number"] = number
    return found


def from_one(found: list[Any]) -> None:
    for event in found:
        event["sequence_number"] += 1


def points(content: bytes) -> bytes:
    """Write integers as 1.0, which is an integer in JSON Schema."""
    return re.sub(rb'(index|_number|_tokens|text_offset)": ?(\[?)(\d+)', rb'\1": \2\3.0', content)


def unknown_event(found: list[Event]) -> list[Event]:
    """Add an event with a prefixed type (RS-17)."""
    found.insert(-2, ("acme:trace", {"type": "acme:trace", "sequence_number": 0}))
    for number, (_, event) in enumerate(found[:-1]):
        event["sequence_number"] = number
    return found


FAIR: list[tuple[str, str, Mutation]] = [
    ("chat/text", "stops early", answers_with("No.")),
    ("chat/text", "says nothing", answers_with("", tokens=0)),
    ("chat/text", "has null for text", answers_with(None)),
    ("chat/text", "reaches the limit", answers_with("1 2 3 4 5 6 7 8", "length", 8)),
    ("chat/text", "writes every null", body(nulls)),
    ("chat/text", "has extensions", body(extensions)),
    ("chat/text", "names the charset", header("content-type", "Application/JSON; charset=utf-8")),
    ("chat/logprobs", "lists the end", body(end_token)),
    ("chat/logprobs", "has no bytes", body(no_bytes)),
    ("chat/logprobs", "says nothing", body(empty)),
    ("chat/stream-text", "sends all at once", events(at_once)),
    (
        "chat/stream-text",
        "keeps alive",
        body_bytes(lambda b: b": ping\n\n" + b.replace(b"\n\n", b"\n\n:\n\n")),
    ),
    ("chat/stream-text", "writes no space", body_bytes(lambda b: b.replace(b"data: ", b"data:"))),
    ("chat/stream-text", "begins with no choice", events(lambda f: [(None, {**f[0][1], "choices": []}), *f])),
    (
        "chat/stream-text",
        "writes role null",
        chunk(1, lambda c: c["choices"][0]["delta"].update(role=None)),
    ),
    ("chat/stream-choices", "goes one by one", events(one_by_one)),
    ("chat/stream-usage", "omits usage", chunks(lambda f: [c.pop("usage") for c in f[:-1]], STREAM)),
    ("completions/text", "sorts no choices", body(lambda a: a["choices"].reverse())),
    (
        "completions/text",
        "stops at once",
        body(lambda a: [c.update(text="", finish_reason="stop") for c in a["choices"]]),
    ),
    ("models/list", "makes `created` up", body(lambda m: m.update(created=1))),
    ("responses/stream-text", "begins at 1", chunks(from_one)),
    (
        "responses/conversation-item",
        "has nulls in single items",
        body(lambda item: item.update(x_vendor=None), "item"),
    ),
    ("responses/stream-text", "opens two items", events(second_item)),
    ("responses/stream-text", "has events of its own", events(unknown_event)),
    ("responses/stream-text", "writes integers with a point", body_bytes(points)),
    ("completions/echo", "writes integers with a point", body_bytes(points)),
    ("errors/empty-messages", "answers 422", status(422)),
    ("errors/wrong-types", "answers 422", status(422, None)),
]


def violated(found: list[Finding]) -> list[Finding]:
    return [finding for finding in found if finding.verdict in ("fail", "warn", "error")]


@pytest.mark.parametrize(("scenario", "_name", "mutation"), FAIR, ids=[f"{s}: {n}" for s, n, _ in FAIR])
def test_a_server_that_keeps_the_rules_is_not_accused(scenario: str, _name: str, mutation: Mutation) -> None:
    found = judge(mutation(transcripts()[scenario]))

    assert violated(found) == []
    assert [finding for finding in found if finding.verdict == "pass"]


def test_a_call_that_the_model_ended_was_not_cut() -> None:
    """R-05 is about limits, and arguments that are no JSON break another rule."""
    found = {one.check: one for one in judge(body(ended_call, WHOLE)(transcripts()["responses/call-cut"]))}

    assert found["responses/call-cut/incomplete"].verdict == "inconclusive"


def test_a_full_context_may_end_an_answer_far_from_its_limit() -> None:
    """R-05 has one reason for both."""
    found = {one.check: one for one in judge(body(full_context, WHOLE)(transcripts()["responses/limits"]))}

    assert found["responses/limits/state"].verdict == "pass"


def test_openai_itself_may_leave_out_done_on_responses() -> None:
    """SSE-06 is only a SHOULD, because OpenAI's service does not send `[DONE]`."""
    found = judge(events(lambda f: f[:-1])(transcripts()["responses/stream-text"]))

    assert [(finding.check, finding.verdict) for finding in violated(found)] == [
        ("responses/stream-text/terminator", "warn")
    ]


@pytest.mark.parametrize("scenario", ["chat/stream-text", "responses/stream-text"])
def test_a_server_that_repeats_nothing_is_not_accused_of_another_stream(scenario: str) -> None:
    """Only repeated differences count, because temperature 0 does not guarantee equal answers (CHAT-19, RS-16)."""
    exchanges = transcripts()[scenario].exchanges
    other = body(lambda answer: _replace(answer, "other"), WHOLE)(transcripts()[scenario]).exchanges
    third = body(lambda answer: _replace(answer, "third"), WHOLE)(transcripts()[scenario]).exchanges
    seen = type(transcripts()[scenario])(
        scenario=scenario, exchanges=[*other, renamed(third[0]), renamed(exchanges[1])]
    )

    found = {finding.check: finding for finding in judge(seen)}

    assert violated(list(found.values())) == []
    assert found[f"{scenario}/same-as-whole"].verdict == "inconclusive"
    repeated = judge(type(seen)(scenario=scenario, exchanges=[*other, *map(renamed, other)]))
    assert [finding.check for finding in violated(repeated)] == [f"{scenario}/same-as-whole"]


def _replace(answer: Any, text: str) -> None:
    if "choices" in answer:
        answer["choices"][0]["message"]["content"] = text
    else:
        answer["output"][0]["content"][0]["text"] = text


@pytest.mark.parametrize(
    ("code", "error_body"), [(405, {"detail": "Method Not Allowed"}), (404, {"detail": "Not Found"})]
)
def test_a_kept_response_need_not_be_deletable(code: int, error_body: dict[str, Any]) -> None:
    def lacking(answer: dict[str, Any]) -> None:
        answer.clear()
        answer.update(error_body)

    kept = status(code, "delete")(body(lacking, "delete")(transcripts()["responses/stored"]))
    found = {finding.check: finding.verdict for finding in judge(kept)}

    assert found["responses/stored/delete"] == "rejected"
    assert violated(judge(kept)) == []


def test_the_drawn_token_may_stand_before_the_best() -> None:
    def drawn(answer: dict[str, Any]) -> None:
        for entry in answer["choices"][0]["logprobs"]["content"]:
            own = {**entry["top_logprobs"][0], "token": entry["token"], "logprob": -9.0}
            entry["top_logprobs"] = [
                own,
                *[{**o, "token": o["token"] + "?"} for o in entry["top_logprobs"][:1]],
            ]

    changed = body(drawn)(transcripts()["chat/logprobs"])
    found = {finding.check: finding for finding in judge(changed)}

    assert found["chat/logprobs/alternatives"].verdict == "pass", found["chat/logprobs/alternatives"]


def test_a_server_whose_counts_are_estimates_need_not_refuse() -> None:
    """Anthropic calls the answer of `count_tokens` an estimate: the prompt that was sent may be shorter (MSG-11)."""
    usage = {"input_tokens": 4000, "output_tokens": 256}
    ended = {"stop_reason": "max_tokens", "usage": usage}
    seen = answered_all_the_same(body(lambda a: a.update(ended), WHOLE)(transcripts()["messages/context"]))

    found = {finding.check: finding.verdict for finding in judge(seen)}

    assert found["messages/context/ending"] == "pass"
    assert found["messages/context/refused"] == "inconclusive"


def test_max_tokens_at_the_end_of_the_context_is_a_warning() -> None:
    """The SDK's `max_tokens` may be "the model's maximum" (MSG-09)."""
    ended = body(lambda answer: answer.update(stop_reason="max_tokens"), WHOLE)
    found = judge(ended(transcripts()["messages/context"]))

    assert [(finding.check, finding.verdict) for finding in violated(found)] == [
        ("messages/context/ending", "warn")
    ]


def test_a_missing_operation_is_rejected() -> None:
    """The scenario is core, so the rejection still makes the run fail."""

    def lacking(answer: dict[str, Any]) -> None:
        answer.clear()
        answer["detail"] = "Not Found"

    lost = body(lacking, "unknown")(body(lacking, "listed")(transcripts()["models/list"]))
    found = {
        finding.check.rsplit("/", 1)[1]: finding
        for finding in judge(status(404, "unknown")(status(404, "listed")(lost)))
    }

    assert violated(list(found.values())) == []
    assert found["retrievable"].verdict == "rejected"
    assert found["retrievable"].reason == "there is no GET /models/org%2Fgood: status 404"


def test_a_null_inside_of_an_item_is_a_field_left_out() -> None:
    """Items are unions of schemas; violations refer to the schema of the item's type."""
    thought: dict[str, Any] = {
        "type": "reasoning",
        "id": "rs_1",
        "summary": [],
        "content": None,
        "status": None,
    }
    text = {"type": "output_text", "text": "", "annotations": []}

    assert list(violations("OutputItem", thought)) == []
    assert list(violations("OutputItem", {**thought, "summary": None})) != []
    assert list(violations("OutputItem", {**thought, "status": "none"})) != []
    assert list(violations("OutputContent", {**text, "logprobs": []})) == []
    assert list(violations("OutputContent", {**text, "logprobs": None})) != []


def test_an_unrequested_stream_is_accused_once() -> None:
    """Only the schema check reports an answer that is not one JSON object."""
    whole, streamed = transcripts()["responses/stream-text"].exchanges[:2]
    frames = {"headers": streamed.headers, "frames": streamed.frames}
    odd = msgspec.structs.replace(whole, **frames)
    seen = msgspec.structs.replace(transcripts()["responses/stream-text"], exchanges=[odd, streamed])

    accused_of = {finding.check.rsplit("/", 1)[1] for finding in violated(judge(seen))}

    assert "shape" in accused_of
    assert "usage" not in accused_of


@pytest.mark.parametrize("name", ["page", "end"])
def test_others_may_store_completions_at_the_same_time(name: str) -> None:
    def grown(page: Any) -> None:
        page["data"] = [{**transcripts()["chat/stored-pages"].exchanges[0].json, "id": "chatcmpl-other"}]

    found = judge(body(grown, name)(transcripts()["chat/stored-pages"]))

    assert [one.check for one in found if one.verdict == "fail"] == []
