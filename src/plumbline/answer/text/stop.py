"""Find stop strings in streamed text without ever sending a part of one.

Text that could still become a stop string is held back (CS-15); everything before it is released at once. The search is
Knuth, Morris and Pratt's: each character costs amortised constant time per stop string, and memory grows with the
longest prefix that the text has matched, not with the length of the stop string.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Protocol

from plumbline.answer.events import AnswerPart

__all__ = ["AnswerRegions", "AnswerStopChecker", "StopChecker"]


class AnswerRegions(Protocol):
    """Tell the text of an answer that the client asked for from thinking and from the markup around it."""

    def push(self, text: str) -> Sequence[AnswerPart]:
        """Take more of the output. Returns the parts that are decided now, in their order."""
        ...

    def close(self) -> Sequence[AnswerPart]:
        """End the output. Returns the parts that were undecided."""
        ...


class StopChecker:
    """Search the text of one choice for stop strings.

    The stop string that is *completed* first wins, however the text is cut into pieces; among those that end at the
    same character, the longest.

    Args:
        stops: the stop strings, none of them empty.
        include: keep the stop string at the end of the text (`include_stop_str_in_output`).

    Attributes:
        matched: the stop string that was completed, or None.
        in_text: the stop string was completed in text, and not in a call.
        num_late: how many pieces were pushed after the one that completed it.
    """

    __slots__ = ("_first_chars", "_held", "_include", "_searches", "in_text", "matched", "num_late")

    def __init__(self, stops: tuple[str, ...], *, include: bool = False) -> None:
        self._searches = [_PrefixSearch(stop) for stop in stops]
        self._first_chars = {stop[0] for stop in stops}
        self._include = include
        self._held = ""
        self.matched: str | None = None
        self.in_text = False
        self.num_late = 0

    def push(self, text: str, *, armed: bool = True) -> str:
        """Take the next piece of text and return what can be sent. After a match, further text is dropped.

        Args:
            text: the next piece.
            armed: whether this piece may complete a stop string. It may not while the answer is shorter than
                `min_tokens`; a stop string that only begins in such a piece still counts later.
        """
        if not self._searches:
            return text
        if self.matched is not None:
            return ""
        if not self._held and self._first_chars.isdisjoint(text):
            return text  # Nearly always: no stop string begins here.
        found: tuple[int, str] | None = None
        for search in self._searches:
            end = search.advance(text, armed=armed)
            if end is not None and (found is None or (-end, len(search.stop)) > (-found[0], len(found[1]))):
                found = end, search.stop
        buffer = self._held + text
        if found is not None:
            end = len(self._held) + found[0]
            self.matched = found[1]
            self._held = ""
            return buffer[: end if self._include else end - len(self.matched)]
        sendable = len(buffer) - max(search.length for search in self._searches)
        self._held = buffer[sendable:]
        return buffer[:sendable]

    def flush(self) -> str:
        """Return the text held back, once no more text follows."""
        held, self._held = self._held, ""
        for search in self._searches:
            search.length = 0
        return held


class AnswerStopChecker(StopChecker):
    """Search only what belongs to the answer: a stop string ends no thinking (CHAT-23).

    A character is held back until it is known whether it belongs to the answer, as parsers of answers do as well.

    Args:
        stops: see `StopChecker`.
        regions: where the answer is.
        include: see `StopChecker`.
    """

    __slots__ = ("_regions", "_undecided")

    def __init__(self, stops: tuple[str, ...], regions: AnswerRegions, *, include: bool = False) -> None:
        super().__init__(stops, include=include)
        self._regions = regions
        self._undecided: deque[tuple[str, bool]] = deque()
        """The pieces that were not searched yet, and whether each is armed."""

    def push(self, text: str, *, armed: bool = True) -> str:
        """Take the next piece of the output; see `StopChecker.push`."""
        if self.matched is not None:
            return ""
        self._undecided.append((text, armed))
        return self._searched(self._regions.push(text))

    def flush(self) -> str:
        """Search what is left, and return it."""
        text = self._searched(self._regions.close())
        return text if self.matched is not None else text + super().flush()

    @property
    def _is_matched(self) -> bool:
        return self.matched is not None

    def _searched(self, parts: Sequence[AnswerPart]) -> str:
        found: list[str] = []
        for size, kind in parts:
            if not kind:
                found.append(super().flush())
            while size:
                piece, armed = self._undecided.popleft()
                if len(piece) > size:
                    self._undecided.appendleft((piece[size:], armed))
                    piece = piece[:size]
                    self.num_late = -1  # The rest of this piece does not come after it.
                size -= len(piece)
                found.append(super().push(piece, armed=armed) if kind else piece)
                if self._is_matched:
                    self.in_text = kind == "text"
                    self.num_late += len(self._undecided)
                    return "".join(found)
                self.num_late = 0
        return "".join(found)


class _PrefixSearch:
    """Track the longest prefix of one stop string that the text so far ends with.

    Attributes:
        stop: the stop string.
        length: the length of that prefix in characters.
    """

    __slots__ = ("_borders", "length", "stop")

    def __init__(self, stop: str) -> None:
        self.stop = stop
        self.length = 0
        self._borders = [0, 0]
        """For each prefix length matched so far, the length of the longest proper prefix that is also its suffix.

        Computed only as far as the text has matched.
        """

    def advance(self, text: str, *, armed: bool) -> int | None:
        """Search the next piece; returns the end of the first match in `text`, or None.

        With `armed` false a complete match is passed over, and the search continues after its first character.
        """
        stop, length = self.stop, self.length
        position = 0
        while position < len(text):
            if not length:
                position = text.find(stop[0], position)
                if position < 0:
                    break
            char = text[position]
            while length and stop[length] != char:
                length = self._border(length)
            length += stop[length] == char
            position += 1
            if length == len(stop):
                if armed:
                    return position
                length = self._border(length)
        self.length = length
        return None

    def _border(self, length: int) -> int:
        stop, borders = self.stop, self._borders
        while len(borders) <= length:
            border, char = borders[-1], stop[len(borders) - 1]
            while border and stop[border] != char:
                border = borders[border]
            borders.append(border + (stop[border] == char))
        return borders[length]
