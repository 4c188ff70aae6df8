"""Read the strings of JSON as models write them; see `json_scanner`."""

from __future__ import annotations

import re
from abc import abstractmethod
from typing import Final

from plumbline.answer.dialects.streams.cursor import Finder
from plumbline.answer.dialects.streams.json_quotes import CLOSING, QuotePlace, quote_ends
from plumbline.answer.dialects.streams.json_text import quoted_text

__all__ = ["COLON", "STRING", "StringScanner"]

STRING: Final = 6
COLON: Final = 4
"""States of a scanner: inside a string, and after a key."""
_SPACE = re.compile(r"[ \t\r\n]+")
_HEX = re.compile(r"[0-9a-fA-F]{4}")
_BEGUN_HEX = re.compile(r"[0-9a-fA-F]{0,3}\Z")
_PLAIN: Final = {quote: re.compile(rf'[^{re.escape(ends)}"\\\x00-\x1f]+') for quote, ends in CLOSING.items()}
_ADDED = re.compile(r"""\s{0,8}\+\s{0,8}["']""")
_BEGUN_ADDED = re.compile(r"\s{0,8}(?:\+\s{0,8})?\Z")
_CLOSING_TEXT: Final = "}] \n\r\t"
_FEW = 64
"""Characters of white space after a marker that are looked at."""
_MOST_MARKERS = 256
"""Characters of markers that are looked at."""


