"""Mutants of WebSockets, background responses and compaction."""

from __future__ import annotations

import json
from collections.abc import Callable
from copy import deepcopy
from typing import Any

from mutants.basic import put
from mutants.mutations import (
    FIRST,
    Mutant,
    Mutation,
    body,
    body_bytes,
    changed,
    chunk,
    each,
    error,
    events,
    status,
    without,
)
from plumbline_conformance.checks.common import at
from plumbline_conformance.checks.laws import STREAM
from plumbline_conformance.transcript.exchange import CLOSED, Exchange, Transcript

__all__ = ["STATE"]

NO_TOKENS = {
    "input_tokens": 0,
    "input_tokens_details": {"cached_tokens": 0},
    "output_tokens": 0,
    "output_tokens_details": {"reasoning_tokens": 0},
    "total_tokens": 0,
}
LOST = {"type": "error", "status": 400, "error": {"code": "previous_response_not_found", "message": "Lost."}}


def messages(change: Callable[[list[Any]], list[Any]], request: str = FIRST) -> Mutation:
    """Change the messages of a turn; values are encoded as JSON, bytes are kept."""

    def mutate(exchange: Exchange) -> Exchange:
        found = change([json.loads(frame) for _, frame in exchange.frames])
        frames = [(0.0, one if isinstance(one, bytes) else json.dumps(one).encode()) for one in found]
        return changed(exchange, frames=frames)

    return each(request, mutate)


def message(place: int, change: Callable[[Any], object], request: str = FIRST) -> Mutation:
    """Change one message in place."""

    def mutate(found: list[Any]) -> list[Any]:
        change(found[place])
        return found

    return messages(mutate, request)


def refusing(request: str) -> Mutation:
    """Refuse a valid turn."""
    return messages(lambda found: [LOST], request)


def answering(request: str, like: str) -> Mutation:
    """Answer an invalid turn like another turn."""

    def mutate(seen: Transcript) -> Transcript:
        frames = deepcopy(at(seen, like).frames)
        return each(request, lambda exchange: changed(exchange, frames=frames))(seen)

    return mutate


def one_response(found: list[Any]) -> list[Any]:
    """Give both turns the same id."""
    name = found[0]["response"]["id"]
    for event in found:
        if "response" in event:
            event["response"]["id"] = name
    return found


def interleaved(found: list[Any]) -> list[Any]:
    half = len(found) // 2
    return [event for both in zip(found[:half], found[half:], strict=True) for event in both]


def one_lane(found: list[Any]) -> list[Any]:
    """Mix the turns of the first lane."""
    first = [event for event in found if event["stream_id"] == found[0]["stream_id"]]
    return [*interleaved(first), *(event for event in found if event not in first)]


def unechoed(found: list[Any]) -> list[Any]:
    for event in found:
        if "response" in event:
            event["response"]["previous_response_id"] = None
    return found


def looked(state: str, request: str) -> Mutation:
    return body(put("status", state), request)


def alone(event: Any) -> None:
    """Count the new message only."""
    usage = event["response"]["usage"]
    usage.update(input_tokens=2, total_tokens=2 + usage["output_tokens"])


