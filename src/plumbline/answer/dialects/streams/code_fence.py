"""Follow text and tell whether a code fence of Markdown is open in it."""

from __future__ import annotations

__all__ = ["CodeFence"]

_MARK = "```"


class CodeFence:
    """The state of fences after the lines that have ended.

    A line that begins with three backticks opens a fence, unless more backticks stand in it, and closes one, unless
    anything stands behind them (CommonMark 0.31, section 4.5). The text may come in any pieces.

    >>> fence = CodeFence()
    >>> fence.read("So:\\n```xml\\n<a>")
    >>> fence.is_open
    True
    """

    __slots__ = ("_beginning", "_is_blank", "_is_marked", "_is_run", "is_open")

    def __init__(self) -> None:
        self.is_open = False
        self._begin()

    def _begin(self) -> None:
        """Begin a line."""
        self._beginning = ""
        """Its first three characters behind spaces."""
        self._is_run = True
        """Only backticks have come."""
        self._is_marked = False
        """Backticks stand behind those at its beginning."""
        self._is_blank = True
        """Nothing else stands behind them."""

    def read(self, piece: str) -> None:
        """Add text."""
        if "\n" not in piece:
            if len(self._beginning) < len(_MARK) or self._beginning == _MARK:
                self._add(piece)
            return
        first, *lines = piece.split("\n")
        self._add(first)
        for line in lines:
            if self._beginning == _MARK:
                self.is_open = not self._is_blank if self.is_open else not self._is_marked
            self._begin()
            self._add(line)

    def _add(self, text: str) -> None:
        if len(self._beginning) < len(_MARK):
            text = (self._beginning + text).lstrip(" \t\r")
            self._beginning, text = text[: len(_MARK)], text[len(_MARK) :]
        if self._beginning != _MARK or not text:
            return
        behind = text.lstrip("`") if self._is_run else text
        if behind:
            self._is_run = False
            self._is_marked = self._is_marked or "`" in behind
            self._is_blank = self._is_blank and not behind.strip()
