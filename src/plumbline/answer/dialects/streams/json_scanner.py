"""Read JSON as models write it while it comes, and pass it on as JSON.

Valid JSON is passed on unchanged. Everything else becomes what the model evidently meant:

| written | becomes |
|---|---|
| raw control characters in strings, backslashes that begin no escape | escaped |
| quotes inside strings without a backslash | escaped, see `json_quotes` |
| strings in other quotes, keys and words without quotes | strings in JSON's quotes |
| `True`, `False`, `None`; `NaN`, `Infinity`, `undefined` | `true`, `false`, `null`; `null` |
| `01`, `+1`, `.5`, `0x1F` | the number that Python reads |
| commas and brackets too many, or missing | left out, or added |
| comments, `\n` and `...` between values | left out |
| strings that are added | one string |
| `\"` in the place of quotes, keys without one quote, words without the first | as if the quotes were right |
| tuples | arrays |
| members without a value | null |

The same text gives the same JSON however it is cut: a character is held back until what follows it decides.
"""

from __future__ import annotations

import re
from typing import Final

from plumbline.answer.dialects.streams.cursor import EndOfOutputError, Finder, MalformedError
from plumbline.answer.dialects.streams.json_quotes import CLOSING, NO_MARKERS, unclosed_key
from plumbline.answer.dialects.streams.json_strings import COLON, STRING, StringScanner
from plumbline.answer.dialects.streams.json_text import quoted

__all__ = ["JsonScanner", "number"]

_VALUE, _FIRST_VALUE, _FIRST_KEY, _KEY = range(4)
_NEXT = 5
_CLOSERS: Final = {"{": "}", "[": "]"}
_SPACE = re.compile(r"[ \t\r\n]+")
_AFTER_QUOTE = re.compile(r"[ \t\r\n]{0,64}[,}\]]")
_BEGUN_SPACE = re.compile(r"[ \t\r\n]{0,64}\Z")
_DOTS = re.compile(r"\.{2,400}")
_ATOM_RUN = re.compile(r"[-+.0-9A-Za-z_]+")
_BARE = re.compile(r"[^,{}\[\]\"\n]+")
_BARE_KEY = re.compile(r"[^\s,:={}\[\]\"'<]+")
_NUMBER = re.compile(r"-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][-+]?[0-9]+)?")
_WORDS: Final = {
    "true": "true",
    "false": "false",
    "null": "null",
    "True": "true",
    "False": "false",
    "None": "null",
    "NaN": "null",
    "nan": "null",
    "Infinity": "null",
    "-Infinity": "null",
    "undefined": "null",
}
_MAX_DEPTH = 256
_MAX_ATOM = 400
_MAX_BARE = 4096
_MAX_COMMENT = 4096
_MAX_KEY = 512


