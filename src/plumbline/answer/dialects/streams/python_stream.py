"""Read Python literals while they come, and pass them on as JSON."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final, NamedTuple

from plumbline.answer.dialects.streams.cursor import Cursor, EndOfOutputError, MalformedError, Steps, finder
from plumbline.answer.dialects.streams.json_text import quoted, quoted_text

__all__ = ["Follows", "python_value"]

_MAX_DEPTH = 64
_MAX_ATOM = 400
_MAX_HELD = 128
"""Characters after a quote that are held back."""
_ATOM = re.compile(r"[-+.0-9A-Za-z_]+")
_JSON_NUMBER = re.compile(r"-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][-+]?[0-9]+)?")
_WORDS: Final = {
    "True": "true",
    "False": "false",
    "None": "null",
    "true": "true",
    "false": "false",
    "null": "null",
}
_PREFIXES: Final = frozenset(("r", "b", "f", "u", "br", "rb", "fr", "rf"))
_ESCAPES: Final = {
    "\\": "\\\\",
    "'": "'",
    '"': '\\"',
    "a": "\\u0007",
    "b": "\\b",
    "f": "\\f",
    "n": "\\n",
    "r": "\\r",
    "t": "\\t",
    "v": "\\u000b",
    "\n": "",
}
"""The JSON of each escape: the character after the backslash, and the text in a JSON string."""
_CODES: Final = {"x": 2, "u": 4, "U": 8}
"""The number of hexadecimal digits after each of these."""

_STRING_ENDS: Final = {quote: finder(quote, "\\") for quote in ("'", '"', "'''", '"""')}

Write = Callable[[str], None]


class Follows(NamedTuple):
    """Patterns of the text that follows a literal."""

    whole: re.Pattern[str]
    """Matches the beginning of that text. A match has a bounded length."""
    begun: re.Pattern[str]
    """Matches a text that ends inside such a match."""


_NESTED = Follows(re.compile(r"\s{0,64}[,\])}:]|\s{64}"), re.compile(r"\s{0,63}\Z"))
"""What follows a string in a list, tuple, set or dict."""


_KEYWORD = r"[^\W\d]\w{0,63}\s{0,8}="
_CLEAN_END = re.compile(
    rf"\s{{0,64}},\s{{0,64}}{_KEYWORD}\s{{0,8}}(?:[\"'\[({{\-0-9]|[Tt]rue|[Ff]alse|None|null)"
    rf"|\s{{0,64}}\)\s{{0,64}};\s{{0,64}}[-.\w]{{1,64}}\s{{0,8}}\(\s{{0,8}}(?:\)|{_KEYWORD})"
    r"|\s{0,8}\+\s{0,8}[\"']|\s{1,8}(?:'[^'\\\n]{0,64}'|\"[^\"\\\n]{0,64}\")\s{0,8}[,)\]\"']"
)
"""What ends a string without quotes inside in any case: another argument, another call, an expression."""
_CLEAN_BEGUN = re.compile(
    rf"\s{{0,64}},\s{{0,64}}{_KEYWORD}\s{{0,8}}(?:[Tt](?:ru?)?|[Ff](?:a(?:ls?)?)?|N(?:on?)?|n(?:ul?)?)?\Z"
    r"|\s{0,64}\)\s{0,64}(?:;\s{0,64}[-.\w]{0,64}\s{0,8}(?:\(\s{0,8}\w{0,64}\s{0,8})?)?\Z"
    r"|\s{0,8}(?:\+\s{0,8})?\Z|\s{1,8}(?:'[^'\\\n]{0,64}(?:'\s{0,8})?|\"[^\"\\\n]{0,64}(?:\"\s{0,8})?)\Z"
)


