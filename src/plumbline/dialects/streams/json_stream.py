"""Check JSON character by character while it comes, and pass it on unchanged.

Clients get arguments of calls as the model wrote them, so nothing is parsed into values here. Two mistakes that models
often make and that have only one meaning are corrected: raw control characters inside strings are escaped, and Python's
`True`, `False` and `None` become JSON's words.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from json.encoder import encode_basestring
from typing import Final

from plumbline.dialects.streams.cursor import Cursor, EndOfOutputError, MalformedError, Steps

__all__ = ["JsonScanner", "json_string", "json_value", "quoted", "quoted_text"]

_VALUE, _FIRST_VALUE, _FIRST_KEY, _KEY, _COLON, _NEXT, _STRING, _ESCAPE, _HEX, _ATOM = range(10)
_VALUES = (_VALUE, _FIRST_VALUE)
_OPENING: Final = {"}": "{", "]": "["}

_SPACE = re.compile(r"[ \t\r\n]+")
_PLAIN = re.compile(r'[^"\\\x00-\x1f]+')
_ATOM_RUN = re.compile(r"[-+.0-9A-Za-z_]+")
_NUMBER = re.compile(r"-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][-+]?[0-9]+)?")
_WORDS: Final = {
    "true": "true",
    "false": "false",
    "null": "null",
    "True": "true",
    "False": "false",
    "None": "null",
}
_SHORT_STRING = re.compile(r'"([^"\\\x00-\x1f]*)("?)')
_AT_ONCE = 48
_MAX_DEPTH = 256
_MAX_ATOM = 400


class JsonScanner:
    """Check one JSON value while it comes.

    Args:
        max_depth: levels of nesting at most.
        max_atom: characters of a number or word at most.

    Attributes:
        done: the value is complete. A number at the top level is complete only when something follows it.
        stopped: where the last `feed` stopped, also if it raised.
    """

    __slots__ = (
        "_atom",
        "_digits",
        "_max_atom",
        "_max_depth",
        "_out",
        "_raw",
        "_sent",
        "_stack",
        "_state",
        "done",
        "stopped",
    )

    def __init__(self, *, max_depth: int = _MAX_DEPTH, max_atom: int = _MAX_ATOM) -> None:
        self._max_depth = max_depth
        self._max_atom = max_atom
        self.done = False
        self.stopped = 0
        self._state = _VALUE
        self._stack: list[str] = []
        self._atom = ""
        self._digits = 0
        self._raw = False
        """The open string has a raw control character."""
        self._out: list[str] = []
        self._sent = 0
        """Everything before it has been passed on, or is held back in `_atom`."""

    @property
    def in_string(self) -> bool:
        """Whether the text so far ends inside a string without raw control characters, and not inside an escape."""
        return self._state == _STRING and not self._raw

    @property
    def atom(self) -> str:
        """The incomplete number or word at the end of the text so far, which is held back."""
        return self._atom if self._state == _ATOM else ""

    def feed(self, text: str, pos: int, out: list[str]) -> int:
        """Read from `pos` and append to `out` what can be passed on.

        Returns:
            Where it stopped: at the end of the text, or right after the value.

        Raises:
            MalformedError: the text is not JSON. What was appended before the error is.
        """
        end = len(text)
        self._out, self._sent = out, pos
        try:
            while pos < end and not self.done:
                if self._state == _STRING and (match := _PLAIN.match(text, pos)) is not None:
                    pos = match.end()
                else:
                    pos = _READERS[self._state](self, text, pos)
        finally:
            # A number that is too long raises after it was read.
            self.stopped = max(pos, self._sent)
            if self._state != _ATOM:
                out.append(text[self._sent : pos])
        return pos

    # A reader takes the text and a position, reads there, and returns the position after what it read.

    def _in_string(self, text: str, pos: int) -> int:
        char = text[pos]
        if char == '"':
            self._close_string()
        elif char == "\\":
            self._state = _ESCAPE
        else:  # A control character, which JSON requires to be escaped.
            self._out.append(text[self._sent : pos])
            self._out.append(quoted_text(char))
            self._raw = True
            self._sent = pos + 1
        return pos + 1

    def _in_escape(self, text: str, pos: int) -> int:
        char = text[pos]
        if char == "u":
            self._state, self._digits = _HEX, 4
        elif char in '"\\/bfnrt':
            self._state = _STRING
        else:
            raise MalformedError(f"'\\{char}' is not a JSON escape")
        return pos + 1

    def _in_hex(self, text: str, pos: int) -> int:
        if text[pos] not in "0123456789abcdefABCDEF":
            raise MalformedError("expected a hexadecimal digit")
        self._digits -= 1
        if not self._digits:
            self._state = _STRING
        return pos + 1

    def _in_atom(self, text: str, pos: int) -> int:
        match = _ATOM_RUN.match(text, pos)
        if match is None:
            self._close_atom(self._out)
            return pos
        self._atom += match.group()
        self._sent = match.end()
        if len(self._atom) > self._max_atom:
            raise MalformedError("a number or word is too long", rest=self._atom)
        return match.end()

    def _outside(self, text: str, pos: int) -> int:
        """Read white space, a bracket, a comma, a colon, or the beginning of a key or a value."""
        char, state = text[pos], self._state
        step = _STEPS[state].get(char)
        if step is not None:
            step(self, char)
            return pos + 1
        match = _SPACE.match(text, pos)
        if match is not None:
            return match.end()
        if state not in _VALUES or not _ATOM_RUN.match(char):
            raise MalformedError(f"unexpected {char!r} in JSON")
        # Held back until it is complete, so that no invalid number or word is passed on.
        self._out.append(text[self._sent : pos])
        self._sent = pos
        self._state, self._atom = _ATOM, ""
        return pos

    def _open_string(self, char: str) -> None:
        self._stack.append("text" if self._state in _VALUES else "key")
        self._state, self._raw = _STRING, False

    def _open_bracket(self, char: str) -> None:
        if len(self._stack) >= self._max_depth:
            raise MalformedError("the JSON is nested too deeply")
        self._stack.append(char)
        self._state = _FIRST_KEY if char == "{" else _FIRST_VALUE

    def _colon(self, char: str) -> None:
        self._state = _VALUE

    def _comma(self, char: str) -> None:
        self._state = _KEY if self._stack[-1] == "{" else _VALUE

    def _close_bracket(self, char: str) -> None:
        if self._stack[-1] != _OPENING[char]:
            raise MalformedError(f"unexpected {char!r} in JSON")
        self._stack.pop()
        self._value_done()

    def close(self, out: list[str]) -> None:
        """End the text, which completes a number or word at the top level.

        Raises:
            EndOfOutputError: the value is not complete.
        """
        if self._state == _ATOM and not self._stack:
            self._close_atom(out)
        if not self.done:
            raise EndOfOutputError("the JSON is not complete")

    def _close_string(self) -> None:
        if self._stack.pop() == "key":
            self._state = _COLON
        else:
            self._value_done()

    def _close_atom(self, out: list[str]) -> None:
        word = _WORDS.get(self._atom)
        if word is None and _NUMBER.fullmatch(self._atom) is None:
            raise MalformedError(f"{self._atom!r} is not a JSON value", rest=self._atom)
        out.append(word or self._atom)
        self._value_done()

    def _value_done(self) -> None:
        self._state = _NEXT
        self.done = not self._stack


_READERS: Final = (
    *[JsonScanner._outside] * 6,
    JsonScanner._in_string,
    JsonScanner._in_escape,
    JsonScanner._in_hex,
    JsonScanner._in_atom,
)
"""The function that reads in each state."""
_Step = Callable[[JsonScanner, str], None]
_BEGIN: Final[dict[str, _Step]] = {
    '"': JsonScanner._open_string,
    "{": JsonScanner._open_bracket,
    "[": JsonScanner._open_bracket,
}
_END: Final[dict[str, _Step]] = dict.fromkeys("}]", JsonScanner._close_bracket)
_STEPS: Final[dict[int, dict[str, _Step]]] = {
    _VALUE: _BEGIN,
    _FIRST_VALUE: {**_BEGIN, "]": _END["]"]},
    _FIRST_KEY: {'"': JsonScanner._open_string, "}": _END["}"]},
    _KEY: {'"': JsonScanner._open_string},
    _COLON: {":": JsonScanner._colon},
    _NEXT: {**_END, ",": JsonScanner._comma},
}
"""What a character does in each state outside strings and numbers; any other is an error."""


quoted: Final = encode_basestring
"""Encode a text as a JSON string, without the encoder that `json.dumps` makes for every call."""


def quoted_text(text: str) -> str:
    """Encode a text as it stands inside a JSON string, without the quotes."""
    return encode_basestring(text)[1:-1]


def json_value(cursor: Cursor, write: Callable[[str], None]) -> Steps[None]:
    """Read one JSON value and pass it on while it comes.

    Raises:
        MalformedError: the text is not JSON.
        EndOfOutputError: the output ended inside the value.
    """
    scanner = JsonScanner()
    while True:
        out: list[str] = []
        try:
            scanner.feed(cursor.text, cursor.pos, out)
        finally:
            cursor.pos = scanner.stopped
            if piece := "".join(out):
                write(piece)
        if scanner.done:
            return
        if cursor.closed:
            out = []
            scanner.close(out)
            write("".join(out))
            return
        yield


def json_string(cursor: Cursor, limit: int = 256) -> Steps[str]:
    """Read a short JSON string, such as a key or a name, and decode it.

    Raises:
        MalformedError: other text comes, or the string is longer than `limit`.
    """
    if (yield from cursor.peek()) != '"':
        cursor.fail("expected a string")
    while True:  # Most names are plain and short. They are taken as they stand, once they are complete.
        match = _SHORT_STRING.match(cursor.text, cursor.pos)
        if match is None or cursor.closed or match.end() - cursor.pos > _AT_ONCE:
            break
        if match.group(2):
            cursor.pos = match.end()
            return match.group(1)
        if match.end() < len(cursor.text):
            break
        yield
    parts: list[str] = []
    size = 0

    def add(piece: str) -> None:
        nonlocal size
        parts.append(piece)
        size += len(piece)
        if size > limit:
            raise MalformedError(f"a name is longer than {limit} characters")

    yield from json_value(cursor, add)
    value = json.loads("".join(parts))
    assert isinstance(value, str)
    return value
