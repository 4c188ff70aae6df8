"""Define the order of the events of a Responses stream, as a table that the writer walks.

A response and each of its output items is a small state machine. `EVENT_ORDER` lists, for each of them and for each of
its states, the steps that are allowed there, the state that a step leads to, and the wire events that it emits:

    response   new ─ start ─► open ─ add … ─ complete | cut | fail ─► done
               new ─ queue ─► queued ─ start ─► open     in background mode
    item       new ─ add ───► open ─ delta … ─ finish ──────────────► done
    reasoning  new ─ add ───► open ─ delta … ─ summarise ─ finish ──► done     without summary: ─ finish
    shell      new ─ add ───► open ─ delta … ─ show ─ command … ─ finish ─► done
    mcp_call   new ─ add ───► open ─ delta … ─ run ─ succeed | fail ─ finish ─► done     cut: ─ run ─ finish

Items do not overlap: one is done before the next one is added (RS-07).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, NamedTuple

__all__ = ["EVENT_ORDER", "Machine", "State", "Step", "StepError", "Transition", "transition"]

Machine = Literal[
    "response",
    "message",
    "reasoning",
    "summarised_reasoning",
    "function_call",
    "custom_tool_call",
    "shell_call",
    "whole_call",
    "mcp_list_tools",
    "mcp_call",
    "mcp_approval_request",
    "compaction",
]
State = Literal["new", "queued", "open", "done"]
Step = Literal[
    "start",
    "queue",
    "complete",
    "cut",
    "fail",
    "cancel",
    "add",
    "delta",
    "summarise",
    "show",
    "command",
    "run",
    "succeed",
    "finish",
]


class Transition(NamedTuple):
    """One step: the next state, and the types of the wire events that it emits, in order."""

    state: State
    events: tuple[str, ...]


EVENT_ORDER: Mapping[Machine, Mapping[State, Mapping[Step, Transition]]] = {
    # RS-01, RS-15
    "response": {
        "new": {
            "start": Transition("open", ("response.created", "response.in_progress")),
            "queue": Transition("queued", ("response.created", "response.queued")),  # ST-12
        },
        "queued": {
            "start": Transition("open", ("response.in_progress",)),
            "fail": Transition("done", ("error", "response.failed")),
            "cancel": Transition("done", ("error",)),
        },
        "open": {
            "add": Transition("open", ()),  # an item; it emits its own events
            "complete": Transition("done", ("response.completed",)),
            "cut": Transition("done", ("response.incomplete",)),
            "fail": Transition("done", ("error", "response.failed")),  # ERR-10
            "cancel": Transition("done", ("error",)),  # ST-11: no terminal event has the status `cancelled`
        },
        "done": {},
    },
    # RS-08, RS-09
    "message": {
        "new": {"add": Transition("open", ("response.output_item.added", "response.content_part.added"))},
        "open": {
            "delta": Transition("open", ("response.output_text.delta",)),
            "finish": Transition(
                "done",
                ("response.output_text.done", "response.content_part.done", "response.output_item.done"),
            ),
        },
        "done": {},
    },
    # RS-12
    "reasoning": {
        "new": {"add": Transition("open", ("response.output_item.added", "response.content_part.added"))},
        "open": {
            "delta": Transition("open", ("response.reasoning_text.delta",)),
            "summarise": Transition(
                "open",
                (
                    "response.reasoning_summary_part.added",
                    "response.reasoning_summary_text.delta",
                    "response.reasoning_summary_text.done",
                    "response.reasoning_summary_part.done",
                ),
            ),
            "finish": Transition(
                "done",
                ("response.reasoning_text.done", "response.content_part.done", "response.output_item.done"),
            ),
        },
        "done": {},
    },
    # RS-12: reasoning that is its own summary; both grow with each delta
    "summarised_reasoning": {
        "new": {
            "add": Transition(
                "open",
                (
                    "response.output_item.added",
                    "response.content_part.added",
                    "response.reasoning_summary_part.added",
                ),
            )
        },
        "open": {
            "delta": Transition(
                "open", ("response.reasoning_text.delta", "response.reasoning_summary_text.delta")
            ),
            "finish": Transition(
                "done",
                (
                    "response.reasoning_text.done",
                    "response.content_part.done",
                    "response.reasoning_summary_text.done",
                    "response.reasoning_summary_part.done",
                    "response.output_item.done",
                ),
            ),
        },
        "done": {},
    },
    # RS-10: calls have no content parts
    "function_call": {
        "new": {"add": Transition("open", ("response.output_item.added",))},
        "open": {
            "delta": Transition("open", ("response.function_call_arguments.delta",)),
            "finish": Transition(
                "done", ("response.function_call_arguments.done", "response.output_item.done")
            ),
        },
        "done": {},
    },
    # RS-11
    "custom_tool_call": {
        "new": {"add": Transition("open", ("response.output_item.added",))},
        "open": {
            "delta": Transition("open", ("response.custom_tool_call_input.delta",)),
            "finish": Transition(
                "done", ("response.custom_tool_call_input.done", "response.output_item.done")
            ),
        },
        "done": {},
    },
    # TOOL-20: what a client's tool is to do is known once the arguments are whole
    "shell_call": {
        "new": {"add": Transition("open", ())},
        "open": {
            "delta": Transition("open", ()),
            "show": Transition("open", ("response.output_item.added",)),
            "command": Transition(
                "open",
                (
                    "response.shell_call_command.added",
                    "response.shell_call_command.delta",
                    "response.shell_call_command.done",
                ),
            ),
            "finish": Transition("done", ("response.output_item.done",)),
        },
        "done": {},
    },
    "whole_call": {
        "new": {"add": Transition("open", ())},
        "open": {
            "delta": Transition("open", ()),
            "finish": Transition("done", ("response.output_item.added", "response.output_item.done")),
        },
        "done": {},
    },
    # TOOL-21: the server asks an MCP server, and calls it once the arguments are whole
    "mcp_list_tools": {
        "new": {
            "add": Transition("open", ("response.output_item.added", "response.mcp_list_tools.in_progress"))
        },
        "open": {
            "succeed": Transition("open", ("response.mcp_list_tools.completed",)),
            "fail": Transition("open", ("response.mcp_list_tools.failed",)),
            "finish": Transition("done", ("response.output_item.done",)),
        },
        "done": {},
    },
    "mcp_call": {
        "new": {"add": Transition("open", ("response.output_item.added", "response.mcp_call.in_progress"))},
        "open": {
            "delta": Transition("open", ("response.mcp_call_arguments.delta",)),
            "run": Transition("open", ("response.mcp_call_arguments.done",)),
            "succeed": Transition("open", ("response.mcp_call.completed",)),
            "fail": Transition("open", ("response.mcp_call.failed",)),
            "finish": Transition("done", ("response.output_item.done",)),
        },
        "done": {},
    },
    "mcp_approval_request": {
        "new": {"add": Transition("open", ("response.output_item.added",))},
        "open": {"finish": Transition("done", ("response.output_item.done",))},
        "done": {},
    },
    # ST-15: sealed content comes in one piece
    "compaction": {
        "new": {"add": Transition("open", ("response.output_item.added",))},
        "open": {"finish": Transition("done", ("response.output_item.done",))},
        "done": {},
    },
}


class StepError(RuntimeError):
    """The writer was given an event that the order does not allow, such as arguments before their call."""


def transition(machine: Machine, state: State, step: Step) -> Transition:
    """Look up a step.

    Raises:
        StepError: the order does not allow the step in this state.
    """
    try:
        return EVENT_ORDER[machine][state][step]
    except KeyError:
        raise StepError(f"{machine} is {state}: it cannot {step}") from None
