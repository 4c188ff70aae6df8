"""What our parser's events are for a client, in the words in which peers' answers are compared."""

from __future__ import annotations

from collections.abc import Sequence

from peers import Message, message, thought

from plumbline.events import OutputEvent, ReasoningDelta, TextDelta, ToolCallDelta, ToolCallStart

__all__ = ["said", "thinks"]


def said(events: Sequence[OutputEvent]) -> Message:
    """Text and calls."""
    calls: list[list[str]] = []
    for event in events:
        if isinstance(event, ToolCallStart):
            calls.append([event.name, ""])
        elif isinstance(event, ToolCallDelta):
            calls[-1][1] += event.arguments
    content = "".join(event.text for event in events if isinstance(event, TextDelta))
    return message(content, [(name, arguments) for name, arguments in calls])


def thinks(events: Sequence[OutputEvent]) -> Message:
    """Thinking and text."""
    kinds = (ReasoningDelta, TextDelta)
    return thought(*("".join(event.text for event in events if isinstance(event, kind)) for kind in kinds))
