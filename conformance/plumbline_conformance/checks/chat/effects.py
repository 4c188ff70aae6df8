"""Check fields with an effect that does not depend on the model: a forced token, a limit by its newer name."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from typing import Any

from plumbline_conformance.checks.answers import choice, chunks, is_stream
from plumbline_conformance.checks.common import accepted, at
from plumbline_conformance.checks.laws import STREAM, WHOLE, both, whole
from plumbline_conformance.checks.request_reader import request_fields, requested_limit
from plumbline_conformance.checks.sample_requests import chat
from plumbline_conformance.suite.scenario import (
    Inconclusive,
    NotRequested,
    Problem,
    Request,
    Target,
    check,
    scenario,
)
from plumbline_conformance.suite.wording import as_json
from plumbline_conformance.transcript.answer_fold import objects_in
from plumbline_conformance.transcript.exchange import Exchange, Transcript

Steps = Generator[Request, Exchange, None]
TOKEN = "64"
"""The id of a printable character in the vocabularies of most models; any id that ends no answer would do."""
FORCE = 100
LIMIT = 6


@scenario("chat/bias", "One token forced with `logit_bias`")
def bias(target: Target) -> Steps:
    fields = {"logit_bias": {TOKEN: FORCE}, "logprobs": True, "temperature": 0, "seed": 1}
    body = chat(target, max_tokens=LIMIT, **fields)
    yield Request(name=WHOLE, path="/chat/completions", json=body)
    yield Request(name=STREAM, path="/chat/completions", json={**body, "stream": True})


@both(
    "chat/bias/forced",
    ("Write only the token that `logit_bias` forces", "CHAT-12"),
    ("Stream only the token that `logit_bias` forces", "CHAT-12"),
)
def forced(exchange: Exchange) -> Iterator[Problem]:
    """Check that all tokens are the same, which needs no knowledge of the vocabulary (CHAT-12)."""
    biases = request_fields(exchange).get("logit_bias")
    if not isinstance(biases, dict) or list(biases.values()) != [FORCE]:
        raise NotRequested("the request forces no single token")
    tokens = [as_json(entry.get("bytes") or entry.get("token")) for entry in _entries(exchange)]
    if len(tokens) < 2:
        raise Inconclusive("the answer has fewer than two tokens with logprobs")
    # A model may end instead, if the forced token is one that ends an answer.
    if len(set(tokens)) > 1:
        shown = ", ".join(as_json(entry.get("token")) for entry in _entries(exchange))[:200]
        where = "choices[0].logprobs.content"
        yield Problem(expected="one token, repeated", actual=shown, pointer=where)


def _entries(exchange: Exchange) -> list[dict[str, Any]]:
    bodies = chunks(exchange) if is_stream(exchange) else objects_in([exchange.json])
    lists = [one.get("logprobs") for body in bodies for one in objects_in(body.get("choices"))[:1]]
    return [entry for one in lists if isinstance(one, dict) for entry in objects_in(one.get("content"))]


@scenario("chat/completion-limit", "A limit named `max_completion_tokens`")
def completion_limit(target: Target) -> Steps:
    messages = [{"role": "user", "content": "Count from one to a hundred."}]
    body = chat(target, messages=messages, max_completion_tokens=LIMIT, temperature=0, seed=1)
    del body["max_tokens"]
    yield Request(name=WHOLE, path="/chat/completions", json=body)


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


ATTEMPTS = 4
"""Equal requests with one seed. A server that batches may differ in some of them."""


@scenario("chat/seed", "One seed in four equal requests that sample")
def seed(target: Target) -> Steps:
    """Sample so freely that two texts are equal only because of the seed, even for a model with few answers."""
    messages = [{"role": "user", "content": "Write any words that come to mind."}]
    body = chat(target, messages=messages, max_tokens=32, temperature=2, seed=target.seed)
    for number in range(1, ATTEMPTS + 1):
        yield Request(name=f"sample/{number}", path="/chat/completions", json=body)


@check("chat/seed/repeated", "Sample the same text again with the same seed", "CHAT-11")
def seed_repeated(seen: Transcript) -> Iterator[Problem]:
    """Accuse a server only if no two of the answers are equal: the seed then has no effect."""
    answers = [accepted(at(seen, f"sample/{number}")) for number in range(1, ATTEMPTS + 1)]
    marks = {as_json(one.json.get("system_fingerprint")) for one in answers if isinstance(one.json, dict)}
    if len(marks) > 1:
        raise Inconclusive("the fingerprints differ")
    found = [choice(one).content for one in answers]
    if len(set(found)) == len(found):
        shown = as_json(found)[:200]
        wanted, where = "two equal texts of four", answers[-1].name
        yield Problem(expected=wanted, actual=shown, pointer="content", exchange=where)
