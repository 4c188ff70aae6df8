"""Provide the changes of transcripts that mutants are made of."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from copy import deepcopy
from typing import Any

from plumbline_conformance.transcript.exchange import Exchange, Transcript
from plumbline_conformance.variations.formats import changed, with_body

__all__ = [
    "FIRST",
    "LAST",
    "Mutant",
    "Mutation",
    "again",
    "body",
    "body_bytes",
    "changed",
    "chunk",
    "chunks",
    "each",
    "error",
    "events",
    "header",
    "renamed",
    "status",
    "with_body",
    "without",
]

FIRST, LAST = "the first", "the last"
"""Stand for the names of the first and the last request of a scenario."""
Mutation = Callable[[Transcript], Transcript]
Mutant = tuple[str, str, Mutation, tuple[str, ...]]
"""(scenario, what the server does, the change, last segments of the checks that detect it)."""
Event = tuple[str | None, Any]
"""(name, JSON or `[DONE]`)."""


def each(request: str | None, change: Callable[[Exchange], Exchange]) -> Mutation:
    """Change the exchange of a request, by its name; that of the first or last one; or all, for None."""

    def mutate(seen: Transcript) -> Transcript:
        ends = {FIRST: seen.exchanges[0].name, LAST: seen.exchanges[-1].name}
        names = [one.name for one in seen.exchanges]
        chosen = names if request is None else [ends.get(request, request)]
        assert set(chosen) <= set(names), f"{seen.scenario} sends no {request}"
        found = [change(one) if one.name in chosen else one for one in seen.exchanges]
        return Transcript(scenario=seen.scenario, exchanges=found)

    return mutate


def status(value: int, request: str | None = LAST) -> Mutation:
    return each(request, lambda e: changed(e, status=value))


def error(text: str, request: str | None = None, *, dropped: bool = False) -> Mutation:
    more: dict[str, Any] = {"dropped": True} if dropped else {}
    return each(request, lambda e: changed(e, error=text, status=e.status, frames=e.frames[:1], **more))


def header(name: str, value: str | None, request: str | None = LAST) -> Mutation:
    def change(exchange: Exchange) -> Exchange:
        kept = [(key, old) for key, old in exchange.headers if key.lower() != name]
        return changed(exchange, headers=kept if value is None else [*kept, (name, value)])

    return each(request, change)


def body_bytes(change: Callable[[bytes], bytes], request: str | None = LAST) -> Mutation:
    return each(request, lambda e: with_body(e, change(e.body)))


def body(change: Callable[[Any], object], request: str | None = LAST) -> Mutation:
    """Change the JSON of an answer in place."""

    def mutate(content: bytes) -> bytes:
        value = json.loads(content)
        change(value)
        return json.dumps(value).encode()

    return body_bytes(mutate, request)


def events(change: Callable[[list[Event]], list[Event]], request: str | None = LAST) -> Mutation:
    """Change the list of a stream's events."""

    def mutate(exchange: Exchange) -> Exchange:
        old = [
            (event.name, event.data if event.data == "[DONE]" else deepcopy(event.json))
            for event in exchange.events
        ]
        written = [
            (f"event: {name}\n" if name else "")
            + f"data: {data if isinstance(data, str) else json.dumps(data)}\n\n"
            for name, data in change(old)
        ]
        return with_body(exchange, "".join(written).encode())

    return each(request, mutate)


def chunks(change: Callable[[list[Any]], object], request: str | None = LAST) -> Mutation:
    """Change the JSON of a stream's events in place."""

    def mutate(found: list[Event]) -> list[Event]:
        change([data for _, data in found if data != "[DONE]"])
        return found

    return events(mutate, request)


def chunk(number: int, change: Callable[[Any], object], request: str | None = LAST) -> Mutation:
    """Change the JSON of one event in place."""
    return chunks(lambda found: change(found[number]), request)


def again(mutation: Mutation) -> Mutation:
    """Apply the change to both exchanges and append copies with new ids, as if the server repeated itself."""

    def mutate(seen: Transcript) -> Transcript:
        found = mutation(seen)
        return Transcript(
            scenario=found.scenario, exchanges=[*found.exchanges, *map(renamed, found.exchanges)]
        )

    return mutate


def renamed(exchange: Exchange) -> Exchange:
    """Return the answer to the same request again, with a new id."""
    other = re.sub(rb"(chatcmpl-|cmpl-|resp_)([0-9]+)", rb"\g<1>9\2", exchange.body)
    headers = [(key, f"{old}-2" if key == "x-request-id" else old) for key, old in exchange.headers]
    return changed(exchange, name=f"{exchange.name}/2", frames=[(0.0, other)], headers=headers)


def without(*path: str | int | slice) -> Callable[[Any], object]:
    """Remove a field."""

    def change(value: Any) -> None:
        for part in path[:-1]:
            value = value[part]
        del value[path[-1]]

    return change
