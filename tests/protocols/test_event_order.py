"""Every Responses stream is a walk of the table of event orders (RS-01, RS-07 to RS-12).

Laws:
    1. The events of any answer, complete, cut or failed, are a walk that ends in state `done`.
    2. Every transition of the table occurs in some answer.
    3. Every machine leads from `new` to `done`, and `done` allows no step.
    4. Every event type of the table has one builder, and every builder is in the table.
    5. An event that the table does not allow raises.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.parsing.answers import answers

from plumbline.answer.events import (
    ApprovalNeeded,
    Finish,
    OutputEvent,
    ReasoningDelta,
    RemoteCallEnd,
    RemoteCallStart,
    TextDelta,
    ToolCallDelta,
    ToolCallEnd,
    ToolCallStart,
    ToolsListed,
    ToolsListing,
    Usage,
)
from plumbline.answer.remote_tools import RemoteError, RemoteTool
from plumbline.contract.wire.errors import server_error
from plumbline.server.protocols.responses.compaction import Compacted
from plumbline.server.protocols.responses.event_order import EVENT_ORDER, StepError, transition
from plumbline.server.protocols.responses.stream_events import ITEM_EVENTS, RESPONSE_EVENTS

from .test_writers import as_json, response_writer

ALL_STEPS = {
    (machine, state, step)
    for machine, states in EVENT_ORDER.items()
    for state, steps in states.items()
    for step in steps
}


Begin = Literal["start", "queue"]
End = Literal["whole", "failed", "cancelled"]


BEGINS: list[Begin] = ["start", "queue"]
ENDS: list[End] = ["failed", "cancelled"]


def sent(
    events: Sequence[OutputEvent | Compacted],
    begin: Begin = "start",
    end: End = "whole",
    summary: str | None = None,
) -> list[dict[str, Any]]:
    """The wire events of an answer, or of its beginning and what ended it. One that is queued starts with an event."""
    writer = response_writer(
        tools=[{"type": "shell"}, {"type": "apply_patch"}], reasoning={"summary": summary}
    )
    found = writer.start() if begin == "start" else writer.queue()
    for event in events:
        if writer.queued:
            found += writer.start()
        found += writer.event(event)
    if end == "failed":
        found += writer.fail(server_error("It broke."))
    elif end == "cancelled":
        found += writer.cancel()
    return as_json(found)


def walk(stream: list[dict[str, Any]]) -> set[tuple[str, str, str]]:
    """Follow the table along a stream and return the steps; fail where no step emits what comes next."""
    states: dict[str, str] = {"response": "new"}
    steps = set()
    while stream:
        # An open item has to be done before anything else may happen.
        machine = next((name for name in states if name != "response"), "response")
        if stream[0]["type"] == "response.output_item.added":
            assert states == {"response": "open"}, "RS-07"
            steps.add(("response", "open", "add"))
            kind = stream[0]["item"]["type"]
            machine = "whole_call" if kind in ("apply_patch_call", "local_shell_call") else kind
            if [event["type"] for event in stream[2:3]] == ["response.reasoning_summary_part.added"]:
                machine = "summarised_reasoning"
            states[machine] = "new"
            if machine in ("shell_call", "whole_call"):  # TOOL-20: its beginning and its pieces emit nothing.
                steps |= {(machine, "new", "add"), (machine, "open", "delta")}
                states[machine] = "open"
        state = states[machine]
        types = [event["type"] for event in stream]
        allowed = EVENT_ORDER[machine][state].items()  # type: ignore[index]
        step, found = next((s, t) for s, t in allowed if t.events and [*t.events] == types[: len(t.events)])
        steps.add((machine, state, step))
        states[machine] = found.state
        if machine != "response" and found.state == "done":
            del states[machine]
        stream = stream[len(found.events) :]
    assert states == {"response": "done"}
    return steps


@given(answers(), st.sampled_from(["start", "queue"]), st.data())
def test_every_stream_is_a_walk_of_the_table(
    events: list[OutputEvent], begin: Begin, data: st.DataObject
) -> None:
    """Law 1."""
    walk(sent(events, begin, summary=data.draw(st.sampled_from([None, "auto", "detailed"]))))
    cut = data.draw(st.integers(0, len(events) - 1))
    walk(sent(events[:cut], begin, data.draw(st.sampled_from(["failed", "cancelled"]))))


def test_every_transition_occurs() -> None:
    """Law 2."""
    call: list[OutputEvent] = [ToolCallDelta("{}"), ToolCallEnd()]
    items: list[OutputEvent | Compacted] = [
        Compacted("sealed"),
        ReasoningDelta("a"),
        TextDelta("b"),
        ToolCallStart("f", "call_1"),
        *call,
        ToolCallStart("g", "call_2", custom=True),
        *call,
        ToolCallStart("shell", "call_3"),
        ToolCallDelta('{"commands": ["ls", "pwd"]}'),
        ToolCallEnd(complete=True),
        ToolCallStart("apply_patch", "call_4"),
        ToolCallDelta('{"type": "delete_file", "path": "a"}'),
        ToolCallEnd(complete=True),
        ToolsListing("box"),
        ToolsListed((RemoteTool("f", None, {}),)),
        ToolsListing("bag"),
        ToolsListed((), "dead"),
        RemoteCallStart("box", "f"),
        *call,
        RemoteCallEnd("done"),
        RemoteCallStart("box", "f"),
        *call,
        RemoteCallEnd(error=RemoteError("tool", "no")),
        ApprovalNeeded("box", "f", "{}"),
    ]
    streams = [sent([*items, Finish(reason, Usage(1, 1))]) for reason in ("stop", "length")]
    streams += [sent(items, begin, end) for begin in BEGINS for end in ENDS]
    streams += [sent([*items, Finish("stop", Usage(1, 1))], summary=name) for name in ("auto", "detailed")]
    streams += [sent([], "queue", end) for end in ENDS]

    assert set().union(*map(walk, streams)) == ALL_STEPS


@pytest.mark.parametrize("machine", EVENT_ORDER)
def test_every_machine_ends(machine: Any) -> None:
    """Law 3."""
    states = EVENT_ORDER[machine]
    assert not states["done"]
    reached = {"new"}
    for state in ("new", "open"):
        reached |= {found.state for found in states[state].values() if state in reached}
    assert reached == {"new", "open", "done"} | ({"queued"} if machine == "response" else set())


def test_every_event_type_has_one_builder() -> None:
    """Law 4."""
    events = {
        machine: {name for steps in states.values() for found in steps.values() for name in found.events}
        for machine, states in EVENT_ORDER.items()
    }

    assert set(RESPONSE_EVENTS) == events.pop("response")
    assert set(ITEM_EVENTS) == set().union(*events.values())


@pytest.mark.parametrize(
    "events",
    [
        [ToolCallDelta("{}")],
        [TextDelta("a"), ToolCallDelta("{}")],
        [Finish("stop", Usage(1, 1)), TextDelta("a")],
        [Finish("stop", Usage(1, 1)), Finish("stop", Usage(1, 1))],
    ],
)
def test_an_event_that_the_table_does_not_allow_raises(events: list[OutputEvent]) -> None:
    """Law 5."""
    writer = response_writer()
    writer.start()
    for event in events[:-1]:
        writer.event(event)
    with pytest.raises(StepError):
        writer.event(events[-1])
    with pytest.raises(StepError, match="response is new: it cannot complete"):
        transition("response", "new", "complete")
