"""Check that a request is read in the forms in which other HTTP clients write it."""

from __future__ import annotations

import json
from collections.abc import Generator, Iterator
from typing import Any

from plumbline_conformance.checks.common import accepted, answered, at
from plumbline_conformance.checks.messages.texts import message
from plumbline_conformance.checks.sample_requests import chat
from plumbline_conformance.suite.scenario import Problem, Request, Target, check, scenario
from plumbline_conformance.transcript.exchange import Exchange, Transcript

Steps = Generator[Request, Exchange, None]
PLAIN = "plain"
REFUSED = (400, 404, 405, 406, 415, 422, 501)


def _forms(path: str, body: dict[str, Any], more: dict[str, Request]) -> Steps:
    """Send a request plainly, and in other forms: further ones by their names.

    Clients in C# and Java name the charset. A base URL may have a query, such as the version of a gateway's API.
    """
    content = json.dumps(body).encode()
    yield Request(name=PLAIN, path=path, json=body)
    kinds = {"a charset": "application/json; charset=utf-8", "capitals": "Application/JSON"}
    for name, kind in kinds.items():
        yield Request(name=name, path=path, content=content, headers={"content-type": kind})
    yield Request(name="a query", path=f"{path}?plumbline_0f3a=1", json=body)
    yield Request(name="an unknown header", path=path, json=body, headers={"x-stainless-lang": "js"})
    for name, request in more.items():
        yield Request(name=name, path=request.path, json=body, headers=request.headers)


@scenario("chat/forms", "A chat request in the forms of other HTTP clients")
def chat_forms(target: Target) -> Steps:
    yield from _forms("/chat/completions", chat(target), {})


@scenario("messages/forms", "A request of Messages in the forms of other HTTP clients", needs=("messages",))
def message_forms(target: Target) -> Steps:
    """Send also what Anthropic's SDK adds to a request with betas."""
    betas = {"anthropic-version": "2023-06-01", "anthropic-beta": "plumbline-2030-01-01"}
    beta = Request(path="/messages?beta=true", headers=betas)
    yield from _forms("/messages", message(target), {"betas": beta})


def forms_taken(seen: Transcript) -> Iterator[Problem]:
    """Check that each form is answered as the plain one is."""
    accepted(at(seen, PLAIN))
    for exchange in seen.exchanges[1:]:
        if answered(exchange).status in REFUSED:
            shown = f"status {exchange.status}"
            yield Problem(expected="an answer", actual=shown, pointer="status", exchange=exchange.name)


for _slug in ("chat", "messages"):
    check(f"{_slug}/forms/taken", "Read a request in the forms of other HTTP clients", "HTTP-24")(forms_taken)
