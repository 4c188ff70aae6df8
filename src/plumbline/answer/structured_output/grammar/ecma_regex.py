"""Translate ECMA-262 regexes of JSON Schema to the syntax of Rust's `regex`, which the grammar engine uses.

The two differ in details: what `.` and `\\s` match, what brackets inside a class mean, which letters may be escaped.
Every difference is translated or refused, because a regex with another meaning would allow invalid text.
"""

from __future__ import annotations

import re

from plumbline.answer.structured_output.grammar.errors import ConstraintError

__all__ = [
    "ENGINE_FORMATS",
    "FORMATS",
    "LENGTHS",
    "TEXT_FORMATS",
    "assertions",
    "check_repetitions",
    "in_rust_spelling",
    "match_whole",
    "to_rust_regex",
]

_SPACES = r"\t\n\x0B\x0C\r \u{A0}\u{1680}\u{2000}-\u{200A}\u{2028}\u{2029}\u{202F}\u{205F}\u{3000}\u{FEFF}"
_OUTSIDE = {
    ".": r"[^\n\r\u{2028}\u{2029}]",
    r"\s": f"[{_SPACES}]",
    r"\S": f"[^{_SPACES}]",
    r"\d": "[0-9]",
    r"\D": "[^0-9]",
    r"\w": "[0-9A-Za-z_]",
    r"\W": "[^0-9A-Za-z_]",
    r"\/": "/",
    r"\v": r"\x0B",
    r"\f": r"\x0C",
    r"\0": r"\x00",
}
_INSIDE = {**_OUTSIDE, r"\s": _SPACES, r"\d": "0-9", r"\w": "0-9A-Za-z_", r"\b": r"\x08", ".": r"\."}
# In Rust these have a meaning inside a class that they do not have in ECMA-262: nested classes and set operations.
_INSIDE |= {char: f"\\{char}" for char in "[&~"}

_PIECE = re.compile(
    r"\\u\{[0-9A-Fa-f]{1,6}\}|\\u[dD][89abAB][0-9A-Fa-f]{2}\\u[dD][c-fC-F][0-9A-Fa-f]{2}|\\u[0-9A-Fa-f]{4}|"
    r"\\x[0-9A-Fa-f]{2}|\\0[0-9]|\\[pP]\{[A-Za-z_=]+\}|\\.|\[\^?|\{\d+(?:,\d*)?\}|.|\n",
    re.DOTALL,
)
_LETTERS = frozenset("dDwWsSnrtfv0")
_MEANINGFUL = frozenset(r"\.+*?()|[]{}^$#&-~")
"""Characters that have a meaning somewhere in Rust's syntax, which takes few others after a backslash."""

_UNKNOWN = re.compile(r"\(\?(?:[^:P<]|<[=!]|\Z)|\[\^?\]")
_NO_LEAST = re.compile(r"\{,\d+\}")
_NONE_OF = r"[^\x00"
"""The start of a negated class. To the grammar engine a class with all control characters allows every escape, so that
`[^"]` would allow a quote. Control characters without a short escape cannot be written, so leaving one out changes
nothing else."""
_CONTROL = r"(?:0[0-7bBeEfF]|1[0-9a-fA-F]|7[fF])"
_UNWRITABLE = (
    rf"(?:\\0(?![0-9])|\\v|\\x{_CONTROL}|\\u00{_CONTROL}|\\u\{{0*(?:{_CONTROL}|[0-7bBeEfF])\}}"
    r"|[\x00-\x07\x0b\x0e-\x1f\x7f])"
)
_NOTHING = re.compile(rf"\[{_UNWRITABLE}+\]|{_UNWRITABLE}")
"""What no JSON text of the grammar can have. The engine drops such a character from a literal, so that `\\x01b` would
allow `b`."""
_NO_CHARACTER = r"[a&&b]"
_NULL = re.compile(r"\\(?:0|x00|u0000|u\{0{1,6}\})")

_TOO_MANY = re.compile(r"\{\d{5,}|\{\d+,\d{5,}")


def to_rust_regex(pattern: str) -> str:
    """Return the regex in Rust's syntax.

    Raises:
        ConstraintError: the regex uses a feature that the grammar engine or one of the two syntaxes does not have.
    """
    check_repetitions(pattern)
    found: list[str] = []
    inside, start = False, 0
    for match in _PIECE.finditer(pattern):
        if match.start() < start:
            continue
        piece = match.group()
        if not inside and (nothing := _NOTHING.match(pattern, match.start())) is not None:
            found.append(_NO_CHARACTER)
            start = nothing.end()
            continue
        if not inside and _UNKNOWN.match(pattern, match.start()):
            raise ConstraintError(f"The pattern {pattern[:80]!r} uses look-around, flags or an empty class.")
        if inside:
            inside = piece != "]"
            found.append(_in_class(piece, pattern))
        elif piece in ("[", "[^"):
            inside = True
            found.append(piece if piece == "[" else _NONE_OF)
        elif piece == "{" and _NO_LEAST.match(pattern, match.start()):
            # Python reads `{,2}` as up to two, ECMA-262 as five characters.
            raise ConstraintError(
                f"The pattern {pattern[:80]!r} has a repetition without a lower bound; write {{0,n}}."
            )
        else:
            found.append(_outside(piece, pattern))
    return "".join(found)


