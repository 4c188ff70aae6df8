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
    refused,
    usage_count,
    whole_shapes,
    without_nulls,
)
from plumbline_conformance.checks.responses.items import terminal
from plumbline_conformance.checks.responses.shared_laws import SHAPE, create_response, events
from plumbline_conformance.suite.model import (
    Inconclusive,
    Problem,
    Rejected,
    Request,
    Target,
    check,
    scenario,
)
from plumbline_conformance.suite.schema_validation import violations
from plumbline_conformance.transcript.model import Exchange, Transcript

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
    """Exchanges: create, get, list items, continue, cancel, delete, then get, list items, delete and continue again."""
    made = yield Request(path="/responses", json=create_response(target, "Hi", **BRIEF))
    name = id_of(made)
    if name is None:
        return
    path = f"/responses/{name}"
    yield Request(path=path, method="GET")
    yield Request(path=f"{path}/input_items", method="GET")
    after = create_response(target, "And you?", previous_response_id=name, **BRIEF)
    yield Request(path="/responses", json=after)
    yield Request(path=f"{path}/cancel", json={})
    yield Request(path=path, method="DELETE")
    yield Request(path=path, method="GET")
    yield Request(path=f"{path}/input_items", method="GET")
    yield Request(path=path, method="DELETE")
    yield Request(path="/responses", json=after)


@check("responses/stored/get", "Return a stored response unchanged", "ST-01")
def stored_get(seen: Transcript) -> Iterator[Problem]:
    yield from _same(accepted(at(seen, 0)).json, answered(at(seen, 1)))


def _not_offered(exchange: Exchange) -> bool:
    """Return whether the operation does not exist: 405, 501, or 404 without an error object."""
    return exchange.status in (405, 501) or (exchange.status == 404 and error_of(exchange) is None)


def _require_operation(exchange: Exchange) -> Exchange:
    """Return the exchange if the operation exists; a server may store responses without all operations."""
    if _not_offered(answered(exchange)):
        raise Rejected(f"there is no such operation: status {exchange.status}")
    return exchange


def _same(wanted: Any, found: Exchange) -> Iterator[Problem]:
    if found.status != 200:
        yield Problem(expected="status 200", actual=f"status {found.status}", pointer="status")
    elif without_nulls(found.json) != without_nulls(wanted):
        yield Problem(expected=repr(wanted)[:200], actual=repr(found.json)[:200], pointer="body")


@check("responses/stored/items", "List the input of a stored response", "ST-08")
def stored_items(seen: Transcript) -> Iterator[Problem]:
    accepted(at(seen, 0))
    found = _require_operation(at(seen, 2))
    if found.status != 200:
        yield Problem(expected="status 200", actual=f"status {found.status}", pointer="status")
        return
    yield from _page(found.json)


def _page(page: Any) -> Iterator[Problem]:
    data = page.get("data") if isinstance(page, dict) else None
    if not isinstance(data, list) or page.get("object") != "list" or not data:
        yield Problem(expected="a list with items", actual=repr(page)[:200], pointer="body")
        return
    names = [item.get("id") for item in data if isinstance(item, dict)]
    if len(names) != len(data) or not all(isinstance(name, str) and name for name in names):
        yield Problem(expected="items with ids", actual=repr(names)[:200], pointer="data[].id")
    elif (page.get("first_id"), page.get("last_id")) != (names[0], names[-1]):
        shown = repr((page.get("first_id"), page.get("last_id")))
        yield Problem(expected=repr((names[0], names[-1])), actual=shown, pointer="first_id, last_id")
    if not isinstance(page.get("has_more"), bool):
        yield Problem(expected="a boolean", actual=repr(page.get("has_more")), pointer="has_more")


@check("responses/stored/continued", "Continue a stored response, and return its id", "ST-04")
def stored_continued(seen: Transcript) -> Iterator[Problem]:
    name = id_of(accepted(at(seen, 0)))
    found = answered(at(seen, 3))
    echoed = found.json.get("previous_response_id") if isinstance(found.json, dict) else None
    if found.status != 200 or echoed != name:
        shown = f"status {found.status}, {echoed!r}"
        yield Problem(expected=f"status 200, {name!r}", actual=shown, pointer="previous_response_id")


@check("responses/stored/context", "Count the earlier conversation as part of the input", "ST-04")
def stored_context(seen: Transcript) -> Iterator[Problem]:
    counts = [usage_count(at(seen, place), "input_tokens") for place in (0, 3)]
    if counts[1] <= counts[0]:
        yield Problem(expected=f"more than {counts[0]}", actual=str(counts[1]), pointer="usage.input_tokens")


