"""Check a conversation with given items: its metadata, and the order and the pages of its items."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from typing import Any

from plumbline_conformance.checks.common import accepted, answered, at, without_nulls
from plumbline_conformance.checks.identity import made_now
from plumbline_conformance.checks.responses.stored.lifecycle import id_of
from plumbline_conformance.suite.scenario import Inconclusive, Problem, Request, Target, check, scenario
from plumbline_conformance.suite.schema_validation import known_members
from plumbline_conformance.suite.wording import as_json
from plumbline_conformance.transcript.exchange import Exchange, Transcript

Steps = Generator[Request, Exchange, None]
TEXTS = ["One", "Two", "Three"]
FIRST, SECOND = {"topic": "first"}, {"topic": "second"}
ITEMS = [{"type": "message", "role": "user", "content": text} for text in TEXTS]


@scenario(
    "responses/conversation-items",
    "A conversation with three items, updated and read page by page",
    needs=("responses", "conversations"),
)
def conversation_items(target: Target) -> Steps:
    body = {"items": ITEMS, "metadata": FIRST}
    made = yield Request(name="created", path="/conversations", json=body)
    if (name := id_of(made)) is None:
        return
    path = f"/conversations/{name}"
    yield Request(name="get", path=path, method="GET")
    yield Request(name="update", path=path, json={"metadata": SECOND})
    yield Request(name="get_updated", path=path, method="GET")
    yield Request(name="oldest_first", path=f"{path}/items?order=asc&limit=100", method="GET")
    yield Request(name="newest_first", path=f"{path}/items?order=desc&limit=100", method="GET")
    first = yield Request(name="first_page", path=f"{path}/items?order=asc&limit=2", method="GET")
    last = first.json.get("last_id") if isinstance(first.json, dict) else None
    if isinstance(last, str) and last.isascii() and last.replace("_", "").isalnum():
        yield Request(name="second_page", path=f"{path}/items?order=asc&limit=2&after={last}", method="GET")


def _object(seen: Transcript, name: str) -> dict[str, Any]:
    accepted(at(seen, "created"))
    found = accepted(at(seen, name)).json
    return found if isinstance(found, dict) else {}


@check("responses/conversation-items/updated", "Change only the metadata of a conversation", "ST-09")
def conversation_updated(seen: Transcript) -> Iterator[Problem]:
    made = _object(seen, "created")
    for name, metadata in (("created", FIRST), ("get", FIRST), ("update", SECOND), ("get_updated", SECOND)):
        found = _object(seen, name)
        for key, wanted in (
            ("id", made.get("id")),
            ("created_at", made.get("created_at")),
            ("metadata", metadata),
        ):
            if found.get(key) != wanted:
                shown = as_json(found.get(key))[:200]
                yield Problem(expected=as_json(wanted)[:200], actual=shown, pointer=key, exchange=name)


@check(
    "responses/conversation-items/created",
    "Report when a conversation was created",
    "ST-09",
    request="created",
)
def conversation_created(seen: Transcript) -> Iterator[Problem]:
    yield from made_now("created_at")(accepted(at(seen, "created")))


@check("responses/conversation-items/order", "List the items of a conversation in their order", "ST-09")
def conversation_order(seen: Transcript) -> Iterator[Problem]:
    for name, wanted in (("oldest_first", TEXTS), ("newest_first", TEXTS[::-1])):
        found = [_text(item) for item in _items(seen, name)]
        if found != wanted:
            shown = as_json(found)[:200]
            yield Problem(expected=as_json(wanted), actual=shown, pointer="data", exchange=name)


@check("responses/conversation-items/pages", "Return each item on one page, and mark the last page", "ST-09")
def conversation_pages(seen: Transcript) -> Iterator[Problem]:
    whole = [item.get("id") for item in _items(seen, "oldest_first")]
    if len(whole) != len(TEXTS):
        raise Inconclusive("the whole list has other items; another check reports this")
    for name, wanted, more in (("first_page", whole[:2], True), ("second_page", whole[2:], False)):
        page = _object(seen, name)
        ids = [item.get("id") for item in _items(seen, name)]
        found = (ids, page.get("has_more"), page.get("first_id"), page.get("last_id"))
        expected = (wanted, more, wanted[0], wanted[-1])
        if found != expected:
            yield Problem(
                expected=as_json(expected)[:200], actual=as_json(found)[:200], pointer="data", exchange=name
            )


def _items(seen: Transcript, name: str) -> list[dict[str, Any]]:
    data = _object(seen, name).get("data")
    return [item for item in data if isinstance(item, dict)] if isinstance(data, list) else []


def _text(item: dict[str, Any]) -> str:
    content = item.get("content")
    if isinstance(content, str):
        return content
    parts = [part for part in content if isinstance(part, dict)] if isinstance(content, list) else []
    return "".join(str(part.get("text", "")) for part in parts)


@scenario(
    "responses/conversation-item",
    "One item of a conversation, read and deleted",
    needs=("responses", "conversations"),
)
def conversation_item(target: Target) -> Steps:
    made = yield Request(name="created", path="/conversations", json={"items": ITEMS})
    if (name := id_of(made)) is None:
        return
    path = f"/conversations/{name}/items"
    listed = yield Request(name="list", path=f"{path}?order=asc", method="GET")
    item = _second(listed).get("id")
    if isinstance(item, str) and item.isascii() and item.replace("_", "").isalnum():
        yield Request(name="item", path=f"{path}/{item}", method="GET")
        yield Request(name="delete", path=f"{path}/{item}", method="DELETE")
        yield Request(name="left", path=f"{path}?order=asc", method="GET")


def _second(listed: Exchange) -> dict[str, Any]:
    """Return the second item of a list; empty if there is none."""
    data = listed.json.get("data") if isinstance(listed.json, dict) else None
    return data[1] if isinstance(data, list) and len(data) > 1 and isinstance(data[1], dict) else {}


@check("responses/conversation-item/get", "Return an item of a conversation as it is listed", "ST-09")
def item_returned(seen: Transcript) -> Iterator[Problem]:
    wanted = _second(accepted(at(seen, "list")))
    found = answered(at(seen, "item"))
    if found.status != 200 or _comparable(found.json) != _comparable(wanted):
        actual = f"status {found.status}: {as_json(found.json)[:200]}"
        yield Problem(expected=as_json(wanted)[:200], actual=actual, pointer="body", exchange="item")


def _comparable(item: Any) -> Any:
    return without_nulls(known_members("ItemResource", item))


@check("responses/conversation-item/deleted", "Delete one item of a conversation, and no other", "ST-09")
def item_deleted(seen: Transcript) -> Iterator[Problem]:
    listed, left = (_object(seen, name).get("data") for name in ("list", "left"))
    deleted = answered(at(seen, "delete"))
    if deleted.status != 200:
        shown = f"status {deleted.status}"
        yield Problem(expected="status 200", actual=shown, pointer="status", exchange="delete")
        return
    # The second item was deleted; a list without one is reported by another check.
    wanted = [*listed[:1], *listed[2:]] if isinstance(listed, list) else None
    if without_nulls(left) != without_nulls(wanted):
        yield Problem(
            expected=as_json(wanted)[:200], actual=as_json(left)[:200], pointer="data", exchange="left"
        )
