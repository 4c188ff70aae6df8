"""Mutants of WebSockets, background responses and compaction."""

from __future__ import annotations

import json
from collections.abc import Callable
from copy import deepcopy
from typing import Any

from mutants.basic import put
from mutants.mutations import (
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
from plumbline_conformance.transcript.model import CLOSED, Exchange

__all__ = ["STATE"]

LOST = {"type": "error", "status": 400, "error": {"code": "previous_response_not_found", "message": "Lost."}}


def messages(change: Callable[[list[Any]], list[Any]], index: int = 0) -> Mutation:
    """Change the messages of a turn; values are encoded as JSON, bytes are kept."""

    def mutate(exchange: Exchange) -> Exchange:
        found = change([json.loads(frame) for _, frame in exchange.frames])
        frames = [(0.0, one if isinstance(one, bytes) else json.dumps(one).encode()) for one in found]
        return changed(exchange, frames=frames)

    return each(index, mutate)


def message(place: int, change: Callable[[Any], object], index: int = 0) -> Mutation:
    """Change one message in place."""

    def mutate(found: list[Any]) -> list[Any]:
        change(found[place])
        return found

    return messages(mutate, index)


def refusing(index: int) -> Mutation:
    """Refuse a valid turn."""
    return messages(lambda found: [LOST], index)


def answering(index: int, like: int = 0) -> Mutation:
    """Answer an invalid turn like another turn."""

    def mutate(seen: Any) -> Any:
        exchanges = list(seen.exchanges)
        exchanges[index] = changed(exchanges[index], frames=deepcopy(exchanges[like].frames))
        return type(seen)(scenario=seen.scenario, exchanges=exchanges)

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


def unechoed(found: list[Any]) -> list[Any]:
    for event in found:
        if "response" in event:
            event["response"]["previous_response_id"] = None
    return found


def looked(state: str, index: int) -> Mutation:
    return body(put("status", state), index)


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
        messages(lambda m: [{**m[-1], "type": "response.late"}, *m], 1),
        ("ended", "event-shapes", "lifecycle", "snapshots"),
    ),
    ("websocket/turn", "answers the second turn with the first", answering(1), ("ended",)),
    (
        "websocket/turn",
        "closes after a turn",
        error(f"{CLOSED}, with code 1000", 1),
        ("answered",),
    ),
    ("websocket/turn", "forgets a delta of the second turn", messages(lambda m: m[:4] + m[5:], 1), ("sums",)),
    ("websocket/queue", "forgets a delta", messages(lambda m: m[:4] + m[5:]), ("as-stream",)),
    ("websocket/continue", "forgets a delta", messages(lambda m: m[:4] + m[5:], 1), ("as-stream",)),
    ("websocket/failed", "forgets a delta", messages(lambda m: m[:4] + m[5:]), ("as-stream",)),
    ("websocket/errors", "forgets a delta", messages(lambda m: m[:4] + m[5:], 3), ("as-stream",)),
    (
        "websocket/continue",
        "an error without a message",
        message(-1, without("error", "message"), 2),
        ("error-events",),
    ),
    ("websocket/failed", "an error without a status", message(-1, without("status"), 1), ("error-events",)),
    ("websocket/queue", "answers both at once", messages(interleaved), ("in-order", "as-stream")),
    ("websocket/queue", "answers both under one id", messages(one_response), ("in-order",)),
    ("websocket/continue", "refuses to continue", refusing(1), ("continued",)),
    ("websocket/continue", "does not name what it continues", messages(unechoed, 1), ("continued",)),
    (
        "websocket/continue",
        "continues the message alone",
        message(-1, alone, 1),
        ("context",),
    ),
    ("websocket/continue", "gives one client's words to another", answering(2, 1), ("elsewhere",)),
    (
        "websocket/continue",
        "has no code for it",
        message(-1, put("error", "code", "not_found"), 2),
        ("elsewhere",),
    ),
    (
        "websocket/continue",
        "ends the connection with an error",
        error(f"{CLOSED}, with code 1011", 3),
        ("usable",),
    ),
    ("websocket/continue", "refuses everything after an error", refusing(3), ("usable",)),
    ("websocket/failed", "takes the answer to any call", answering(1), ("orphan",)),
    ("websocket/failed", "remembers what failed", answering(2), ("evicted",)),
    (
        "websocket/errors",
        "drops the connection at no JSON",
        error(f"{CLOSED}, with code 1007", 0),
        ("envelope",),
    ),
    ("websocket/errors", "leaves out the status", message(-1, without("status"), 1), ("envelope",)),
    ("websocket/errors", "gives no code", message(-1, put("error", "code", None), 2), ("envelope",)),
    ("websocket/errors", "ignores an unknown event", answering(1, 3), ("envelope",)),
    ("websocket/errors", "is lost after an error", refusing(3), ("usable",)),
]
BACKGROUND: list[Mutant] = [
    ("responses/background", "waits for the end", looked("completed", 0), ("at-once", "states", "usage")),
    ("responses/background", "forgets that it runs there", body(put("background", False), 1), ("echo",)),
    ("responses/background", "leaves out the model", body(without("model"), 1), ("shape",)),
    ("responses/background", "goes back into the queue", looked("queued", 2), ("states", "usage")),
    ("responses/background", "calls a state by another name", looked("running", 1), ("states", "shape")),
    ("responses/background", "adds up wrong", body(put("usage", "total_tokens", 1), 2), ("usage",)),
    ("responses/background", "counts before the end", body(put("usage", {}), 1), ("usage", "shape")),
    ("responses/background", "cancels what has ended", looked("cancelled", 3), ("cancel-ended",)),
    ("responses/background-cancel", "runs on", looked("in_progress", 1), ("cancelled", "again")),
    ("responses/background-cancel", "knows no cancelling", status(404, 1), ("cancelled", "again")),
    ("responses/background-cancel", "refuses the second time", status(400, 2), ("again",)),
    ("responses/background-cancel", "ends all the same", looked("completed", 3), ("kept", "objects")),
    (
        "responses/background-stream",
        "ends with nothing",
        body_bytes(lambda old: old[: old.rindex(b"event:")], 0),
        ("lifecycle", "resumed"),
    ),
    (
        "responses/background-stream",
        "has another time in each",
        chunk(1, put("response", "created_at", 1), 0),
        ("snapshots",),
    ),
    (
        "responses/background-stream",
        "begins anew",
        events(lambda found: [], 1),
        ("resumed",),
    ),
    ("responses/background-stream", "counts anew", chunk(0, put("sequence_number", 0), 1), ("resumed",)),
    ("responses/background-unkept", "runs and keeps nothing", status(200), ("refused",)),
]
COMPACTION: list[Mutant] = [
    ("responses/compact", "calls it something else", body(put("object", "compaction"), 0), ("shape",)),
    ("responses/compact", "summarises in words", body(put("output", []), 0), ("item",)),
    ("responses/compact", "adds up wrong", body(put("usage", "total_tokens", 1), 0), ("usage",)),
    ("responses/compact", "needs no model", status(200, 1), ("no-model",)),
    ("responses/compact", "refuses its own items", status(400, 2), ("taken", "envelope")),
]


def buffered(seconds: float, times: int) -> Mutation:
    """Send many events, all at the end."""

    def mutate(exchange: Exchange) -> Exchange:
        head, _, rest = exchange.body.partition(b"\n\n")
        body = b"\n\n".join([head] * times) + b"\n\n" + rest
        return changed(exchange, frames=[(seconds - 0.001, body[:10]), (seconds, body[10:])])

    return each(0, mutate)


TIMING: list[Mutant] = [
    ("chat/stream-long", "holds a stream back", buffered(2.0, 64), ("incremental", "sound")),
    ("chat/tools-stream-long", "holds a stream back", buffered(2.0, 64), ("incremental", "sound")),
    ("responses/stream-long", "holds a stream back", buffered(9.0, 64), ("incremental", "sound")),
]
STATE: list[Mutant] = [*SOCKETS, *BACKGROUND, *COMPACTION, *TIMING]
