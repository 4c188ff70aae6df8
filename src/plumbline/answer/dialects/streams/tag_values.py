"""Convert values between tags to JSON, and pass them on as soon as their type is certain.

A value is held back until its beginning shows that it is a string, or the JSON of an object or array. What has been
passed on is never taken back.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from typing import Any

from plumbline.answer.dialects.streams.coercion import LOOK_AHEAD, allowed_types, coerce, is_text, part_schema
from plumbline.answer.dialects.streams.cursor import Cursor, EndOfOutputError, Finder, MalformedError, Steps
from plumbline.answer.dialects.streams.json_scanner import JsonScanner
from plumbline.answer.dialects.streams.json_text import quoted_text

__all__ = ["JsonWriter", "StringWriter", "json_between", "unwrapped"]

_SHOWN = re.compile(r"[\[{ \t\r\n]*(?:[^-\[{ \t\r\n+.0-9A-Za-z_]|[-+.0-9A-Za-z_]+[^-+.0-9A-Za-z_])")
"""The beginning of an object or array through its first token that is not an opening bracket, and one more character
if that token is a number or word."""
_TOKEN = re.compile(
    r"""["']|-?[0-9][-+.0-9eE]*(?:[ \t\r\n,\]]|\Z)|(?:true|false|null|True|False|None)[ \t\r\n,\]]|\Z""",
    re.DOTALL,
)
_MEMBER = re.compile(r"""["'}]|[A-Za-z_$][\w$]*:|\Z""")
"""The first token of an array and of an object that show that it is one."""
_STRUCTURE = re.compile(r'[\[\]{},"]')
_IN_STRING = re.compile(r'["\\]')
_MAX_DEPTH = 512
_MAX_ATOM = 4300
"""Nearly the limits of Python's `json`, which refuses more nesting and longer integers."""


