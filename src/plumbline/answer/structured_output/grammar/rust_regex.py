"""Parse regexes in the syntax of Rust's `regex`, to rewrite them for text inside a JSON string.

A regex becomes pieces that are copied (groups, alternatives, quantifiers) and pieces that match one character. A piece
that matches one character also has the set of those characters that JSON escapes, such as a quote or a line feed.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator

import msgspec

from plumbline.answer.structured_output.grammar.ecma_regex import check_repetitions, in_rust_spelling
from plumbline.answer.structured_output.grammar.errors import ConstraintError

__all__ = ["ESCAPES", "OneOf", "Piece", "escaped_piece", "literal", "pieces"]

ESCAPES = {'"': '\\"', "\\": "\\\\", "\n": "\\n", "\r": "\\r", "\t": "\\t", "\b": "\\b", "\f": "\\f"}
"""The characters with a short escape in JSON, and that escape. Other characters are written as themselves."""

_ALL = frozenset(ESCAPES)
_RAW = r'[^"\\\x00-\x1f]'
"""A class of the characters that are not escaped in a JSON string."""


class OneOf(msgspec.Struct, frozen=True):
    """A piece that matches one character of a class."""

    inside: str
    """The class in a form that may stand between the brackets of another class, such as `\\x{61}` or `[a-z]`."""
    escaped: frozenset[str]
    """The characters of the class that JSON escapes."""


Piece = str | OneOf
"""A part of a regex that is copied, or one that matches a character."""


def literal(text: str) -> list[Piece]:
    """Return the pieces that match exactly this text."""
    return [_char(char) for char in text]


def escaped_piece(piece: OneOf) -> str:
    """Return a regex for the same character inside a JSON string."""
    options = [re.escape(ESCAPES[char]) for char in sorted(piece.escaped)]
    single = _SINGLE.fullmatch(piece.inside)
    if single is not None:
        if options:
            return f"(?-i:{options[0]})"
        if int(single.group(1), 16) >= 0x20:
            return piece.inside
    raw = f"[{piece.inside}&&{_RAW}]"
    if not options:
        return raw
    # The letters of escapes stay case-sensitive, even in a case-insensitive regex.
    return f"(?:{raw}|(?-i:{'|'.join(options)}))"


def pieces(pattern: str) -> list[Piece]:
    """Parse a regex into pieces.

    An equivalent regex is the pieces in order, with `[{piece.inside}]` for each `OneOf`.

    Raises:
        ConstraintError: the regex has a feature that cannot be rewritten for JSON: inner anchors, look-around, flags
            other than `i`, `m`, `s` and `u`, character properties other than general categories.
    """
    pattern = in_rust_spelling(pattern)
    check_repetitions(pattern)
    return list(_Reader(pattern).pieces())


def _char(char: str) -> OneOf:
    return OneOf(rf"\x{{{ord(char):x}}}", _ALL & {char})


class _Reader:
    def __init__(self, pattern: str) -> None:
        self._pattern = pattern
        self._pos = 0
        self._dot_all = [False]
        """For each open group, whether `.` matches a line feed."""

    def pieces(self) -> Iterator[Piece]:
        pattern = self._pattern
        while self._pos < len(pattern):
            char = pattern[self._pos]
            if char == "[":
                yield self._class()
            elif char == "\\":
                yield self._escape()
            elif char == "(":
                yield self._group()
            else:
                self._pos += 1
                if char == ")":
                    if len(self._dot_all) == 1:
                        raise self._error("has a ')' without a '('")
                    self._dot_all.pop()
                    yield char
                elif char == ".":
                    yield OneOf(r"[\s\S]", _ALL) if self._dot_all[-1] else OneOf(r"[^\n]", _ALL - {"\n"})
                elif char in "^$":
                    self._check_anchor(char)
                elif char in "|*+?":
                    yield char
                elif char == "{":
                    yield self._counted()
                else:
                    yield _char(char)
        if len(self._dot_all) > 1:
            raise self._error("has a '(' that is not closed")

    def _error(self, reason: str) -> ConstraintError:
        return ConstraintError(f"The pattern {self._pattern[:80]!r} {reason}.")

    def _check_anchor(self, char: str) -> None:
        """Refuse anchors inside the regex; those at its ends have no effect, because the whole text must match."""
        at_end = self._pos == (1 if char == "^" else len(self._pattern))
        if not at_end or self._has_branches():
            raise self._error(f"has {char} in a place that is not supported")

    def _has_branches(self) -> bool:
        """Return whether the regex has outer alternatives; an anchor at the end would belong to only one of them."""
        depth, inside, escaped = 0, False, False
        for char in self._pattern:
            if escaped or char == "\\":
                escaped = not escaped
            elif inside or char == "[":
                inside = char != "]"
            elif char in "()":
                depth += 1 if char == "(" else -1
            elif char == "|" and not depth:
                return True
        return False

    def _counted(self) -> str:
        match = re.compile(r"[0-9]+(,[0-9]*)?\}").match(self._pattern, self._pos)
        if match is None:
            raise self._error("has a '{' that does not begin a repetition")
        self._pos = match.end()
        return "{" + match.group()

    def _group(self) -> str:
        match = _GROUP.match(self._pattern, self._pos)
        if match is None:
            raise self._error("uses look-around")
        self._pos = match.end()
        on, off, end = match["on"], match["off"] or "", match["end"]
        if on is None:
            self._dot_all.append(self._dot_all[-1])
            return "(?:"
        if set(on + off) - set("imsu"):
            raise self._error("uses flags other than i, m, s and u")
        if "u" in off:
            raise self._error("matches bytes that are not text")
        dots = "s" in on or (self._dot_all[-1] and "s" not in off)
        case = ("i" if "i" in on else "") + ("-i" if "i" in off else "")
        if end == ":":
            self._dot_all.append(dots)
            return f"(?{case}:"
        self._dot_all[-1] = dots
        return f"(?{case})" if case else ""

    def _escape(self) -> OneOf:
        """Parse an escape outside or inside a class."""
        match = _ESCAPE.match(self._pattern, self._pos)
        if match is None:
            raise self._error("ends inside an escape")
        text = match.group()
        self._pos = match.end()
        letter = text[1]
        if letter in "dDwWsS":
            return OneOf(f"[{text}]", frozenset(char for char in _ALL if re.match(text, char)))
        if letter in "pP":
            name = match["name"] or match["one"]
            return OneOf(f"[{text}]", self._of_category(name, negated=letter == "P"))
        if match["code"] is not None or match["hex"] is not None:
            code = int(match["code"] or match["hex"], 16)
            if code > 0x10FFFF or 0xD800 <= code < 0xE000:
                raise self._error("names a character that does not exist")
            return _char(chr(code))
        if letter in _LETTERS:
            return _char(_LETTERS[letter])
        if letter.isalnum() or letter in "<>":  # `\<` and `\>` are word boundaries, which need look-around.
            raise self._error(f"uses {text}, which is not supported")
        return _char(letter)

    def _of_category(self, name: str, *, negated: bool) -> frozenset[str]:
        """Return the characters that JSON escapes and that belong to a general category."""
        if name.startswith("^"):
            name, negated = name[1:], not negated
        short = _CATEGORIES.get(name.replace("_", "").lower(), name)
        if len(short) > 2 or short[:1] not in "CLMNPSZ":
            raise self._error(f"uses the property {name[:40]!r}, which is not supported inside JSON")
        found = frozenset(char for char in _ALL if unicodedata.category(char).startswith(short))
        return _ALL - found if negated else found

    def _class(self) -> OneOf:
        """Parse a class, with nested classes and set operations."""
        start = self._pos
        self._pos += 1
        negated = self._take("^")
        dashes = False  # Hyphens at the beginning of a class are literal.
        while self._take("-"):
            dashes = True
        whole: frozenset[str] | None = None  # The result of the set operations so far.
        operation = ""
        found: frozenset[str] = frozenset()
        first = not dashes  # A `]` at the beginning of a class is literal, but not after hyphens.
        while True:
            if self._pos >= len(self._pattern):
                raise self._error("has a class that is not closed")
            rest = self._pattern[self._pos : self._pos + 2]
            if rest[0] == "]" and not first:
                self._pos += 1
                break
            first = False
            if rest in ("&&", "--", "~~"):
                whole, operation, found = _combined(whole, operation, found), rest, frozenset()
                self._pos += 2
                continue
            found |= self._class_element()
        found = _combined(whole, operation, found)
        return OneOf(self._pattern[start : self._pos], _ALL - found if negated else found)

    def _class_element(self) -> frozenset[str]:
        """Parse one element of a class: a character, a range, or a class."""
        named = _NAMED.match(self._pattern, self._pos)
        if named is not None:
            self._pos = named.end()
            if named["name"] not in _POSIX:
                raise self._error(f"uses {named.group()}, which is not supported")
            found = frozenset(_POSIX[named["name"]]) & _ALL
            return _ALL - found if named["not"] else found
        if self._pattern[self._pos] == "[":
            return self._class().escaped
        low = self._single()
        if isinstance(low, frozenset):
            return low
        if self._pattern[self._pos : self._pos + 1] == "-" and self._pattern[
            self._pos + 1 : self._pos + 2
        ] not in ("]", "-", ""):
            self._pos += 1
            high = self._single()
            if isinstance(high, frozenset) or high < low:
                raise self._error("has an invalid range")
            return frozenset(char for char in _ALL if low <= char <= high)
        return _ALL & {low}

    def _single(self) -> str | frozenset[str]:
        """Parse a character of a class; returns a set for an escape that matches several."""
        char = self._pattern[self._pos]
        if char != "\\":
            self._pos += 1
            return char
        found = self._escape()
        code = _SINGLE.fullmatch(found.inside)
        return found.escaped if code is None else chr(int(code.group(1), 16))

    def _take(self, text: str) -> bool:
        found = self._pattern.startswith(text, self._pos)
        self._pos += len(text) if found else 0
        return found


def _combined(whole: frozenset[str] | None, operation: str, found: frozenset[str]) -> frozenset[str]:
    """Apply a set operation to two classes; all have the same precedence, from the left."""
    if whole is None:
        return found
    match operation:
        case "&&":
            return whole & found
        case "--":
            return whole - found
        case _:
            return whole ^ found


_SINGLE = re.compile(r"\\x\{([0-9a-f]+)\}")
_GROUP = re.compile(r"\((?:\?(?:P?<\w+>|(?P<on>[a-zA-Z]*)(?:-(?P<off>[a-zA-Z]+))?(?P<end>[:)]))|(?!\?))")
_ESCAPE = re.compile(
    r"\\(?:[pP](?:\{(?P<name>[^}]*)\}|(?P<one>.))|[xuU]\{(?P<code>[0-9A-Fa-f]{1,8})\}"
    r"|(?:x(?=[0-9A-Fa-f]{2})|u(?=[0-9A-Fa-f]{4})|U(?=[0-9A-Fa-f]{8}))"
    r"(?P<hex>(?<=x)[0-9A-Fa-f]{2}|(?<=u)[0-9A-Fa-f]{4}|(?<=U)[0-9A-Fa-f]{8})|.)",
    re.DOTALL,
)
_NAMED = re.compile(r"\[:(?P<not>\^?)(?P<name>[a-z]+):\]")
_LETTERS = {"n": "\n", "r": "\r", "t": "\t", "f": "\f", "v": "\v", "a": "\a"}
_POSIX = {
    **dict.fromkeys(("alnum", "alpha", "digit", "lower", "upper", "word", "xdigit"), ""),
    **dict.fromkeys(("graph", "print", "punct"), '"\\'),
    "ascii": "".join(ESCAPES),
    "blank": "\t",
    "cntrl": "\n\r\t\b\f",
    "space": "\n\r\t\f",
}
_CATEGORIES = {
    "letter": "L",
    "uppercaseletter": "Lu",
    "lowercaseletter": "Ll",
    "mark": "M",
    "number": "N",
    "decimalnumber": "Nd",
    "punctuation": "P",
    "symbol": "S",
    "separator": "Z",
    "other": "C",
    "control": "Cc",
}
