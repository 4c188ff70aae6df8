"""Check methods that a resource does not have."""

from __future__ import annotations

from collections.abc import Generator, Iterator

from plumbline_conformance.checks.common import answered, json_content_type
from plumbline_conformance.checks.sample_requests import chat
from plumbline_conformance.suite.scenario import (
    Inconclusive,
    Problem,
    Request,
    Target,
    about,
    breaking,
    check,
    scenario,
)
from plumbline_conformance.transcript.exchange import Exchange, Transcript

Steps = Generator[Request, Exchange, None]
ALONE = ("head", "options")
"""Requests whose answers have no body, or one that is not the API's."""


@scenario("errors/methods", "Methods that a resource does not have, and those that every server knows")
def methods(target: Target) -> Steps:
    yield Request(name="patch", path="/chat/completions", method="PATCH", json=chat(target))
    yield Request(name="post", path="/models", method="POST", json=chat(target))
    yield Request(name="delete", path="/models", method="DELETE")
    yield Request(name="head", path="/models", method="HEAD")
    yield Request(name="options", path="/models", method="OPTIONS")
    yield Request(name="list", path="/models", method="GET")
    yield Request(name="put", path="/chat/completions", method="PUT", json=chat(target))


def _unknown(seen: Transcript) -> list[Exchange]:
    found = [one for one in seen.exchanges if one.name in ("put", "patch", "post", "delete")]
    if not found:
        raise Inconclusive("this request was not sent")
    return found


@check("errors/methods/refused", "Refuse a method that a resource does not have", "HTTP-08")
def unknown_refused(seen: Transcript) -> Iterator[Problem]:
    """Accept any refusal of a client: a gateway may refuse the method, or ask for another key."""
    for exchange in _unknown(seen):
        if not 400 <= answered(exchange).status < 500 and exchange.status != 501:
            shown = f"status {exchange.status}"
            yield Problem(
                expected="status 405 or 404", actual=shown, pointer="status", exchange=exchange.name
            )


@check("errors/methods/allowed", "Name the methods that there are beside status 405", "HTTP-22")
def others_named(seen: Transcript) -> Iterator[Problem]:
    found = [one for one in _unknown(seen) if answered(one).status == 405]
    if not found:
        raise Inconclusive("no method was refused with status 405")
    for exchange in found:
        if exchange.header("allow") is None:
            yield Problem(
                expected="a header allow", actual="none", pointer="headers.allow", exchange=exchange.name
            )


@check("errors/methods/known", "Never fail on HEAD and OPTIONS", "HTTP-22")
def known_methods(seen: Transcript) -> Iterator[Problem]:
    for exchange in seen.exchanges:
        if exchange.name not in ALONE:
            continue
        if answered(exchange).status >= 500 and exchange.status != 501:
            shown = f"status {exchange.status}"
            yield Problem(expected="no failure", actual=shown, pointer="status", exchange=exchange.name)


@check("errors/methods/json", "Refuse in JSON", "HTTP-08")
def refused_in_json(seen: Transcript) -> Iterator[Problem]:
    """Judge refusals of methods alone: a gateway in front of the server writes its own."""
    found = [one for one in _unknown(seen) if answered(one).status in (404, 405)]
    if not found:
        raise Inconclusive("no method was refused with status 404 or 405")
    for exchange in found:
        yield from about(exchange, breaking("HTTP-08", json_content_type(exchange)))
