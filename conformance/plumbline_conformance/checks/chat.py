"""Chat completions that are not streamed."""

from __future__ import annotations

from collections.abc import Generator, Iterator

from plumbline_conformance.case import Problem, Request, Target, check, scenario
from plumbline_conformance.checks.common import accepted, request_id, usage_adds_up
from plumbline_conformance.checks.errors import chat
from plumbline_conformance.schema import violations
from plumbline_conformance.transcript import Exchange, Transcript

LIMIT = 8


@scenario("chat/text", "A short answer, two choices, with logprobs")
def chat_text(target: Target) -> Generator[Request, Exchange, None]:
    yield Request(
        path="/chat/completions",
        json=chat(target, max_tokens=LIMIT, n=2, logprobs=True, top_logprobs=2, temperature=1, seed=1),
    )


@check("chat/text/shape", "Answer as the contract says", "CHAT-01", "CHAT-03")
def chat_text_shape(seen: Transcript) -> Iterator[Problem]:
    yield from violations("CreateChatCompletionResponse", accepted(seen.last).json)


@check("chat/text/content-type", "Send application/json", "HTTP-01")
def chat_text_content_type(seen: Transcript) -> Iterator[Problem]:
    found = accepted(seen.last).header("content-type") or ""
    if not found.startswith("application/json"):
        yield Problem(expected="application/json", actual=found, pointer="headers.content-type")


@check("chat/text/request-id", "Carry an x-request-id", "HTTP-03", level="SHOULD")
def chat_text_request_id(seen: Transcript) -> Iterator[Problem]:
    yield from request_id(accepted(seen.last))


@check("chat/text/n", "Give exactly n choices with indexes from 0", "CHAT-02")
def chat_text_n(seen: Transcript) -> Iterator[Problem]:
    indexes = [choice["index"] for choice in accepted(seen.last).json["choices"]]
    if indexes != [0, 1]:
        yield Problem(expected="choices 0 and 1", actual=repr(indexes), pointer="choices")


@check("chat/text/usage", "Count tokens so that the total is the sum", "CHAT-08")
def chat_text_usage(seen: Transcript) -> Iterator[Problem]:
    yield from usage_adds_up(
        accepted(seen.last).json.get("usage"), prompt="prompt_tokens", completion="completion_tokens"
    )


@check("chat/text/length", "Say `length` only when the limit was reached, and never exceed it", "CHAT-06")
def chat_text_length(seen: Transcript) -> Iterator[Problem]:
    answer = accepted(seen.last).json
    tokens = answer["usage"]["completion_tokens"]
    reasons = [choice["finish_reason"] for choice in answer["choices"]]
    if tokens > 2 * LIMIT or (reasons == ["length", "length"] and tokens != 2 * LIMIT):
        yield Problem(
            expected=f"{LIMIT} tokens for each choice that says length",
            actual=f"{tokens}, {reasons}",
            pointer="usage",
        )


@check("chat/text/logprobs", "Give logprobs whose bytes join to the content", "LP-01", "LP-03")
def chat_text_logprobs(seen: Transcript) -> Iterator[Problem]:
    for choice in accepted(seen.last).json["choices"]:
        content = (choice.get("logprobs") or {}).get("content")
        if not isinstance(content, list):
            yield Problem(
                expected="a list of logprobs", actual=repr(content), pointer="choices[].logprobs.content"
            )
            continue
        joined = b"".join(bytes(entry["bytes"] or []) for entry in content)
        if joined.decode("utf-8", "replace") != choice["message"]["content"]:
            yield Problem(
                expected=repr(choice["message"]["content"]),
                actual=repr(joined),
                pointer="choices[].logprobs.content",
            )