def python_value(
    cursor: Cursor, write: Write, depth: int = 0, *, follows: Follows | None = None
) -> Steps[None]:
    """Read one literal: a string, number, word, list, tuple, set or dict, also with JSON's words.

    A set becomes a list. What stands in braces is passed on after its first element, where it is certain what it is.

    Args:
        cursor: stands at its first character.
        write: takes its JSON.
        depth: how many literals surround it.
        follows: what follows the literal, for strings with quotes that are not escaped: a quote before anything else
            belongs to the string.

    Raises:
        MalformedError: the text is not a literal.
        EndOfOutputError: the output ended inside the literal.
    """
    if depth > _MAX_DEPTH:
        raise MalformedError("the literal is nested too deeply")
    char = cursor.text[cursor.pos] if cursor.pos < len(cursor.text) else (yield from cursor.peek())
    if char in ("'", '"'):
        yield from _string(cursor, write, follows)
    elif char == "{":
        yield from _braces(cursor, write, depth)
    elif char == "[":
        cursor.pos += 1
        write("[")
        yield from _items(cursor, write, depth, "]", keyed=False)
    elif char == "(":
        cursor.pos += 1
        write("[")
        yield from _items(cursor, write, depth, ")", keyed=False)
    else:
        atom = yield from cursor.run(_ATOM, _MAX_ATOM)
        if not atom or cursor.pos >= len(cursor.text):  # `run` has waited for what follows.
            cursor.fail("expected a value")
        if cursor.text[cursor.pos] in "'\"" and atom.lower() in _PREFIXES:
            yield from _string(cursor, write, follows, raw="r" in atom.lower())
        else:
            write(_word(atom))


def _braces(cursor: Cursor, write: Write, depth: int) -> Steps[None]:
    """Read a dict or a set. What follows its first element shows which."""
    marked = not cursor.marked
    if marked:
        cursor.mark()
    cursor.pos += 1
    if cursor.has_space():
        yield from cursor.space()
    char = yield from cursor.peek()
    first: list[str] = []
    keyed = char == "}"
    if not keyed:
        yield from python_value(cursor, first.append, depth + 1, follows=_NESTED)
        if cursor.has_space():
            yield from cursor.space()
        after = yield from cursor.peek()
        keyed = after == ":"
        if not after:
            cursor.fail("expected ',' or '}'")
        if keyed and char not in ("'", '"'):
            first = [quoted("".join(first))]
    if marked:
        cursor.unmark()
    write("{" if keyed else "[")
    write("".join(first))
    yield from _items(cursor, write, depth, "}", keyed=keyed, begun=bool(first))


def _items(
    cursor: Cursor, write: Write, depth: int, close: str, *, keyed: bool, begun: bool = False
) -> Steps[None]:
    """Read the elements of a list, tuple or set, or the items of a dict, through the closing bracket.

    Args:
        cursor: stands after the opening bracket.
        write: takes the JSON.
        depth: as for `python_value`.
        close: the closing bracket.
        keyed: it is a dict.
        begun: the first element or key has been read.
    """
    comma = ""
    while True:
        if not begun:
            if cursor.has_space():
                yield from cursor.space()
            if cursor.skip(close):
                break
            write(comma)
            if keyed and (yield from cursor.peek()) not in ("'", '"'):  # JSON has no other keys.
                key: list[str] = []
                yield from python_value(cursor, key.append, depth + 1)
                write(quoted("".join(key)))
            else:
                yield from python_value(cursor, write, depth + 1, follows=_NESTED)
            if cursor.has_space():
                yield from cursor.space()
        begun, comma = False, ", "
        if keyed:
            yield from cursor.expect(":")
            write(": ")
            if cursor.has_space():
                yield from cursor.space()
            yield from python_value(cursor, write, depth + 1, follows=_NESTED)
            if cursor.has_space():
                yield from cursor.space()
        if not cursor.skip(","):
            yield from cursor.expect(close)
            break
    write("}" if keyed else "]")


def _string(
    cursor: Cursor, write: Write, follows: Follows | None = None, *, raw: bool = False
) -> Steps[None]:
    """Read a string in any of Python's quotes, and strings that are added to it, and pass them on while they come.

    Args:
        cursor: stands at the quote.
        write: takes its JSON.
        follows: as for `python_value`.
        raw: backslashes are text.
    """
    write('"')
    while True:
        yield from _text(cursor, write, follows, raw=raw)
        if cursor.has_space():
            yield from cursor.space()
        if cursor.skip("+"):
            yield from cursor.space()
        elif (yield from cursor.peek()) not in ("'", '"'):
            break
        if (yield from cursor.peek()) not in ("'", '"'):
            cursor.fail("expected a string")
    write('"')


