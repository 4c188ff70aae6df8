"""Check responses over a WebSocket: turns, continuations, errors that keep the connection."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from typing import Any

from plumbline_conformance.checks.common import (
    answered,
    at,
    broken,
    envelope,
    only,
    refusal,
    required,
)
from plumbline_conformance.checks.responses.items import Items, sums
from plumbline_conformance.checks.responses.shared_laws import (
    LIFECYCLE,
    NESTING,
    SNAPSHOTS,
    SUMS,
    create_response,
    event_order,
    known_types,
    shapes,
    snapshots,
)
from plumbline_conformance.suite.scenario import (
    WRONG_KEY,
    Inconclusive,
    Problem,
    Rejected,
    Request,
    Target,
    about,
    breaking,
    check,
    scenario,
)
from plumbline_conformance.suite.wording import as_json
from plumbline_conformance.transcript.exchange import CLOSED, UNABLE, Exchange, Transcript

Steps = Generator[Request, Exchange, None]
NEEDS = ("responses", "websocket")
LOST = "previous_response_not_found"


def create(target: Target, question: object = "Hi", **fields: object) -> dict[str, object]:
    """Return the client's event, which has no `stream` and `background` (WS-02)."""
    return {"type": "response.create", **create_response(target, question, max_output_tokens=16, **fields)}


def turn(name: str, target: Target, socket: str = "a", question: object = "Hi", **fields: object) -> Request:
    """Return the request `name`, which starts a turn on one of the scenario's connections."""
    return on(name, socket, create(target, question, **fields))


def on(name: str, socket: str, event: object) -> Request:
    """Return the request `name`, which sends a message on one of the scenario's connections."""
    return Request(name=name, path="/responses", method="WEBSOCKET", socket=socket, json=event)


def messages_of(exchange: Exchange) -> list[dict[str, Any]]:
    """Return the messages of a turn that are JSON objects."""
    if exchange.status != 101 or not (exchange.error or CLOSED).startswith(CLOSED):
        answered(exchange)
        if 400 <= exchange.status < 500 or exchange.status == 501:
            raise Rejected(f"status {exchange.status}: {refusal(exchange)}")
        raise broken(exchange, "a WebSocket", f"status {exchange.status}", "status")
    if exchange.error is not None:
        raise broken(exchange, "the end of the turn", exchange.error, "the connection")
    return [message for message in exchange.chunks if isinstance(message, dict)]


def done(exchange: Exchange) -> list[dict[str, Any]]:
    """Return the events of a turn that did not fail."""
    found = messages_of(exchange)
    for number, event in enumerate(found):
        if event.get("type") in ("error", "response.failed"):
            shown = as_json(event)[:200]
            raise broken(exchange, "an answer", shown, f"event {number}")
    return found


def final(exchange: Exchange) -> dict[str, Any]:
    """Return the response of the last event."""
    found = done(exchange)
    response = found[-1].get("response") if found else None
    if not isinstance(response, dict):
        raise Inconclusive("there is no response at the end; another check reports this")
    return response


def _id(exchange: Exchange) -> str | None:
    responses = [event.get("response") for event in exchange.chunks if isinstance(event, dict)]
    names = [one.get("id") for one in responses if isinstance(one, dict)]
    return names[-1] if names and isinstance(names[-1], str) else None


def _error(exchange: Exchange) -> dict[str, Any]:
    """Return the error that ended a turn; empty without one."""
    found = messages_of(exchange)
    error = found[-1].get("error") if found and found[-1].get("type") == "error" else None
    return error if isinstance(error, dict) else {}


def error_event(event: dict[str, Any]) -> Iterator[Problem]:
    """Check that an event is an error with a status, a code and a message (WS-07)."""
    error = event.get("error")
    if (
        event.get("type") != "error"
        or not isinstance(event.get("status"), int)
        or not isinstance(error, dict)
    ):
        wanted = "an error event with status and error"
        yield Problem(expected=wanted, actual=as_json(event)[:200], pointer="the last event")
    elif not 400 <= event["status"] < 600:
        yield Problem(expected="a status of an error", actual=as_json(event["status"]), pointer="status")
    elif not isinstance(error.get("code"), str) or not isinstance(error.get("message"), str):
        yield Problem(expected="a code and a message", actual=as_json(error)[:200], pointer="error")


@scenario("websocket/upgrade", "A GET of the WebSocket's path without an upgrade", needs=NEEDS)
def upgrade(target: Target) -> Steps:
    yield Request(path="/responses", method="GET")


@check("websocket/upgrade/refused", "Answer a GET without an upgrade with 4xx and the error object", "WS-01")
def upgrade_refused(seen: Transcript) -> Iterator[Problem]:
    found = answered(only(seen))
    if not 400 <= found.status < 500:
        yield Problem(expected="a status from 400", actual=f"status {found.status}", pointer="status")
    else:
        yield from envelope(found)


