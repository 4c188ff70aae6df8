"""Check refusals: status, error object, header."""

from __future__ import annotations

import json
from collections.abc import Generator, Iterator

from plumbline_conformance.checks.common import (
    answered,
    at,
    envelope,
    error_of,
    only,
    refused,
    request_id,
)
from plumbline_conformance.checks.laws import refusal
from plumbline_conformance.checks.sample_requests import JSON, chat
from plumbline_conformance.suite.scenario import Inconclusive, Problem, Request, Target, check, scenario
from plumbline_conformance.suite.wording import as_json
from plumbline_conformance.transcript.exchange import Exchange, Transcript

Steps = Generator[Request, Exchange, None]


@scenario("errors/broken-json", "A truncated body")
def broken_json(target: Target) -> Steps:
    yield Request(path="/chat/completions", content=b'{"model": "x", "messages": [', headers=JSON)


@check("errors/broken-json/refused", "Answer malformed JSON with 400 and an error object", "HTTP-07")
def broken_json_refused(seen: Transcript) -> Iterator[Problem]:
    yield from _malformed(only(seen))


def _malformed(exchange: Exchange) -> Iterator[Problem]:
    yield from refused(exchange, 400, 422)
    if exchange.status >= 400 and error_of(exchange) is None:
        shown = exchange.body[:80].decode("utf-8", "replace")
        yield Problem(expected="an error object", actual=as_json(shown), pointer="body")


refusal("errors/broken-json/envelope", "Write the error object with all its keys", "ERR-01")(envelope)
refusal("errors/broken-json/request-id", "Send an x-request-id with errors", "HTTP-03")(request_id)


@scenario("errors/invalid-utf8", "A body that is not UTF-8")
def invalid_utf8(target: Target) -> Steps:
    body = json.dumps(chat(target)).encode().replace(b'"Hi"', b'"\xff\xfe"')
    yield Request(path="/chat/completions", content=body, headers=JSON)


@check("errors/invalid-utf8/refused", "Answer invalid UTF-8 with 400 and an error object", "HTTP-07")
def invalid_utf8_refused(seen: Transcript) -> Iterator[Problem]:
    yield from _malformed(only(seen))


@scenario("errors/unknown-model", "A model that does not exist")
def unknown_model(target: Target) -> Steps:
    yield Request(path="/chat/completions", json=chat(target, model="no-such-model-0f3a"))


@check(
    "errors/unknown-model/not-found",
    "Answer an unknown model with 404 `model_not_found`",
    "ERR-06",
)
def unknown_model_not_found(seen: Transcript) -> Iterator[Problem]:
    yield from refused(only(seen), 404)
    code = (error_of(only(seen)) or {}).get("code")
    if only(seen).status == 404 and code != "model_not_found":
        yield Problem(expected="model_not_found", actual=as_json(code), pointer="error.code")


@scenario("errors/empty-messages", "A conversation without messages")
def empty_messages(target: Target) -> Steps:
    yield Request(path="/chat/completions", json=chat(target, messages=[]))


@check("errors/empty-messages/refused", "Refuse an empty list of messages", "ERR-07")
def empty_messages_refused(seen: Transcript) -> Iterator[Problem]:
    yield from refused(only(seen), 400, 422)


@scenario("errors/out-of-range", "Numbers beyond their bounds")
def out_of_range(target: Target) -> Steps:
    bad = {"temperature": 2.1, "top_p": -0.1, "n": 0, "presence_penalty": 3, "top_logprobs": 21}
    for name, value in bad.items():
        body = chat(target, **{"logprobs": True, name: value})
        yield Request(name=name, path="/chat/completions", json=body)


@check("errors/out-of-range/refused", "Refuse numbers out of range instead of clamping them", "ERR-07")
def out_of_range_refused(seen: Transcript) -> Iterator[Problem]:
    for exchange in seen.exchanges:
        yield from refused(exchange, 400, 422)


WRONG_TYPES: dict[str, object] = {"stream": "true", "max_tokens": "4", "messages": {}, "temperature": [1]}


@scenario("errors/wrong-types", "Strings and objects where numbers and arrays belong")
def wrong_types(target: Target) -> Steps:
    for name, value in WRONG_TYPES.items():
        yield Request(name=name, path="/chat/completions", json=chat(target, **{name: value}))


@check("errors/wrong-types/refused", "Refuse wrong JSON types", "ERR-08")
def wrong_types_refused(seen: Transcript) -> Iterator[Problem]:
    for exchange in seen.exchanges:
        yield from refused(exchange, 400, 422)


@check("errors/wrong-types/envelope", "Write the error object with all its keys", "ERR-01")
def wrong_types_envelope(seen: Transcript) -> Iterator[Problem]:
    for exchange in _refusals(seen).values():
        yield from envelope(exchange)


@check("errors/wrong-types/param", "Name the offending field in `param`", "ERR-05")
def wrong_types_param(seen: Transcript) -> Iterator[Problem]:
    for name, exchange in _refusals(seen).items():
        param = (error_of(exchange) or {}).get("param")
        if param != name:
            wanted = f"param {as_json(name)}"
            yield Problem(expected=wanted, actual=as_json(param), pointer="error.param", exchange=name)


def _refusals(seen: Transcript) -> dict[str, Exchange]:
    """Return the refusals by wrong field; another check reports requests that were not refused."""
    sent = [one for one in seen.exchanges if one.name in WRONG_TYPES]
    found = {one.name: one for one in sent if answered(one).status in (400, 422)}
    if not found:
        raise Inconclusive("nothing was refused; another check reports this")
    return found


@scenario("errors/stream-options", "Stream options without a stream")
def stream_options(target: Target) -> Steps:
    yield Request(path="/chat/completions", json=chat(target, stream_options={"include_usage": True}))


@check("errors/stream-options/refused", "Refuse `stream_options` without `stream: true`", "CS-09")
def stream_options_refused(seen: Transcript) -> Iterator[Problem]:
    yield from refused(only(seen), 400, 422)


@scenario("errors/unknown-route", "A path and a method that do not exist")
def unknown_route(target: Target) -> Steps:
    yield Request(name="path", path="/no/such/path", json={})
    yield Request(name="method", path="/chat/completions", method="PUT", json={})


@check("errors/unknown-route/envelope", "Answer 404 and 405 with the error object", "HTTP-08")
def unknown_route_envelope(seen: Transcript) -> Iterator[Problem]:
    for exchange, wanted in ((at(seen, "path"), 404), (at(seen, "method"), 405)):
        yield from refused(exchange, wanted)
        if exchange.status >= 400:
            yield from envelope(exchange)
