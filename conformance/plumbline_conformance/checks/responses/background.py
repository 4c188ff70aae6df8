"""Check background responses: polled until they end, cancelled, resumed as a stream."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from typing import Any

import msgspec

from plumbline_conformance.checks.common import accepted, answered, at, refused, usage_adds_up
from plumbline_conformance.checks.responses.shared_laws import (
    LIFECYCLE,
    SHAPE,
    SNAPSHOTS,
    create_response,
    event_order,
    events,
    snapshots,
)
from plumbline_conformance.checks.responses.state import id_of
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
    """Exchanges: create, poll until it ends, cancel."""
    made = yield Request(path="/responses", json=_request(target))
    name = id_of(made)
    if name is None:
        return
    for pause in PAUSES:
        found = yield Request(path=f"/responses/{name}", method="GET", pause=pause)
        if _status(found) not in RUNNING:
            yield Request(path=f"/responses/{name}/cancel", json={})
            return


def _polls(seen: Transcript) -> list[Exchange]:
    """Return the exchanges of creating and polling, in order."""
    accepted(at(seen, 0))
    found = [one for one in seen.exchanges if one.method == "GET" or one is seen.exchanges[0]]
    if len(found) < 2:
        raise Inconclusive("the response has no id; another check reports this")
    return [accepted(one) for one in found]


@check("responses/background/at-once", "Answer immediately, before the response ends", "ST-10")
def background_at_once(seen: Transcript) -> Iterator[Problem]:
    status = _status(accepted(at(seen, 0)))
    if status not in RUNNING:
        yield Problem(expected="queued or in_progress", actual=repr(status), pointer="status")


@check("responses/background/echo", "Echo `background`", "R-11")
def background_echo(seen: Transcript) -> Iterator[Problem]:
    for place, found in enumerate(_polls(seen)):
        if not isinstance(found.json, dict) or found.json.get("background") is not True:
            shown = repr(found.json)[:100]
            yield Problem(expected="true", actual=shown, pointer="background", exchange=place)


@check("responses/background/shape", "Return the complete response object at any time", *SHAPE)
def background_shape(seen: Transcript) -> Iterator[Problem]:
    for place, found in enumerate(_polls(seen)):
        for problem in violations("Response", found.json):
            yield msgspec.structs.replace(problem, exchange=place)


@check("responses/background/states", "Go from queued to in progress to a final status, never back", "R-02")
def background_states(seen: Transcript) -> Iterator[Problem]:
    states = [_status(found) for found in _polls(seen)]
    order = {name: place for place, name in enumerate((*RUNNING, "end"))}
    places = [order["end"] if state in ENDED else order.get(state, -1) for state in states]
    wrong = [n for n, place in enumerate(places) if place < max((0, *places[:n]))]
    if wrong:
        shown = repr(states)[:200]
        yield Problem(
            expected="queued, in_progress, a final status", actual=shown, pointer="status", exchange=wrong[0]
        )
    elif states[-1] not in ENDED:
        raise Inconclusive("the response did not end in time")


@check("responses/background/usage", "Send the usage at the end, and not before", "R-10")
def background_usage(seen: Transcript) -> Iterator[Problem]:
    for place, found in enumerate(_polls(seen)):
        usage = found.json.get("usage") if isinstance(found.json, dict) else None
        if _status(found) in ("completed", "incomplete"):
            yield from usage_adds_up(usage, prompt="input_tokens", completion="output_tokens")
        elif _status(found) in RUNNING and usage is not None:
            yield Problem(expected="null", actual=repr(usage)[:200], pointer="usage", exchange=place)


@check(
    "responses/background/cancel-ended", "Keep the status of an ended response when it is cancelled", "ST-11"
)
def background_cancel_ended(seen: Transcript) -> Iterator[Problem]:
    polls = _polls(seen)
    if _status(polls[-1]) not in ENDED:
        raise Inconclusive("the response did not end in time")
    found = answered(at(seen, len(polls)))
    if found.status in (400, 409):
        return
    if found.status != 200 or _status(found) != _status(polls[-1]):
        shown = f"status {found.status}, {_status(found)!r}"
        wanted = f"{_status(polls[-1])!r}, or a refusal"
        yield Problem(expected=wanted, actual=shown, pointer="status", exchange=len(polls))


@scenario("responses/background-cancel", "A response that is cancelled while running", needs=NEEDS)
def cancel(target: Target) -> Steps:
    """Exchanges: create, cancel, cancel again, poll."""
    made = yield Request(
        path="/responses", json=_request(target, "Count to a thousand.", max_output_tokens=512)
    )
    name = id_of(made)
    if name is None:
        return
    yield Request(path=f"/responses/{name}/cancel", json={})
    yield Request(path=f"/responses/{name}/cancel", json={})
    yield Request(path=f"/responses/{name}", method="GET")


def _cancelled(seen: Transcript) -> Exchange:
    accepted(at(seen, 0))
    found = answered(at(seen, 1))
    if found.status in (400, 409) or _status(found) in ("completed", "incomplete"):
        raise Inconclusive("the response ended before it could be cancelled")
    return found


@check("responses/background-cancel/cancelled", "Cancel a running response, and report it", "ST-11")
def cancel_cancelled(seen: Transcript) -> Iterator[Problem]:
    found = _cancelled(seen)
    if found.status != 200 or _status(found) != "cancelled":
        shown = f"status {found.status}, {_status(found)!r}"
        yield Problem(expected="cancelled", actual=shown, pointer="status")


@check("responses/background-cancel/again", "Return the same status when it is cancelled again", "ST-11")
def cancel_again(seen: Transcript) -> Iterator[Problem]:
    first = _cancelled(seen)
    found = answered(at(seen, 2))
    if (found.status, _status(found)) != (first.status, _status(first)):
        shown = f"status {found.status}, {_status(found)!r}"
        yield Problem(expected=repr(_status(first)), actual=shown, pointer="status", exchange=2)


@check("responses/background-cancel/kept", "Keep a cancelled response cancelled", "R-02")
def cancel_kept(seen: Transcript) -> Iterator[Problem]:
    if _status(_cancelled(seen)) != "cancelled":
        raise Inconclusive("the response was not cancelled; another check reports this")
    found = answered(at(seen, 3))
    if found.status != 200 or _status(found) != "cancelled":
        shown = f"status {found.status}, {_status(found)!r}"
        yield Problem(expected="cancelled", actual=shown, pointer="status")


@scenario("responses/background-stream", "A background response, streamed and resumed", needs=NEEDS)
def streamed(target: Target) -> Steps:
    """Exchanges: create with a stream, stream the events after event 1."""
    made = yield Request(path="/responses", json=_request(target, stream=True))
    responses = [e["response"] for e in made.chunks if isinstance(e, dict) and "response" in e]
    name = responses[-1].get("id") if responses and isinstance(responses[-1], dict) else None
    if isinstance(name, str) and name.isascii() and name.replace("_", "").isalnum():
        yield Request(path=f"/responses/{name}?stream=true&starting_after=1", method="GET")


@check(
    "responses/background-stream/lifecycle",
    "Send first event, terminal event and numbers as any stream does",
    *LIFECYCLE,
)
def streamed_life(seen: Transcript) -> Iterator[Problem]:
    yield from event_order(events(at(seen, 0)))


@check(
    "responses/background-stream/snapshots",
    "Send consistent snapshots, queued or not",
    *SNAPSHOTS,
)
def streamed_snapshots(seen: Transcript) -> Iterator[Problem]:
    yield from snapshots(events(at(seen, 0)))


@check("responses/background-stream/resumed", "Resume the stream after an event", "RS-20")
def streamed_resumed(seen: Transcript) -> Iterator[Problem]:
    numbers = [event.get("sequence_number") for event in events(at(seen, 0))]
    wanted = [
        event for event, number in zip(events(at(seen, 0)), numbers, strict=True) if number not in (0, 1)
    ]
    found = answered(at(seen, 1))
    if found.status >= 400:
        raise Rejected(f"status {found.status} to `stream=true&starting_after=1`")
    if events(found) != wanted:
        shown = [event.get("sequence_number") for event in events(found)]
        yield Problem(
            expected=f"the {len(wanted)} events after 1",
            actual=f"{len(shown)} events: {repr(shown)[:150]}",
            pointer="sequence_number",
            exchange=1,
        )


@scenario("responses/background-unkept", "A background response that is not stored", needs=NEEDS)
def not_stored(target: Target) -> Steps:
    yield Request(path="/responses", json=_request(target, store=False))


@check("responses/background-unkept/refused", "Refuse `background` if `store` is false", "ST-10")
def not_stored_refused(seen: Transcript) -> Iterator[Problem]:
    yield from refused(at(seen, 0), 400, 422)
