"""Read the strings of JSON as models write them; see `json_scanner`."""

from __future__ import annotations

import re
from abc import abstractmethod
from typing import Final

from plumbline.dialects.streams.cursor import Finder
from plumbline.dialects.streams.json_quotes import CLOSING, Place, quote_ends
from plumbline.dialects.streams.json_text import quoted_text

__all__ = ["COLON", "STRING", "StringScanner"]

STRING: Final = 6
COLON: Final = 4
"""States of a scanner: inside a string, and after a key."""
_SPACE = re.compile(r"[ \t\r\n]+")
_HEX = re.compile(r"[0-9a-fA-F]{4}")
_BEGUN_HEX = re.compile(r"[0-9a-fA-F]{0,3}\Z")
_PLAIN: Final = {quote: re.compile(rf'[^{re.escape(ends)}"\\\x00-\x1f]+') for quote, ends in CLOSING.items()}
_FEW = 64
"""Characters of white space after a marker that are looked at."""


class StringScanner:
    """Base of `JsonScanner`: what it does inside strings.

    Attributes:
        marked: a marker ended the last `feed`.
    """

    __slots__ = (
        "_bare_keys",
        "_defects",
        "_key",
        "_markers",
        "_nested",
        "_odd",
        "_out",
        "_quote",
        "_raw",
        "_stack",
        "_state",
        "marked",
    )

    def __init__(self, markers: Finder, *, nested: bool) -> None:
        self._markers = markers
        self._nested = nested
        self._state = 0
        self._stack: list[str] = []
        self._quote = ""
        """What the open string began with."""
        self._key = False
        """The open string is a key."""
        self._odd = False
        """An odd number of quotes without a backslash has come in the open string."""
        self._raw = False
        """The open string has a raw control character, or a quote without a backslash."""
        self._defects = False
        """Something stood where no JSON has it, so a string may have begun where none was meant."""
        self._bare_keys = False
        self._out: list[str] = []
        self.marked = False

    @abstractmethod
    def _value_done(self) -> None:
        """Note that a value is complete."""

    @property
    def in_string(self) -> bool:
        """Whether the text so far ends inside a string, and is JSON up to there."""
        return self._state == STRING and not self._raw and not self._defects

    @property
    def opened_string(self) -> bool:
        """Whether the text so far ends inside a string."""
        return self._state == STRING

    def _in_string(self, text: str, pos: int, closed: bool) -> int:
        match = _PLAIN[self._quote[0]].match(text, pos)
        if match is not None:
            return self._plain(text, pos, match.end(), closed) if self._markers.starts else self._copy(match)
        char = text[pos]
        if char == "\\":
            return self._escape(text, pos, closed)
        if char in CLOSING[self._quote[0]]:
            return self._end_or_quote(text, pos, closed)
        self._out.append(quoted_text(char))  # A control character, or a double quote in another one's string.
        self._raw = self._raw or char < " "
        return pos + 1

    def _copy(self, match: re.Match[str]) -> int:
        self._out.append(match.group())
        return match.end()

    def _plain(self, text: str, pos: int, end: int, closed: bool) -> int:
        """Pass on text of a string, up to a marker that nothing follows: the end of the string is missing then."""
        run = text[pos:end]
        size, marker = self._markers.search(run, 0, closed or end < len(text))
        if size:
            self._out.append(run[:size])
            return pos + size
        if marker is None:
            return pos
        after = pos + len(marker)
        rest = _SPACE.match(text, after, after + _FEW)
        end = after if rest is None else rest.end()
        if end >= len(text) and end < after + _FEW:
            self.marked = closed
            return pos
        self._out.append(marker)
        return after

    def _escape(self, text: str, pos: int, closed: bool) -> int:
        char = text[pos + 1 : pos + 2]
        if not char and not closed:
            return pos
        if char == "u":
            if _HEX.match(text, pos + 2):
                self._out.append(text[pos : pos + 6])
                return pos + 6
            if not closed and _BEGUN_HEX.match(text, pos + 2):
                return pos
        elif char and char in '"\\/bfnrt':
            self._out.append(text[pos : pos + 2])
            return pos + 2
        elif char and char in "'`":
            self._out.append(char)
            return pos + 2
        self._out.append("\\\\")
        return pos + 1

    def _end_or_quote(self, text: str, pos: int, closed: bool) -> int:
        """Read a quote, which ends the string or belongs to it."""
        size = len(self._quote)
        if size == 3:
            found = text[pos : pos + 3]
            if found != self._quote:
                if not closed and self._quote.startswith(found) and len(found) < 3:
                    return pos
                self._out.append(quoted_text(text[pos]))
                return pos + 1
        ends: bool | None = True
        if not self._key:
            clean = not (self._raw or self._defects or self._bare_keys)
            place = Place(self._stack, self._markers, self._bare_keys, self._nested, self._odd, clean)
            ends = quote_ends(text, pos + size, place, closed=closed)
        if ends is None:
            return pos
        if not ends:
            self._odd = not self._odd
            self._raw = True
            self._out.append(quoted_text(text[pos : pos + size]))
            return pos + size
        self._out.append('"')
        self._end_string()
        return pos + size

    def _end_string(self) -> None:
        if self._key:
            self._state = COLON
        else:
            self._value_done()
