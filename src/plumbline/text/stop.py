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

    __slots__ = ("_beginnings", "_characters", "_held", "_include", "_longest", "_stops", "matched")

    def __init__(self, stops: tuple[str, ...], *, include: bool = False) -> None:
        self._stops = stops
        self._beginnings = frozenset(stop[:size] for stop in stops for size in range(1, len(stop)))
        self._characters = frozenset("".join(self._beginnings))
        self._longest = max(map(len, stops), default=0)
        self._include = include
        self._held = ""
        self.matched: str | None = None

    def push(self, text: str, *, armed: bool = True) -> str:
        """Take the next piece and return what can be sent. After a match everything further is dropped.

        Args:
            text: the next piece.
            armed: whether a stop string may be completed by this piece. While the answer is shorter than `min_tokens`
                none may: what is completed then is passed over for good, but what is only begun counts later.
        """
        if not self._stops:
            return text
        if self.matched is not None:
            return ""
        buffer = self._held + text
        if armed:
            found = self._completed(buffer, len(self._held))
            if found is not None:
                end, start = found
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

    def _completed(self, buffer: str, old: int) -> tuple[int, int] | None:
        """(end, start) of the match that ends first behind the `old` characters that have been looked at before."""
        best: tuple[int, int] | None = None
        for stop in self._stops:
            start = buffer.find(stop, max(0, old - len(stop) + 1))
            if start >= 0 and (best is None or (start + len(stop), start) < best):
                best = start + len(stop), start
        return best

    def _undecided(self, buffer: str) -> int:
        """The length of the longest end of `buffer` that a stop string starts with."""
        if buffer[-1:] not in self._characters:
            return 0  # Nearly always: this character is in no beginning at all.
        for length in range(min(self._longest - 1, len(buffer)), 0, -1):
            if buffer[len(buffer) - length :] in self._beginnings:
                return length
        return 0
