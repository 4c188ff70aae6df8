"""Check legacy completions."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from itertools import accumulate
from typing import Any

from plumbline_conformance.checks.chat.shared_laws import UNNAMED
from plumbline_conformance.checks.common import (
    done_last,
    framing_without_names,
    json_content_type,
    sse_content_type,
    usage_adds_up,
    usage_count,
    valid_body,
)
from plumbline_conformance.checks.identity import at_no_time, made_now, streamed_now
from plumbline_conformance.checks.laws import STREAM, WHOLE, stream, whole
from plumbline_conformance.checks.request_reader import request_fields, requested_choices
from plumbline_conformance.suite.field_rules import rules_of_shape
from plumbline_conformance.suite.scenario import (
    Inconclusive,
    NotRequested,
    Problem,
    Request,
    Target,
    scenario,
)
from plumbline_conformance.suite.schema_validation import violations
from plumbline_conformance.suite.wording import as_json
from plumbline_conformance.transcript.answer_fold import objects_in
from plumbline_conformance.transcript.exchange import Exchange

CHUNKS = rules_of_shape("CreateCompletionStreamResponse")
PROMPTS = ["One two", "Red"]
Steps = Generator[Request, Exchange, None]


def request(target: Target, **fields: object) -> dict[str, object]:
    return {"model": target.model, "prompt": PROMPTS, "max_tokens": 6, "temperature": 0, "seed": 1, **fields}


@scenario("completions/text", "Two prompts", needs=("completions",))
def completions_text(target: Target) -> Steps:
    yield Request(name=WHOLE, path="/completions", json=request(target))


@whole("completions/text/shape", "Answer as the contract requires", "CMP-01")
def shape(exchange: Exchange) -> Iterator[Problem]:
    """Check the schema of the answer (CMP-01)."""
    yield from valid_body(exchange, "CreateCompletionResponse")


whole("completions/text/content-type", "Send application/json", "HTTP-01")(json_content_type)
whole("completions/text/created", "Report when the answer was created", "CMP-01")(made_now("created"))


@whole("completions/text/indexes", "Give one choice for each prompt, with indexes from 0", "CMP-02")
def indexes(exchange: Exchange) -> Iterator[Problem]:
    wanted = list(range(len(_prompts(exchange)) * requested_choices(exchange)))
    found = [choice["index"] for choice in exchange.json["choices"]]
    if sorted(found) != wanted:
        yield Problem(expected=as_json(wanted)[:200], actual=as_json(found)[:200], pointer="choices[].index")


def _prompts(exchange: Exchange) -> list[Any]:
    """Return the prompts of the request; a list of token ids is one prompt."""
    prompt = request_fields(exchange).get("prompt")
    return prompt if isinstance(prompt, list) and prompt and not isinstance(prompt[0], int) else [prompt]


@whole("completions/text/usage", "Count tokens so that the total is the sum", "CHAT-08")
def _usage(exchange: Exchange) -> Iterator[Problem]:
    answer = exchange.json
    yield from usage_adds_up(answer.get("usage"), prompt="prompt_tokens", completion="completion_tokens")


@scenario("completions/stream", "Two prompts, streamed", needs=("completions",))
def completions_stream(target: Target) -> Steps:
    yield Request(name=STREAM, path="/completions", json=request(target, stream=True))


stream(
    "completions/stream/framing",
    "Frame one JSON object per event, without names",
    *UNNAMED,
)(framing_without_names)
stream("completions/stream/created", "Report when a streamed answer was created", "CMP-01")(
    streamed_now("created")
)
stream("completions/stream/content-type", "Send text/event-stream", "HTTP-02")(sse_content_type)
stream("completions/stream/done", "End with exactly one [DONE]", "SSE-05", "SSE-07")(done_last)


@stream("completions/stream/shape", "Send chunks as the contract requires, with one id", *CHUNKS)
def chunks_valid(exchange: Exchange) -> Iterator[Problem]:
    """Check the schema of every chunk, and that id, time and model stay the same (CMP-01, CMP-08)."""
    chunks = [chunk for chunk in exchange.chunks if isinstance(chunk, dict)]
    for number, chunk in enumerate(chunks):
        yield from violations("CreateCompletionStreamResponse", chunk, f"event {number}, ")
        yield from at_no_time(chunk, f"event {number}, ", "CMP-01")
    for key in ("id", "created", "model"):
        # A time that is not a number breaks the schema.
        read = [chunk.get(key) for chunk in chunks if key != "created" or type(chunk.get(key)) is int]
        found = set(map(as_json, read))
        if len(found) > 1:
            shown = ", ".join(sorted(found))[:200]
            yield Problem(expected=f"one {key}", actual=shown, pointer=key, rule="CMP-08")


@stream("completions/stream/indexes", "Stream one choice for each prompt", "CMP-02", "CMP-04")
def stream_indexes(exchange: Exchange) -> Iterator[Problem]:
    """Check the indexes of streamed choices (CMP-02), and that an echo begins each (CMP-04)."""
    yield from _streamed_echo(exchange)
    wanted = list(range(len(_prompts(exchange)) * requested_choices(exchange)))
    found = {as_json(one.get("index")) for one in _streamed_choices(exchange)}
    if found != set(map(repr, wanted)):
        shown = ", ".join(sorted(found))[:200]
        where = "choices[].index"
        yield Problem(expected=as_json(wanted)[:200], actual=shown, pointer=where, rule="CMP-02")


def _streamed_echo(exchange: Exchange) -> Iterator[Problem]:
    prompts, count = _prompts(exchange), requested_choices(exchange)
    if request_fields(exchange).get("echo") is not True or not all(isinstance(one, str) for one in prompts):
        return
    texts: dict[int, str] = {}
    for one in _streamed_choices(exchange):
        if isinstance(place := one.get("index"), int):
            texts[place] = texts.get(place, "") + str(one.get("text") or "")
    for place, text in texts.items():
        if 0 <= place < len(prompts) * count and prompts[place // count] not in text:
            wanted = f"a text with {as_json(prompts[place // count])}"
            where = f"choice {place}"
            yield Problem(expected=wanted, actual=as_json(text)[:200], pointer=where, rule="CMP-04")


@stream("completions/stream/no-usage", "Send no usage in a stream unless requested", "CMP-08")
def _no_usage(exchange: Exchange) -> Iterator[Problem]:
    if request_fields(exchange).get("stream_options"):
        raise NotRequested("the request asks for the usage")
    for number, chunk in enumerate(exchange.chunks):
        if isinstance(chunk, dict) and chunk.get("usage") is not None:
            yield Problem(expected="no usage", actual="a usage", pointer=f"event {number}, usage")


@stream("completions/stream/finish", "Finish each streamed choice exactly once, at its end", "CMP-08")
def stream_finish(exchange: Exchange) -> Iterator[Problem]:
    reasons: dict[str, list[Any]] = {}
    for one in _streamed_choices(exchange):
        reasons.setdefault(as_json(one.get("index")), []).append(one.get("finish_reason"))
    for place, found in reasons.items():
        if [reason for reason in found if reason is not None] != found[-1:]:
            where = f"choices[{place}].finish_reason"
            yield Problem(expected="one, the last", actual=as_json(found)[:200], pointer=where)


def _streamed_choices(exchange: Exchange) -> list[dict[str, Any]]:
    chunks = objects_in(exchange.chunks)
    return [one for chunk in chunks for one in objects_in(chunk.get("choices"))]


@scenario("completions/echo", "Two prompts with echo and logprobs", needs=("completions",))
def completions_echo(target: Target) -> Steps:
    yield Request(name=WHOLE, path="/completions", json=request(target, echo=True, logprobs=1))


whole("completions/echo/shape", "Answer as the contract requires", "CMP-01")(shape)


@whole("completions/echo/order", "Begin each choice with the prompt of its index", "CMP-04", "CMP-02")
def order(exchange: Exchange) -> Iterator[Problem]:
    prompts, count = _prompts(exchange), requested_choices(exchange)
    for choice in exchange.json["choices"]:
        place = choice["index"] // count
        prompt = prompts[place] if place in range(len(prompts)) else None
        if isinstance(prompt, list | int):
            raise NotRequested("the client does not know the text of token ids")
        if prompt is None or prompt not in choice["text"]:
            where, wanted = f"choice {choice['index']}", f"a text with {as_json(prompt)}"
            # CMP-02: the prompt of another index. CMP-04: no prompt at all.
            other = prompt is None or any(str(one) in choice["text"] for one in prompts)
            rule = "CMP-02" if other else "CMP-04"
            yield Problem(expected=wanted, actual=as_json(choice["text"]), pointer=where, rule=rule)


@whole(
    "completions/echo/logprobs",
    "Give four lists of one length whose tokens join to the text",
    "CMP-05",
    "CMP-04",
)
def lists(exchange: Exchange) -> Iterator[Problem]:
    """Check the lists of the log probabilities of each choice (CMP-05), and that an echo is in them (CMP-04)."""
    if request_fields(exchange).get("logprobs") is None:
        raise NotRequested("the request asks for no logprobs")
    for choice in exchange.json["choices"]:
        logprobs = choice["logprobs"]
        where = f"choice {choice['index']}, logprobs"
        if logprobs is None:
            yield Problem(expected="logprobs", actual="null", pointer=where, rule="CMP-05")
            continue
        names = ("tokens", "token_logprobs", "top_logprobs", "text_offset")
        lengths = {len(logprobs.get(name) or []) for name in names}
        if len(lengths) != 1:
            shown = as_json(sorted(lengths))
            yield Problem(expected="lists of one length", actual=shown, pointer=where, rule="CMP-05")
        joined = "".join(logprobs.get("tokens") or [])
        if "\ufffd" in joined or "bytes:" in joined:
            raise Inconclusive("tokens that are parts of characters have no text")
        # Tokens for the start and the end of the sequence have an entry, but no text.
        if choice["text"] not in joined:
            # CMP-04: only the tokens of the answer. CMP-05: not even these.
            rule = "CMP-04" if joined and choice["text"].endswith(joined) else "CMP-05"
            yield Problem(expected=as_json(choice["text"]), actual=as_json(joined), pointer=where, rule=rule)


AROUND = 2
"""Tokens that a tokenizer may add before a prompt or after an answer; a chat template adds more."""


@whole("completions/echo/bare", "Put no chat template around a prompt", "CMP-10")
def _bare(exchange: Exchange) -> Iterator[Problem]:
    """Detect a chat template before the echoed prompt, or in the usage but not in the list (CMP-10)."""
    fields, prompts = request_fields(exchange), _prompts(exchange)
    if (
        fields.get("logprobs") is None
        or requested_choices(exchange) != 1
        or fields.get("best_of") not in (None, 0, 1)
    ):
        raise NotRequested("the request asks for no logprobs, or for several choices")
    listed = 0
    for choice in exchange.json["choices"]:
        place = choice["index"]
        prompt = prompts[place] if place in range(len(prompts)) else None
        tokens = (choice["logprobs"] or {}).get("tokens") or []
        joined = "".join(tokens)
        if choice["text"] not in joined or not isinstance(prompt, str) or prompt not in choice["text"]:
            raise Inconclusive("the prompt is not echoed with its tokens; other checks report this")
        listed += len(tokens)
        before = joined.index(prompt)
        if sum(end <= before for end in accumulate(map(len, tokens))) > AROUND:
            where = f"choice {choice['index']}, text"
            yield Problem(expected="the prompt first", actual=as_json(joined)[:200], pointer=where)
    total = usage_count(exchange, "total_tokens")
    if total - listed > AROUND * len(prompts):
        wanted = f"the {listed} tokens of the list"
        yield Problem(expected=wanted, actual=f"{total} tokens", pointer="usage.total_tokens")