def match_whole(pattern: str) -> str:
    """Return a translated regex that matches a whole text if the original matches a part of it.

    Anchors at the ends of its outermost alternatives are removed; `rust_regex.pieces` refuses others.
    """
    found = []
    for branch in _branches(pattern):
        before, after = "(?s:.*)", "(?s:.*)"
        if branch.startswith("^"):
            branch, before = branch[1:], ""
        if re.search(r"(?<!\\)(?:\\\\)*\$\Z", branch):
            branch, after = branch[:-1], ""
        found.append(f"{before}(?:{branch}){after}")
    return "|".join(found)


def _branches(pattern: str) -> list[str]:
    """Return the outermost alternatives of a regex."""
    found = [""]
    depth, inside = 0, False
    for match in _PIECE.finditer(pattern):
        piece = match.group()
        if inside:
            inside = piece != "]"
        elif piece in ("[", "[^"):
            inside = True
        elif piece in ("(", ")"):
            depth += 1 if piece == "(" else -1
        elif piece == "|" and not depth:
            found.append("")
            continue
        found[-1] += piece
    return found


def assertions(pattern: str) -> list[str]:
    """Split a regex into several that must all match, so that none begins with a look-ahead.

    Passwords (`^(?=.*[0-9])(?=.*[a-z]).{8,}$`) and pydantic's decimals (`^(?!^[-+.]*$)…`) begin with some. A negative
    one is rewritten if it excludes the texts of one class of characters: then another character must occur.

    >>> assertions("^(?=.*[0-9]).{8,}$")
    ['^.{8,}$', '^(?:.*[0-9])']
    """
    if not pattern.startswith(("^(?=", "^(?!", "(?=", "(?!")) or len(_branches(pattern)) > 1:
        return [pattern]
    anchored = pattern.startswith("^")
    found: list[str] = []
    rest = pattern.removeprefix("^")
    while anchored and rest.startswith(("(?=", "(?!")) and len(found) < _MOST_ASSERTIONS:
        end = _closing(rest)
        inner = rest[3:end]
        if rest.startswith("(?="):
            found.append(f"^(?:{inner.removeprefix('^')})")
        elif (complement := _complement(inner)) is not None:
            found.append(complement)
        else:
            break
        rest = rest[end + 1 :]
    return [f"^{rest}", *found] if found else [pattern]


_MOST_ASSERTIONS = 16
_ONE = r"(\[(?!\^)(?:[^\\\]]|\\.)+\]|\\[sdw]|\\[^A-Za-z0-9]|[^\\\[\](){}.*+?^$|])"
_ONLY = re.compile(rf"\^?(?:{_ONE}\*)?\$")
_FIRST = re.compile(rf"\^?{_ONE}")
_TWICE = re.compile(rf"\^?\.\*{_ONE}\1")


def _complement(excluded: str) -> str | None:
    """Return a regex for the texts that do not begin like another; None if that is not simple.

    Dots of ECMA-262 stop at line ends; where `(?!.*--)` would allow a repetition in a later line, this does not.
    """
    if (only := _ONLY.fullmatch(excluded)) is not None:  # Texts of one class of characters.
        return r"^(?:.|[\n\r\u2028\u2029])" if only[1] is None else f"[^{_inside(only[1])}]"
    if (first := _FIRST.fullmatch(excluded)) is not None:
        return f"^$|^[^{_inside(first[1])}]"
    if (twice := _TWICE.fullmatch(excluded)) is not None and not twice[1].startswith("["):
        one, other = twice[1], f"[^{_inside(twice[1])}]"
        return f"^{one}?(?:{other}+{one})*{other}*$"
    return None


def _inside(one: str) -> str:
    return one[1:-1] if one.startswith("[") else one


def _closing(text: str) -> int:
    """Return where the group ends that a text begins with; its length if it does not end."""
    depth, inside = 0, False
    for match in _PIECE.finditer(text):
        piece = match.group()
        if inside:
            inside = piece != "]"
        elif piece in ("[", "[^"):
            inside = True
        elif piece in ("(", ")"):
            depth += 1 if piece == "(" else -1
            if not depth:
                return match.start()
    return len(text)


def in_rust_spelling(pattern: str) -> str:
    r"""Return a regex of a request with what Python and ECMA-262 write in another way than Rust.

    To Rust `\<` is the start of a word, and `{,3}` an error.

    >>> in_rust_spelling(r"\<a{,3}\Z")
    '<a{0,3}\\z'
    """

    def spelled(found: re.Match[str]) -> str:
        piece = found[0]
        if piece[0] == "[":  # `{,` has no meaning in a class.
            return _ESCAPED.sub(lambda escape: _RUST_SPELLING.get(escape[0], escape[0]), piece)
        return _RUST_SPELLING.get(piece, piece)

    return _OTHER_SPELLING.sub(spelled, pattern)


