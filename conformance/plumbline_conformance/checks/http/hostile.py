"""Check missing fields, hostile bodies, and values that every server must accept."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from typing import Any

from plumbline_conformance.checks.common import (
    accepted,
    answered,
    at,
    envelope,
    error_of,
    follow_up_accepted,
    json_content_type,
    only,
    refusal,
    refused,
    required,
)
from plumbline_conformance.checks.sample_requests import JSON, chat
from plumbline_conformance.suite.scenario import (
    WRONG_KEY,
    Inconclusive,
    Problem,
    Request,
    Target,
    breaking,
    check,
    scenario,
)
from plumbline_conformance.suite.wording import as_json
from plumbline_conformance.transcript.exchange import Exchange, Transcript

Steps = Generator[Request, Exchange, None]


@scenario("errors/no-model", "A request without a model")
def no_model(target: Target) -> Steps:
    body = {key: value for key, value in chat(target).items() if key != "model"}
    yield Request(path="/chat/completions", json=body)


@check("errors/no-model/refused", "Refuse a request without a model with 400", "ERR-06")
def no_model_refused(seen: Transcript) -> Iterator[Problem]:
    yield from refused(only(seen), 400, 422)


@scenario("errors/no-messages", "A request without messages")
def no_messages(target: Target) -> Steps:
    yield Request(path="/chat/completions", json={"model": target.model, "max_tokens": 4})


@check("errors/no-messages/refused", "Refuse a request without a required field", "ERR-02")
def no_messages_refused(seen: Transcript) -> Iterator[Problem]:
    yield from refused(only(seen), 400, 422)


@check("errors/no-messages/type", "Set the error type to `invalid_request_error`", "ERR-03")
def no_messages_type(seen: Transcript) -> Iterator[Problem]:
    if not 400 <= answered(only(seen)).status < 500:
        raise Inconclusive("nothing was refused; another check reports this")
    kind = (error_of(only(seen)) or {}).get("type")
    if kind != "invalid_request_error":
        yield Problem(expected="invalid_request_error", actual=as_json(kind), pointer="error.type")


@scenario("errors/stream-refused", "A streaming request that is invalid")
def stream_refused(target: Target) -> Steps:
    yield Request(path="/chat/completions", json=chat(target, stream=True, temperature=9))


@check("errors/stream-refused/status", "Refuse with a status, not with an event", "HTTP-12")
def stream_refused_status(seen: Transcript) -> Iterator[Problem]:
    yield from refused(only(seen), 400, 422)


@check("errors/stream-refused/json", "Refuse a stream in JSON", "HTTP-12")
def stream_refused_json(seen: Transcript) -> Iterator[Problem]:
    """Check the media type, by which a client decides whether to read events."""
    if not 400 <= answered(only(seen)).status < 500:
        raise Inconclusive("the request was not refused; another check reports this")
    yield from breaking("HTTP-12", json_content_type(only(seen)))


@scenario("errors/hostile", "Hostile bodies, then a valid one")
def hostile(target: Target) -> Steps:
    for name, content in _RAW.items():
        yield Request(name=name, path="/chat/completions", content=content, headers=JSON)
    deep: Any = "x"
    for _ in range(200):
        deep = [deep]
    yield Request(name="deep_messages", path="/chat/completions", json=chat(target, messages=deep))
    huge = chat(target, temperature=10**30)
    yield Request(name="huge_temperature", path="/chat/completions", json=huge)
    yield Request(name="valid", path="/chat/completions", json=chat(target))


_RAW = {
    "empty": b"",
    "null": b"null",
    "list": b"[]",
    "string": b'"x"',
    "deep_object": b'{"model":' * 3000,
    "zeros": b"\x00" * 64,
}
_HOSTILE = {
    "empty": "HTTP-07",
    "null": "ERR-08",
    "list": "ERR-08",
    "string": "ERR-08",
    "deep_object": "HTTP-07",
    "zeros": "HTTP-07",
    "deep_messages": "ERR-08",
    "huge_temperature": "ERR-07",
}
"""The rule of each: not JSON (HTTP-07), not an object or a wrong type (ERR-08), a number out of range (ERR-07)."""


@check("errors/hostile/refused", "Refuse each of them with 400", "HTTP-07", "ERR-07", "ERR-08")
def hostile_refused(seen: Transcript) -> Iterator[Problem]:
    at(seen, "valid")
    for name, rule in _HOSTILE.items():
        yield from breaking(rule, refused(at(seen, name), 400, 413, 422))


@check("errors/hostile/envelope", "Write the error object with all its keys", "ERR-01")
def hostile_envelope(seen: Transcript) -> Iterator[Problem]:
    at(seen, "valid")
    for name in _HOSTILE:
        if answered(at(seen, name)).status >= 400:
            yield from envelope(at(seen, name))


@check("errors/hostile/served", "Serve the valid request that follows", "HTTP-16", request="valid")
def hostile_served(seen: Transcript) -> Iterator[Problem]:
    """Check that the valid request is not refused.

    A 404 or 405 to all requests means that the operation or the model does not exist. The hostile requests may have
    caused any other refusal.
    """
    valid = answered(at(seen, "valid"))
    absent = valid.status in (404, 405) and all(at(seen, name).status == valid.status for name in _HOSTILE)
    if 400 <= valid.status < 500 and not absent:
        yield Problem(
            expected="an answer", actual=f"status {valid.status}: {refusal(valid)}", pointer="status"
        )
        return
    required(lambda: accepted(valid))


@scenario("chat/unknown-field", "An unknown field")
def unknown_field(target: Target) -> Steps:
    yield Request(path="/chat/completions", json=chat(target, plumbline_0f3a={"a": [1, None]}))


@check("chat/unknown-field/no-crash", "Ignore or refuse an unknown field", "HTTP-09")
def unknown_no_crash(seen: Transcript) -> Iterator[Problem]:
    required(lambda: accepted(only(seen)))
    yield from ()


NULLS: list[str] = ["temperature", "top_p", "n", "stop", "stream", "max_completion_tokens", "seed"]
NULLS += ["logit_bias", "presence_penalty", "metadata", "response_format", "stream_options"]


@scenario("chat/nulls", "Null for every field that may be null")
def nulls(target: Target) -> Steps:
    yield Request(name="plain", path="/chat/completions", json=chat(target))
    yield Request(name="with_nulls", path="/chat/completions", json=chat(target, **dict.fromkeys(NULLS)))


@check("chat/nulls/taken", "Accept null for an omitted field", "HTTP-10")
def nulls_taken(seen: Transcript) -> Iterator[Problem]:
    yield from follow_up_accepted(seen, "plain", "with_nulls")


@scenario("errors/key", "No key, and a wrong one", needs=("key",))
def wrong_key(target: Target) -> Steps:
    for name, value in (("no_key", ""), ("wrong_key", WRONG_KEY)):
        headers = {"authorization": value}
        yield Request(name=name, path="/chat/completions", json=chat(target), headers=headers)


@check("errors/key/refused", "Answer a missing or wrong key with 401", "HTTP-06")
def key_refused(seen: Transcript) -> Iterator[Problem]:
    for exchange in seen.exchanges:
        if exchange.error is not None or exchange.status not in (401, 403):
            answered(exchange)
        if exchange.name == "no_key" and exchange.status == 400:
            continue  # Its header is empty, which a server may refuse as malformed.
        if exchange.status != 401:
            shown = f"status {exchange.status}"
            yield Problem(expected="status 401", actual=shown, pointer="status", exchange=exchange.name)