class StringScanner:
    """Base of `JsonScanner`: what it does inside strings.

    Attributes:
        marked: a marker ended the last `feed`.
    """

    __slots__ = (
        "_bare_keys",
        "_defects",
        "_escaped",
        "_held",
        "_key",
        "_markers",
        "_nested",
        "_num_text_markers",
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
        self._escaped = False
        """Quotes outside strings have a backslash before them."""
        self._held = ""
        """Brackets and white space at the end of the open string so far, which may stand after it: its quote may be
        missing."""
        self._num_text_markers = 0
        """Of the markers that follow in the open string, those that are known to be text."""
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
            if self._markers.starts:
                return self._plain(text, pos, match.end(), closed)
            self._copy(match.group())
            return match.end()
        char = text[pos]
        if char == "\\":
            return self._escape(text, pos, closed)
        if char in CLOSING[self._quote[0]]:
            return self._end_or_quote(text, pos, closed)
        if char in "\n\r\t":
            self._held += char
        else:
            self._write(quoted_text(char))  # A control character, or a double quote in another one's string.
        self._raw = self._raw or char < " "
        return pos + 1

    def flush(self, out: list[str]) -> None:
        """Pass on what was held back of the open string."""
        self._out = out
        if self._held:
            self._write("")

    def _write(self, text: str) -> None:
        """Pass on JSON of the open string, after what was held back."""
        if self._held:
            self._out.append(quoted_text(self._held))
            self._held = ""
        self._out.append(text)

    def _copy(self, run: str) -> None:
        """Pass on plain text of a string, but not the brackets at its end."""
        if run[-1] in _CLOSING_TEXT:
            text = run.rstrip(_CLOSING_TEXT)
            if text:
                self._write(text)
            self._held += run[len(text) :]
        else:
            self._write(run)

    def _without_quote(self) -> bool:
        """End the open string before the brackets that close all JSON around it. Returns whether these have come."""
        wanted = "".join("}" if bracket == "{" else "]" for bracket in reversed(self._stack))
        # A call in JSON may be in a list of calls, and that in another object.
        tails = ("}", "}]", "}]}") if self._nested else ("",)
        befores = (self._before(wanted + tail) for tail in tails)
        found = None if self._key else next((before for before in befores if before is not None), None)
        if found is None:
            return False
        self._held = found
        self._write('"')
        self._end_string()
        return True

    def _plain(self, text: str, pos: int, end: int, closed: bool) -> int:
        """Pass on text of a string, up to a marker that nothing follows: the end of the string is missing then."""
        run = text[pos:end]
        size, marker = self._markers.search(run, 0, closed or end < len(text))
        if size:
            self._copy(run[:size])
            return pos + size
        if marker is None:
            return pos
        after = pos + len(marker)
        if not self._num_text_markers:
            self._num_text_markers = self._count_text_markers(text, after)
        if not self._num_text_markers:
            self.marked = closed
            return pos
        self._num_text_markers -= 1
        self._write(marker)
        return after

    def _before(self, brackets: str) -> str | None:
        """Return what was held back before these brackets, white space aside; None if it does not end with them."""
        rest = self._held.rstrip()
        for bracket in reversed(brackets):
            if not rest.endswith(bracket):
                return None
            rest = rest[:-1].rstrip()
        return rest

    def _count_text_markers(self, text: str, after: int) -> int:
        """Return how many markers are text, the one before `after` being the first.

        None of them is if only a few markers and a little white space stand from here to the end of the text. It looks
        at twice as many as may end a text, so that of a long run each marker is looked at twice at most.
        """
        ends, end, all_plain = [after], after, True
        while end - after < 2 * _MOST_MARKERS:
            space = _SPACE.match(text, end, end + _FEW)
            start = end if space is None else space.end()
            if start >= end + _FEW:
                return len(ends)
            certain, marker = self._markers.at(text, start, False)
            if marker is None:
                if certain and start < len(text):
                    return len(ends)
                break
            end = start + len(marker)
            # One with a quote or a line feed is not read as a marker in a string; those after it are looked at again.
            all_plain = all_plain and _PLAIN[self._quote[0]].fullmatch(marker) is not None
            if all_plain:
                ends.append(end)
        return sum(end - each >= _MOST_MARKERS for each in ends)

    def _escape(self, text: str, pos: int, closed: bool) -> int:
        char = text[pos + 1 : pos + 2]
        if not char and not closed:
            return pos
        if self._escaped and char in CLOSING[self._quote[0]]:
            self._write('"')
            self._end_string()
            return pos + 2
        if self._escaped and char == "\\":
            four = text[pos : pos + 4]
            if len(four) < 4 and not closed:
                return pos
            if four[2:] == '\\"':
                self._write('\\"')
                return pos + 4
            return pos + 1  # Everything is escaped twice.
        if char == "u":
            if _HEX.match(text, pos + 2):
                self._write(text[pos : pos + 6])
                return pos + 6
            if not closed and _BEGUN_HEX.match(text, pos + 2):
                return pos
        elif char and char in '"\\/bfnrt':
            self._write(text[pos : pos + 2])
            return pos + 2
        elif char and char in "'`":
            self._write(char)
            return pos + 2
        self._write("\\\\")
        return pos + 1

    def _end_or_quote(self, text: str, pos: int, closed: bool) -> int:
        """Read a quote, which ends the string or belongs to it."""
        size = len(self._quote)
        if size == 3:
            found = text[pos : pos + 3]
            if found != self._quote:
                if not closed and self._quote.startswith(found) and len(found) < 3:
                    return pos
                self._write(quoted_text(text[pos]))
                return pos + 1
        ends: bool | None = True
        if not (self._key or self._odd) and (added := self._added(text, pos + size, closed)) is not None:
            return added or pos
        if not self._key:
            clean = not (self._raw or self._defects or self._bare_keys)
            place = QuotePlace(self._stack, self._markers, self._bare_keys, self._nested, self._odd, clean)
            ends = quote_ends(text, pos + size, place, closed=closed)
        if ends is None:
            return pos
        if not ends:
            self._odd = not self._odd
            self._raw = True
            self._write(quoted_text(text[pos : pos + size]))
            return pos + size
        self._write('"')
        self._end_string()
        return pos + size

    def _added(self, text: str, pos: int, closed: bool) -> int | None:
        """Return where a string begins that is added to the open one; 0 while it is uncertain, None if none does."""
        match = _ADDED.match(text, pos)
        if match is None:
            return 0 if not closed and _BEGUN_ADDED.match(text, pos) else None
        self._write("")
        self._quote, self._defects = text[match.end() - 1], True
        return match.end()

    def _end_string(self) -> None:
        self._num_text_markers = 0
        if self._key:
            self._state = COLON
        else:
            self._value_done()
