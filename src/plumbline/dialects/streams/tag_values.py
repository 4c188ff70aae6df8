"""Values between tags that are passed on while they are written, as soon as it is certain what they are.

A text may be anything, so a value is held until its beginning shows a string, or the JSON of an object or array. What
has been passed on is never taken back.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from plumbline.dialects.streams.coercion import LOOKED_AT, coerce, is_text
from plumbline.dialects.streams.cursor import Cursor, EndOfOutputError, Finder, MalformedError, Steps
from plumbline.dialects.streams.json_stream import JsonScanner, quoted_text

__all__ = ["JsonWriter", "StringWriter", "json_between", "unwrapped"]

_SHOWN = re.compile(r"[\[{ \t\r\n]*(?:[^-\[{ \t\r\n+.0-9A-Za-z_]|[-+.0-9A-Za-z_]+[^-+.0-9A-Za-z_])")
"""The beginning of an object or array through its first token that is no opening bracket, and a character behind that
if it is a number or word."""
_MAX_DEPTH = 512
_MAX_ATOM = 4300
"""Nearly what Python's own reader of JSON takes: more nesting or a longer integer it refuses."""


class StringWriter:
    """Writes one value into the arguments of a call.

    Args:
        put: takes the JSON text of the value, piece by piece.
        types: what its schema allows; a string is among them, or nothing is known.
        wrapped: one line feed at each side belongs to the markup.
    """

    def __init__(self, put: Callable[[str], None], types: frozenset[str], *, wrapped: bool = False) -> None:
        self._put = put
        self._types = types
        self._wrapped = wrapped
        self._begun = self._first = False
        self._held: list[str] = []
        self._late = False
        """Only the end will show what it is."""
        self._feed = ""
        """A line feed that may be the last one."""
        if is_text("", types):
            self._begin()

    def write(self, piece: str, _: int = 0) -> None:
        """Take the next piece of the text."""
        if self._begun:
            self._pass(piece)
            return
        self._held.append(piece)
        if self._late:
            return
        begun = "".join(self._held)
        if is_text(begun, self._types):
            self._begin()
            self._pass(unwrapped(begun, end=False) if self._wrapped else begun)
        else:
            self._late = len(begun) >= LOOKED_AT

    def close(self) -> None:
        """The text is whole."""
        if self._begun:
            self._put('"')
            return
        text = "".join(self._held)
        self._put(coerce(unwrapped(text) if self._wrapped else text, self._types))

    def _begin(self) -> None:
        self._begun = True
        self._first = self._wrapped and not self._held
        self._put('"')

    def _pass(self, piece: str) -> None:
        if self._wrapped:
            piece = self._feed + piece
            self._feed = ""
            if self._first:
                piece = unwrapped(piece, end=False)
                self._first = False
            if piece.endswith("\n"):
                piece, self._feed = piece[:-1], "\n"
        self._put(quoted_text(piece))


