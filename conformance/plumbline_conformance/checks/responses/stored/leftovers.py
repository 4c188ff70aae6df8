"""Check what a server keeps: nothing that was not stored or was deleted, and all of what a client relies on."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from typing import Any

from plumbline_conformance.checks import tools
from plumbline_conformance.checks.common import accepted, answered, at, refused
from plumbline_conformance.checks.responses.shared_laws import create_response
from plumbline_conformance.checks.responses.stored.conversations import messages_in, spoken
from plumbline_conformance.checks.responses.stored.lifecycle import BRIEF, NEEDS, id_of, same_response
from plumbline_conformance.checks.sample_requests import user
from plumbline_conformance.suite.scenario import Problem, Request, Target, Unsteady, check, scenario
from plumbline_conformance.suite.wording import as_json
from plumbline_conformance.transcript.exchange import Exchange, Transcript

Steps = Generator[Request, Exchange, None]


@scenario("responses/unkept-stream", "A streamed response that is not stored", needs=NEEDS)
def not_stored(target: Target) -> Steps:
    body = create_response(target, "Hi", max_output_tokens=16, store=False, stream=True)
    made = yield Request(name="stream", path="/responses", json=body)
    if (name := _id(made)) is not None:
        yield Request(name="get", path=f"/responses/{name}", method="GET")


@check("responses/unkept-stream/gone", "Store nothing of a stream if `store` is false", "ST-01")
def not_stored_gone(seen: Transcript) -> Iterator[Problem]:
    accepted(at(seen, "stream"))
    yield from refused(at(seen, "get"), 404)


def _id(exchange: Exchange) -> str | None:
    """Return the id of a streamed response, if it is safe in a path."""
    found = [one.get("response") for one in exchange.chunks if isinstance(one, dict)]
    names = [one.get("id") for one in found if isinstance(one, dict)]
    name = names[-1] if names else None
    return name if isinstance(name, str) and name.isascii() and name.replace("_", "").isalnum() else None


@scenario("responses/stored-function", "A stored response with a call, read back", needs=(*NEEDS, "tools"))
def stored_function(target: Target) -> Steps:
    named = {"type": "function", "name": "get_weather"}
    given = {"store": True, "tools": [tools.flat(tools.weather)], "tool_choice": named}
    body = create_response(target, "Use get_weather with city Paris.", **given)
    made = yield Request(name="created", path="/responses", json=body)
    if (name := id_of(made)) is not None:
        yield Request(name="get", path=f"/responses/{name}", method="GET")


@check(
    "responses/stored-function/get",
    "Return a stored response with its calls unchanged",
    "ST-01",
    request="get",
)
def stored_function_get(seen: Transcript) -> Iterator[Problem]:
    yield from same_response(accepted(at(seen, "created")).json, answered(at(seen, "get")))


@scenario(
    "responses/conversation-deleted",
    "A conversation after its deletion",
    needs=("responses", "conversations"),
)
def deleted(target: Target) -> Steps:
    items = [{"type": "message", **one} for one in user("Hi")]
    made = yield Request(name="created", path="/conversations", json={"items": items})
    if (name := id_of(made)) is None:
        return
    path = f"/conversations/{name}"
    yield Request(name="deleted", path=path, method="DELETE")
    yield Request(name="get", path=path, method="GET")
    yield Request(name="items", path=f"{path}/items", method="GET")
    body = create_response(target, "And?", conversation=name, **BRIEF)
    yield Request(name="continued", path="/responses", json=body)


@check(
    "responses/conversation-deleted/gone", "Answer 404 for a deleted conversation, on every route", "ST-09"
)
def deleted_gone(seen: Transcript) -> Iterator[Problem]:
    accepted(at(seen, "created"))
    accepted(at(seen, "deleted"))
    for name in ("get", "items", "continued"):
        yield from refused(at(seen, name), 404)


ASKED = ("My name is Ada.", "I live in Zürich.", "Who am I, and where do I live?")


@scenario("responses/history-text", "The same question after the same history, stored and sent", needs=NEEDS)
def history(target: Target) -> Steps:
    """Ask twice with the whole history, because only a server that repeats itself can be compared."""
    first = yield Request(name="first", path="/responses", json=create_response(target, ASKED[0], **BRIEF))
    if (one := id_of(first)) is None:
        return
    after = create_response(target, ASKED[1], previous_response_id=one, **BRIEF)
    second = yield Request(name="second", path="/responses", json=after)
    if (two := id_of(second)) is None:
        return
    body = create_response(target, ASKED[2], previous_response_id=two, **BRIEF)
    yield Request(name="continued", path="/responses", json=body)
    outputs = [_output(each) for each in (first, second)]
    whole = [*user(ASKED[0]), *outputs[0], *user(ASKED[1]), *outputs[1], *user(ASKED[2])]
    for name in ("whole", "whole/2"):
        yield Request(name=name, path="/responses", json=create_response(target, whole, **BRIEF))


def _output(exchange: Exchange) -> list[Any]:
    found = exchange.json.get("output") if isinstance(exchange.json, dict) else None
    return found if isinstance(found, list) else []


@check(
    "responses/history-text/same",
    "Answer a continuation as the same history sent whole",
    "ST-04",
    request="continued",
    milder=True,
)
def history_same(seen: Transcript) -> Iterator[Problem]:
    """Compare texts at temperature 0: a history in another order has as many tokens, but another answer.

    A SHOULD, because a server may compute a prompt in other batches, which can decide between equally likely tokens.
    """
    answers = [accepted(at(seen, name)) for name in ("continued", "whole", "whole/2")]
    texts = [[spoken(item)[1] for item in messages_in(one.json, "output")] for one in answers]
    continued, whole, again = ("".join(found) for found in texts)
    if whole != again:
        raise Unsteady
    if continued != whole:
        shown = as_json(continued)[:200]
        yield Problem(expected=as_json(whole)[:200], actual=shown, pointer="output_text")
