"""Derive the faults of recorded exchanges: of whole answers and refusals, and of every kind of event of a stream.

Streams are server-sent events, or the messages of a WebSocket turn. Two faults at once are a sample with a fixed seed.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator
from copy import deepcopy
from typing import Any

import msgspec
from mutants.mutations import renamed, with_body

from derived.values import faults_of
from plumbline_conformance.checks.laws import STREAM, WHOLE
from plumbline_conformance.transcript.exchange import Exchange, Transcript

__all__ = ["PAIR", "Fault", "faults", "pairs"]

PAIR = " + "
"""What is between the names of two faults at once."""

Event = tuple[str | None, Any]
"""The name and the JSON of an event, or `[DONE]`."""
Steps = Callable[[list[Event], int], list[Event]]


class Fault(msgspec.Struct, frozen=True):
    """One derived fault of one exchange of a scenario."""

    scenario: str
    name: str
    """What is changed, such as `stream output_text.delta: drop delta`."""
    exchange: Exchange

    @property
    def id(self) -> str:
        """The name by which the list of survivors knows it."""
        return f"{self.scenario} {self.exchange.name or '-'} {self.name}"

    def transcripts(self, good: Transcript) -> Iterator[Transcript]:
        """Yield the transcript with the fault, and then as a server would answer equal requests again.

        The judge repeats a request without and with `stream` if the answers differ, and accuses only a server that
        repeats its answers.
        """
        found = [self.exchange if one.name == self.exchange.name else one for one in good.exchanges]
        yield Transcript(scenario=good.scenario, exchanges=found)
        if [one.name for one in found] == [WHOLE, STREAM]:
            yield Transcript(scenario=good.scenario, exchanges=[*found, *map(renamed, found)])


def faults(seen: Transcript) -> Iterator[Fault]:
    """Yield all derived faults of a transcript."""
    for exchange in seen.exchanges:
        for name, changed in _of_exchange(exchange):
            yield Fault(seen.scenario, name, changed)


def pairs(seen: Transcript, most: int) -> Iterator[Fault]:
    """Yield two faults at once, at most `most` for each exchange, always the same ones.

    One fault can hide another: an answer that is called cut is not looked at as a complete one.
    """
    for number, exchange in enumerate(seen.exchanges):
        chosen = random.Random(f"{seen.scenario} {number}")
        single = list(_of_exchange(exchange))
        alone = {exchange.body, *(changed.body for _, changed in single)}
        for name, changed in chosen.sample(single, min(most, len(single))):
            if further := [found for found in _of_exchange(changed) if found[0] != name]:
                other, twice = chosen.choice(further)
                if twice.body in alone or (twice.json is not None and twice.json == exchange.json):
                    continue  # The second fault repairs the first, or hides it.
                yield Fault(seen.scenario, f"{name}{PAIR}{other}", twice)


def _of_exchange(exchange: Exchange) -> Iterator[tuple[str, Exchange]]:
    if exchange.method == "WEBSOCKET" and exchange.status == 101:
        yield from _of_stream(exchange)
        return
    if b"data: " in exchange.body:
        yield from _of_stream(exchange)
        return
    kind = "refusal" if exchange.status >= 400 else "whole"
    if isinstance(exchange.json, dict):
        for name, value in faults_of(exchange.json):
            yield f"{kind}: {name}", with_body(exchange, json.dumps(value).encode())


def _of_stream(exchange: Exchange) -> Iterator[tuple[str, Exchange]]:
    events: list[Event] = [
        (event.name, event.data if event.data == "[DONE]" else event.json) for event in exchange.events
    ]
    if exchange.method == "WEBSOCKET":
        events = [(None, data) for data in exchange.chunks]
    for kind, place in _first_of_kinds(events).items():
        name, data = events[place]
        for step, change in STEPS.items():
            if step == "later" and place == len(events) - 1:
                continue  # Nothing follows it.
            yield f"stream {kind}: {step}", _written(exchange, change(deepcopy(events), place))
        if data == "[DONE]":
            continue
        for fault, value in faults_of(data):
            changed = [*events[:place], (name, value), *events[place + 1 :]]
            yield f"stream {kind}: {fault}", _written(exchange, changed, renumber=False)


def _drop(events: list[Event], place: int) -> list[Event]:
    return [*events[:place], *events[place + 1 :]]


def _repeat(events: list[Event], place: int) -> list[Event]:
    return [*events[: place + 1], deepcopy(events[place]), *events[place + 1 :]]


def _later(events: list[Event], place: int) -> list[Event]:
    """Send an event after the one that follows it."""
    after = events[place + 1 : place + 2]
    return [*events[:place], *after, events[place], *events[place + 2 :]]


STEPS: dict[str, Steps] = {"drop": _drop, "repeat": _repeat, "later": _later}


def _first_of_kinds(events: list[Event]) -> dict[str, int]:
    """Return the place of the first event of each kind."""
    found: dict[str, int] = {}
    for place, (_, data) in enumerate(events):
        found.setdefault(_kind(data), place)
    return found


def _kind(data: Any) -> str:
    """Name the kind of an event: its type, or what a chunk adds to its choice."""
    if not isinstance(data, dict):
        return str(data)
    if isinstance(data.get("type"), str):
        return str(data["type"]).removeprefix("response.")
    choices = data.get("choices")
    if not isinstance(choices, list) or not choices or not isinstance(choices[0], dict):
        return "usage"
    choice = choices[0]
    index = f"{choice.get('index')} " if choice.get("index") else ""
    if choice.get("finish_reason"):
        return f"{index}finish"
    delta = choice.get("delta")
    if not isinstance(delta, dict):
        return f"{index}text"
    if delta.get("role"):
        return f"{index}role"
    calls = delta.get("tool_calls")
    if calls and isinstance(calls, list) and isinstance(calls[0], dict):
        return f"{index}{'call' if calls[0].get('id') else 'arguments'} {calls[0].get('index')}"
    return f"{index}{next(iter(delta), 'nothing')}"


def _written(exchange: Exchange, events: list[Event], *, renumber: bool = True) -> Exchange:
    """Write a stream; numbers count on, so that a fault of the order is not seen by the numbers alone."""
    counted = [data for _, data in events if isinstance(data, dict) and "sequence_number" in data]
    first = [data["sequence_number"] for data in counted if isinstance(data["sequence_number"], int)]
    begin = min(first, default=0)
    lines: list[str] = []
    messages: list[str] = []
    for number, (name, data) in enumerate(events):
        if renumber and counted and isinstance(data, dict):
            data = {**data, "sequence_number": begin + number}
        shown = data if isinstance(data, str) else json.dumps(data)
        messages.append(shown)
        lines.append((f"event: {name}\n" if name else "") + f"data: {shown}\n\n")
    if exchange.method == "WEBSOCKET":
        at = exchange.frames[-1][0] if exchange.frames else 0.0
        return msgspec.structs.replace(exchange, frames=[(at, message.encode()) for message in messages])
    return with_body(exchange, "".join(lines).encode())
