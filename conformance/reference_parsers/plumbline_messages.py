"""Convert the events of our parser to the messages that are compared with other servers."""

from __future__ import annotations

from collections.abc import Sequence

from peers import ParsedMessage, reasoning_and_text, reasoning_text_and_calls, text_and_calls

from plumbline.answer.events import OutputEvent, ReasoningDelta, TextDelta, ToolCallDelta, ToolCallStart

__all__ = ["content_message", "full_message", "reasoning_message"]


def content_message(events: Sequence[OutputEvent]) -> ParsedMessage:
    """Return the text and calls of the events."""
    return text_and_calls(_joined(events, TextDelta), _calls(events))


def full_message(events: Sequence[OutputEvent]) -> ParsedMessage:
    """Return the reasoning, text and calls of the events."""
    return reasoning_text_and_calls(
        _joined(events, ReasoningDelta), _joined(events, TextDelta), _calls(events)
    )


def reasoning_message(events: Sequence[OutputEvent]) -> ParsedMessage:
    """Return the reasoning and text of the events."""
    return reasoning_and_text(_joined(events, ReasoningDelta), _joined(events, TextDelta))


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
