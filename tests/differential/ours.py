"""What our parser's events are for a client, in the words in which peers' answers are compared."""

from __future__ import annotations

from collections.abc import Sequence

from peers import Message, message, thought, together

from plumbline.events import OutputEvent, ReasoningDelta, TextDelta, ToolCallDelta, ToolCallStart

__all__ = ["said", "says", "thinks"]


def said(events: Sequence[OutputEvent]) -> Message:
    """Text and calls."""
    return message(_joined(events, TextDelta), _calls(events))


def says(events: Sequence[OutputEvent]) -> Message:
    """Thinking, text and calls."""
    return together(_joined(events, ReasoningDelta), _joined(events, TextDelta), _calls(events))


def thinks(events: Sequence[OutputEvent]) -> Message:
    """Thinking and text."""
    return thought(_joined(events, ReasoningDelta), _joined(events, TextDelta))


def _joined(events: Sequence[OutputEvent], kind: type[TextDelta] | type[ReasoningDelta]) -> str:
    return "".join(event.text for event in events if isinstance(event, kind))


def _calls(events: Sequence[OutputEvent]) -> list[tuple[str, str]]:
    calls: list[list[str]] = []
    for event in events:
        if isinstance(event, ToolCallStart):
            calls.append([event.name, ""])
        elif isinstance(event, ToolCallDelta):
            calls[-1][1] += event.arguments
    return [(name, arguments) for name, arguments in calls]