def _text(cursor: Cursor, write: Write, follows: Follows | None, *, raw: bool) -> Steps[None]:
    """Read one string; see `_string`."""
    quote = cursor.text[cursor.pos]
    if cursor.text[cursor.pos + 1 : cursor.pos + 2] not in ("", quote):
        cursor.pos += 1
    elif (yield from cursor.take(quote * 3)):
        quote = quote * 3
    else:
        yield from cursor.expect(quote)
    ends = _STRING_ENDS[quote]
    odd = False  # Whether a quote inside the string is open, so that the next one may belong to it.
    text = _HeldText(write)
    while True:
        marker = yield from cursor.until(ends, text.write)
        if marker == quote:
            if follows is None or (yield from _ended(cursor, follows, odd)):
                break
            odd = not odd
            text.hold(quote)
            continue
        if marker is None:
            if text.held and follows is not _NESTED and not cursor.cut:
                return  # No other quote came: that one ended the string, whatever follows the call.
            cursor.fail("expected the end of a string")
        text.release()
        if raw:
            write("\\\\")
            char = yield from cursor.peek()
            if char == quote[0]:  # It ends no string.
                cursor.pos += 1
                write(quoted_text(char))
        else:
            yield from _escape(cursor, write)
    text.release()


class _HeldText:
    """Pass on the text of a string, but hold back a quote in it, and a little that follows it.

    Attributes:
        held: the quote and what follows it.
    """

    __slots__ = ("_write", "held")

    def __init__(self, write: Write) -> None:
        self._write = write
        self.held = ""

    def write(self, piece: str, _: int) -> None:
        """Take a piece of the text."""
        if not self.held:
            self._write(quoted_text(piece))
            return
        self.held += piece
        if len(self.held) > _MAX_HELD:
            self.release()

    def hold(self, quote: str) -> None:
        """Hold back a quote."""
        self.release()
        self.held = quote

    def release(self) -> None:
        """Pass on what is held back."""
        if self.held:
            self._write(quoted_text(self.held))
            self.held = ""


def _ended(cursor: Cursor, follows: Follows, odd: bool) -> Steps[bool]:
    """Determine from what follows whether a quote that was read ends the string."""
    while True:
        if not odd and _CLEAN_END.match(cursor.text, cursor.pos):
            return True
        begun = follows.begun.match(cursor.text, cursor.pos)
        if not begun and (odd or not _CLEAN_BEGUN.match(cursor.text, cursor.pos)):
            return follows.whole.match(cursor.text, cursor.pos) is not None
        if cursor.closed:
            if cursor.cut:
                cursor.pos = len(cursor.text)
                raise EndOfOutputError("expected the end of a string")
            return True
        yield


def _escape(cursor: Cursor, write: Write) -> Steps[None]:
    """Read what follows a backslash."""
    char = yield from cursor.peek()
    if not char:
        cursor.fail("expected an escape")
    cursor.pos += 1
    if char in _ESCAPES:
        write(_ESCAPES[char])
    elif char in _CODES:
        digits = ""
        while len(digits) < _CODES[char]:
            digit = yield from cursor.peek()
            if not digit or digit not in "0123456789abcdefABCDEF":
                cursor.fail("expected a hexadecimal digit")
            digits += digit
            cursor.pos += 1
        write(_character(int(digits, 16)))
    elif char in "01234567":
        digits = char
        while len(digits) < 3 and (digit := (yield from cursor.peek())) and digit in "01234567":
            digits += digit
            cursor.pos += 1
        write(_character(int(digits, 8)))
    else:  # Python keeps the backslash of an unknown escape.
        write(quoted_text("\\" + char))


def _character(code: int) -> str:
    if code > 0x10FFFF:
        raise MalformedError("the escape does not name a character")
    if 0xD800 <= code < 0xE000:  # Half of a surrogate pair, which JSON can only escape.
        return f"\\u{code:04x}"
    return quoted_text(chr(code))


def _word(atom: str) -> str:
    """Convert a word or number of Python to JSON."""
    word = _WORDS.get(atom)
    if word is not None:
        return word
    if _JSON_NUMBER.fullmatch(atom):
        return atom
    try:
        if atom.lstrip("+-")[:2].lower() in ("0x", "0o", "0b"):
            return str(int(atom, 0))
        return str(int(atom, 10)) if atom.strip("+-0_123456789") == "" else _finite(float(atom))
    except (ValueError, OverflowError) as error:
        raise MalformedError(f"{atom!r} is not a literal", rest=atom) from error


def _finite(value: float) -> str:
    if value - value != 0:
        raise ValueError("JSON cannot represent this number")
    return repr(value)
