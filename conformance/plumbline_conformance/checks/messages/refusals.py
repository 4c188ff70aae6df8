"""Check refusals of Messages: their statuses, their error objects and their ids."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from typing import Any

from plumbline_conformance.checks.common import answered, at, has_no_route, refused, valid_body
from plumbline_conformance.checks.messages.texts import PATH, message
from plumbline_conformance.checks.messages.tools import TOOLS
from plumbline_conformance.checks.sample_requests import JSON, user
from plumbline_conformance.suite.scenario import (
    Inconclusive,
    NotRequested,
    Problem,
    Request,
    Target,
    about,
    check,
    scenario,
)
from plumbline_conformance.suite.wording import as_json
from plumbline_conformance.transcript.exchange import Exchange, Transcript

Steps = Generator[Request, Exchange, None]
CALL = {"type": "tool_use", "id": "toolu_0f3a", "name": "get_weather", "input": {"city": "Paris"}}
RESULT = {"type": "tool_result", "tool_use_id": "toolu_0f3a", "content": "21 °C"}
UNKNOWN = "no-such-model-0f3a"
INVALID = ("no_limit", "broken_json", "unknown_block", "empty")
"""Requests that no server may answer."""
TYPES = {
    400: ("invalid_request_error",),
    401: ("authentication_error",),
    403: ("permission_error",),
    404: ("not_found_error",),
    413: ("request_too_large",),
    422: ("invalid_request_error",),
    429: ("rate_limit_error",),
    500: ("api_error",),
    529: ("overloaded_error",),
}
"""The types of errors of each status (MSG-11)."""


@scenario("messages/refused", "Requests that have to be refused", needs=("messages",))
def refusals(target: Target) -> Steps:
    no_limit = message(target)
    del no_limit["max_tokens"]
    yield Request(name="no_limit", path=PATH, json=no_limit)
    yield Request(name="broken_json", path=PATH, content=b'{"model": ', headers=JSON)
    strange = [{"role": "user", "content": [{"type": "hologram", "hologram": "x"}]}]
    yield Request(name="unknown_block", path=PATH, json=message(target, messages=strange))
    yield Request(name="empty", path=PATH, json=message(target, messages="Hi"))
    yield Request(name="unknown_model", path=PATH, json=message(target, model=UNKNOWN))
    asked = message(target, tools=TOOLS)
    for name, turns in (
        ("no_result", [{"role": "assistant", "content": [CALL]}, *user("And now?")]),
        ("no_call", [{"role": "assistant", "content": "Well."}, {"role": "user", "content": [RESULT]}]),
    ):
        yield Request(name=name, path=PATH, json={**asked, "messages": [*user("Hi"), *turns]})


@check("messages/refused/invalid", "Refuse requests that are not valid", "MSG-11")
def invalid(seen: Transcript) -> Iterator[Problem]:
    for name in INVALID:
        yield from refused(at(seen, name), 400, 422)


@check("messages/refused/unknown-model", "Refuse an unknown model", "MSG-11")
def unknown_model(seen: Transcript) -> Iterator[Problem]:
    yield from refused(at(seen, "unknown_model"), 404)


@check("messages/refused/unpaired", "Refuse calls without results, and results without calls", "MSG-05")
def unpaired(seen: Transcript) -> Iterator[Problem]:
    for name in ("no_result", "no_call"):
        yield from refused(at(seen, name), 400, 422)


def _errors(exchange: Exchange) -> Iterator[Problem]:
    """Check the error object of a refusal, its type and the header `request-id` (MSG-11)."""
    if answered(exchange).status < 400:
        raise Inconclusive(f"the request was not refused: status {exchange.status}")
    yield from valid_body(exchange, "MessageErrorResponse")
    body: Any = exchange.json
    error = body.get("error") if isinstance(body, dict) else None
    kind = error.get("type") if isinstance(error, dict) else None
    wanted = TYPES.get(exchange.status)
    if wanted is not None and isinstance(kind, str) and kind not in wanted:
        yield Problem(expected=wanted[0], actual=as_json(kind)[:200], pointer="error.type")
    if isinstance(error, dict) and error.get("message") == "":
        yield Problem(expected="a message", actual="''", pointer="error.message")
    if not exchange.header("request-id"):
        yield Problem(expected="a header request-id", actual="none", pointer="headers")


def error_object(exchange: Exchange) -> Iterator[Problem]:
    """Check the error object of a refusal, unless the server has no Messages (MSG-11)."""
    if has_no_route(answered(exchange)):
        raise NotRequested("the server does not have the operation")
    yield from _errors(exchange)


@check(
    "messages/refused/envelope",
    "Refuse with the error object of Messages",
    "MSG-11",
    law=error_object,
    of="refusal",
)
def envelope(seen: Transcript) -> Iterator[Problem]:
    refusals = [one for one in seen.exchanges if answered(one).status >= 400]
    if not refusals:
        raise Inconclusive("the server refused nothing")
    for exchange in refusals:
        yield from about(exchange, _errors(exchange))
