"""Legacy completions."""

from __future__ import annotations

from collections.abc import Generator, Iterator

from plumbline_conformance.case import Problem, Request, Target, check, scenario
from plumbline_conformance.checks.common import accepted, done_last, framing, usage_adds_up
from plumbline_conformance.schema import violations
from plumbline_conformance.transcript import Exchange, Transcript


@scenario("completions/text", "Two prompts, echoed with logprobs, then streamed", needs=("createCompletion",))
def completions_text(target: Target) -> Generator[Request, Exchange, None]:
    body = {"model": target.model, "prompt": ["One two", "Red"], "max_tokens": 6, "temperature": 0, "seed": 1}
    yield Request(path="/completions", json={**body, "echo": True, "logprobs": 1})
    yield Request(path="/completions", json={**body, "stream": True})


@check("completions/text/shape", "Answer as the contract says", "CMP-01")
def completions_text_shape(seen: Transcript) -> Iterator[Problem]:
    yield from violations("CreateCompletionResponse", accepted(seen.exchanges[0]).json)


@check("completions/text/order", "Number choices prompt by prompt", "CMP-02")
def completions_text_order(seen: Transcript) -> Iterator[Problem]:
    choices = accepted(seen.exchanges[0]).json["choices"]
    found = [(choice["index"], choice["text"][:3]) for choice in choices]
    if [index for index, _ in found] != [0, 1] or found[0][1] != "One" or found[1][1] != "Red":
        yield Problem(expected="choice 0 begins with One, 1 with Red", actual=repr(found), pointer="choices")


@check(
    "completions/text/logprobs",
    "Give four lists of one length whose tokens join to the text",
    "CMP-04",
    "CMP-05",
)
def completions_text_logprobs(seen: Transcript) -> Iterator[Problem]:
    for choice in accepted(seen.exchanges[0]).json["choices"]:
        logprobs = choice["logprobs"] or {}
        names = ("tokens", "token_logprobs", "top_logprobs", "text_offset")
        lengths = {len(logprobs.get(name) or []) for name in names}
        joined = "".join(logprobs.get("tokens") or [])
        if len(lengths) != 1 or joined != choice["text"]:
            yield Problem(
                expected=repr(choice["text"]), actual=repr(joined), pointer="choices[].logprobs.tokens"
            )


@check("completions/text/usage", "Count tokens so that the total is the sum", "CMP-09")
def completions_text_usage(seen: Transcript) -> Iterator[Problem]:
    yield from usage_adds_up(
        accepted(seen.exchanges[0]).json.get("usage"), prompt="prompt_tokens", completion="completion_tokens"
    )


@check("completions/text/stream", "Stream framed chunks that end with [DONE]", "CMP-08", "SSE-05")
def completions_text_stream(seen: Transcript) -> Iterator[Problem]:
    yield from framing(accepted(seen.last), named=False)
    yield from done_last(seen.last)
    for number, chunk in enumerate(seen.last.chunks):
        yield from violations("CreateCompletionStreamResponse", chunk, f"event {number}, ")
