"""Change the answers of one API wherever a server with a fault would: in every scenario."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from copy import deepcopy
from typing import Any

from mutants.mutations import changed, with_body

from plumbline_conformance.transcript.exchange import Exchange

__all__ = [
    "Change",
    "Event",
    "Row",
    "applied",
    "calls_in",
    "deltas",
    "each_choice",
    "ended",
    "headers",
    "streamed",
    "whole",
]

Json = dict[str, Any]
Event = tuple[str | None, Any]
"""The name of an event, and its JSON or `[DONE]`."""
Change = Callable[[Exchange], Exchange]
Row = tuple[str, str, Change]
"""The issue that reports it, or an empty text; what the server does; and the change."""
PATHS = {
    "chat": "/chat/completions",
    "completions": "/v1/completions",
    "responses": "/responses",
    "messages": "/messages",
}


def applied(change: Change, exchanges: Iterable[Exchange]) -> list[Exchange]:
    """Return the exchanges with the change, each itself if nothing changes."""
    return [change(one) for one in exchanges]


def _of(api: str, exchange: Exchange, *, stream: bool) -> bool:
    return (
        exchange.method == "POST"
        and exchange.status == 200
        and exchange.url.endswith(PATHS[api])
        and (b"data: " in exchange.body) == stream
    )


def whole(api: str, change: Callable[[Json, Json], object]) -> Change:
    """Change the JSON of whole answers, given the request."""

    def apply(exchange: Exchange) -> Exchange:
        if not _of(api, exchange, stream=False) or not isinstance(exchange.json, dict):
            return exchange
        answer = deepcopy(exchange.json)
        change(answer, exchange.request_json)
        return exchange if answer == exchange.json else with_body(exchange, json.dumps(answer).encode())

    return apply


def with_events(exchange: Exchange, change: Callable[[list[Event]], list[Event] | None]) -> Exchange:
    """Return an exchange with other events: a copy of its own, changed in place, or those that are returned."""
    old = [(event.name, event.data if event.data == "[DONE]" else event.json) for event in exchange.events]
    new = deepcopy(old)
    new = change(new) or new
    if new == old:
        return exchange
    written = [
        (f"event: {name}\n" if name else "") + f"data: {data if data == '[DONE]' else json.dumps(data)}\n\n"
        for name, data in new
    ]
    return with_body(exchange, "".join(written).encode())


def streamed(api: str, change: Callable[[list[Event], Json], list[Event] | None]) -> Change:
    """Change the events of streams, given the request: in place, or by those that are returned."""

    def apply(exchange: Exchange) -> Exchange:
        if not _of(api, exchange, stream=True):
            return exchange
        return with_events(exchange, lambda events: change(events, exchange.request_json))

    return apply


def deltas(change: Callable[[Json, Json], object]) -> Change:
    """Change each choice of each chunk of chat completions, given the chunk."""

    def each(events: list[Event], _: Json) -> None:
        for _kind, data in events:
            if isinstance(data, dict):
                for choice in data.get("choices", ()):
                    change(choice, data)

    return streamed("chat", each)


def each_choice(change: Callable[[Json, Json], object]) -> Callable[[Json, Json], None]:
    """Change each choice of an answer, given the request."""

    def apply(answer: Json, asked: Json) -> None:
        for choice in answer["choices"]:
            change(choice, asked)

    return apply


def calls_in(choice: Json) -> list[Json]:
    """Return the calls of a message or of a delta."""
    return (choice.get("message") or choice.get("delta") or {}).get("tool_calls") or []


def ended(wanted: Callable[[Exchange], object], **fields: Any) -> Change:
    """Answer some requests with another status or body."""

    def apply(exchange: Exchange) -> Exchange:
        if not wanted(exchange):
            return exchange
        content = fields.get("content")
        kept = {name: value for name, value in fields.items() if name != "content"}
        found = changed(exchange, **kept)
        return found if content is None else with_body(found, content)

    return apply


def headers(wanted: Callable[[Exchange], object], name: str, value: str | None) -> Change:
    """Change a header of some answers, or leave it out."""

    def apply(exchange: Exchange) -> Exchange:
        if not wanted(exchange):
            return exchange
        kept = [(key, old) for key, old in exchange.headers if key.lower() != name]
        return changed(exchange, headers=kept if value is None else [*kept, (name, value)])

    return apply
