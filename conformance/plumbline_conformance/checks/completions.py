"""Legacy completions."""

from __future__ import annotations

from collections.abc import Generator, Iterator

from plumbline_conformance.case import Inconclusive, Problem, Request, Target, check, scenario
from plumbline_conformance.checks.common import accepted, at, done_last, framing, usage_adds_up
from plumbline_conformance.schema import violations
from plumbline_conformance.transcript import Exchange, Transcript

PROMPTS = ["One two", "Red"]
Steps = Generator[Request, Exchange, None]


def _body(target: Target, **fields: object) -> dict[str, object]:
    return {"model": target.model, "prompt": PROMPTS, "max_tokens": 6, "temperature": 0, "seed": 1, **fields}


@scenario("completions/text", "Two prompts", needs=("completions",))
def completions_text(target: Target) -> Steps:
    yield Request(path="/completions", json=_body(target))


@check("completions/text/shape", "Answer as the contract says", "CMP-01")
def completions_text_shape(seen: Transcript) -> Iterator[Problem]:
    yield from violations("CreateCompletionResponse", accepted(at(seen, 0)).json)


@check("completions/text/indexes", "Give one choice for each prompt, with indexes from 0", "CMP-02")
def completions_text_indexes(seen: Transcript) -> Iterator[Problem]:
    found = [choice["index"] for choice in accepted(at(seen, 0)).json["choices"]]
    if sorted(found) != [0, 1]:
        yield Problem(expected="[0, 1]", actual=repr(found), pointer="choices[].index")


@check("completions/text/usage", "Count tokens so that the total is the sum", "CMP-09", "CHAT-08")
def completions_text_usage(seen: Transcript) -> Iterator[Problem]:
    answer = accepted(at(seen, 0)).json
    yield from usage_adds_up(answer.get("usage"), prompt="prompt_tokens", completion="completion_tokens")


@scenario("completions/stream", "Two prompts, streamed", needs=("completions",))
def completions_stream(target: Target) -> Steps:
    yield Request(path="/completions", json=_body(target, stream=True))


@check("completions/stream/framing", "Frame one JSON object per event, without names", "SSE-05", "SSE-01")
def completions_stream_framing(seen: Transcript) -> Iterator[Problem]:
    yield from framing(accepted(at(seen, 0)), named=False)


@check("completions/stream/done", "End with exactly one [DONE]", "SSE-05", "SSE-07")
def completions_stream_done(seen: Transcript) -> Iterator[Problem]:
    yield from done_last(accepted(at(seen, 0)))


@check("completions/stream/shape", "Send chunks as the contract says, with one id", "CMP-08")
def completions_stream_shape(seen: Transcript) -> Iterator[Problem]:
    chunks = [chunk for chunk in accepted(at(seen, 0)).chunks if isinstance(chunk, dict)]
    for number, chunk in enumerate(chunks):
        yield from violations("CreateCompletionStreamResponse", chunk, f"event {number}, ")
    ids = {repr(chunk.get("id")) for chunk in chunks}
    if len(ids) > 1:
        yield Problem(expected="one id", actual=", ".join(sorted(ids)), pointer="id")


@scenario("completions/echo", "Two prompts that are to be repeated, with logprobs", needs=("completions",))
def completions_echo(target: Target) -> Steps:
    yield Request(path="/completions", json=_body(target, echo=True, logprobs=1))


@check("completions/echo/shape", "Answer as the contract says", "CMP-01")
def completions_echo_shape(seen: Transcript) -> Iterator[Problem]:
    yield from violations("CreateCompletionResponse", accepted(at(seen, 0)).json)


@check("completions/echo/order", "Begin each choice with the prompt of its index", "CMP-04", "CMP-02")
def completions_echo_order(seen: Transcript) -> Iterator[Problem]:
    for choice in accepted(at(seen, 0)).json["choices"]:
        prompt = PROMPTS[choice["index"]] if choice["index"] in range(len(PROMPTS)) else None
        if prompt is None or prompt not in choice["text"]:
            where = f"choice {choice['index']}"
            yield Problem(expected=f"a text with {prompt!r}", actual=repr(choice["text"]), pointer=where)


@check(
    "completions/echo/logprobs",
    "Give four lists of one length whose tokens join to the text",
    "CMP-05",
    "CMP-04",
)
def completions_echo_logprobs(seen: Transcript) -> Iterator[Problem]:
    for choice in accepted(at(seen, 0)).json["choices"]:
        logprobs = choice["logprobs"]
        where = f"choice {choice['index']}, logprobs"
        if logprobs is None:
            yield Problem(expected="logprobs", actual="null", pointer=where)
            continue
        names = ("tokens", "token_logprobs", "top_logprobs", "text_offset")
        lengths = {len(logprobs.get(name) or []) for name in names}
        if len(lengths) != 1:
            yield Problem(expected="lists of one length", actual=repr(sorted(lengths)), pointer=where)
        joined = "".join(logprobs.get("tokens") or [])
        if "\ufffd" in joined or "bytes:" in joined:
            raise Inconclusive("tokens that are parts of characters have no text of their own")
        # Tokens that begin or end the text (the start of the sequence, its end) have an entry and no text.
        if choice["text"] not in joined:
            yield Problem(expected=repr(choice["text"]), actual=repr(joined), pointer=where)