@check("responses/stored/cancel", "Cancel only background responses", "ST-11")
def stored_cancel(seen: Transcript) -> Iterator[Problem]:
    accepted(at(seen, 0))
    yield from refused(_require_operation(at(seen, 4)), 400, 409, 422)


@check("responses/stored/delete", "Confirm a deletion with the id", "ST-02")
def stored_delete(seen: Transcript) -> Iterator[Problem]:
    name = id_of(accepted(at(seen, 0)))
    found = _require_operation(at(seen, 5))
    body = found.json if isinstance(found.json, dict) else {}
    if found.status != 200 or (body.get("id"), body.get("deleted")) != (name, True):
        yield Problem(expected=f"{name} deleted", actual=repr(found.json)[:200], pointer="body")


@check("responses/stored/gone", "Answer 404 for a deleted response", "ST-02")
def stored_gone(seen: Transcript) -> Iterator[Problem]:
    if accepted(at(seen, 0)) and at(seen, 5).status != 200:
        raise Inconclusive("it was not deleted; another check reports this")
    for place in (6, 7, 8):
        yield from refused(at(seen, place), 404)


@check("responses/stored/not-continued", "Refuse to continue a deleted response", "ST-02")
def stored_not_continued(seen: Transcript) -> Iterator[Problem]:
    if accepted(at(seen, 0)) and at(seen, 5).status != 200:
        raise Inconclusive("it was not deleted; another check reports this")
    yield from refused(at(seen, 9), 400, 404, 422)


@scenario("responses/stored-stream", "A streamed and stored response", needs=NEEDS)
def stored_stream(target: Target) -> Steps:
    made = yield Request(path="/responses", json=create_response(target, "Hi", stream=True, **BRIEF))
    found = [event for event in made.chunks if isinstance(event, dict) and "response" in event]
    response = found[-1]["response"] if found else None
    name = response.get("id") if isinstance(response, dict) else None
    if isinstance(name, str) and name.isascii() and name.replace("_", "").isalnum():
        yield Request(path=f"/responses/{name}", method="GET")


@check("responses/stored-stream/get", "Return the response of the last event after the stream", "RS-19")
def stored_stream_get(seen: Transcript) -> Iterator[Problem]:
    yield from _same(terminal(events(at(seen, 0))), answered(at(seen, 1)))


@scenario("responses/unkept", "A response that is not stored", needs=NEEDS)
def not_stored(target: Target) -> Steps:
    made = yield Request(
        path="/responses", json=create_response(target, "Hi", max_output_tokens=16, store=False)
    )
    if (name := id_of(made)) is not None:
        yield Request(path=f"/responses/{name}", method="GET")


@check("responses/unkept/gone", "Store nothing if `store` is false", "ST-01")
def not_stored_gone(seen: Transcript) -> Iterator[Problem]:
    accepted(at(seen, 0))
    yield from refused(at(seen, 1), 404)


@check("responses/unkept/echo", "Echo that nothing is stored", "R-11")
def not_stored_echo(seen: Transcript) -> Iterator[Problem]:
    found = accepted(at(seen, 0)).json
    if not isinstance(found, dict) or found.get("store") is not False:
        shown = repr(found.get("store") if isinstance(found, dict) else found)[:100]
        yield Problem(expected="false", actual=shown, pointer="store")


ITEMS = [{"role": "user", "content": text} for text in ("One", "Two", "Three")]


@scenario("responses/pages", "The input of a response, page by page", needs=NEEDS)
def pages(target: Target) -> Steps:
    """Exchanges: create, all items, all ascending, a page of two, the rest."""
    made = yield Request(path="/responses", json=create_response(target, ITEMS, **BRIEF))
    name = id_of(made)
    if name is None:
        return
    path = f"/responses/{name}/input_items"
    yield Request(path=path, method="GET")
    yield Request(path=f"{path}?order=asc", method="GET")
    first = yield Request(path=f"{path}?limit=2", method="GET")
    last = first.json.get("last_id") if isinstance(first.json, dict) else None
    if isinstance(last, str) and last.isascii() and last.replace("_", "").isalnum():
        yield Request(path=f"{path}?limit=2&after={last}", method="GET")


def _names(seen: Transcript, place: int) -> list[str]:
    accepted(at(seen, 0))
    page = accepted(at(seen, place)).json
    data = page.get("data") if isinstance(page, dict) else None
    found = [item.get("id") for item in data if isinstance(item, dict)] if isinstance(data, list) else []
    return [str(name) for name in found]


@check("responses/pages/shape", "List items as the contract requires", "ST-08")
def pages_shape(seen: Transcript) -> Iterator[Problem]:
    accepted(at(seen, 0))
    for place in (1, 2, 3, 4):
        yield from violations("ResponseItemList", accepted(at(seen, place)).json, f"answer {place}, ")


