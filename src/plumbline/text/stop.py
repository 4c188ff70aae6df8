"""Finds stop strings in text that arrives in pieces, without ever sending a part of one.

Text that could still become a stop string is held back (CS-15); everything before it is released at once.
"""

from __future__ import annotations

__all__ = ["StopChecker"]


class StopChecker:
    """Watches one choice. `push` returns text that is safe to send; `matched` is set once a stop string is complete.

    The stop string that is *completed* first wins, however the text is cut into pieces; among those that end at the
    same character, the longest.
    """

    __slots__ = ("_held", "_include", "_longest", "_stops", "matched")

    def __init__(self, stops: tuple[str, ...], *, include: bool = False) -> None:
        self._stops = stops
        self._longest = max(map(len, stops), default=0)
        self._include = include
        self._held = ""
        self.matched: str | None = None

    def push(self, text: str) -> str:
        """Take the next piece and return what can be sent. After a match everything further is dropped."""
        if not self._stops:
            return text
        if self.matched is not None:
            return ""
        buffer = self._held + text
        best: tuple[int, int] | None = None
        for stop in self._stops:
            start = buffer.find(stop)
            if start >= 0:
                found = (start + len(stop), start)
                if best is None or found < best:
                    best = found
        if best is not None:
            end, start = best
            self.matched = buffer[start:end]
            self._held = ""
            return buffer[: end if self._include else start]
        keep = self._undecided(buffer)
        self._held = buffer[len(buffer) - keep :]
        return buffer[: len(buffer) - keep]

    def flush(self) -> str:
        """The text held back, once it is certain that nothing follows."""
        held, self._held = self._held, ""
        return held

    def _undecided(self, buffer: str) -> int:
        """The length of the longest end of `buffer` that a stop string starts with."""
        for length in range(min(self._longest - 1, len(buffer)), 0, -1):
            end = buffer[len(buffer) - length :]
            if any(stop.startswith(end) for stop in self._stops if len(stop) > length):
                return length
        return 0
