"""Check every turn of the WebSocket scenarios as the stream that it is (WS-03)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from plumbline_conformance.checks.common import at
from plumbline_conformance.checks.responses.basics import steps
from plumbline_conformance.checks.responses.items import Items, sums
from plumbline_conformance.checks.responses.shared_laws import event_order, known_types, shapes, snapshots
from plumbline_conformance.checks.responses.websocket.connection import done, error_event, messages_of
from plumbline_conformance.suite.scenario import Inconclusive, Problem, about, breaking, check
from plumbline_conformance.suite.wording import as_json
from plumbline_conformance.transcript.exchange import Transcript

TURNS = {
    "queue": ("both",),
    "continue": ("created", "continued", "created_elsewhere"),
    "failed": ("created",),
    "errors": ("valid",),
}
"""The requests with turns that should be answered. `websocket/turn` has a check for each law."""
REFUSED = {"continue": ("continued_elsewhere",), "failed": ("orphan", "continued")}
"""The requests with turns that should be refused. `websocket/errors` has a check of its own."""
TERMINAL = ("response.completed", "response.incomplete")
FAILED = ("error", "response.failed")


def _sound(names: tuple[str, ...]) -> Callable[[Transcript], Iterator[Problem]]:
    def judge(seen: Transcript) -> Iterator[Problem]:
        turns = [(name, found) for name in names for found in _turns(messages_of(at(seen, name)))]
        if not turns:
            raise Inconclusive("no turn was answered; another check reports this")
        for name, found in turns:
            yield from about(at(seen, name), breaking("WS-03", flaws(found)))

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


def flaws(turn: list[dict[str, Any]]) -> Iterator[Problem]:
    """Yield problems of the events alone, or of their order if each of them is right."""
    if turn[-1].get("type") not in TERMINAL:
        shown = as_json(turn[-1].get("type"))
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


for _name, _turns_of in TURNS.items():
    check(f"websocket/{_name}/as-stream", "Send the events of every turn as a stream has them", "WS-03")(
        _sound(_turns_of)
    )


@check(
    "websocket/errors/steps",
    "Number the events after an error from 0 or 1, without gaps",
    "RS-02",
    request="valid",
    milder=True,
)
def steps_after_error(seen: Transcript) -> Iterator[Problem]:
    yield from steps(done(at(seen, "valid")))


def _errors(names: tuple[str, ...]) -> Callable[[Transcript], Iterator[Problem]]:
    def judge(seen: Transcript) -> Iterator[Problem]:
        events = [(name, event) for name in names for event in messages_of(at(seen, name))]
        found = [(name, event) for name, event in events if event.get("type") == "error"]
        if not found:
            raise Inconclusive("there is no error event; other checks report turns that should fail")
        for name, event in found:
            yield from about(at(seen, name), error_event(event))

    return judge


for _name, _turns_of in REFUSED.items():
    check(f"websocket/{_name}/error-events", "Give error events a status, a code and a message", "WS-07")(
        _errors(_turns_of)
    )
