"""Read text that comes in pieces.

A `Cursor` keeps the unread part of an output. Its readers are generators: a reader yields when it needs more text, and
is resumed when there is more, or when no more will come. So it is written as if the whole output were there, and gives
the same result however the output is cut.

The unread part is never longer than the longest marker that may be beginning, so reading is linear in the output.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Generator, Iterable
from functools import lru_cache
from typing import Any, TypeVar

from plumbline.answer.dialects.streams.marker_patterns import PATTERNS

__all__ = [
    "Cursor",
    "EndOfOutputError",
    "Finder",
    "MalformedError",
    "Steps",
    "UndeclaredToolError",
    "finder",
]

T = TypeVar("T")
Steps = Generator[None, None, T]
"""A reader: yields when it needs more text, returns what it read."""

Write = Callable[[str, int], None]
"""Takes a piece of text and the offset of its first character in the output."""

_SPACE = re.compile(r"[ \t\r\n]*")


class MalformedError(Exception):
    """The text is not in the format of the dialect. The message names what was expected.

    Attributes:
        rest: text that was read and not passed on, where the reader stopped.
    """

    def __init__(self, message: str, rest: str = "") -> None:
        super().__init__(message)
        self.rest = rest


class EndOfOutputError(MalformedError):
    """The output ended inside markup."""


class UndeclaredToolError(MalformedError):
    """The text calls a tool that the request does not have (TOOL-02).

    Attributes:
        name: the name as the model wrote it.
    """

    def __init__(self, name: str) -> None:
        super().__init__(f"the request has no tool {name[:40]!r}")
        self.name = name


class Finder:
    """Find the first of several markers in text that may end inside one.

    Args:
        markers: the texts to find.
        least: how many characters of a marker, at the cut end of an output, are taken for a marker and not for text.

    Attributes:
        starts: the first characters of the markers.
    """

    __slots__ = ("_beginnings", "_longest", "_pattern", "_scan", "least", "markers", "starts")

    def __init__(self, markers: Iterable[str], *, least: int = 1) -> None:
        self.least = least
        self.markers = tuple(dict.fromkeys(marker for marker in markers if marker))
        self._longest = max(map(len, self.markers), default=0)
        self.starts = frozenset(marker[0] for marker in self.markers)

    def __getattr__(self, name: str) -> Any:
        """Compile the patterns at first use: of the hundreds of finders of a dialect, an answer needs few."""
        if name not in ("_pattern", "_scan", "_beginnings"):
            raise AttributeError(name)
        # In one order, because sections in another order have the same markers.
        self._pattern, self._scan, self._beginnings = PATTERNS.of(tuple(sorted(self.markers)))
        return getattr(self, name)

    def search(self, text: str, start: int, closed: bool) -> tuple[int, str | None]:
        """Return where the text before the first marker ends, and the marker, or None if no marker has come yet.

        Unless `closed`, the text ends before anything that may turn out to be a marker. Of two possible markers the
        earlier counts, and of two at one place the longer.
        """
        if self._pattern is None:
            return len(text), None
        match = (self._pattern if closed else self._scan).search(text, start)
        if match is None:
            return len(text), None
        found = match.group()
        if not closed and match.end() == len(text) and found in self._beginnings:
            return match.start(), None
        return match.start(), found

    def at(self, text: str, start: int, closed: bool) -> tuple[bool, str | None]:
        """Return whether it is certain which marker stands at `start`, and that marker, or None."""
        rest = text[start : start + self._longest]
        if not closed and start + len(rest) == len(text) and (not rest or rest in self._beginnings):
            return False, None
        match = self._pattern.match(text, start) if self._pattern is not None else None
        return True, None if match is None else match.group()


@lru_cache(maxsize=1024)
def finder(*markers: str) -> Finder:
    """Return a finder for these markers, the same one for the same markers."""
    return Finder(markers)


class Cursor:
    """Keep the unread part of one output. Readers that scan by themselves use the attributes.

    Attributes:
        text: what has come and was not dropped yet.
        pos: everything before it in `text` has been read.
        closed: nothing more will come.
        cut: the token limit has ended the output, so the beginning of a marker at its end is markup, and not text.
    """

    __slots__ = ("_base", "_kept", "_mark", "closed", "cut", "pos", "text")

    def __init__(self) -> None:
        self.text = ""
        self.pos = 0
        self.closed = False
        self.cut = False
        self._base = 0
        self._mark: int | None = None
        self._kept: list[str] = []

    @property
    def offset(self) -> int:
        """The number of characters of the output that have been read."""
        return self._base + self.pos

    def begin_at(self, offset: int) -> None:
        """Set the offset of the next character, which is negative for text from before the output."""
        self._base = offset

    def feed(self, text: str) -> None:
        """Add text."""
        if self._mark is not None:
            self._kept.append(self.text[self._mark : self.pos])
            self._mark = 0
        pos = self.pos
        self._base += pos
        self.text = text if pos == len(self.text) else self.text[pos:] + text
        self.pos = 0

    def mark(self, before: str = "") -> None:
        """Remember what is read from here on, until `unmark`, and `before`, which was read just now."""
        self._mark = self.pos
        self._kept = [before] if before else []

    @property
    def marked(self) -> bool:
        """Whether a mark is set."""
        return self._mark is not None

    def unmark(self) -> str:
        """Remove the mark and return what was read since."""
        if self._mark is None:
            return ""
        raw = "".join(self._kept) + self.text[self._mark : self.pos]
        self._mark = None
        self._kept = []
        return raw

    def peek(self) -> Steps[str]:
        """Return the next character without reading it, or the empty string at the end of the output."""
        while self.pos >= len(self.text):
            if self.closed:
                return ""
            yield
        return self.text[self.pos]

    def space(self) -> Steps[None]:
        """Read white space."""
        while True:
            if self.pos < len(self.text):
                match = _SPACE.match(self.text, self.pos)
                assert match is not None
                self.pos = match.end()
            if self.pos < len(self.text) or self.closed:
                return
            yield

    def has_space(self) -> bool:
        """Whether `space` has anything to do. A call of this costs less than a reader that does nothing."""
        return self.pos >= len(self.text) or self.text[self.pos] in " \t\r\n"

    def unread(self, text: str) -> None:
        """Take back the last text that was read, also where the reader has waited since and `text` has dropped it."""
        if self.pos < len(text):
            if self._mark is not None:
                raw = "".join(self._kept) + self.text[self._mark : self.pos]
                self._kept, self._mark = [raw.removesuffix(text)], 0
            self._base += self.pos
            self.text = text + self.text[self.pos :]
            self._base -= len(text)
            self.pos = 0
        else:
            self.pos -= len(text)

    def skip(self, char: str) -> bool:
        """Read this one character if it comes next. Call it after `space`, when there is a character or the end."""
        found = self.text.startswith(char, self.pos)
        self.pos += found
        return found

    def take(self, literal: str) -> Steps[bool]:
        """Read exactly this text if it comes next; otherwise read nothing."""
        while not self.text.startswith(literal, self.pos):
            rest = self.text[self.pos : self.pos + len(literal)]
            if len(rest) == len(literal) or not literal.startswith(rest):
                return False
            if self.closed:
                self.pos += len(rest) if self.cut else 0
                return False
            yield
        self.pos += len(literal)
        return True

    def take_ahead(self, literal: str) -> Steps[bool]:
        """Return whether exactly this text comes next, without reading it."""
        found = yield from self.take(literal)
        if found:
            self.pos -= len(literal)
        return found

    def expect(self, literal: str) -> Steps[None]:
        """Read exactly this text.

        Raises:
            MalformedError: other text comes.
        """
        if not (yield from self.take(literal)):
            self.fail(f"expected {literal!r}")

    def take_one(self, finder: Finder) -> Steps[str | None]:
        """Read the next marker, if one of these comes next."""
        while True:
            certain, marker = finder.at(self.text, self.pos, self.closed and not self.cut)
            if certain:
                self.pos += len(marker or "")
                return marker
            if self.closed:
                # The token limit may have cut a marker here; what begins like a word is taken for text.
                rest = self.text[self.pos :]
                self.pos += 0 if rest[:1].isalnum() else len(rest)
                return None
            yield

    def may_take(self, finder: Finder) -> bool:
        """Whether `take_one` has anything to do. A call of this costs less than a reader that finds nothing."""
        return self.pos >= len(self.text) or self.text[self.pos] in finder.starts

    def look_for(self, finder: Finder) -> Steps[str | None]:
        """Return the next marker, if one of these comes next, without reading it."""
        marker = yield from self.take_one(finder)
        self.pos -= len(marker or "")
        return marker

    def may_become(self, finder: Finder) -> Steps[bool]:
        """Return whether one of these markers comes next, or enough of one at the cut end of the output."""
        while True:
            certain, marker = finder.at(self.text, self.pos, self.closed and not self.cut)
            if certain:
                return marker is not None
            if self.closed:
                return len(self.text) - self.pos >= finder.least
            yield

    def run(self, pattern: re.Pattern[str], limit: int) -> Steps[str]:
        """Read the characters that match `pattern`, which is a repeated character class.

        Raises:
            MalformedError: more than `limit` characters match.
        """
        found = ""
        while True:
            match = pattern.match(self.text, self.pos)
            if match is not None:
                found += match.group()
                if len(found) > limit:
                    self.fail(f"expected at most {limit} characters")
                self.pos = match.end()
            if self.pos < len(self.text) or self.closed:
                return found
            yield

    def until(self, finder: Finder, write: Write) -> Steps[str | None]:
        """Pass text to `write` up to a marker, and read and return that; None at the end of the output."""
        while True:
            start = self.pos
            end, marker = finder.search(self.text, start, self.closed and not self.cut)
            rest = self.text[end:] if self.cut and marker is None else ""
            if rest and (len(rest) < finder.least or rest[0].isalnum()):
                end, rest = len(self.text), ""  # Too little of a marker, or too much like a word.
            if end > start:
                self.pos = end
                write(self.text[start:end], self._base + start)
            if marker is not None:
                self.pos += len(marker)
                return marker
            if self.closed:
                self.pos += len(rest)
                return None
            yield

    def collect(self, finder: Finder) -> Steps[tuple[str, str]]:
        """Return the text before a marker, and the marker.

        Raises:
            EndOfOutputError: no marker came.
        """
        parts: list[str] = []
        marker = yield from self.until(finder, lambda piece, _: parts.append(piece))
        if marker is None:
            raise EndOfOutputError(f"expected one of {', '.join(finder.markers)}")
        return "".join(parts), marker

    def fail(self, message: str) -> None:
        """Raise the error for unexpected text.

        Raises:
            EndOfOutputError: the output has ended.
            MalformedError: other text comes.
        """
        if self.closed and self.pos >= len(self.text):
            raise EndOfOutputError(message)
        raise MalformedError(f"{message} at character {self.offset} of the output")