@scenario("websocket/key", "A WebSocket with a wrong key", needs=(*NEEDS, "key"))
def wrong_key(target: Target) -> Steps:
    headers = {"authorization": WRONG_KEY}
    yield Request(path="/responses", method="WEBSOCKET", json=create(target), headers=headers)


@check("websocket/key/refused", "Refuse a handshake with a wrong key", "HTTP-06")
def key_refused(seen: Transcript) -> Iterator[Problem]:
    found = only(seen)
    if found.status == 0 or found.status in UNABLE or found.error is not None:
        raise Inconclusive(found.error or f"the server was busy: status {found.status}")
    if found.status not in (401, 403):
        yield Problem(expected="status 401", actual=f"status {found.status}", pointer="status")


@scenario("websocket/turn", "Two turns on one connection", needs=NEEDS)
def turns(target: Target) -> Steps:
    for name in TURNS:
        yield turn(name, target)


TURNS = ("first", "second")


@check("websocket/turn/answered", "Answer `response.create` with a response", "WS-02")
def turn_answered(seen: Transcript) -> Iterator[Problem]:
    for name in TURNS:
        kinds = [event.get("type") for event in done(at(seen, name))]
        if "response.created" not in kinds:
            shown = as_json(kinds)[:200]
            yield Problem(expected="response.created", actual=shown, pointer="events", exchange=name)


@check("websocket/turn/messages", "Send one JSON object in each message", "WS-03")
def turn_messages(seen: Transcript) -> Iterator[Problem]:
    for name in TURNS:
        found = at(seen, name)
        flawed = found.binary is True
        if flawed:
            yield Problem(expected="messages of text", actual="binary", pointer="messages", exchange=name)
        for number, message in enumerate(found.chunks if found.status == 101 else ()):
            if not isinstance(message, dict) or not isinstance(message.get("type"), str):
                flawed = True
                wanted, shown = "an object with a type", as_json(found.frames[number][1])[:200]
                yield Problem(expected=wanted, actual=shown, pointer=f"event {number}", exchange=name)
        if not flawed:
            messages_of(found)


@check("websocket/turn/event-shapes", "Send the events of the contract", "RS-21", "RS-17")
def turn_shapes(seen: Transcript) -> Iterator[Problem]:
    yield from _of_turns(seen, _typed)


def _of_turns(
    seen: Transcript, law: Callable[[list[dict[str, Any]]], Iterator[Problem]]
) -> Iterator[Problem]:
    """Check the events of both turns."""
    for name in TURNS:
        found = at(seen, name)
        yield from about(found, law(done(found)))


def _typed(events: list[dict[str, Any]]) -> Iterator[Problem]:
    yield from breaking("RS-21", shapes(events))
    yield from breaking("RS-17", known_types(events))


@check(
    "websocket/turn/lifecycle", "Send first event, terminal event and numbers as a stream does", *LIFECYCLE
)
def turn_lifecycle(seen: Transcript) -> Iterator[Problem]:
    yield from _of_turns(seen, event_order)


@check("websocket/turn/nesting", "Open, fill and close items and parts in order", *NESTING)
def turn_nesting(seen: Transcript) -> Iterator[Problem]:
    yield from _of_turns(seen, lambda events: Items().judge(events))


@check("websocket/turn/sums", "Make deltas add up to done events, items and response", *SUMS)
def turn_sums(seen: Transcript) -> Iterator[Problem]:
    yield from _of_turns(seen, sums)


@check("websocket/turn/snapshots", "Send consistent snapshots of the response", *SNAPSHOTS)
def turn_snapshots(seen: Transcript) -> Iterator[Problem]:
    yield from _of_turns(seen, snapshots)


@check(
    "websocket/turn/ended",
    "End a turn with the terminal event, and start the next with a new response",
    "WS-04",
    request="second",
)
def turn_ended(seen: Transcript) -> Iterator[Problem]:
    first = final(at(seen, "first")).get("id")
    found = done(at(seen, "second"))
    response = found[0].get("response") if found else None
    name = response.get("id") if isinstance(response, dict) else None
    if not found or found[0].get("type") != "response.created" or name == first:
        shown = as_json(found[:1])[:200]
        yield Problem(expected="response.created of another response", actual=shown, pointer="event 0")


@scenario("websocket/queue", "Two turns, requested at once", needs=NEEDS)
def queue(target: Target) -> Steps:
    both = [create(target, "One"), create(target, "Two")]
    yield Request(name="both", path="/responses", method="WEBSOCKET", socket="a", json=both, turns=2)


@check("websocket/queue/in-order", "Answer turns one after the other", "WS-04")
def queue_order(seen: Transcript) -> Iterator[Problem]:
    found = done(only(seen))
    begins = [number for number, event in enumerate(found) if event.get("type") == "response.created"]
    ends = [
        n
        for n, event in enumerate(found)
        if event.get("type") in ("response.completed", "response.incomplete")
    ]
    if len(begins) != 2 or len(ends) != 2 or not begins[0] < ends[0] < begins[1] < ends[1]:
        shown = f"begun at {begins}, ended at {ends}"
        yield Problem(expected="two turns, one after the other", actual=shown, pointer="events")
    names = [event["response"].get("id") for event in found if isinstance(event.get("response"), dict)]
    if len(set(map(as_json, names))) != 2:
        yield Problem(expected="two responses", actual=as_json(names)[:200], pointer="id")


