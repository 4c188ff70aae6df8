"""Check stored responses: get, list, continue, delete."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from typing import Any

from plumbline_conformance.checks.common import (
    accepted,
    answered,
    at,
    envelope,
    error_of,
    longer_prompt,
    refused,
    usage_count,
    whole_shapes,
    without_nulls,
)
from plumbline_conformance.checks.responses.items import terminal
from plumbline_conformance.checks.responses.shared_laws import SHAPE, create_response, events
from plumbline_conformance.suite.scenario import (
    Inconclusive,
    Problem,
    Rejected,
    Request,
    Target,
    about,
    check,
    scenario,
)
from plumbline_conformance.suite.schema_validation import known_members, violations
from plumbline_conformance.suite.wording import as_json
from plumbline_conformance.transcript.exchange import Exchange, Transcript

Steps = Generator[Request, Exchange, None]
NEEDS = ("responses", "stored")
UNKNOWN_ID = "resp_0f3a0f3a0f3a0f3a"
BRIEF: dict[str, Any] = {"max_output_tokens": 16, "store": True}


def id_of(exchange: Exchange) -> str | None:
    """Return the id of a response, if it is safe in a path."""
    name = exchange.json.get("id") if isinstance(exchange.json, dict) else None
    return name if isinstance(name, str) and name.isascii() and name.replace("_", "").isalnum() else None


@scenario("responses/stored", "A stored response until its deletion", needs=NEEDS)
def stored(target: Target) -> Steps:
    made = yield Request(name="created", path="/responses", json=create_response(target, "Hi", **BRIEF))
    name = id_of(made)
    if name is None:
        return
    path = f"/responses/{name}"
    yield Request(name="get", path=path, method="GET")
    yield Request(name="items", path=f"{path}/input_items", method="GET")
    after = create_response(target, "And you?", previous_response_id=name, **BRIEF)
    yield Request(name="continued", path="/responses", json=after)
    yield Request(name="cancel", path=f"{path}/cancel", json={})
    yield Request(name="delete", path=path, method="DELETE")
    yield Request(name="get_deleted", path=path, method="GET")
    yield Request(name="items_of_deleted", path=f"{path}/input_items", method="GET")
    yield Request(name="delete_again", path=path, method="DELETE")
    yield Request(name="continue_deleted", path="/responses", json=after)


@check("responses/stored/get", "Return a stored response unchanged", "ST-01", request="get")
def stored_get(seen: Transcript) -> Iterator[Problem]:
    yield from same_response(accepted(at(seen, "created")).json, answered(at(seen, "get")))


def _not_offered(exchange: Exchange) -> bool:
    """Return whether the operation does not exist: 405, 501, or 404 without an error object."""
    return exchange.status in (405, 501) or (exchange.status == 404 and error_of(exchange) is None)


def _require_operation(exchange: Exchange) -> Exchange:
    """Return the exchange if the operation exists; a server may store responses without all operations."""
    if _not_offered(answered(exchange)):
        raise Rejected(f"there is no such operation: status {exchange.status}")
    return exchange


def same_response(wanted: Any, found: Exchange) -> Iterator[Problem]:
    """Check that a response that was read back is the one that was created."""
    if found.status != 200:
        yield Problem(expected="status 200", actual=f"status {found.status}", pointer="status")
    elif _comparable(found.json) != _comparable(wanted):
        yield Problem(expected=as_json(wanted)[:200], actual=as_json(found.json)[:200], pointer="body")


def _comparable(response: Any) -> Any:
    return without_nulls(known_members("Response", response))


@check("responses/stored/items", "List the input of a stored response", "ST-08", request="items")
def stored_items(seen: Transcript) -> Iterator[Problem]:
    accepted(at(seen, "created"))
    found = _require_operation(at(seen, "items"))
    if found.status != 200:
        yield Problem(expected="status 200", actual=f"status {found.status}", pointer="status")
        return
    yield from _page(found.json)


def _page(page: Any) -> Iterator[Problem]:
    data = page.get("data") if isinstance(page, dict) else None
    if not isinstance(data, list) or page.get("object") != "list" or not data:
        yield Problem(expected="a list with items", actual=as_json(page)[:200], pointer="body")
        return
    names = [item.get("id") for item in data if isinstance(item, dict)]
    if len(names) != len(data) or not all(isinstance(name, str) and name for name in names):
        yield Problem(expected="items with ids", actual=as_json(names)[:200], pointer="data[].id")
    elif (page.get("first_id"), page.get("last_id")) != (names[0], names[-1]):
        shown = as_json((page.get("first_id"), page.get("last_id")))
        yield Problem(expected=as_json((names[0], names[-1])), actual=shown, pointer="first_id, last_id")
    if not isinstance(page.get("has_more"), bool):
        yield Problem(expected="a boolean", actual=as_json(page.get("has_more")), pointer="has_more")


@check(
    "responses/stored/continued",
    "Continue a stored response, and return its id",
    "ST-04",
    request="continued",
)
def stored_continued(seen: Transcript) -> Iterator[Problem]:
    name = id_of(accepted(at(seen, "created")))
    found = answered(at(seen, "continued"))
    echoed = found.json.get("previous_response_id") if isinstance(found.json, dict) else None
    if found.status != 200 or echoed != name:
        shown = f"status {found.status}, {as_json(echoed)}"
        yield Problem(expected=f"status 200, {as_json(name)}", actual=shown, pointer="previous_response_id")


@check("responses/stored/context", "Count the earlier conversation as part of the input", "ST-04")
def stored_context(seen: Transcript) -> Iterator[Problem]:
    yield from longer_prompt(seen, "created", "continued")


@check("responses/stored/cancel", "Cancel only background responses", "ST-11")
def stored_cancel(seen: Transcript) -> Iterator[Problem]:
    accepted(at(seen, "created"))
    yield from refused(_require_operation(at(seen, "cancel")), 400, 409, 422)


@check("responses/stored/delete", "Confirm a deletion with the id", "ST-02", request="delete")
def stored_delete(seen: Transcript) -> Iterator[Problem]:
    name = id_of(accepted(at(seen, "created")))
    found = _require_operation(at(seen, "delete"))
    body = found.json if isinstance(found.json, dict) else {}
    if found.status != 200 or (body.get("id"), body.get("deleted")) != (name, True):
        yield Problem(expected=f"{name} deleted", actual=as_json(found.json)[:200], pointer="body")


@check("responses/stored/gone", "Answer 404 for a deleted response", "ST-02")
def stored_gone(seen: Transcript) -> Iterator[Problem]:
    if accepted(at(seen, "created")) and at(seen, "delete").status != 200:
        raise Inconclusive("it was not deleted; another check reports this")
    for name in ("get_deleted", "items_of_deleted", "delete_again"):
        yield from refused(at(seen, name), 404)


@check("responses/stored/not-continued", "Refuse to continue a deleted response", "ST-02")
def stored_not_continued(seen: Transcript) -> Iterator[Problem]:
    if accepted(at(seen, "created")) and at(seen, "delete").status != 200:
        raise Inconclusive("it was not deleted; another check reports this")
    yield from refused(at(seen, "continue_deleted"), 400, 404, 422)


@scenario("responses/stored-stream", "A streamed and stored response", needs=NEEDS)
def stored_stream(target: Target) -> Steps:
    body = create_response(target, "Hi", stream=True, **BRIEF)
    made = yield Request(name="stream", path="/responses", json=body)
    found = [event for event in made.chunks if isinstance(event, dict) and "response" in event]
    response = found[-1]["response"] if found else None
    name = response.get("id") if isinstance(response, dict) else None
    if isinstance(name, str) and name.isascii() and name.replace("_", "").isalnum():
        yield Request(name="get", path=f"/responses/{name}", method="GET")


@check(
    "responses/stored-stream/get",
    "Return the response of the last event after the stream",
    "RS-19",
    request="get",
)
def stored_stream_get(seen: Transcript) -> Iterator[Problem]:
    yield from same_response(terminal(events(at(seen, "stream"))), answered(at(seen, "get")))


@scenario("responses/unkept", "A response that is not stored", needs=NEEDS)
def not_stored(target: Target) -> Steps:
    body = create_response(target, "Hi", max_output_tokens=16, store=False)
    made = yield Request(name="created", path="/responses", json=body)
    if (name := id_of(made)) is not None:
        yield Request(name="get", path=f"/responses/{name}", method="GET")


@check("responses/unkept/gone", "Store nothing if `store` is false", "ST-01")
def not_stored_gone(seen: Transcript) -> Iterator[Problem]:
    accepted(at(seen, "created"))
    yield from refused(at(seen, "get"), 404)


@check("responses/unkept/echo", "Echo that nothing is stored", "R-11", request="created")
def not_stored_echo(seen: Transcript) -> Iterator[Problem]:
    found = accepted(at(seen, "created")).json
    if not isinstance(found, dict) or found.get("store", False) is not False:
        shown = as_json(found.get("store") if isinstance(found, dict) else found)[:100]
        yield Problem(expected="false", actual=shown, pointer="store")


ITEMS = [{"role": "user", "content": text} for text in ("One", "Two", "Three")]


@scenario("responses/pages", "The input of a response, page by page", needs=NEEDS)
def pages(target: Target) -> Steps:
    made = yield Request(name="created", path="/responses", json=create_response(target, ITEMS, **BRIEF))
    name = id_of(made)
    if name is None:
        return
    path = f"/responses/{name}/input_items"
    yield Request(name="newest_first", path=path, method="GET")
    yield Request(name="oldest_first", path=f"{path}?order=asc", method="GET")
    first = yield Request(name="first_page", path=f"{path}?limit=2", method="GET")
    last = first.json.get("last_id") if isinstance(first.json, dict) else None
    if isinstance(last, str) and last.isascii() and last.replace("_", "").isalnum():
        yield Request(name="second_page", path=f"{path}?limit=2&after={last}", method="GET")


def _ids(seen: Transcript, name: str) -> list[str]:
    """Return the ids of the items on the page that this request got."""
    accepted(at(seen, "created"))
    page = accepted(at(seen, name)).json
    data = page.get("data") if isinstance(page, dict) else None
    found = [item.get("id") for item in data if isinstance(item, dict)] if isinstance(data, list) else []
    return [str(one) for one in found]


@check("responses/pages/shape", "List items as the contract requires", "ST-08")
def pages_shape(seen: Transcript) -> Iterator[Problem]:
    accepted(at(seen, "created"))
    for name in ("newest_first", "oldest_first", "first_page", "second_page"):
        page = accepted(at(seen, name))
        yield from about(page, violations("ResponseItemList", page.json))


@check(
    "responses/pages/order",
    "List the newest item first, or the oldest with `order=asc`",
    "ST-08",
    request="oldest_first",
)
def pages_order(seen: Transcript) -> Iterator[Problem]:
    down, up = _ids(seen, "newest_first"), _ids(seen, "oldest_first")
    if len(down) != len(ITEMS) or up != down[::-1]:
        yield Problem(expected=as_json(down[::-1]), actual=as_json(up), pointer="data[].id")


@check("responses/pages/after", "Continue after the last item of a page", "ST-08", request="second_page")
def pages_after(seen: Transcript) -> Iterator[Problem]:
    every, first, rest = (_ids(seen, name) for name in ("newest_first", "first_page", "second_page"))
    if first + rest != every or len(first) != 2:
        yield Problem(expected=as_json(every), actual=as_json([first, rest]), pointer="data[].id")


@check("responses/pages/has-more", "Report on every page whether more follows", "ST-08")
def pages_more(seen: Transcript) -> Iterator[Problem]:
    pages = [accepted(at(seen, name)) for name in ("first_page", "second_page")]
    found = [page.json.get("has_more") if isinstance(page.json, dict) else None for page in pages]
    if found != [True, False]:
        wrong = pages[0] if found[0] is not True else pages[1]
        wanted, shown = "[True, False]", as_json(found)
        yield Problem(expected=wanted, actual=shown, pointer="has_more", exchange=wrong.name)


@scenario("responses/branches", "Two continuations of one response, and one of a continuation", needs=NEEDS)
def branches(target: Target) -> Steps:
    made = yield Request(name="parent", path="/responses", json=create_response(target, "Hi", **BRIEF))
    if (name := id_of(made)) is None:
        return
    child = create_response(target, "One", previous_response_id=name, **BRIEF)
    first = yield Request(name="child", path="/responses", json=child)
    yield Request(name="second_child", path="/responses", json=child)
    if (below := id_of(first)) is not None:
        body = create_response(target, "Two", previous_response_id=below, **BRIEF)
        yield Request(name="grandchild", path="/responses", json=body)


BRANCHES = ("parent", "child", "second_child", "grandchild")
whole_shapes("responses/branches", "Response", *BRANCHES)


def _counts(seen: Transcript) -> dict[str, int]:
    return {name: usage_count(at(seen, name), "input_tokens") for name in BRANCHES}


@check(
    "responses/branches/apart",
    "Keep two continuations of one response apart",
    "ST-07",
    request="second_child",
)
def branches_apart(seen: Transcript) -> Iterator[Problem]:
    counts = _counts(seen)
    if counts["child"] != counts["second_child"]:
        wanted, found = str(counts["child"]), str(counts["second_child"])
        yield Problem(expected=wanted, actual=found, pointer="usage.input_tokens")


@check("responses/branches/transitive", "Continue the whole chain of responses, not only the last", "ST-04")
def branches_transitive(seen: Transcript) -> Iterator[Problem]:
    _counts(seen)
    yield from longer_prompt(seen, "child", "grandchild")


@scenario("errors/unknown-response", "An unknown response id", needs=NEEDS)
def unknown_response(target: Target) -> Steps:
    path = f"/responses/{UNKNOWN_ID}"
    yield Request(name="get", path=path, method="GET")
    yield Request(name="delete", path=path, method="DELETE")
    yield Request(name="cancel", path=f"{path}/cancel", json={})
    yield Request(name="items", path=f"{path}/input_items", method="GET")
    body = create_response(target, "Hi", previous_response_id=UNKNOWN_ID)
    yield Request(name="continue", path="/responses", json=body)


@check("errors/unknown-response/refused", "Answer an unknown id with 404 on every route", "ST-03")
def unknown_refused(seen: Transcript) -> Iterator[Problem]:
    for exchange in seen.exchanges:
        if exchange.name != "continue" and not _not_offered(exchange):
            yield from refused(exchange, 404)


@check("errors/unknown-response/envelope", "Write the error object with all its keys", "ERR-01")
def unknown_envelope(seen: Transcript) -> Iterator[Problem]:
    for exchange in seen.exchanges:
        if not _not_offered(exchange):
            yield from envelope(exchange)


@check(
    "errors/unknown-response/previous",
    "Refuse to continue an unknown response",
    "ST-05",
    request="continue",
)
def unknown_previous(seen: Transcript) -> Iterator[Problem]:
    found = at(seen, "continue")
    yield from refused(found, 400, 404, 422)
    code = (error_of(found) or {}).get("code")
    if found.status in (400, 404) and code not in ("previous_response_not_found", None):
        yield Problem(expected="previous_response_not_found", actual=as_json(code), pointer="error.code")


@check("responses/stored/shape", "Return a stored response as the contract requires", *SHAPE)
def stored_shape(seen: Transcript) -> Iterator[Problem]:
    for name in ("created", "get", "continued"):
        found = at(seen, name)
        if found.status == 200:
            yield from about(found, violations("Response", found.json))
    accepted(at(seen, "created"))
