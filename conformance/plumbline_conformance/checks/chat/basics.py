"""Check non-streaming chat completions."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from typing import Any

from plumbline_conformance.checks.answers import token_texts
from plumbline_conformance.checks.chat.shared_laws import SHAPE, shape
from plumbline_conformance.checks.common import json_content_type, request_id, usage_adds_up
from plumbline_conformance.checks.identity import made_now
from plumbline_conformance.checks.laws import WHOLE, whole
from plumbline_conformance.checks.request_reader import (
    request_fields,
    requested_choices,
    requested_limit,
    requested_top_logprobs,
)
from plumbline_conformance.checks.sample_requests import chat
from plumbline_conformance.suite.field_rules import rules_of_shape
from plumbline_conformance.suite.scenario import Inconclusive, Problem, Request, Target, scenario
from plumbline_conformance.suite.schema_validation import violations
from plumbline_conformance.suite.wording import as_json
from plumbline_conformance.transcript.answer_fold import objects_in
from plumbline_conformance.transcript.exchange import Exchange

LIMIT = 8
SHORT = 16
"""A token limit that fits into every context window."""


@scenario("chat/text", "A short answer", core=True)
def chat_text(target: Target) -> Generator[Request, Exchange, None]:
    yield Request(name=WHOLE, path="/chat/completions", json=chat(target, max_tokens=LIMIT))


whole("chat/text/shape", "Answer as the contract requires", *SHAPE)(shape)
whole("chat/text/content-type", "Send application/json", "HTTP-01")(json_content_type)
whole("chat/text/request-id", "Carry an x-request-id", "HTTP-03")(request_id)
whole("chat/text/created", "Report when the answer was created", "CHAT-01")(made_now("created"))


@whole("chat/text/one", "Return one choice, with index 0, without n", "CHAT-02")
def numbered(exchange: Exchange) -> Iterator[Problem]:
    """Check that there are `n` choices, with indexes from 0 (CHAT-02)."""
    wanted = range(requested_choices(exchange))
    choices = exchange.json.get("choices") if isinstance(exchange.json, dict) else None
    found = (
        [choice.get("index") for choice in choices if isinstance(choice, dict)]
        if isinstance(choices, list)
        else []
    )
    if sorted(map(repr, found)) != sorted(map(repr, wanted)):
        yield Problem(expected=as_json(list(wanted)), actual=as_json(found), pointer="choices[].index")


@whole("chat/text/usage", "Count tokens so that the total is the sum", "CHAT-08")
def _usage(exchange: Exchange) -> Iterator[Problem]:
    answer = exchange.json
    yield from usage_adds_up(answer.get("usage"), prompt="prompt_tokens", completion="completion_tokens")


@whole("chat/text/length", "Finish with `length` only at the limit, and never exceed it", "CHAT-06")
def _length(exchange: Exchange) -> Iterator[Problem]:
    """Check `length` against short limits only, because a full context window is `length` as well."""
    answer = exchange.json
    limit = requested_limit(exchange) * requested_choices(exchange)
    reason = _choice(exchange).get("finish_reason")
    tokens = (answer.get("usage") or {}).get("completion_tokens")
    if not isinstance(tokens, int):
        raise Inconclusive("the answer has no usage; another check reports this")
    early = reason == "length" and tokens != limit and requested_choices(exchange) == 1 and limit <= SHORT
    if tokens > limit or early:
        yield Problem(expected=f"{limit} tokens for `length`", actual=f"{tokens}, {reason}", pointer="usage")


@scenario("chat/choices", "Two choices")
def chat_choices(target: Target) -> Generator[Request, Exchange, None]:
    body = chat(target, n=2, temperature=1, seed=1)
    yield Request(name=WHOLE, path="/chat/completions", json=body)


whole("chat/choices/n", "Give exactly n choices with indexes from 0", "CHAT-02")(numbered)


@whole("chat/choices/in-order", "List the choices by their index", "CHAT-02", milder=True)
def in_order(exchange: Exchange) -> Iterator[Problem]:
    """Check that a choice stands at its index, which is "the index of the choice in the list of choices"."""
    choices = exchange.json.get("choices") if isinstance(exchange.json, dict) else None
    found: list[Any] = [one.get("index") for one in choices or () if isinstance(one, dict)]
    if all(type(one) is int for one in found) and found != sorted(found):
        yield Problem(expected=as_json(sorted(found)), actual=as_json(found), pointer="choices[].index")


@scenario("chat/logprobs", "A short answer with the logprobs of its tokens")
def chat_logprobs(target: Target) -> Generator[Request, Exchange, None]:
    body = chat(target, max_tokens=LIMIT, logprobs=True, top_logprobs=2)
    yield Request(name=WHOLE, path="/chat/completions", json=body)


@whole(
    "chat/logprobs/shape",
    "Write logprobs as the contract requires",
    *rules_of_shape("ChatCompletionLogprobs"),
)
def _shape(exchange: Exchange) -> Iterator[Problem]:
    choice = _choice(exchange)
    if choice.get("logprobs") is not None:
        yield from violations("ChatCompletionLogprobs", choice["logprobs"], "choices[0].logprobs.")


@whole("chat/logprobs/given", "Give an entry for each token of the content", "LP-01")
def _given(exchange: Exchange) -> Iterator[Problem]:
    """Check each choice: a server may make them for the first one alone."""
    for place, choice in enumerate(objects_in(exchange.json.get("choices"))):
        content = (choice.get("logprobs") or {}).get("content")
        if not content and choice["message"].get("content"):
            where = f"choices[{place}].logprobs.content"
            yield Problem(expected="entries", actual=as_json(content), pointer=where)


@whole("chat/logprobs/alternatives", "Give at most as many alternatives as asked for, best first", "LP-02")
def _alternatives(exchange: Exchange) -> Iterator[Problem]:
    choice = _choice(exchange)
    for number, entry in enumerate((choice.get("logprobs") or {}).get("content") or []):
        found = [other["logprob"] for other in entry["top_logprobs"]]
        # A sampled token outside the best k may be listed after them, or before: no document defines its place.
        top = requested_top_logprobs(exchange)
        best = found[1:] if found and entry["top_logprobs"][0].get("token") == entry.get("token") else found
        if len(found) > top + 1 or best[:top] != sorted(best[:top], reverse=True) or entry["logprob"] > 0:
            where = f"choices[0].logprobs.content[{number}]"
            yield Problem(
                expected=f"{top} alternatives, descending, at most 0", actual=as_json(found), pointer=where
            )


@whole("chat/logprobs/join", "Give entries whose bytes join to the content", "LP-03")
def _join(exchange: Exchange) -> Iterator[Problem]:
    choice = _choice(exchange)
    message = choice["message"]
    entries = (choice.get("logprobs") or {}).get("content") or []
    if not entries or any(entry["bytes"] is None for entry in entries):
        raise Inconclusive("there are no bytes to join")
    if message.get("reasoning") or message.get("reasoning_content") or message.get("tool_calls"):
        raise Inconclusive("the entries cover more than the content")
    content = message.get("content") or ""
    if not isinstance(content, str):
        raise Inconclusive("the content is not text; another check reports this")
    if any(byte not in range(256) for entry in entries for byte in entry["bytes"]):
        yield Problem(
            expected="numbers from 0 to 255", actual="others", pointer="choices[0].logprobs.content"
        )
        return
    if choice.get("finish_reason") == "stop" and request_fields(exchange).get("stop"):
        raise Inconclusive("tokens that a stop string cut have entries, too")
    yield from token_texts(entries)
    found = [bytes(entry["bytes"]) for entry in entries]
    # The token that ended the answer may have an entry, but no text.
    candidates = [found] if choice.get("finish_reason") == "length" else [found, found[:-1]]
    if not any(_whole(b"".join(parts)) == _whole(content.encode()) for parts in candidates):
        yield Problem(
            expected=as_json(content), actual=as_json(b"".join(found)), pointer="choices[0].logprobs.content"
        )


def _choice(exchange: Exchange) -> dict[str, Any]:
    """Return the first choice with a message; `chat/text/shape` checks its schema."""
    choices = exchange.json.get("choices") if isinstance(exchange.json, dict) else None
    choice = choices[0] if isinstance(choices, list) and choices else None
    if not isinstance(choice, dict) or not isinstance(choice.get("message"), dict):
        raise Inconclusive("there is no choice with a message; another check reports this")
    return choice


def _whole(text: bytes) -> str:
    """Decode without U+FFFD at the end, which some servers send for a character that the token limit cut."""
    return text.decode("utf-8", "replace").rstrip("\ufffd")
