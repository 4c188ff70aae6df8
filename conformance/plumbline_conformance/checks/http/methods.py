"""Check how a server answers methods that a resource does not have, and HEAD and OPTIONS."""

from __future__ import annotations

from collections.abc import Generator, Iterator

from plumbline_conformance.checks.common import accepted, answered, at, json_content_type
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
_GENERIC = ("head", "options")
"""Requests of methods that HTTP defines for any resource; the API says nothing about their bodies."""


@scenario("errors/methods", "Methods that a resource does not have, and those that every server knows")
def methods(target: Target) -> Steps:
    yield Request(name="patch", path="/chat/completions", method="PATCH", json=chat(target))
    yield Request(name="post", path="/models", method="POST", json=chat(target))
    yield Request(name="delete", path="/models", method="DELETE")
    yield Request(name="head", path="/models", method="HEAD")
    yield Request(name="options", path="/models", method="OPTIONS")
    yield Request(name="list", path="/models", method="GET")
    yield Request(name="put", path="/chat/completions", method="PUT", json=chat(target))


def _unsupported(seen: Transcript) -> list[Exchange]:
    """Return the exchanges whose method the resource does not have."""
    exchanges = [one for one in seen.exchanges if one.name in ("put", "patch", "post", "delete")]
    if not exchanges:
        raise Inconclusive("this request was not sent")
    return exchanges


@check("errors/methods/refused", "Refuse a method that a resource does not have", "HTTP-08")
def unsupported_refused(seen: Transcript) -> Iterator[Problem]:
    """Accept any refusal of a client: a gateway may refuse the method, or ask for another key."""
    for exchange in _unsupported(seen):
        if not 400 <= answered(exchange).status < 500 and exchange.status != 501:
            shown = f"status {exchange.status}"
            yield Problem(
                expected="status 405 or 404", actual=shown, pointer="status", exchange=exchange.name
            )


@check("errors/methods/allowed", "Name the methods that there are beside status 405", "HTTP-22")
def allowed_methods_named(seen: Transcript) -> Iterator[Problem]:
    refusals = [one for one in _unsupported(seen) if answered(one).status == 405]
    if not refusals:
        raise Inconclusive("no method was refused with status 405")
    for exchange in refusals:
        allowed, where = exchange.header("allow"), {"pointer": "headers.allow", "exchange": exchange.name}
        if allowed is None:
            yield Problem(expected="a header allow", actual="none", **where)
        elif exchange.method in [name.strip().upper() for name in allowed.split(",")]:
            yield Problem(expected=f"methods without {exchange.method}", actual=allowed[:100], **where)


@check("errors/methods/known", "Never fail on HEAD and OPTIONS", "HTTP-22")
def known_methods(seen: Transcript) -> Iterator[Problem]:
    for exchange in seen.exchanges:
        if exchange.name not in _GENERIC:
            continue
        if answered(exchange).status >= 500 and exchange.status != 501:
            shown = f"status {exchange.status}"
            yield Problem(expected="no failure", actual=shown, pointer="status", exchange=exchange.name)


@check("errors/methods/head", "Answer HEAD with the type and the length of what GET answers", "HTTP-22")
def head_as_get(seen: Transcript) -> Iterator[Problem]:
    """Compare headers that both have: a server may leave the length out of either."""
    head, got = answered(at(seen, "head")), accepted(at(seen, "list"))
    if head.status != 200:
        raise Inconclusive(f"HEAD has status {head.status}")
    for name in ("content-type", "content-length"):
        shown, wanted = head.header(name), got.header(name)
        if shown is not None and wanted is not None and shown != wanted:
            yield Problem(expected=wanted, actual=shown[:100], pointer=f"headers.{name}", exchange="head")


@check("errors/methods/json", "Refuse in JSON", "HTTP-08")
def refused_in_json(seen: Transcript) -> Iterator[Problem]:
    """Judge only 404 and 405: other refusals may come from a gateway in front of the server."""
    refusals = [one for one in _unsupported(seen) if answered(one).status in (404, 405)]
    if not refusals:
        raise Inconclusive("no method was refused with status 404 or 405")
    for exchange in refusals:
        yield from about(exchange, breaking("HTTP-08", json_content_type(exchange)))
