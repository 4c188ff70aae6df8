"""Check stored chat completions and their metadata."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from typing import Any

from plumbline_conformance.checks.answers import choice
from plumbline_conformance.checks.common import accepted, answered, at, refused, without_nulls
from plumbline_conformance.checks.laws import STREAM, WHOLE, whole
from plumbline_conformance.checks.request_reader import request_fields
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
from plumbline_conformance.suite.schema_validation import known_members
from plumbline_conformance.suite.wording import as_json
from plumbline_conformance.transcript.answer_fold import objects_in
from plumbline_conformance.transcript.exchange import Exchange, Transcript

Steps = Generator[Request, Exchange, None]
NEEDS = ("stored-chat",)
STORE_DELAY = 1.0
"""Seconds to wait before an answer is read back: a server may store it late, including one that it must not store."""
FIRST, SECOND = {"topic": "first"}, {"topic": "second"}


@scenario("chat/metadata", "A request with metadata")
def metadata(target: Target) -> Steps:
    yield Request(name=WHOLE, path="/chat/completions", json=chat(target, metadata=FIRST))


@whole("chat/metadata/echoed", "Return the metadata of a request unchanged", "CHAT-15")
def _metadata_echoed(exchange: Exchange) -> Iterator[Problem]:
    wanted = request_fields(exchange).get("metadata")
    if not wanted:
        raise NotRequested("the request has no metadata")
    found = exchange.json.get("metadata") if isinstance(exchange.json, dict) else None
    if found != wanted:
        yield Problem(expected=as_json(wanted)[:200], actual=as_json(found)[:200], pointer="metadata")


def id_of(exchange: Exchange) -> str | None:
    """Return the id of an answer, if it is safe in a path."""
    return safe_in_path(exchange.json.get("id") if isinstance(exchange.json, dict) else None)


def safe_in_path(name: Any) -> str | None:
    """Return an id, if it is safe in a path."""
    plain = isinstance(name, str) and name.isascii() and name.replace("_", "").replace("-", "").isalnum()
    return name if plain else None


@scenario(
    "chat/stored", "A stored chat completion until its deletion, and one that is not stored", needs=NEEDS
)
def stored(target: Target) -> Steps:
    kept = chat(target, store=True, metadata=FIRST)
    made = yield Request(name="created", path="/chat/completions", json=kept)
    if (name := id_of(made)) is None:
        return
    path = f"/chat/completions/{name}"
    yield Request(name="get", path=path, method="GET", pause=STORE_DELAY)
    yield Request(name="messages", path=f"{path}/messages", method="GET")
    yield Request(name="update", path=path, json={"metadata": SECOND})
    yield Request(name="get_updated", path=path, method="GET")
    yield Request(name="list", path="/chat/completions?limit=100&order=desc", method="GET")
    unkept = yield Request(name="unkept", path="/chat/completions", json=chat(target, store=False))
    hidden = f"/chat/completions/{id_of(unkept) or 'chatcmpl-0f3a0f3a'}"
    yield Request(name="get_unkept", path=hidden, method="GET", pause=STORE_DELAY)
    yield Request(name="delete", path=path, method="DELETE")
    yield Request(name="get_deleted", path=path, method="GET")


def _object(seen: Transcript, name: str) -> dict[str, Any]:
    """Return the JSON object of a 200 answer about a stored completion; empty for a refusal, which breaks the rule."""
    accepted(at(seen, "created"))
    found = answered(at(seen, name))
    return found.json if found.status == 200 and isinstance(found.json, dict) else {}


def _choices(answer: Any) -> Any:
    """Return the choices of an answer by the members of the contract: a server may send others with an answer alone."""
    found: list[dict[str, Any]] = []
    for one in objects_in(answer.get("choices") if isinstance(answer, dict) else None):
        message = known_members("ChatCompletionResponseMessage", one.get("message"))
        found.append(known_members("ChatCompletionChoice", {**one, "message": message}))
    return without_nulls(found)


@check("chat/stored/get", "Return a stored completion unchanged", "CHAT-16", request="get")
def stored_get(seen: Transcript) -> Iterator[Problem]:
    made, found = _object(seen, "created"), _object(seen, "get")
    if found.get("id") != made.get("id"):
        yield Problem(expected=as_json(made)[:200], actual=as_json(found)[:200], pointer="body")
    wanted, shown = _shared(made, made), _shared(found, made)
    for name in (one for one in wanted if wanted[one] != shown[one]):
        yield Problem(expected=as_json(wanted[name])[:200], actual=as_json(shown[name])[:200], pointer=name)


@check("chat/stored/messages", "List the messages of a stored completion", "CHAT-16", request="messages")
def stored_messages(seen: Transcript) -> Iterator[Problem]:
    page = _object(seen, "messages")
    data = page.get("data")
    turns = [(one.get("role"), one.get("content")) for one in objects_in(data)]
    if page.get("object") != "list" or turns != [("user", "Hi")]:
        yield Problem(expected="a list with `Hi` of the user", actual=as_json(page)[:200], pointer="data")


@check("chat/stored/updated", "Change only the metadata of a stored completion", "CHAT-16")
def stored_updated(seen: Transcript) -> Iterator[Problem]:
    made = _object(seen, "created")
    for name in ("update", "get_updated"):
        found = _object(seen, name)
        if (found.get("metadata"), _choices(found)) != (SECOND, _choices(made)):
            yield Problem(
                expected=as_json(SECOND), actual=as_json(found)[:200], pointer="metadata", exchange=name
            )


@check("chat/stored/listed", "List stored completions", "CHAT-16", request="list")
def stored_listed(seen: Transcript) -> Iterator[Problem]:
    page = _object(seen, "list")
    data = page.get("data")
    names = [one.get("id") for one in data if isinstance(one, dict)] if isinstance(data, list) else []
    wanted = _object(seen, "created").get("id")
    if page.get("has_more") is True and wanted not in names:
        raise Inconclusive("the list has more pages")
    if wanted not in names:
        shown = f"{wanted} among them"
        yield Problem(expected=shown, actual=as_json(names)[:200], pointer="data[].id")


@check("chat/stored/unkept", "Answer 404 for a completion with `store: false`", "CHAT-16")
def stored_unkept(seen: Transcript) -> Iterator[Problem]:
    accepted(at(seen, "created"))
    accepted(at(seen, "unkept"))
    yield from refused(at(seen, "get_unkept"), 404)


@check("chat/stored/deleted", "Confirm a deletion with the id", "CHAT-16", request="delete")
def stored_deleted(seen: Transcript) -> Iterator[Problem]:
    found, wanted = _object(seen, "delete"), _object(seen, "created").get("id")
    if (found.get("id"), found.get("deleted")) != (wanted, True):
        shown = f"{wanted} deleted"
        yield Problem(expected=shown, actual=as_json(found)[:200], pointer="body")


@check("chat/stored/gone", "Answer 404 for a deleted completion", "CHAT-16")
def stored_gone(seen: Transcript) -> Iterator[Problem]:
    if accepted(at(seen, "created")) and at(seen, "delete").status != 200:
        raise Inconclusive("it was not deleted; another check reports this")
    yield from refused(at(seen, "get_deleted"), 404)


@scenario("chat/stored-filter", "A list of stored chat completions with some metadata", needs=NEEDS)
def stored_filter(target: Target) -> Steps:
    for name in ("first", "second"):
        kept = chat(target, store=True, metadata={"filter": name})
        made = yield Request(name=name, path="/chat/completions", json=kept)
        if id_of(made) is None:
            return
    path = "/chat/completions?limit=100&order=desc&metadata[filter]=first"
    yield Request(name="list", path=path, method="GET", pause=STORE_DELAY)


@check(
    "chat/stored-filter/matching",
    "List only stored completions with the metadata of the query",
    "CHAT-16",
    request="list",
)
def stored_matching(seen: Transcript) -> Iterator[Problem]:
    made = accepted(at(seen, "first")).json
    other = id_of(accepted(at(seen, "second")))
    page = accepted(at(seen, "list")).json
    if not isinstance(page, dict):
        raise Inconclusive("the list is not an object; another check reports this")
    data = page.get("data")
    found = [one for one in data if isinstance(one, dict)] if isinstance(data, list) else []
    names = [one.get("id") for one in found]
    for one in found:
        own = one.get("metadata")
        if isinstance(own, dict) and own.get("filter") != "first":
            shown = as_json(own)[:200]
            yield Problem(expected="the metadata of the query", actual=shown, pointer="data[].metadata")
            return
    if other in names or (made["id"] not in names and page.get("has_more") is not True):
        shown = f"{made['id']}, and not {other}"
        yield Problem(expected=shown, actual=as_json(names)[:200], pointer="data[].id")
    listed = [_shared(one, made) for one in found if one.get("id") == made["id"]]
    if listed and listed != [_shared(made, made)]:
        shown = f"{as_json(_shared(made, made))} once"[:200]
        yield Problem(expected=shown, actual=as_json(listed)[:200], pointer="data")


def _shared(one: dict[str, Any], made: dict[str, Any]) -> dict[str, Any]:
    """Return what a listed completion has in common with the answer to its request."""
    found: dict[str, Any] = {
        name: without_nulls(one.get(name)) for name in ("created", "model", "usage") if name in made
    }
    found["choices"] = _choices(one)
    return found


APART = 1.1
"""Seconds between two completions, so that their times differ."""
PAGES = {
    "oldest first": "",
    "ascending": "&order=asc",
    "descending": "&order=desc",
    "page": "&order=asc&limit=1",
}
"""Lists of the completions after the first one, or before the last one, by the name of the request."""


@scenario("chat/stored-pages", "Three stored chat completions in pages", needs=NEEDS)
def stored_pages(target: Target) -> Steps:
    """List completions with the metadata of the scenario: others may be stored meanwhile."""
    names: list[str] = []
    for number in range(3):
        kept = chat(target, store=True, metadata={"pages": str(target.seed)})
        request = Request(name=f"made/{number}", path="/chat/completions", json=kept, pause=APART)
        if (name := id_of((yield request))) is None:
            return
        names.append(name)
    first, _, last = names
    for name, order in PAGES.items():
        start = last if "desc" in order else first
        path = f"/chat/completions?metadata[pages]={target.seed}{order}&after={start}"
        yield Request(name=name, path=path, method="GET", pause=STORE_DELAY * (name == "oldest first"))
    path = f"/chat/completions?metadata[pages]={target.seed}&order=asc&after={last}"
    yield Request(name="end", path=path, method="GET")


def _page(seen: Transcript, name: str) -> tuple[dict[str, Any], list[Any], list[Any]]:
    """Return a page, the ids on it and the ids of the three completions."""
    made = [accepted(at(seen, f"made/{number}")).json.get("id") for number in range(3)]
    page = accepted(at(seen, name)).json
    if not isinstance(page, dict):
        raise Inconclusive("the list is not an object; another check reports this")
    data = page.get("data")
    return (
        page,
        [one.get("id") for one in data if isinstance(one, dict)] if isinstance(data, list) else [],
        made,
    )


@check(
    "chat/stored-pages/order", "List stored completions in the order of the query, oldest first", "CHAT-16"
)
def stored_order(seen: Transcript) -> Iterator[Problem]:
    """Check what follows the first completion, and the other way round what precedes the last one."""
    for name in ("oldest first", "ascending", "descending"):
        page, found, made = _page(seen, name)
        wanted = made[1::-1] if name == "descending" else made[1:]
        found = [one for one in found if one in made]
        if page.get("has_more") is True and found == wanted[: len(found)]:
            continue  # Earlier runs have stored more than a page.
        if found != wanted:
            shown = as_json(wanted)[:200]
            yield Problem(expected=shown, actual=as_json(found)[:200], pointer="data[].id", exchange=name)


@check("chat/stored-pages/pages", "Page through stored completions up to the end", "CHAT-16")
def stored_page(seen: Transcript) -> Iterator[Problem]:
    for name, places, more in (("page", slice(1, 2), True), ("end", slice(3, 3), False)):
        page, found, made = _page(seen, name)
        if set(found) - set(made):
            raise Inconclusive("others stored completions with the same metadata at the same time")
        if (found, page.get("has_more")) != (made[places], more):
            shown = f"{as_json(made[places])}, and has_more {as_json(more)}"
            actual = f"{as_json(found)[:200]}, and has_more {as_json(page.get('has_more'))}"
            yield Problem(expected=shown, actual=actual, pointer="data", exchange=name)


@scenario("chat/stored-stream", "A streamed and stored chat completion", needs=NEEDS)
def stored_stream(target: Target) -> Steps:
    body = chat(target, store=True, stream=True)
    made = yield Request(name=STREAM, path="/chat/completions", json=body)
    if (name := _streamed_id(made)) is not None:
        path = f"/chat/completions/{name}"
        yield Request(name="get", path=path, method="GET", pause=STORE_DELAY)


def _streamed_id(exchange: Exchange) -> str | None:
    names = [chunk.get("id") for chunk in objects_in(exchange.chunks)]
    return safe_in_path(names[0]) if names else None


@check("chat/stored-stream/get", "Store a streamed completion as it was streamed", "CHAT-16")
def stored_stream_get(seen: Transcript) -> Iterator[Problem]:
    streamed = choice(accepted(at(seen, STREAM)))
    found = answered(at(seen, "get"))
    kept = choice(found) if found.status == 200 else None
    if kept is None or (kept.content, kept.finish_reason) != (streamed.content, streamed.finish_reason):
        actual = f"status {found.status}" if kept is None else as_json(kept)[:200]
        yield Problem(expected=as_json(streamed)[:200], actual=actual, pointer="body", exchange="get")