@check("responses/pages/order", "List the newest item first, or the oldest with `order=asc`", "ST-08")
def pages_order(seen: Transcript) -> Iterator[Problem]:
    down, up = _names(seen, 1), _names(seen, 2)
    if len(down) != len(ITEMS) or up != down[::-1]:
        yield Problem(expected=repr(down[::-1]), actual=repr(up), pointer="data[].id")


@check("responses/pages/after", "Continue after the last item of a page", "ST-08")
def pages_after(seen: Transcript) -> Iterator[Problem]:
    every, first, rest = _names(seen, 1), _names(seen, 3), _names(seen, 4)
    if first + rest != every or len(first) != 2:
        yield Problem(expected=repr(every), actual=repr([first, rest]), pointer="data[].id")


@check("responses/pages/has-more", "Report on every page whether more follows", "ST-08")
def pages_more(seen: Transcript) -> Iterator[Problem]:
    pages = [accepted(at(seen, place)).json for place in (3, 4)]
    found = [page.get("has_more") if isinstance(page, dict) else None for page in pages]
    if found != [True, False]:
        yield Problem(expected="[True, False]", actual=repr(found), pointer="has_more")


@scenario("responses/branches", "Two continuations of one response, and one of a continuation", needs=NEEDS)
def branches(target: Target) -> Steps:
    """Exchanges: a response, a continuation, the same again, a continuation of the first continuation."""
    made = yield Request(path="/responses", json=create_response(target, "Hi", **BRIEF))
    if (name := id_of(made)) is None:
        return
    child = create_response(target, "One", previous_response_id=name, **BRIEF)
    first = yield Request(path="/responses", json=child)
    yield Request(path="/responses", json=child)
    if (below := id_of(first)) is not None:
        yield Request(
            path="/responses", json=create_response(target, "Two", previous_response_id=below, **BRIEF)
        )


def _counts(seen: Transcript) -> list[int]:
    return [usage_count(at(seen, place), "input_tokens") for place in range(4)]


whole_shapes("responses/branches", "Response", 0, 1, 2, 3)


@check("responses/branches/apart", "Keep two continuations of one response apart", "ST-07")
def branches_apart(seen: Transcript) -> Iterator[Problem]:
    counts = _counts(seen)
    if counts[1] != counts[2]:
        wanted, found = str(counts[1]), str(counts[2])
        yield Problem(expected=wanted, actual=found, pointer="usage.input_tokens", exchange=2)


@check("responses/branches/transitive", "Continue the whole chain of responses, not only the last", "ST-04")
def branches_transitive(seen: Transcript) -> Iterator[Problem]:
    counts = _counts(seen)
    if counts[3] <= counts[1]:
        yield Problem(expected=f"more than {counts[1]}", actual=str(counts[3]), pointer="usage.input_tokens")


@scenario("errors/unknown-response", "An unknown response id", needs=NEEDS)
def unknown_response(target: Target) -> Steps:
    yield Request(path=f"/responses/{UNKNOWN_ID}", method="GET")
    yield Request(path=f"/responses/{UNKNOWN_ID}", method="DELETE")
    yield Request(path=f"/responses/{UNKNOWN_ID}/cancel", json={})
    yield Request(path=f"/responses/{UNKNOWN_ID}/input_items", method="GET")
    yield Request(path="/responses", json=create_response(target, "Hi", previous_response_id=UNKNOWN_ID))


@check("errors/unknown-response/refused", "Answer an unknown id with 404 on every route", "ST-03")
def unknown_refused(seen: Transcript) -> Iterator[Problem]:
    for exchange in seen.exchanges[:4]:
        if not _not_offered(exchange):
            yield from refused(exchange, 404)


@check("errors/unknown-response/envelope", "Write the error object with all its keys", "ERR-01")
def unknown_envelope(seen: Transcript) -> Iterator[Problem]:
    for exchange in seen.exchanges:
        if not _not_offered(exchange):
            yield from envelope(exchange)


@check("errors/unknown-response/previous", "Refuse to continue an unknown response", "ST-05")
def unknown_previous(seen: Transcript) -> Iterator[Problem]:
    yield from refused(at(seen, 4), 400, 404, 422)
    code = (error_of(at(seen, 4)) or {}).get("code")
    if at(seen, 4).status in (400, 404) and code != "previous_response_not_found":
        yield Problem(expected="previous_response_not_found", actual=repr(code), pointer="error.code")


@check("responses/stored/shape", "Return a stored response as the contract requires", *SHAPE)
def stored_shape(seen: Transcript) -> Iterator[Problem]:
    for place in (0, 1, 3):
        if at(seen, place).status == 200:
            yield from violations("Response", at(seen, place).json)
    accepted(at(seen, 0))
