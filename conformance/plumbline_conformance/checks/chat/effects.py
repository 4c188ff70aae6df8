"""Check fields whose effect can be observed whatever the model is: a forced token, a limit by its newer name."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from typing import Any

from plumbline_conformance.checks.laws import whole
from plumbline_conformance.checks.request_reader import request_fields, requested_limit
from plumbline_conformance.checks.sample_requests import chat
from plumbline_conformance.suite.model import Inconclusive, NotRequested, Problem, Request, Target, scenario
from plumbline_conformance.transcript.answer_fold import objects_in
from plumbline_conformance.transcript.model import Exchange

Steps = Generator[Request, Exchange, None]
TOKEN = "64"
"""The id of a printable character in the vocabularies of most models; any id that ends no answer would do."""
FORCE = 100
LIMIT = 6


@scenario("chat/bias", "One token forced with `logit_bias`")
def bias(target: Target) -> Steps:
    fields = {"logit_bias": {TOKEN: FORCE}, "logprobs": True, "temperature": 0, "seed": 1}
    yield Request(path="/chat/completions", json=chat(target, max_tokens=LIMIT, **fields))


@whole("chat/bias/forced", "Write only the token that `logit_bias` forces", "CHAT-12")
def forced(exchange: Exchange) -> Iterator[Problem]:
    """Check that all tokens are the same, which needs no knowledge of the vocabulary (CHAT-12)."""
    biases = request_fields(exchange).get("logit_bias")
    if not isinstance(biases, dict) or list(biases.values()) != [FORCE]:
        raise NotRequested("the request forces no single token")
    tokens = [repr(entry.get("bytes") or entry.get("token")) for entry in _entries(exchange)]
    if len(tokens) < 2:
        raise Inconclusive("the answer has fewer than two tokens with logprobs")
    # A model may end instead, if the forced token is one of those that end an answer.
    if len(set(tokens)) > 1:
        shown = ", ".join(repr(entry.get("token")) for entry in _entries(exchange))[:200]
        where = "choices[0].logprobs.content"
        yield Problem(expected="one token, repeated", actual=shown, pointer=where)


def _entries(exchange: Exchange) -> list[dict[str, Any]]:
    body = exchange.json if isinstance(exchange.json, dict) else {}
    first = next(iter(objects_in(body.get("choices"))), {})
    logprobs = first.get("logprobs")
    return objects_in(logprobs.get("content")) if isinstance(logprobs, dict) else []


@scenario("chat/completion-limit", "A limit named `max_completion_tokens`")
def completion_limit(target: Target) -> Steps:
    messages = [{"role": "user", "content": "Count from one to a hundred."}]
    body = chat(target, messages=messages, max_completion_tokens=LIMIT, temperature=0, seed=1)
    del body["max_tokens"]
    yield Request(path="/chat/completions", json=body)


@whole("chat/completion-limit/kept", "Write no more tokens than `max_completion_tokens`", "CHAT-06")
def kept(exchange: Exchange) -> Iterator[Problem]:
    """Check the number of tokens against the limit (CHAT-06)."""
    limit = requested_limit(exchange)
    if "max_completion_tokens" not in request_fields(exchange):
        raise NotRequested("the request has no `max_completion_tokens`")
    body = exchange.json if isinstance(exchange.json, dict) else {}
    usage = body.get("usage")
    tokens = usage.get("completion_tokens") if isinstance(usage, dict) else None
    number = request_fields(exchange).get("n")
    most = limit * (number if isinstance(number, int) else 1)
    if not isinstance(tokens, int):
        raise Inconclusive("the answer has no usage; another check reports this")
    if tokens > most:
        yield Problem(
            expected=f"at most {most} tokens", actual=str(tokens), pointer="usage.completion_tokens"
        )