_ESCAPED = re.compile(r"\\.", re.DOTALL)
_OTHER_SPELLING = re.compile(r"\\.|\[\^?\]?(?:\\.|[^\]\\])*\]|\{,(?=\d+\})", re.DOTALL)
_RUST_SPELLING = {r"\Z": r"\z", r"\<": "<", r"\>": ">", "{,": "{0,"}


def check_repetitions(pattern: str) -> None:
    """Check the bounds of counted repetitions, which are unfolded when masks are computed.

    Raises:
        ConstraintError: a bound of a repetition is above 9999.
    """
    if _TOO_MANY.search(pattern):
        raise ConstraintError(f"The pattern {pattern[:80]!r} repeats something more than 9999 times.")


def _outside(piece: str, pattern: str) -> str:
    _check_escape(piece, pattern)
    if piece == "{":
        return r"\{"  # ECMA-262, B.1.2: a brace that begins no quantifier is a character.
    return _OUTSIDE.get(piece) or _escaped(piece)


def _in_class(piece: str, pattern: str) -> str:
    if _NULL.fullmatch(piece):
        return r"\x01"  # See `_NONE_OF`.
    if piece != r"\b":
        _check_escape(piece, pattern)
    # Inside a class, `[^` is two characters.
    return (
        "".join(_INSIDE.get(char, char) for char in piece)
        if piece == "[^"
        else _INSIDE.get(piece) or _escaped(piece)
    )


def _escaped(piece: str) -> str:
    """Return an escaped character in Rust's syntax; ECMA-262 takes every character after a backslash."""
    if len(piece) == 12:
        high, low = int(piece[2:6], 16), int(piece[8:], 16)  # Half of a surrogate pair is no character.
        return rf"\u{{{0x10000 + (high - 0xD800) * 0x400 + low - 0xDC00:x}}}"
    if len(piece) != 2 or piece[0] != "\\" or (piece[1].isascii() and piece[1].isalnum()):
        return piece
    return piece if piece[1] in _MEANINGFUL else piece[1]


def _check_escape(piece: str, pattern: str) -> None:
    letter = piece[1:2]
    if len(piece) == 3 and piece.startswith(r"\0"):
        raise ConstraintError(f"The pattern {pattern[:80]!r} has an octal escape, which is not supported.")
    if (
        piece[0] == "\\"
        and len(piece) == 2
        and letter.isascii()
        and letter.isalnum()
        and letter not in _LETTERS
    ):
        raise ConstraintError(f"The pattern {pattern[:80]!r} uses {piece}, which is not supported.")


_MONTHS = (
    "(?:0[13578]|1[02])-(?:0[1-9]|[12][0-9]|3[01])|(?:0[469]|11)-(?:0[1-9]|[12][0-9]|30)"
    "|02-(?:0[1-9]|1[0-9]|2[0-8])"
)
_LEAP = "(?:[0-9]{2}(?:0[48]|[2468][048]|[13579][26])|(?:[02468][048]|[13579][26])00)-02-29"
_DATE = f"(?:[0-9]{{4}}-(?:{_MONTHS})|{_LEAP})"
_TIME = (
    r"(?:[01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](?:\.[0-9]{1,9})?(?:Z|[+-](?:[01][0-9]|2[0-3]):[0-5][0-9])"
)

FORMATS = {"date": f"^{_DATE}$", "time": f"^{_TIME}$", "date-time": f"^{_DATE}T{_TIME}$"}
"""Regexes for formats where the grammar engine allows more than RFC 3339: impossible days, leap seconds at any time.

They require capital letters and allow no leap seconds and at most nine digits of a second, which all parsers accept.
"""

_LABELS = r"[^@.]{1,63}(\.[^@.]{1,63})*"
LENGTHS = {
    "email": (r"^[^@]{1,64}@[^@]{1,250}$", f"^[^@]+@{_LABELS}$"),
    "hostname": (r"^[^@]{1,253}$", f"^{_LABELS}$"),
}
"""Regexes for lengths of formats that the grammar engine does not bound: 64 characters before the `@`, 63 of a label,
253 of a name (RFC 5321 section 4.5.3.1, RFC 1035 section 2.3.4)."""

ENGINE_FORMATS = frozenset((*LENGTHS, "duration", "ipv4", "ipv6", "uri", "uuid"))
"""Formats that the grammar engine enforces; `LENGTHS` adds to two of them."""

_HEX = "[0-9a-fA-F]"
_BYTE = "(?:25[0-5]|2[0-4][0-9]|1[0-9][0-9]|[1-9]?[0-9])"
TEXT_FORMATS = {
    **FORMATS,
    "uuid": f"^{_HEX}{{8}}-{_HEX}{{4}}-{_HEX}{{4}}-{_HEX}{{4}}-{_HEX}{{12}}$",
    "ipv4": rf"^{_BYTE}(?:\.{_BYTE}){{3}}$",
}
"""Regexes of formats for unquoted texts and names, which the engine's formats do not apply to."""
