"""Separate logprobs of text from logprobs of markup."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

import msgspec

from plumbline.answer.events import Logprob

__all__ = ["LogprobSlices"]


class LogprobSlices:
    """Keep the logprob entries of an output's tokens and release the entries of its text (LP-03).

    Positions count characters of the output. An entry that is partly markup is cut to the characters that are text.
    """

    __slots__ = ("_content", "_end", "_waiting")

    def __init__(self) -> None:
        self._content: deque[tuple[int, int]] = deque()
        self._waiting: deque[tuple[Logprob, int]] = deque()
        """Entries with the position of their first character."""
        self._end = 0

    def add(self, entries: Sequence[Logprob]) -> None:
        """Add the entries of further tokens, in order."""
        for entry in entries:
            self._waiting.append((entry, self._end))
            self._end += len(entry.text)

    def content(self, start: int, end: int) -> None:
        """Note that the characters [start, end) are text."""
        if self._content and self._content[-1][1] == start:
            self._content[-1] = (self._content[-1][0], end)
        else:
            self._content.append((start, end))

    def take(self, decided: int) -> tuple[Logprob, ...]:
        """Return the entries of text among the first `decided` characters that were not returned yet."""
        found: list[Logprob] = []
        waiting = self._waiting
        while waiting:
            entry, start = waiting[0]
            end = start + len(entry.text)
            # An entry without characters has a part of the next character, which must be decided first.
            if end > decided or (end == start and start >= decided):
                break
            waiting.popleft()
            found += self._cut(entry, start, end)
        return tuple(found)

    def close(self) -> None:
        """End the output."""
        # A last token without a complete character is part of no text.
        while self._waiting and not self._waiting[-1][0].text and self._waiting[-1][1] >= self._end:
            self._waiting.pop()

    def _cut(self, entry: Logprob, start: int, end: int) -> list[Logprob]:
        content = self._content
        while content and content[0][1] <= start:
            content.popleft()
        if start == end:
            return [entry] if content and content[0][0] <= start else []
        found: list[Logprob] = []
        for low, high in content:
            if low >= end:
                break
            low, high = max(low, start), min(high, end)
            if (low, high) == (start, end):
                return [entry]
            found.append(_part(entry, low - start, high - start))
        return found


def _part(entry: Logprob, low: int, high: int) -> Logprob:
    """Cut an entry to the characters [low, high) of its text."""
    text = entry.text[low:high]
    before = len(entry.text[:low].encode())
    # The first character may have begun in the token before, and the last bytes may begin one of the next token.
    borrowed = max(0, len(entry.text.encode()) - len(entry.raw))
    first = max(0, before - borrowed)
    last = len(entry.raw) if high == len(entry.text) else max(first, before + len(text.encode()) - borrowed)
    raw = entry.raw[first:last]
    return msgspec.structs.replace(entry, text=text, raw=raw, token=raw.decode("utf-8", "replace"))