@scenario(
    "websocket/continue",
    "A response that is not stored, continued on its and another connection",
    needs=NEEDS,
)
def continued(target: Target) -> Steps:
    first = yield turn("created", target)
    name = _id(first)
    if name is None:
        return
    yield turn("continued", target, "a", "And you?", previous_response_id=name)
    yield turn("continued_elsewhere", target, "b", "And you?", previous_response_id=name)
    yield turn("created_elsewhere", target, "b")


@check(
    "websocket/continue/continued",
    "Continue the latest response of the connection",
    "WS-05",
    request="continued",
)
def continued_latest(seen: Transcript) -> Iterator[Problem]:
    name = final(at(seen, "created")).get("id")
    echoed = final(at(seen, "continued")).get("previous_response_id")
    if echoed != name:
        yield Problem(expected=as_json(name), actual=as_json(echoed), pointer="response.previous_response_id")


@check(
    "websocket/continue/context",
    "Count the earlier conversation as part of the input",
    "ST-04",
    request="continued",
)
def continued_context(seen: Transcript) -> Iterator[Problem]:
    before, after = (_input(final(at(seen, name))) for name in ("created", "continued"))
    if after <= before:
        yield Problem(expected=f"more than {before}", actual=str(after), pointer="usage.input_tokens")


def _input(response: dict[str, Any]) -> int:
    usage = response.get("usage")
    count = usage.get("input_tokens") if isinstance(usage, dict) else None
    if not isinstance(count, int):
        raise Inconclusive("the response has no usage; another check reports this")
    return count


@check(
    "websocket/continue/elsewhere",
    "Do not continue it on another connection",
    "WS-05",
    request="continued_elsewhere",
)
def continued_elsewhere(seen: Transcript) -> Iterator[Problem]:
    done(at(seen, "created"))
    code = _error(at(seen, "continued_elsewhere")).get("code")
    if code != LOST:
        yield Problem(expected=LOST, actual=as_json(code), pointer="error.code")


@check("websocket/continue/usable", "Stay usable after an error", "WS-05")
def continued_usable(seen: Transcript) -> Iterator[Problem]:
    required(lambda: done(at(seen, "created_elsewhere")))
    yield from ()


@scenario("websocket/failed", "A failed continuation, and another one after it", needs=NEEDS)
def failed(target: Target) -> Steps:
    first = yield turn("created", target)
    name = _id(first)
    if name is None:
        return
    orphan = [{"type": "function_call_output", "call_id": "call_0f3a", "output": "21"}]
    yield turn("orphan", target, "a", orphan, previous_response_id=name)
    yield turn("continued", target, "a", "And you?", previous_response_id=name)


@check("websocket/failed/orphan", "Fail a turn with the output of an unknown call", "WS-09", request="orphan")
def failed_orphan(seen: Transcript) -> Iterator[Problem]:
    done(at(seen, "created"))
    found = messages_of(at(seen, "orphan"))
    if not found or found[-1].get("type") not in ("error", "response.failed"):
        shown = as_json(found[-1:])[:200]
        yield Problem(expected="an error", actual=shown, pointer="the last event")


@check(
    "websocket/failed/evicted",
    "Evict a response after its continuation failed",
    "WS-06",
    request="continued",
)
def failed_evicted(seen: Transcript) -> Iterator[Problem]:
    done(at(seen, "created"))
    found = messages_of(at(seen, "orphan"))
    if found and found[-1].get("type") not in ("error", "response.failed"):
        raise Inconclusive("the continuation did not fail; another check reports this")
    code = _error(at(seen, "continued")).get("code")
    if code != LOST:
        yield Problem(expected=LOST, actual=as_json(code), pointer="error.code")


@scenario("websocket/errors", "Invalid events, then a valid one", needs=NEEDS)
def errors(target: Target) -> Steps:
    broken_json = b'{"type": '
    yield Request(name="broken_json", path="/responses", method="WEBSOCKET", socket="a", content=broken_json)
    yield on("unknown_event", "a", {"type": "response.no_such_event"})
    yield on("wrong_type", "a", {**create(target), "max_output_tokens": "many"})
    yield turn("valid", target)


@check("websocket/errors/envelope", "Answer with an error event, and keep the connection", "WS-07")
def errors_envelope(seen: Transcript) -> Iterator[Problem]:
    for name in ("broken_json", "unknown_event", "wrong_type"):
        found = at(seen, name)
        messages = messages_of(found)
        yield from about(found, error_event(messages[-1] if messages else {}))


@check("websocket/errors/usable", "Answer a valid event after an invalid one", "WS-05")
def errors_usable(seen: Transcript) -> Iterator[Problem]:
    required(lambda: done(at(seen, "valid")))
    yield from ()