class StringWriter:
    """Convert one value that may be a string to JSON.

    Args:
        put: takes the JSON text of the value, piece by piece.
        types: the JSON types that its schema allows, with `string`; empty if nothing is known.
        wrapped: one line feed at each side belongs to the markup.
        listed: the only strings that its schema allows; empty if it allows others. The value is held back then.
    """

    def __init__(
        self,
        put: Callable[[str], None],
        types: frozenset[str],
        *,
        wrapped: bool = False,
        listed: frozenset[str] = frozenset(),
    ) -> None:
        self._put = put
        self._types = types
        self._listed = listed
        self._wrapped = wrapped
        self._begun = self._first = False
        self._held: list[str] = []
        self._late = bool(listed)
        """Only the end will show the type."""
        self._feed = ""
        """A line feed that may be the last one."""
        if not listed and is_text("", types):
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
            self._late = len(begun) >= LOOK_AHEAD

    def close(self) -> None:
        """End the value."""
        if self._begun:
            self._put('"')
            return
        text = "".join(self._held)
        self._put(coerce(unwrapped(text) if self._wrapped else text, self._types, self._listed))

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
    """Read one object or array between tags, and pass it on.

    The value is passed on as soon as its beginning is certain to be JSON: after its first string, number, word or
    closing bracket, with only opening brackets before it. From there on it is read as in dialects with whole calls in
    JSON, with the same corrections (`json_scanner`). A value that is something else by then is held back up to its end,
    and is converted as a whole: a Python set becomes an array, other text a string.

    Args:
        put: takes the JSON text of the value, piece by piece; None to hold the value back in any case.
        types: the JSON types that its schema allows, without `string`; empty if nothing is known.
        schema: the schema, by which strings inside the value are read as `coerce` reads the whole.
        root: the schema that its references refer to.

    Attributes:
        begun: the value is being passed on.
    """

    __slots__ = (
        "_held",
        "_holds",
        "_plain",
        "_put",
        "_scanner",
        "_seen",
        "_types",
        "_unread",
        "_whole",
        "begun",
    )

    def __init__(
        self,
        put: Callable[[str], None] | None,
        types: frozenset[str],
        schema: Any = None,
        root: Mapping[str, Any] | None = None,
    ) -> None:
        self._put = put or _ignore
        if put is not None and isinstance(schema, Mapping):
            self._put = _Members(put, schema, root or {}).write
        self._holds = put is None
        self._types = types
        self._scanner = JsonScanner(max_depth=_MAX_DEPTH, max_atom=_MAX_ATOM)
        self._held: list[str] = []
        self._seen = False
        """There was more than white space."""
        self._whole = False
        """The value is held back up to its end, but checked, so that its strings are known."""
        self._plain = False
        """The value is not a JSON object or array, so nothing in it is a JSON string."""
        self.begun = False
        self._unread = ""
        """Characters at the end of the text so far that more text decides."""

    def write(self, piece: str, _: int = 0) -> None:
        """Take the next piece of the text. What follows the value is dropped.

        Raises:
            MalformedError: a value that has been passed on in part is nested too deeply.
        """
        if not self.begun:
            self._buffer(piece)
            return
        self._feed(piece)

    def _feed(self, piece: str, *, closed: bool = False) -> None:
        text, out = self._unread + piece, list[str]()
        try:
            pos = self._scanner.feed(text, 0, out, closed=closed)
        finally:
            if (written := "".join(out)) and self.begun:
                self._put(written)
        self._unread = "" if self._scanner.done else text[pos:]

    def settle(self) -> None:
        """Decide what the last characters are, because a marker follows them."""
        if self._unread:
            self._feed("", closed=True)

    @property
    def in_string(self) -> bool:
        """Whether a marker that comes now is part of a string.

        It is not if the string has a raw control character: most likely a quote is missing then.
        """
        return not self._plain and self._scanner.in_string

    @property
    def text(self) -> str:
        """The value, if it was held back."""
        return "".join(self._held)

    def close(self, marker: str) -> None:
        """End the value with this marker.

        Raises:
            MalformedError: a value that was passed on is not complete.
        """
        if self.begun and not self._scanner.done:
            out: list[str] = []
            try:
                self._scanner.close(out, marked=bool(marker))
            except EndOfOutputError as error:
                raise MalformedError(
                    f"the JSON of a value is not complete before {marker}", marker
                ) from error
            self._put("".join(out))

    def _buffer(self, piece: str) -> None:
        self._held.append(piece)
        if self._whole:
            self._check(piece)
        elif not self._plain and (self._seen or piece.strip()):
            self._seen = True
            self._look("".join(self._held).lstrip())

    def _look(self, begun: str) -> None:
        """Find out the type from the beginning of the value, and pass that on if it is certain."""
        kind = {"{": "object", "[": "array"}.get(begun[0])
        if kind is None:
            self._plain = True
            return
        if self._holds or (self._types and kind not in self._types):
            self._whole = True
            self._check(begun)
            return
        shown = _SHOWN.match(begun, 0, LOOK_AHEAD)
        if shown is None and len(begun) < LOOK_AHEAD:
            return
        end = LOOK_AHEAD if shown is None else shown.end()
        if not _is_json(begun[:end]):
            self._plain = True
            return
        self.begun = True
        self.write(begun)

    def _check(self, piece: str) -> None:
        try:
            self._feed(piece)
        except MalformedError:
            self._plain, self._whole = True, False


