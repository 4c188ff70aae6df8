"""What is missing, what no client sends, and what every server has to take: one scenario for each."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from typing import Any

from plumbline_conformance.checks.common import (
    BUSY,
    accepted,
    answered,
    at,
    envelope,
    error_of,
    last,
    refusal,
    refused,
    required,
    taken,
)
from plumbline_conformance.checks.sample_requests import JSON, chat
from plumbline_conformance.suite.model import (
    WRONG_KEY,
    Inconclusive,
    Problem,
    Request,
    Target,
    breaking,
    check,
    scenario,
)
from plumbline_conformance.transcript.model import Exchange, Transcript

Steps = Generator[Request, Exchange, None]


@scenario("errors/no-model", "A request that names no model")
def no_model(target: Target) -> Steps:
    body = {key: value for key, value in chat(target).items() if key != "model"}
    yield Request(path="/chat/completions", json=body)


@check("errors/no-model/refused", "Refuse a request without a model with 400", "ERR-06")
def no_model_refused(seen: Transcript) -> Iterator[Problem]:
    yield from refused(last(seen), 400, 422)


@scenario("errors/no-messages", "A request without messages")
def no_messages(target: Target) -> Steps:
    yield Request(path="/chat/completions", json={"model": target.model, "max_tokens": 4})


@check("errors/no-messages/refused", "Refuse what has not got its required field", "ERR-02")
def no_messages_refused(seen: Transcript) -> Iterator[Problem]:
    yield from refused(last(seen), 400, 422)


@check("errors/no-messages/type", "Call it an `invalid_request_error`", "ERR-03")
def no_messages_type(seen: Transcript) -> Iterator[Problem]:
    if not 400 <= answered(last(seen)).status < 500:
        raise Inconclusive("nothing was refused; another check says so")
    kind = (error_of(last(seen)) or {}).get("type")
    if kind != "invalid_request_error":
        yield Problem(expected="invalid_request_error", actual=repr(kind), pointer="error.type")


@scenario("errors/stream-refused", "A stream that cannot begin")
def stream_refused(target: Target) -> Steps:
    yield Request(path="/chat/completions", json=chat(target, stream=True, temperature=9))


@check("errors/stream-refused/status", "Refuse with a status, not within a stream", "HTTP-12")
def stream_refused_status(seen: Transcript) -> Iterator[Problem]:
    yield from refused(last(seen), 400, 422)


@scenario("errors/hostile", "Bodies that no client sends, and a right one after them")
def hostile(target: Target) -> Steps:
    for content in (b"", b"null", b"[]", b'"x"', b'{"model":' * 3000, b"\x00" * 64):
        yield Request(path="/chat/completions", content=content, headers=JSON)
    deep: Any = "x"
    for _ in range(200):
        deep = [deep]
    yield Request(path="/chat/completions", json=chat(target, messages=deep))
    yield Request(path="/chat/completions", json=chat(target, temperature=10**30))
    yield Request(path="/chat/completions", json=chat(target))


_HOSTILE = ("HTTP-07", "ERR-08", "ERR-08", "ERR-08", "HTTP-07", "HTTP-07", "ERR-08", "ERR-07")
"""What each of them breaks: no JSON, JSON that is no object, a member of a wrong type, a number beyond its bound."""


@check("errors/hostile/refused", "Refuse each of them with 400", "HTTP-07", "ERR-07", "ERR-08")
def hostile_refused(seen: Transcript) -> Iterator[Problem]:
    at(seen, 8)
    for place, exchange in enumerate(seen.exchanges[:8]):
        yield from breaking(_HOSTILE[place], refused(exchange, 400, 413, 422))


@check("errors/hostile/envelope", "Write the error object with all its keys", "ERR-01")
def hostile_envelope(seen: Transcript) -> Iterator[Problem]:
    at(seen, 8)
    for exchange in seen.exchanges[:8]:
        if answered(exchange).status >= 400:
            yield from envelope(exchange)


@check("errors/hostile/served", "Serve the right request that follows", "HTTP-16")
def hostile_served(seen: Transcript) -> Iterator[Problem]:
    """Who says to each of them that there is no such operation, or no such model, says so at all times.

    Any other refusal is one of a right request, and those before it may be its cause.
    """
    right = answered(at(seen, 8))
    absent = right.status in (404, 405) and all(one.status == right.status for one in seen.exchanges[:8])
    if 400 <= right.status < 500 and not absent:
        yield Problem(
            expected="an answer", actual=f"status {right.status}: {refusal(right)}", pointer="status"
        )
        return
    required(lambda: accepted(right))


@scenario("chat/unknown-field", "A field that nobody knows")
def unknown_field(target: Target) -> Steps:
    yield Request(path="/chat/completions", json=chat(target, plumbline_0f3a={"a": [1, None]}))


@check("chat/unknown-field/no-crash", "Ignore a field that is unknown, or refuse it", "HTTP-09")
def unknown_no_crash(seen: Transcript) -> Iterator[Problem]:
    required(lambda: accepted(last(seen)))
    yield from ()


NULLS: list[str] = ["temperature", "top_p", "n", "stop", "stream", "max_completion_tokens", "seed"]
NULLS += ["logit_bias", "presence_penalty", "metadata", "response_format", "stream_options"]


@scenario("chat/nulls", "Nulls for everything that may be null")
def nulls(target: Target) -> Steps:
    yield Request(path="/chat/completions", json=chat(target))
    yield Request(path="/chat/completions", json=chat(target, **dict.fromkeys(NULLS)))


@check("chat/nulls/taken", "Take null for a field left out", "HTTP-10")
def nulls_taken(seen: Transcript) -> Iterator[Problem]:
    yield from taken(seen, 1)


@scenario("errors/key", "No key, and a wrong one", needs=("key",))
def wrong_key(target: Target) -> Steps:
    for value in ("", WRONG_KEY):
        yield Request(path="/chat/completions", json=chat(target), headers={"authorization": value})


@check("errors/key/refused", "Answer a missing or wrong key with 401", "HTTP-06")
def key_refused(seen: Transcript) -> Iterator[Problem]:
    for place, exchange in enumerate(seen.exchanges):
        if exchange.status == 0 or exchange.error is not None:
            raise Inconclusive(exchange.error or "there was no answer")
        if exchange.status in BUSY:
            raise Inconclusive(f"the server was busy: status {exchange.status}")
        if place == 0 and exchange.status == 400:
            continue  # The first has the header and nothing in it, which a server may call malformed.
        if exchange.status != 401:
            yield Problem(expected="status 401", actual=f"status {exchange.status}", pointer="status")
