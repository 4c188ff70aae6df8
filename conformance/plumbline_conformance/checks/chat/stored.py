"""Check stored chat completions and their metadata."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from typing import Any

from plumbline_conformance.checks.common import accepted, answered, at, refused, without_nulls
from plumbline_conformance.checks.laws import whole
from plumbline_conformance.checks.request_reader import request_fields
from plumbline_conformance.checks.sample_requests import chat
from plumbline_conformance.suite.model import (
    Inconclusive,
    NotRequested,
    Problem,
    Request,
    Target,
    check,
    scenario,
)
from plumbline_conformance.transcript.model import Exchange, Transcript

Steps = Generator[Request, Exchange, None]
NEEDS = ("stored-chat",)
WRITTEN = 1.0
"""Seconds after an answer in which a server may write what it stores; then it has also stored what it should not."""
FIRST, SECOND = {"topic": "first"}, {"topic": "second"}
MAKE, GET, MESSAGES, UPDATE, AGAIN, LIST, UNKEPT, NOWHERE, DELETE, GONE = range(10)


@scenario("chat/metadata", "A request with metadata")
def metadata(target: Target) -> Steps:
    yield Request(path="/chat/completions", json=chat(target, metadata=FIRST))


@whole("chat/metadata/echoed", "Return the metadata of a request unchanged", "CHAT-15")
def _metadata_echoed(exchange: Exchange) -> Iterator[Problem]:
    wanted = request_fields(exchange).get("metadata")
    if not wanted:
        raise NotRequested("the request has no metadata")
    found = exchange.json.get("metadata") if isinstance(exchange.json, dict) else None
    if found != wanted:
        yield Problem(expected=repr(wanted)[:200], actual=repr(found)[:200], pointer="metadata")


def name_of(exchange: Exchange) -> str | None:
    """Return the id of an answer, if it is safe in a path."""
    name = exchange.json.get("id") if isinstance(exchange.json, dict) else None
    plain = isinstance(name, str) and name.isascii() and name.replace("_", "").replace("-", "").isalnum()
    return name if plain else None


@scenario(
    "chat/stored", "A stored chat completion until its deletion, and one that is not stored", needs=NEEDS
)
def stored(target: Target) -> Steps:
    """Exchanges: create, get, messages, new metadata, get, list; create without storing, get it; delete, get."""
    made = yield Request(path="/chat/completions", json=chat(target, store=True, metadata=FIRST))
    if (name := name_of(made)) is None:
        return
    path = f"/chat/completions/{name}"
    yield Request(path=path, method="GET", pause=WRITTEN)
    yield Request(path=f"{path}/messages", method="GET")
    yield Request(path=path, json={"metadata": SECOND})
    yield Request(path=path, method="GET")
    yield Request(path="/chat/completions?limit=100&order=desc", method="GET")
    unkept = yield Request(path="/chat/completions", json=chat(target, store=False))
    hidden = name_of(unkept) or "chatcmpl-0f3a0f3a"
    yield Request(path=f"/chat/completions/{hidden}", method="GET", pause=WRITTEN)
    yield Request(path=path, method="DELETE")
    yield Request(path=path, method="GET")


def _object(seen: Transcript, place: int) -> dict[str, Any]:
    """Return the JSON object of a 200 answer about a stored completion; empty for a refusal, which breaks the rule."""
    accepted(at(seen, MAKE))
    found = answered(at(seen, place))
    return found.json if found.status == 200 and isinstance(found.json, dict) else {}


def _choices(answer: Any) -> Any:
    return without_nulls(answer.get("choices")) if isinstance(answer, dict) else None


@check("chat/stored/get", "Return a stored completion unchanged", "CHAT-16")
def stored_get(seen: Transcript) -> Iterator[Problem]:
    made, found = _object(seen, MAKE), _object(seen, GET)
    if (found.get("id"), _choices(found)) != (made.get("id"), _choices(made)):
        yield Problem(expected=repr(made)[:200], actual=repr(found)[:200], pointer="body", exchange=GET)


@check("chat/stored/messages", "List the messages of a stored completion", "CHAT-16")
def stored_messages(seen: Transcript) -> Iterator[Problem]:
    page = _object(seen, MESSAGES)
    data = page.get("data")
    texts = [one.get("content") for one in data if isinstance(one, dict)] if isinstance(data, list) else []
    if page.get("object") != "list" or texts != ["Hi"]:
        yield Problem(expected="a list with `Hi`", actual=repr(page)[:200], pointer="data")


@check("chat/stored/updated", "Change only the metadata of a stored completion", "CHAT-16")
def stored_updated(seen: Transcript) -> Iterator[Problem]:
    made = _object(seen, MAKE)
    for place in (UPDATE, AGAIN):
        found = _object(seen, place)
        if (found.get("metadata"), _choices(found)) != (SECOND, _choices(made)):
            yield Problem(expected=repr(SECOND), actual=repr(found)[:200], pointer="metadata", exchange=place)


@check("chat/stored/listed", "List stored completions", "CHAT-16")
def stored_listed(seen: Transcript) -> Iterator[Problem]:
    page = _object(seen, LIST)
    data = page.get("data")
    names = [one.get("id") for one in data if isinstance(one, dict)] if isinstance(data, list) else []
    wanted = _object(seen, MAKE).get("id")
    if page.get("has_more") is True and wanted not in names:
        raise Inconclusive("the list has more pages")
    if wanted not in names:
        shown = f"{wanted} among them"
        yield Problem(expected=shown, actual=repr(names)[:200], pointer="data[].id", exchange=LIST)


@check("chat/stored/unkept", "Answer 404 for a completion with `store: false`", "CHAT-16")
def stored_unkept(seen: Transcript) -> Iterator[Problem]:
    accepted(at(seen, MAKE))
    accepted(at(seen, UNKEPT))
    yield from refused(at(seen, NOWHERE), 404)


@check("chat/stored/deleted", "Confirm a deletion with the id", "CHAT-16")
def stored_deleted(seen: Transcript) -> Iterator[Problem]:
    found, wanted = _object(seen, DELETE), _object(seen, MAKE).get("id")
    if (found.get("id"), found.get("deleted")) != (wanted, True):
        shown = f"{wanted} deleted"
        yield Problem(expected=shown, actual=repr(found)[:200], pointer="body", exchange=DELETE)


@check("chat/stored/gone", "Answer 404 for a deleted completion", "CHAT-16")
def stored_gone(seen: Transcript) -> Iterator[Problem]:
    if accepted(at(seen, MAKE)) and at(seen, DELETE).status != 200:
        raise Inconclusive("it was not deleted; another check reports this")
    yield from refused(at(seen, GONE), 404)
