"""Turn calls of custom tools from `{"input": "…"}` into the input, while it comes.

Models know only functions with JSON arguments, so they see a custom tool as a function with the one string `input`
(`plumbline.answer.turn.Tool`).
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator

from plumbline.answer.events import OutputEvent, ToolCallDelta, ToolCallEnd, ToolCallStart

__all__ = ["CustomCalls", "InputReader"]

_OPENING = re.compile(r'\s*\{\s*"input"\s*:\s*"')
_PIECE = re.compile(r'(?:[^"\\]|\\["\\/bfnrt]|\\u[0-9a-fA-F]{4})*')
_HALF = re.compile(r"\\u[dD][89abAB][0-9a-fA-F]{2}\Z")


class InputReader:
    """Decode the value of `input` from JSON that comes in pieces."""

    def __init__(self) -> None:
        self._held = ""
        self._inside = False
        self._done = False

    def push(self, text: str) -> str:
        """Add a piece of the JSON and return what it adds to the input, never half a character."""
        if self._done:
            return ""
        self._held += text
        if not self._inside:
            opening = _OPENING.match(self._held)
            if opening is None:
                return ""
            self._inside = True
            self._held = self._held[opening.end() :]
        match = _PIECE.match(self._held)
        piece = match.group() if match is not None else ""
        self._done = self._held[len(piece) : len(piece) + 1] == '"'
        half = None if self._done else _HALF.search(piece)
        if half is not None:
            # The second half of a surrogate pair is still to come.
            piece = piece[: half.start()]
        self._held = self._held[len(piece) :]
        decoded: str = json.loads(f'"{piece}"', strict=False)
        # Half of a surrogate pair is not a character, and cannot be sent.
        return decoded.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


class CustomCalls:
    """Turn calls of custom tools into their inputs, and pass on everything else.

    Args:
        names: the custom tools.
    """

    def __init__(self, names: Iterable[str]) -> None:
        self._names = frozenset(names)
        self._reader: InputReader | None = None

    def translate(self, events: Iterable[OutputEvent]) -> Iterator[OutputEvent]:
        """Yield the events, with calls of custom tools marked and their input as text."""
        for event in events:
            match event:
                case ToolCallStart() if event.name in self._names:
                    self._reader = InputReader()
                    yield ToolCallStart(event.name, event.id, custom=True)
                case ToolCallDelta() if self._reader is not None:
                    text = self._reader.push(event.arguments)
                    if text:
                        yield ToolCallDelta(text)
                case _:
                    if isinstance(event, ToolCallEnd):
                        self._reader = None
                    yield event
