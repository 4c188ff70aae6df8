"""Chat completions that are streamed."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from typing import Any

from plumbline_conformance.case import Inconclusive, Problem, Request, Target, check, scenario
from plumbline_conformance.checks.common import accepted, done_last, framing, usage_adds_up
from plumbline_conformance.checks.errors import chat
from plumbline_conformance.schema import violations
from plumbline_conformance.transcript import Exchange, Transcript


@scenario("chat/stream-text", "Two choices, streamed with usage, and the same request not streamed")
def stream_text(target: Target) -> Generator[Request, Exchange, None]:
    body = chat(target, max_tokens=12, n=2, temperature=0, seed=1)
    yield Request(path="/chat/completions", json=body)
    yield Request(
        path="/chat/completions", json={**body, "stream": True, "stream_options": {"include_usage": True}}
    )


def _chunks(seen: Transcript) -> list[Any]:
    return [chunk for chunk in accepted(seen.last).chunks if isinstance(chunk, dict)]


def _choices(seen: Transcript) -> Iterator[tuple[int, Any]]:
    for number, chunk in enumerate(_chunks(seen)):
        for choice in chunk.get("choices") or []:
            yield number, choice


@check("chat/stream-text/content-type", "Send text/event-stream", "HTTP-02")
def stream_text_content_type(seen: Transcript) -> Iterator[Problem]:
    found = accepted(seen.last).header("content-type") or ""
    if not found.startswith("text/event-stream"):
        yield Problem(expected="text/event-stream", actual=found, pointer="headers.content-type")


@check("chat/stream-text/framing", "Frame one JSON object per event, without names", "SSE-01", "SSE-05")
def stream_text_framing(seen: Transcript) -> Iterator[Problem]:
    yield from framing(accepted(seen.last), named=False)


@check("chat/stream-text/done", "End with exactly one [DONE]", "SSE-05", "SSE-07")
def stream_text_done(seen: Transcript) -> Iterator[Problem]:
    yield from done_last(accepted(seen.last))


@check("chat/stream-text/shape", "Send chunks as the contract says", "CS-01")
def stream_text_shape(seen: Transcript) -> Iterator[Problem]:
    for number, chunk in enumerate(_chunks(seen)):
        yield from violations("CreateChatCompletionStreamResponse", chunk, f"event {number}, ")


@check("chat/stream-text/identity", "Keep id, created and model the same in every chunk", "CS-01")
def stream_text_identity(seen: Transcript) -> Iterator[Problem]:
    for key in ("id", "created", "model"):
        values = {repr(chunk.get(key)) for chunk in _chunks(seen)}
        if len(values) > 1:
            yield Problem(expected=f"one {key}", actual=", ".join(sorted(values)), pointer=key)


@check("chat/stream-text/role-once", "Give the role in the first delta of a choice and never again", "CS-02")
def stream_text_role(seen: Transcript) -> Iterator[Problem]:
    met: set[int] = set()
    for number, choice in _choices(seen):
        role = choice["delta"].get("role")
        first = choice["index"] not in met
        met.add(choice["index"])
        if first != (role == "assistant"):
            expected = "role assistant" if first else "no role"
            yield Problem(
                expected=expected, actual=repr(role), pointer=f"event {number}, choices[0].delta.role"
            )


@check(
    "chat/stream-text/finish-once",
    "Finish each choice exactly once, and send nothing of it after that",
    "CS-03",
)
def stream_text_finish(seen: Transcript) -> Iterator[Problem]:
    finished: set[int] = set()
    for number, choice in _choices(seen):
        if choice["index"] in finished:
            yield Problem(expected="nothing after the finish", actual="a chunk", pointer=f"event {number}")
        if choice["finish_reason"] is not None:
            finished.add(choice["index"])
    if finished != {0, 1}:
        yield Problem(expected="choices 0 and 1 finished", actual=repr(sorted(finished)), pointer="choices")


@check(
    "chat/stream-text/choice-order",
    "Let choices appear for the first time in the order of their index",
    "CS-04",
)
def stream_text_order(seen: Transcript) -> Iterator[Problem]:
    order = list(dict.fromkeys(choice["index"] for _, choice in _choices(seen)))
    if order != sorted(order):
        yield Problem(expected="0, 1", actual=repr(order), pointer="choices[].index")


@check("chat/stream-text/usage-last", "Send the usage alone in the last chunk", "CS-06", "CS-08")
def stream_text_usage(seen: Transcript) -> Iterator[Problem]:
    chunks = _chunks(seen)
    if not chunks:
        raise Inconclusive("no chunks")
    last = chunks[-1]
    if last.get("choices") != []:
        yield Problem(expected="choices []", actual=repr(last.get("choices"))[:80], pointer="last chunk")
    yield from usage_adds_up(last.get("usage"), prompt="prompt_tokens", completion="completion_tokens")
    for number, chunk in enumerate(chunks[:-1]):
        if chunk.get("usage") is not None:
            yield Problem(expected="usage null", actual="a usage", pointer=f"event {number}, usage")


@check(
    "chat/stream-text/same-as-whole", "Stream what the same request answers in one piece", "CHAT-19", "CS-05"
)
def stream_text_same(seen: Transcript) -> Iterator[Problem]:
    whole = accepted(seen.exchanges[0]).json
    for expected in whole["choices"]:
        parts = [choice for _, choice in _choices(seen) if choice["index"] == expected["index"]]
        text = "".join(choice["delta"].get("content") or "" for choice in parts)
        reason = next((c["finish_reason"] for c in parts if c["finish_reason"] is not None), None)
        if (text, reason) != (expected["message"]["content"] or "", expected["finish_reason"]):
            yield Problem(
                expected=repr((expected["message"]["content"], expected["finish_reason"])),
                actual=repr((text, reason)),
                pointer=f"choice {expected['index']}",
            )
