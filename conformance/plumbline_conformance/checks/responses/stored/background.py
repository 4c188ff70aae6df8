"""Check background responses: polled until they end, cancelled, resumed as a stream."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from typing import Any

from plumbline_conformance.checks.common import (
    accepted,
    answered,
    at,
    group,
    only,
    refused,
    usage_adds_up,
)
from plumbline_conformance.checks.responses.shared_laws import (
    LIFECYCLE,
    SHAPE,
    SNAPSHOTS,
    create_response,
    event_order,
    events,
    snapshots,
)
from plumbline_conformance.checks.responses.stored.lifecycle import id_of
from plumbline_conformance.suite.contract import event_schemas
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
NEEDS = ("responses", "background")
RUNNING = ("queued", "in_progress")
ENDED = ("completed", "incomplete", "failed", "cancelled")
PAUSES = (0.05, 0.1, 0.2, 0.4, 0.8, *[1.5] * 25)
"""Seconds before each poll: short for fast servers, half a minute in total."""


def _request(target: Target, question: str = "Hi", **fields: object) -> dict[str, object]:
    given = {"max_output_tokens": 16, "store": True, "background": True, **fields}
    return create_response(target, question, **given)


def _status(exchange: Exchange) -> Any:
    return exchange.json.get("status") if isinstance(exchange.json, dict) else None


@scenario("responses/background", "A background response, polled until it ends", needs=NEEDS)
def background(target: Target) -> Steps:
    made = yield Request(name="created", path="/responses", json=_request(target))
    name = id_of(made)
    if name is None:
        return
    path = f"/responses/{name}"
    for number, pause in enumerate(PAUSES, 1):
        found = yield Request(name=f"poll/{number}", path=path, method="GET", pause=pause)
        if _status(found) not in RUNNING:
            yield Request(name="cancel", path=f"{path}/cancel", json={})
            return


def _polls(seen: Transcript) -> list[Exchange]:
    """Return the exchanges of creating and polling, in order."""
    created, polls = accepted(at(seen, "created")), group(seen, "poll", needed=False)
    if not polls:
        raise Inconclusive("the response has no id; another check reports this")
    return [created, *map(accepted, polls)]


@check(
    "responses/background/at-once",
    "Answer immediately, before the response ends",
    "ST-10",
    request="created",
)
def background_at_once(seen: Transcript) -> Iterator[Problem]:
    status = _status(accepted(at(seen, "created")))
    if status not in RUNNING:
        yield Problem(expected="queued or in_progress", actual=as_json(status), pointer="status")


@check("responses/background/echo", "Echo `background`", "R-11")
def background_echo(seen: Transcript) -> Iterator[Problem]:
    for found in _polls(seen):
        if not isinstance(found.json, dict) or found.json.get("background") is not True:
            shown = as_json(found.json)[:100]
            yield Problem(expected="true", actual=shown, pointer="background", exchange=found.name)


@check("responses/background/shape", "Return the complete response object at any time", *SHAPE)
def background_shape(seen: Transcript) -> Iterator[Problem]:
    for found in _polls(seen):
        yield from about(found, violations("Response", found.json))


@check("responses/background/states", "Go from queued to in progress to a final status, never back", "R-02")
def background_states(seen: Transcript) -> Iterator[Problem]:
    polls = _polls(seen)
    states = [_status(found) for found in polls]
    order = {name: place for place, name in enumerate((*RUNNING, "end"))}
    places = [order["end"] if state in ENDED else order.get(state, -1) for state in states]
    wrong = [n for n, place in enumerate(places) if place < max((0, *places[:n]))]
    if wrong:
        wanted, where = "queued, in_progress, a final status", polls[wrong[0]].name
        yield Problem(expected=wanted, actual=as_json(states)[:200], pointer="status", exchange=where)
    elif states[-1] not in ENDED:
        raise Inconclusive("the response did not end in time")


@check("responses/background/usage", "Send the usage at the end, and not before", "R-10")
def background_usage(seen: Transcript) -> Iterator[Problem]:
    for found in _polls(seen):
        usage = found.json.get("usage") if isinstance(found.json, dict) else None
        if _status(found) in ("completed", "incomplete"):
            added = usage_adds_up(usage, prompt="input_tokens", completion="output_tokens")
            yield from about(found, added)
        elif _status(found) in RUNNING and usage is not None:
            shown = as_json(usage)[:200]
            yield Problem(expected="null", actual=shown, pointer="usage", exchange=found.name)


@check(
    "responses/background/cancel-ended",
    "Keep the status of an ended response when it is cancelled",
    "ST-11",
    request="cancel",
)
def background_cancel_ended(seen: Transcript) -> Iterator[Problem]:
    polls = _polls(seen)
    if _status(polls[-1]) not in ENDED:
        raise Inconclusive("the response did not end in time")
    found = answered(at(seen, "cancel"))
    if found.status in (400, 409):
        return
    if found.status != 200 or _status(found) != _status(polls[-1]):
        shown = f"status {found.status}, {as_json(_status(found))}"
        wanted = f"{as_json(_status(polls[-1]))}, or a refusal"
        yield Problem(expected=wanted, actual=shown, pointer="status")


@scenario("responses/background-cancel", "A response that is cancelled while running", needs=NEEDS)
def cancel(target: Target) -> Steps:
    body = _request(target, "Count to a thousand.", max_output_tokens=512)
    made = yield Request(name="created", path="/responses", json=body)
    name = id_of(made)
    if name is None:
        return
    yield Request(name="cancel", path=f"/responses/{name}/cancel", json={})
    yield Request(name="cancel_again", path=f"/responses/{name}/cancel", json={})
    yield Request(name="get", path=f"/responses/{name}", method="GET")


def _cancelled(seen: Transcript) -> Exchange:
    accepted(at(seen, "created"))
    found = answered(at(seen, "cancel"))
    if found.status in (400, 409) or _status(found) in ("completed", "incomplete"):
        raise Inconclusive("the response ended before it could be cancelled")
    return found


@check(
    "responses/background-cancel/cancelled",
    "Cancel a running response, and report it",
    "ST-11",
    request="cancel",
)
def cancel_cancelled(seen: Transcript) -> Iterator[Problem]:
    found = _cancelled(seen)
    if found.status != 200 or _status(found) != "cancelled":
        shown = f"status {found.status}, {as_json(_status(found))}"
        yield Problem(expected="cancelled", actual=shown, pointer="status")


@check(
    "responses/background-cancel/again",
    "Return the same status when it is cancelled again",
    "ST-11",
    request="cancel_again",
)
def cancel_again(seen: Transcript) -> Iterator[Problem]:
    first = _cancelled(seen)
    found = answered(at(seen, "cancel_again"))
    if (found.status, _status(found)) != (first.status, _status(first)):
        shown = f"status {found.status}, {as_json(_status(found))}"
        yield Problem(expected=as_json(_status(first)), actual=shown, pointer="status")


@check("responses/background-cancel/kept", "Keep a cancelled response cancelled", "R-02", request="get")
def cancel_kept(seen: Transcript) -> Iterator[Problem]:
    if _status(_cancelled(seen)) != "cancelled":
        raise Inconclusive("the response was not cancelled; another check reports this")
    found = answered(at(seen, "get"))
    if found.status != 200 or _status(found) != "cancelled":
        shown = f"status {found.status}, {as_json(_status(found))}"
        yield Problem(expected="cancelled", actual=shown, pointer="status")


@scenario("responses/background-stream", "A background response, streamed and resumed", needs=NEEDS)
def streamed(target: Target) -> Steps:
    made = yield Request(name="stream", path="/responses", json=_request(target, stream=True))
    responses = [e["response"] for e in made.chunks if isinstance(e, dict) and "response" in e]
    name = responses[-1].get("id") if responses and isinstance(responses[-1], dict) else None
    if isinstance(name, str) and name.isascii() and name.replace("_", "").isalnum():
        path = f"/responses/{name}?stream=true&starting_after=1"
        yield Request(name="resumed", path=path, method="GET")


@check(
    "responses/background-stream/lifecycle",
    "Send first event, terminal event and numbers as any stream does",
    *LIFECYCLE,
    request="stream",
)
def streamed_life(seen: Transcript) -> Iterator[Problem]:
    yield from event_order(events(at(seen, "stream")))


@check(
    "responses/background-stream/snapshots",
    "Send consistent snapshots, queued or not",
    *SNAPSHOTS,
    request="stream",
)
def streamed_snapshots(seen: Transcript) -> Iterator[Problem]:
    yield from snapshots(events(at(seen, "stream")))


@check("responses/background-stream/resumed", "Resume the stream after an event", "RS-20", request="resumed")
def streamed_resumed(seen: Transcript) -> Iterator[Problem]:
    complete = map(_comparable, events(at(seen, "stream")))
    wanted = [event for event in complete if event.get("sequence_number") not in (0, 1)]
    found = answered(at(seen, "resumed"))
    if found.status >= 400:
        raise Rejected(f"status {found.status} to `stream=true&starting_after=1`")
    if [*map(_comparable, events(found))] != wanted:
        shown = [event.get("sequence_number") for event in events(found)]
        yield Problem(
            expected=f"the {len(wanted)} events after 1",
            actual=f"{len(shown)} events: {as_json(shown)[:150]}",
            pointer="sequence_number",
        )


def _comparable(event: dict[str, Any]) -> dict[str, Any]:
    schema = event_schemas().get(str(event.get("type")))
    comparable: dict[str, Any] = event if schema is None else known_members(schema, event)
    return comparable


@scenario("responses/background-unkept", "A background response that is not stored", needs=NEEDS)
def not_stored(target: Target) -> Steps:
    yield Request(path="/responses", json=_request(target, store=False))


@check("responses/background-unkept/refused", "Refuse `background` if `store` is false", "ST-10")
def not_stored_refused(seen: Transcript) -> Iterator[Problem]:
    yield from refused(only(seen), 400, 422)