class JsonWriter:
    """Writes one object or array, in the JSON that stands between tags, into the arguments of a call.

    It is passed on as soon as its beginning shows that it is JSON: its first string, number, word or closing bracket,
    all before it being opening brackets. What shows to be something else by then, such as Python's `[{'a': 1}]`, is
    held up to its end, and read as a text without types. What stops being JSON later is malformed, as it is in the
    dialects that write whole calls in JSON. So a mistake at the very beginning, of a model that writes another language
    than JSON, still gives a whole call with that text as a string. A mistake later, such as a bracket or quote that is
    missing, gives a call that broke off instead of a string where the schema wants none.

    `True`, `None` and raw line feeds in strings are put right, also as in those dialects.

    Args:
        put: takes the JSON text of the value, piece by piece; None if it is to be held whatever it is.
        types: what its schema allows; no string is among them. Empty if nothing is known.

    Attributes:
        begun: it is being passed on.
        unread: how many characters of what was written last were not read, where that raised.
    """

    __slots__ = (
        "_held",
        "_holds",
        "_plain",
        "_put",
        "_scanner",
        "_seen",
        "_types",
        "_whole",
        "begun",
        "unread",
    )

    def __init__(self, put: Callable[[str], None] | None, types: frozenset[str]) -> None:
        self._put = put or _ignore
        self._holds = put is None
        self._types = types
        self._scanner = JsonScanner(max_depth=_MAX_DEPTH, max_atom=_MAX_ATOM)
        self._held: list[str] = []
        self._seen = False
        """There was more than white space."""
        self._whole = False
        """It is held up to its end, but read as JSON so that its strings are known."""
        self._plain = False
        """It is no object or array in JSON, so nothing in it can be a string of JSON."""
        self.begun = False
        self.unread = 0

    def write(self, piece: str, _: int = 0) -> None:
        """Take the next piece of the text.

        Raises:
            MalformedError: what has been passed on does not go on as JSON.
        """
        if not self.begun:
            self._hold(piece)
            return
        scanner = self._scanner
        out: list[str] = []
        try:
            pos = scanner.feed(piece, 0, out)
        except MalformedError:
            self.unread = len(piece) - scanner.stopped
            raise
        finally:
            if text := "".join(out):
                self._put(text)
        if pos < len(piece) and (rest := piece[pos:].lstrip()):
            self.unread = len(rest)
            raise MalformedError("the JSON of a value has ended, and something follows")

    @property
    def in_string(self) -> bool:
        """Whether a marker that comes now stands in a string.

        One that a raw control character has come in is none where a marker comes: most likely its quote is missing.
        """
        return not self._plain and self._scanner.in_string

    @property
    def text(self) -> str:
        """All of the value, if it was held."""
        return "".join(self._held)

    def close(self, marker: str) -> None:
        """The value has ended with this marker.

        Raises:
            MalformedError: what was passed on is not complete.
        """
        if self.begun and not self._scanner.done:
            raise MalformedError(
                f"the JSON of a value is not complete before {marker}", self._scanner.atom + marker
            )

    def _hold(self, piece: str) -> None:
        self._held.append(piece)
        if self._whole:
            self._check(piece)
        elif not self._plain and (self._seen or piece.strip()):
            self._seen = True
            self._look("".join(self._held).lstrip())

    def _look(self, begun: str) -> None:
        """Find out what it is from its beginning, which is not passed on yet."""
        kind = {"{": "object", "[": "array"}.get(begun[0])
        if kind is None:
            self._plain = True
            return
        if self._holds or (self._types and kind not in self._types):
            self._whole = True
            self._check(begun)
            return
        shown = _SHOWN.match(begun, 0, LOOKED_AT)
        if shown is None and len(begun) < LOOKED_AT:
            return
        # Of what is read together, nothing depends on how it was cut.
        end = LOOKED_AT if shown is None else shown.end()
        out: list[str] = []
        try:
            self._scanner.feed(begun[:end], 0, out)
        except MalformedError:
            self._plain = True
            return
        self.begun = True
        self._put("".join(out))
        self.write(begun[end:])

    def _check(self, piece: str) -> None:
        try:
            self._scanner.feed(piece, 0, [])
        except MalformedError:
            self._plain, self._whole = True, False


def json_between(cursor: Cursor, out: JsonWriter, ends: Finder, follows: Finder | None = None) -> Steps[None]:
    """Read a value that should be JSON, through the marker that ends it.

    A marker inside of a string is part of the string. So an object or array goes on where it is JSON so far, has a
    string open, and what follows the marker may stand in one: a control character, such as the line feed between two
    tags, may not. A text that is no JSON up to the marker ends there.

    Args:
        cursor: where the value begins.
        out: takes the value.
        ends: the marker; it has neither quotes nor backslashes.
        follows: what cannot follow the marker inside of a string.

    Raises:
        MalformedError: what has been passed on does not go on as JSON.
        EndOfOutputError: the output ended before the marker.
    """
    while True:
        try:
            marker = yield from cursor.until(ends, out.write)
        except MalformedError:
            cursor.pos -= out.unread
            raise
        if marker is None:
            raise EndOfOutputError(f"expected {ends.markers[0]!r}")
        if not out.in_string:
            break
        following = yield from cursor.peek()
        if not following:
            raise EndOfOutputError("expected the end of a string")
        if following < " " or (follows is not None and (yield from cursor.look_for(follows)) is not None):
            break
        out.write(marker)
    out.close(marker)


def unwrapped(text: str, *, end: bool = True) -> str:
    """A text without one line feed at its beginning, and at its end."""
    text = text.removeprefix("\n")
    return text.removesuffix("\n") if end else text


def _ignore(_: str) -> None:
    """Takes what means nothing."""
