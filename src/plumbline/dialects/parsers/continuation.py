"""Answers that go on with a message which the client has begun: what was begun is read first, in silence.

A message may break off in the middle of a thought, of a marker or of a call. Whoever reads the rest must have read the
beginning. Of a call that the beginning has announced the client is told with the rest, because a call that is told in
part has no name; of text and thinking only what is new is told, unless the client wants an `echo`.
"""

from __future__ import annotations

from plumbline.dialects.parsers.marker_parser import MarkerParser
from plumbline.events import OutputEvent, TextDelta, ToolCallEnd, ToolCallStart

__all__ = ["continue_message"]


def continue_message(parser: MarkerParser, text: str, *, echo: bool) -> list[OutputEvent]:
    """Let a fresh parser read the beginning of the message.

    Args:
        parser: what will read the rest.
        text: the beginning.
        echo: the client wants to be told all of it.

    Returns: what the client is told before the rest.
    """
    parser.read_before(len(text), silent=not echo)
    events = parser.push(TextDelta(text))
    if echo:
        return events
    begun = [number for number, event in enumerate(events) if isinstance(event, ToolCallStart)]
    ended = sum(isinstance(event, ToolCallEnd) for event in events)
    parser.forget_calls(ended)
    return events[begun[-1] :] if len(begun) > ended else []