SOCKETS: list[Mutant] = [
    ("websocket/upgrade", "serves a page without an upgrade", status(200), ("refused",)),
    ("websocket/upgrade", "refuses in plain text", body_bytes(lambda old: b"Upgrade!"), ("refused",)),
    ("websocket/key", "opens for any key", status(101), ("refused",)),
    ("websocket/turn", "begins with no created", messages(lambda m: m[1:]), ("lifecycle", "answered")),
    (
        "websocket/turn",
        "packs an event as text",
        messages(lambda m: [*m[:2], b'"hi"', *m[2:]]),
        ("messages",),
    ),
    (
        "websocket/turn",
        "leaves out an event's type",
        message(2, without("type")),
        ("messages", "event-shapes", "nesting"),
    ),
    (
        "websocket/turn",
        "sends an event of its own",
        messages(lambda m: [*m[:2], {"type": "response.odd", "sequence_number": 1.5}, *m[2:]]),
        ("event-shapes", "lifecycle"),
    ),
    ("websocket/turn", "counts events downwards", message(2, put("sequence_number", 0)), ("lifecycle",)),
    (
        "websocket/turn",
        "never closes an item",
        messages(lambda m: [one for one in m if one["type"] != "response.output_item.done"]),
        ("sums",),
    ),
    ("websocket/turn", "forgets a delta", messages(lambda m: m[:4] + m[5:]), ("sums",)),
    (
        "websocket/turn",
        "changes the id at the end",
        message(-1, put("response", "id", "resp_x")),
        ("snapshots",),
    ),
    (
        "websocket/turn",
        "sends the end of a turn in the next",
        messages(lambda m: [{**m[-1], "type": "response.late"}, *m], "second"),
        ("ended", "event-shapes", "lifecycle", "snapshots"),
    ),
    ("websocket/turn", "answers the second turn with the first", answering("second", "first"), ("ended",)),
    (
        "websocket/turn",
        "closes after a turn",
        error(f"{CLOSED}, with code 1000", "second"),
        ("answered",),
    ),
    (
        "websocket/turn",
        "forgets a delta of the second turn",
        messages(lambda m: m[:4] + m[5:], "second"),
        ("sums",),
    ),
    ("websocket/queue", "forgets a delta", messages(lambda m: m[:4] + m[5:]), ("as-stream",)),
    ("websocket/continue", "forgets a delta", messages(lambda m: m[:4] + m[5:], "continued"), ("as-stream",)),
    ("websocket/failed", "forgets a delta", messages(lambda m: m[:4] + m[5:]), ("as-stream",)),
    (
        "websocket/errors",
        "forgets a delta",
        messages(lambda m: m[:4] + m[5:], "valid"),
        ("as-stream", "steps"),
    ),
    (
        "websocket/continue",
        "an error without a message",
        message(-1, without("error", "message"), "continued_elsewhere"),
        ("error-events",),
    ),
    (
        "websocket/failed",
        "an error without a status",
        message(-1, without("status"), "orphan"),
        ("error-events",),
    ),
    ("websocket/queue", "answers both at once", messages(interleaved), ("in-order", "as-stream")),
    ("websocket/queue", "answers both under one id", messages(one_response), ("in-order",)),
    (
        "websocket/lanes",
        "names no lane",
        messages(lambda m: [{k: v for k, v in one.items() if k != "stream_id"} for one in m]),
        ("named",),
    ),
    (
        "websocket/lanes",
        "names one lane in an event of another",
        message(2, put("stream_id", "other")),
        ("named",),
    ),
    ("websocket/lanes", "forgets a delta", messages(lambda m: m[:4] + m[5:]), ("as-stream",)),
    ("websocket/lanes", "begins both turns of a lane at once", messages(one_lane), ("as-stream",)),
    ("websocket/lanes", "ends no second turn", messages(lambda m: m[:-1]), ("as-stream",)),
    ("websocket/continue", "refuses to continue", refusing("continued"), ("continued",)),
    (
        "websocket/continue",
        "does not name what it continues",
        messages(unechoed, "continued"),
        ("continued",),
    ),
    (
        "websocket/continue",
        "continues the message alone",
        message(-1, alone, "continued"),
        ("context",),
    ),
    (
        "websocket/continue",
        "gives one client's words to another",
        answering("continued_elsewhere", "continued"),
        ("elsewhere",),
    ),
    (
        "websocket/continue",
        "has no code for it",
        message(-1, put("error", "code", "not_found"), "continued_elsewhere"),
        ("elsewhere",),
    ),
    (
        "websocket/continue",
        "ends the connection with an error",
        error(f"{CLOSED}, with code 1011", "created_elsewhere"),
        ("usable",),
    ),
    ("websocket/continue", "refuses everything after an error", refusing("created_elsewhere"), ("usable",)),
    ("websocket/failed", "takes the answer to any call", answering("orphan", "created"), ("orphan",)),
    ("websocket/failed", "remembers what failed", answering("continued", "created"), ("evicted",)),
    (
        "websocket/errors",
        "drops the connection at no JSON",
        error(f"{CLOSED}, with code 1007", "broken_json"),
        ("envelope",),
    ),
    (
        "websocket/errors",
        "leaves out the status",
        message(-1, without("status"), "unknown_event"),
        ("envelope",),
    ),
    (
        "websocket/errors",
        "gives no code",
        message(-1, put("error", "code", None), "wrong_type"),
        ("envelope",),
    ),
    (
        "websocket/errors",
        "gives the status of a success",
        message(-1, put("status", 200), "wrong_type"),
        ("envelope",),
    ),
    ("websocket/errors", "ignores an unknown event", answering("unknown_event", "valid"), ("envelope",)),
    ("websocket/errors", "is lost after an error", refusing("valid"), ("usable",)),
]
BACKGROUND: list[Mutant] = [
    (
        "responses/background",
        "waits for the end",
        looked("completed", "created"),
        ("at-once", "states", "usage"),
    ),
    (
        "responses/background",
        "forgets that it runs there",
        body(put("background", False), "poll/1"),
        ("echo",),
    ),
    ("responses/background", "leaves out the model", body(without("model"), "poll/1"), ("shape",)),
    ("responses/background", "goes back into the queue", looked("queued", "poll/2"), ("states", "usage")),
    (
        "responses/background",
        "calls a state by another name",
        looked("running", "poll/1"),
        ("states", "shape"),
    ),
    ("responses/background", "adds up wrong", body(put("usage", "total_tokens", 1), "poll/2"), ("usage",)),
    ("responses/background", "counts before the end", body(put("usage", {}), "poll/1"), ("usage", "shape")),
    ("responses/background", "cancels what has ended", looked("cancelled", "cancel"), ("cancel-ended",)),
    ("responses/background-cancel", "runs on", looked("in_progress", "cancel"), ("cancelled", "again")),
    ("responses/background-cancel", "knows no cancelling", status(404, "cancel"), ("cancelled", "again")),
    ("responses/background-cancel", "refuses the second time", status(400, "cancel_again"), ("again",)),
    ("responses/background-cancel", "ends all the same", looked("completed", "get"), ("kept", "objects")),
    (
        "responses/background-stream",
        "ends with nothing",
        body_bytes(lambda old: old[: old.rindex(b"event:")], STREAM),
        ("lifecycle", "resumed"),
    ),
    (
        "responses/background-stream",
        "has another time in each",
        chunk(1, put("response", "created_at", 1), STREAM),
        ("snapshots",),
    ),
    (
        "responses/background-stream",
        "begins anew",
        events(lambda found: [], "resumed"),
        ("resumed",),
    ),
    (
        "responses/background-stream",
        "counts anew",
        chunk(0, put("sequence_number", 0), "resumed"),
        ("resumed",),
    ),
    ("responses/background-unkept", "runs and keeps nothing", status(200), ("refused",)),
]
COMPACTION: list[Mutant] = [
    (
        "responses/compact",
        "calls it something else",
        body(put("object", "compaction"), "compacted"),
        ("shape",),
    ),
    ("responses/compact", "summarises in words", body(put("output", []), "compacted"), ("item",)),
    ("responses/compact", "adds up wrong", body(put("usage", "total_tokens", 1), "compacted"), ("usage",)),
    ("responses/compact", "counts no tokens", body(put("usage", NO_TOKENS), "compacted"), ("usage",)),
    ("responses/compact", "needs no model", status(200, "no_model"), ("no-model",)),
    ("responses/compact", "refuses its own items", status(400, "continued"), ("taken", "envelope")),
]


def buffered(seconds: float, times: int) -> Mutation:
    """Send many events, all at the end."""

    def mutate(exchange: Exchange) -> Exchange:
        head, _, rest = exchange.body.partition(b"\n\n")
        body = b"\n\n".join([head] * times) + b"\n\n" + rest
        return changed(exchange, frames=[(seconds - 0.001, body[:10]), (seconds, body[10:])])

    return each(STREAM, mutate)


TIMING: list[Mutant] = [
    ("chat/stream-long", "holds a stream back", buffered(2.0, 64), ("incremental", "sound")),
    ("chat/tools-stream-long", "holds a stream back", buffered(2.0, 64), ("incremental", "sound")),
    ("responses/stream-long", "holds a stream back", buffered(9.0, 64), ("incremental", "sound")),
]
STATE: list[Mutant] = [*SOCKETS, *BACKGROUND, *COMPACTION, *TIMING]