class JsonScanner(StringScanner):
    """Read one JSON value while it comes.

    Args:
        max_depth: levels of nesting at most.
        max_atom: characters of a number at most.
        markers: texts that end the JSON where they come outside strings.
        nested: the value is part of other JSON that another reader reads.

    Attributes:
        done: the value is complete. A number or word at the top level is complete only when something follows it.
        stopped: where the last `feed` stopped, also if it raised.
        marked: a marker ended the last `feed`.
    """

    __slots__ = ("_comma", "_max_atom", "_max_depth", "done", "stopped")

    def __init__(
        self,
        *,
        max_depth: int = _MAX_DEPTH,
        max_atom: int = _MAX_ATOM,
        markers: Finder = NO_MARKERS,
        nested: bool = False,
    ) -> None:
        self._max_depth = max_depth
        self._max_atom = max_atom
        super().__init__(markers, nested=nested)
        self._comma: list[str] = []
        """A comma and the white space after it, until something follows."""
        self.done = False
        self.stopped = 0

    def feed(self, text: str, pos: int, out: list[str], *, closed: bool = False) -> int:
        """Read from `pos` and append to `out` what can be passed on.

        Args:
            text: what was not read before, and more.
            pos: where to begin.
            out: takes the JSON.
            closed: nothing follows the text.

        Returns:
            Where it stopped: right after the value, before a marker, or before what more text decides. The caller
            gives that again.

        Raises:
            MalformedError: the value is nested too deeply, or a number or word is too long.
        """
        end = len(text)
        self._out, self.marked = out, False
        try:
            while pos < end and not self.done:
                read = self._in_string if self._state == STRING else self._outside
                after = read(text, pos, closed)
                if after == pos:
                    break
                pos = after
        finally:
            self.stopped = pos
        return pos

    def close(self, out: list[str], *, marked: bool = False) -> None:
        """End the text: close the brackets that are open, if all values are complete.

        Args:
            out: takes the text.
            marked: a marker ends the text, so a last key without a value has none, as before a bracket.

        Raises:
            EndOfOutputError: the text breaks off inside a string, or before a value.
        """
        if self.done:
            return
        self._out = out
        if self._state == STRING:
            self._without_quote()
        if marked and self._stack and self._state == COLON:
            out.append(": null")
            self._state = _NEXT
        if not self._stack or not (self._state == _NEXT or self._comma):
            raise EndOfOutputError("the JSON is not complete")
        self._close_all(out)

    def _close_all(self, out: list[str]) -> None:
        self._comma = []
        out.extend(_CLOSERS[bracket] for bracket in reversed(self._stack))
        self._stack.clear()
        self._value_done()

    def complete(self, out: list[str]) -> None:
        """Make the text so far JSON, wherever it breaks off: the open string ends, a missing value is empty."""
        self._out = out
        if self._state == STRING:
            self._write('"')
            self._end_string()
        if self._state == COLON:
            out.append(": ")
        if self._state in (COLON, _VALUE) and not self._comma:
            out.append('""')
        self._close_all(out)

    def _outside(self, text: str, pos: int, closed: bool) -> int:
        char = text[pos]
        if char in "/\\." and (after := self._skipped(text, pos, closed)) is not None:
            return after
        match = _SPACE.match(text, pos)
        if match is not None:
            (self._comma if self._comma else self._out).append(match.group())
            return match.end()
        if char in self._markers.starts:
            certain, marker = self._markers.at(text, pos, closed)
            if marker is not None:
                self.marked = True
                return pos
            if not certain:
                return pos
        if self._state == COLON:
            return self._colon(text, pos, closed)
        if char in "}])":
            return self._close_bracket(char, pos)
        if char in ",;" and (self._stack or self._state != _VALUE):
            return self._read_comma(pos)
        if self._state == _NEXT and char in ":=":
            return pos + 1
        return self._begin(text, pos, closed)

    def _skipped(self, text: str, pos: int, closed: bool) -> int | None:
        """Return where a comment, a backslash or `...` outside strings ends; None if none of them stands here."""
        two = text[pos : pos + 2]
        if two == "..":
            match = _DOTS.match(text, pos)
            self._defects = True
            return pos if match is None or (match.end() == len(text) and not closed) else match.end()
        if len(two) < 2:
            return None if closed else pos
        if two[0] == "\\":
            if two[1] in "\"'":
                self._escaped = True  # The quotes of all strings have a backslash.
                return pos + 1
            return pos + 2 if two[1] in "nrt" else None
        if two not in ("//", "/*"):
            return None
        end = text.find("\n" if two == "//" else "*/", pos + 2)
        if end < 0 and len(text) - pos > _MAX_COMMENT:
            return None
        self._defects = True
        return (len(text) if closed else pos) if end < 0 else end + (1 if two == "//" else 2)

    def _colon(self, text: str, pos: int, closed: bool) -> int:
        char = text[pos]
        self._state = _VALUE
        if char == ":":
            self._out.append(char)
            return pos + 1
        self._defects = True
        if char != "=":
            self._out.append(": ")
            if char in ",;}])":
                self._out.append("null")
                self._value_done()
                # Nothing was read, but the state is another one.
                return self._outside(text, pos, closed)
            return self._begin(text, pos, closed)
        if pos + 1 >= len(text) and not closed:
            self._state = COLON
            return pos
        self._out.append(": ")
        return pos + 1 + text.startswith(">", pos + 1)

    def _read_comma(self, pos: int) -> int:
        if self._state == _NEXT:
            self._comma = [","]
            self._state = _KEY if self._stack[-1] == "{" else _VALUE
        elif self._state == _VALUE and not self._comma and self._stack[-1] == "{":
            self._out.append("null")
            self._value_done()
            return self._read_comma(pos)
        return pos + 1

    def _close_bracket(self, char: str, pos: int) -> int:
        wanted = "{" if char == "}" else "["
        if wanted not in self._stack:
            return pos + 1
        if self._state == _VALUE and not self._comma and self._stack[-1] == "{":
            self._out.append("null")
        if self._comma:
            self._out.append("".join(self._comma)[1:])
            self._comma = []
        while self._stack:
            bracket = self._stack.pop()
            self._out.append(_CLOSERS[bracket])
            if bracket == wanted:
                break
        self._value_done()
        return pos + 1

    def _begin(self, text: str, pos: int, closed: bool) -> int:
        """Begin a key or a value."""
        state = self._state
        keyed = state in (_KEY, _FIRST_KEY) or (state == _NEXT and self._stack[-1] == "{")
        if keyed and text[pos] in "{[(":
            return pos + 1  # Doubled, as in a template of Python's `format`.
        if text[pos] in CLOSING:
            return self._open_string(text, pos, closed, keyed)
        if text[pos] in "{[(":
            if len(self._stack) >= self._max_depth:
                raise MalformedError("the JSON is nested too deeply")
            self._separate()
            bracket = "{" if text[pos] == "{" else "["
            self._stack.append(bracket)
            self._out.append(bracket)
            self._state = _FIRST_KEY if bracket == "{" else _FIRST_VALUE
            return pos + 1
        return self._bare(text, pos, closed, keyed)

    def _separate(self) -> None:
        """Write the comma before a key or value."""
        if self._comma:
            self._out.append("".join(self._comma))
            self._comma = []
        elif self._state == _NEXT:
            self._out.append(", ")
            self._defects = True

    def _open_string(self, text: str, pos: int, closed: bool, keyed: bool) -> int:
        quote = text[pos]
        if quote in "\"'" and not keyed:
            three = text[pos : pos + 3]
            if len(three) < 3 and three == quote * len(three) and not closed:
                return pos
            quote = three if three == quote * 3 else quote
        if keyed:
            name = unclosed_key(text, pos + 1, quote, closed=closed)
            if name is None:
                return pos
            if name:
                return self._key_without_quote(name, pos + 1 + len(name))
        self._separate()
        self._state, self._quote, self._key = STRING, quote, keyed
        self._odd = self._raw = False
        self._defects = self._defects or quote != '"'
        self._out.append('"')
        return pos + len(quote)

    def _bare(self, text: str, pos: int, closed: bool, keyed: bool) -> int:
        """Read a number, a word, or a key or string without quotes. It is held back until it is complete."""
        match = (_BARE_KEY if keyed else _ATOM_RUN).match(text, pos)
        end = pos if match is None else match.end()
        most = _MAX_KEY if keyed else self._max_atom
        if end - pos > most:
            self.stopped = end
            raise MalformedError("a number or word is too long", rest=text[pos:end])
        if end == len(text) and not closed:
            return pos
        word = text[pos:end]
        if keyed:
            if not word:
                return pos + 1
            if text[end : end + 1] == '"':  # Its first quote is missing.
                end += 1
            else:
                self._bare_keys = True
            return self._key_without_quote(word, end)
        found = _WORDS.get(word) or (word if _NUMBER.fullmatch(word) else None)
        if found is None or not self._ends_atom(text, end):
            return self._bare_string(text, pos, closed)
        after = self._stray_quote(text, end, closed)
        if after is not None:
            self._separate()
            self._out.append(found)
            self._value_done()
        return pos if after is None else after

    def _key_without_quote(self, key: str, end: int) -> int:
        """Pass on a key that lacks quotes and ends at `end`."""
        self._separate()
        self._out.append(quoted(key))
        self._state = COLON
        return end

    def _stray_quote(self, text: str, pos: int, closed: bool) -> int | None:
        """Return where a word or number ends whose first quote is missing; None if more text decides it."""
        if text[pos : pos + 1] != '"':
            return pos
        after = _AFTER_QUOTE.match(text, pos + 1)
        if after is not None:
            return pos + 1
        return None if not closed and _BEGUN_SPACE.match(text, pos + 1) else pos

    def _ends_atom(self, text: str, end: int) -> bool:
        return end >= len(text) or text[end] in " \t\r\n,;:}])\"'{[(\\/" or text[end] in self._markers.starts

    def _bare_string(self, text: str, pos: int, closed: bool) -> int:
        match = _BARE.match(text, pos)
        end = pos + 1 if match is None else match.end()
        if end - pos > _MAX_BARE:
            raise MalformedError("a text without quotes is too long")
        size, marker = self._markers.search(text[pos:end], 0, closed or end < len(text))
        if marker is None and (end == len(text) or size < end - pos) and not closed:
            return pos
        end = pos + max(1, size)
        after = self._stray_quote(text, end, closed)
        if after is None:
            return pos
        word = text[pos:end].strip()
        self._separate()
        self._out.append(number(word) or quoted(word))
        self._value_done()
        return after

    def _value_done(self) -> None:
        self._state = _NEXT
        self.done = not self._stack


def number(word: str) -> str | None:
    """Return the JSON of a number as Python writes it, such as `+1`, `01`, `.5` or `0x1F`; None if it is none."""
    if _NUMBER.fullmatch(word):
        return word
    body = word.lstrip("+-")
    try:
        if body[:2].lower() in ("0x", "0o", "0b"):
            return str(int(word, 0))
        if body.strip("0123456789_") == "" and body:
            return str(int(word, 10))
        value = float(word) if body.strip("0123456789_.eE+-") == "" else None
    except (ValueError, OverflowError):
        return None
    return repr(value) if value is not None and value - value == 0 else None
