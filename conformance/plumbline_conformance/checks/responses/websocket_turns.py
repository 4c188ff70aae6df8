"""Check every turn of the WebSocket scenarios as the stream that it is (WS-03)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from plumbline_conformance.checks.common import at
from plumbline_conformance.checks.responses.items import Items, sums
from plumbline_conformance.checks.responses.shared_laws import event_order, known_types, shapes, snapshots
from plumbline_conformance.checks.responses.websocket import error_event, messages_of
from plumbline_conformance.suite.model import Inconclusive, Problem, breaking, check
from plumbline_conformance.transcript.model import Transcript

TURNS = {"queue": (0,), "continue": (0, 1, 3), "failed": (0,), "errors": (3,)}
"""The exchanges with turns that should be answered. `websocket/turn` has a check for each law."""
REFUSED = {"continue": (2,), "failed": (1, 2)}
"""The exchanges with turns that should be refused. `websocket/errors` has a check of its own."""
TERMINAL = ("response.completed", "response.incomplete")
FAILED = ("error", "response.failed")


def _sound(places: tuple[int, ...]) -> Callable[[Transcript], Iterator[Problem]]:
    def judge(seen: Transcript) -> Iterator[Problem]:
        turns = [(place, found) for place in places for found in _turns(messages_of(at(seen, place)))]
        if not turns:
            raise Inconclusive("no turn was answered; another check reports this")
        for place, found in turns:
            for problem in breaking("WS-03", _flaws(found)):
                yield Problem(
                    expected=problem.expected,
                    actual=problem.actual,
                    pointer=problem.pointer,
                    exchange=place if len(seen.exchanges) > 1 else None,
                    rule="WS-03",
                )

    return judge


def _turns(found: list[dict[str, Any]]) -> Iterator[list[dict[str, Any]]]:
    """Yield the events of each turn that was not refused, also without an end: an end belongs to the order."""
    begin = 0
    for number, event in enumerate(found):
        if event.get("type") in TERMINAL:
            yield found[begin : number + 1]
            begin = number + 1
    rest = found[begin:]
    if rest and rest[-1].get("type") not in FAILED:
        yield rest


def _flaws(turn: list[dict[str, Any]]) -> Iterator[Problem]:
    """Yield problems of the events alone, or of their order if each of them is right."""
    if turn[-1].get("type") not in TERMINAL:
        shown = repr(turn[-1].get("type"))
        yield Problem(
            expected="a terminal event at the end of the turn", actual=shown, pointer="the last event"
        )
        return
    flawed = False
    for problem in (*shapes(turn), *known_types(turn)):
        flawed = True
        yield problem
    if not flawed:
        yield from event_order(turn)
        yield from Items().judge(turn)
        yield from sums(turn)
        yield from snapshots(turn)


for _name, _places in TURNS.items():
    check(f"websocket/{_name}/as-stream", "Send the events of every turn as a stream has them", "WS-03")(
        _sound(_places)
    )


def _errors(places: tuple[int, ...]) -> Callable[[Transcript], Iterator[Problem]]:
    def judge(seen: Transcript) -> Iterator[Problem]:
        events = [(place, event) for place in places for event in messages_of(at(seen, place))]
        found = [(place, event) for place, event in events if event.get("type") == "error"]
        if not found:
            raise Inconclusive("there is no error event; other checks report turns that should fail")
        for place, event in found:
            for problem in error_event(event):
                yield Problem(
                    expected=problem.expected, actual=problem.actual, pointer=problem.pointer, exchange=place
                )

    return judge


for _name, _places in REFUSED.items():
    check(f"websocket/{_name}/error-events", "Give error events a status, a code and a message", "WS-07")(
        _errors(_places)
    )