class _Members:
    """Convert the strings in an object or array where its schema allows no strings, and pass on the rest.

    Args:
        put: takes the JSON.
        schema: the schema of the value.
        root: the schema that its references refer to.
    """

    def __init__(self, put: Callable[[str], None], schema: Any, root: Mapping[str, Any]) -> None:
        self._put = put
        self._root = root
        self._schemas: list[Any] = [schema]
        """Those of the values that are open, and of the next one."""
        self._brackets = ""
        self._types: frozenset[str] | None = None
        """Of the string that is being read; None outside of strings."""
        self._is_key = False
        self._held: list[str] = []
        self._escaped = False

    def write(self, piece: str) -> None:
        """Take the next piece of JSON."""
        pos, out = 0, list[str]()
        while pos < len(piece):
            pos = self._outside(piece, pos, out) if self._types is None else self._inside(piece, pos, out)
        if out:
            self._put("".join(out))

    def _outside(self, piece: str, pos: int, out: list[str]) -> int:
        found = _STRUCTURE.search(piece, pos)
        if found is None:
            out.append(piece[pos:])
            return len(piece)
        char = found.group()
        out.append(piece[pos : found.end() - (char == '"')])
        if char == '"':
            self._is_key = self._brackets[-1:] == "{" and len(self._schemas) == len(self._brackets)
            types = frozenset(("string",)) if self._is_key else allowed_types(self._schemas[-1], self._root)
            self._types = types or frozenset(("string",))
            self._held = ['"'] if self._is_converted else []
            out.extend(() if self._held else '"')
        elif char in "{[":
            self._brackets += char
            if char == "[":
                self._schemas.append(part_schema(self._schemas[-1], self._root, None))
        elif char in "}]":
            del self._schemas[len(self._brackets) :]
            self._brackets = self._brackets[:-1]
        elif self._brackets[-1] == "{":  # A comma: a key follows.
            del self._schemas[len(self._brackets) :]
        return found.end()

    @property
    def _is_converted(self) -> bool:
        """Whether the string is held back: a key, or one where none is allowed."""
        return self._is_key or (self._types is not None and "string" not in self._types)

    def _inside(self, piece: str, pos: int, out: list[str]) -> int:
        into = self._held if self._is_converted else out
        start = pos + self._escaped
        found = _IN_STRING.search(piece, start)
        if found is None:
            into.append(piece[pos:])
            self._escaped = False
            return len(piece)
        into.append(piece[pos : found.end()])
        self._escaped = found.group() == "\\"
        if not self._escaped:
            self._end_string(out)
        return found.end()

    def _end_string(self, out: list[str]) -> None:
        types, self._types = self._types, None
        text = "".join(self._held)
        if self._is_key:
            out.append(text)
            self._schemas.append(part_schema(self._schemas[-1], self._root, json.loads(text)))
        elif text and types is not None:
            out.append(coerce(json.loads(text), types))


def json_between(cursor: Cursor, out: JsonWriter, ends: Finder, follows: Finder | None = None) -> Steps[str]:
    """Read a value that should be JSON, through the marker that ends it, and return that.

    A marker inside a string is part of the string. So an object or array goes on after a marker if it is JSON so far,
    a string is open, and the character after the marker may stand in a string (a line feed between two tags may not).
    Any other value ends at the first marker.

    Args:
        cursor: stands at the beginning of the value.
        out: takes the value.
        ends: the markers. They have neither quotes nor backslashes.
        follows: what cannot follow the marker inside a string.

    Raises:
        MalformedError: a value that has been passed on in part does not go on as JSON.
        EndOfOutputError: the output ended before the marker.
    """
    while True:
        marker = yield from cursor.until(ends, out.write)
        if marker is None and cursor.cut:
            raise EndOfOutputError(f"expected {ends.markers[0]!r}")
        out.settle()
        if marker is None:
            marker = ""  # The end of the answer is the end of its last value.
            break
        if not out.in_string:
            break
        following = yield from cursor.peek()
        if not following:
            raise EndOfOutputError("expected the end of a string")
        if following < " " or (follows is not None and (yield from cursor.look_for(follows)) is not None):
            break
        out.write(marker)
    out.close(marker)
    return marker


def unwrapped(text: str, *, end: bool = True) -> str:
    """Remove one line feed from the beginning of a text, and from its end."""
    text = text.removeprefix("\n")
    return text.removesuffix("\n") if end else text


def _is_json(begun: str) -> bool:
    """Return whether a text that begins with brackets is JSON for all that its first token shows."""
    token = begun.lstrip("[{ \t\r\n")
    brackets = begun[: len(begun) - len(token)].rstrip()
    if token[:1] == "]":
        return brackets.endswith("[")
    return (_MEMBER if brackets.endswith("{") else _TOKEN).match(token) is not None


def _ignore(_: str) -> None:
    """Drop a piece."""
