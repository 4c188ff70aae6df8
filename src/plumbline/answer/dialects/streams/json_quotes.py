"""Decide whether a quote ends a string, from what follows it, for models that do not escape quotes inside strings.

A quote ends its string unless the text after it shows that JSON cannot go on there. So valid JSON is never changed, and
a quote inside a string is one where neither a comma and another member, nor closing brackets, nor the end follow.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final, NamedTuple

from plumbline.answer.dialects.streams.cursor import Finder

__all__ = ["CLOSING", "NO_MARKERS", "QuotePlace", "quote_ends", "unclosed_key"]

CLOSING: Final = {'"': '"', "'": "'", "`": "`", "\u201c": "\u201d\u201c", "\u2018": "\u2019\u2018"}
"""Each quote that a string may begin with, and those that end it."""
NO_MARKERS: Final = Finder(())

_BOUND = 320
"""Characters after a quote that are looked at. What is not decided by then is taken for JSON."""
_SPACE = re.compile(r"(?:[ \t\r\n]|\\[nrt](?=[\s,}\]\[{\"'\\]))*")
_COMMAS = re.compile(r"(?:[ \t\r\n,]|\.{3}|\\[nrt](?=[\s,}\]\[{\"'\\])|//[^\n]*\n|/\*(?:[^*]|\*(?!/))*\*/)*")
_BEGUN_SPACE = re.compile(r"(?:\\[nrt]?|\.{1,2}|/(?:/[^\n]*|\*(?:[^*]|\*(?!/))*)?)?\Z")
_KEY = re.compile(r""""(?:[^"\\\n]|\\.)*"|'(?:[^'\\\n]|\\.)*'""")
_ELEMENT = re.compile(r""""(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*'""", re.DOTALL)
_ATOM = re.compile(r"(?:-?[0-9][-+.0-9eE]*|[Tt]rue|[Ff]alse|[Nn]one|null|NaN|undefined)(?=[ \t\r\n]*[,\]}])")
_BARE = re.compile(r"[\w-]{1,32}\"?(?=[ \t\r\n]*[,\]])")
_BEGUN_ATOM = re.compile(r"(?:-?[-+.0-9eE]*|[\w-]{0,32}\"?)[ \t\r\n]*\Z")
_HALF_KEY = re.compile(r"""[A-Za-z_$][\w$-]*"[ \t\r\n]*:[ \t\r\n]*["'\[{\-0-9tfnTFN]""")
_BEGUN_HALF_KEY = re.compile(r"""[A-Za-z_$][\w$-]*(?:"[ \t\r\n]*(?::[ \t\r\n]*)?)?\Z""")
_BARE_KEY = re.compile(r"[A-Za-z_$][\w$-]*[ \t\r\n]*:")
_BEGUN_KEY = re.compile(r"[A-Za-z_$][\w$-]*[ \t\r\n]*\Z")
_OPEN_KEY = re.compile(r"([A-Za-z_$][\w$-]{0,63})[ \t]*:")
_BEGUN_OPEN_KEY = re.compile(r"(?:[A-Za-z_$][\w$-]{0,63}[ \t]*)?\Z")
_OPEN_MEMBER = re.compile(
    r"""["'][A-Za-z_$][\w$-]{0,63}[ \t]*:[ \t]*(?:["'\[{]|-?[0-9]|[Tt]rue|[Ff]alse|[Nn]one|null)"""
)
_REST_OF_KEY: Final = {quote: re.compile(rf"(?:[^{quote}\\\n]|\\.)*({quote}|\n)?") for quote in "\"'"}
_BRACKET = re.compile(r"""\{[ \t\r\n]*["'}]|\[[ \t\r\n]*["'\[{\]\-0-9tfnTFN]""")
_BEGUN_BRACKET = re.compile(r"[{\[][ \t\r\n]*\Z")
_WORD = re.compile(r"\w")


class QuotePlace(NamedTuple):
    """Where in JSON a quote stands that may end a string."""

    stack: Sequence[str]
    """The brackets around the string, `{` or `[` each."""
    markers: Finder
    """What may end the whole JSON."""
    bare_keys: bool
    """An earlier key had no quotes."""
    nested: bool
    """The JSON is part of other JSON, so a comma or a bracket follows it."""
    odd: bool
    """An odd number of quotes inside the string came before, so this one may belong to the last of them."""
    clean: bool
    """All before this quote is JSON as it should be. So where brackets complete that, it is complete."""


def quote_ends(text: str, pos: int, place: QuotePlace, *, closed: bool) -> bool | None:
    """Return whether a quote ends the string of a value; None if more text decides it.

    Args:
        text: the text.
        pos: stands after the quote.
        place: where the quote stands.
        closed: nothing follows the text.
    """
    end = min(len(text), pos + _BOUND)
    last = closed or end - pos >= _BOUND
    found = _ends(text, pos, end, place, last)
    return True if found is None and last else found


def _ends(text: str, pos: int, end: int, place: QuotePlace, last: bool) -> bool | None:
    stack, markers, start = place.stack, place.markers, pos
    depth, stray, exact = len(stack), False, place.clean
    while True:
        pos = _skipped(text, pos, end)
        if _BEGUN_SPACE.match(text, pos, end):
            return None
        char = text[pos]
        if char in "}])":
            if not stack:
                return place.nested
            inner = _closed(char, stack, depth)
            stray = stray or inner is None
            exact = exact and inner == depth - 1
            depth = depth if inner is None else inner
            pos += 1
            if not depth:
                return exact or _after_all(text, pos, end, place)
            continue
        if char in markers.starts:
            certain, marker = markers.at(text, pos, False)
            if marker is not None or not certain:
                return certain or None
        if stray or not depth:
            return not depth and (char == "," or not place.nested)
        if char == ",":
            return _goes_on(text, pos + 1, end, place, depth)
        return pos > start and _without_comma(text, pos, end, place, depth, last)


def _without_comma(text: str, pos: int, end: int, place: QuotePlace, depth: int, last: bool) -> bool | None:
    """Return whether the next member or element follows without a comma."""
    bracket = place.stack[depth - 1]
    if text[pos] in "\"'":
        found = _has_next(text, pos, end, bracket)
        return False if found is None and last else found
    if bracket != "[" or place.odd:
        return False
    begun = None if last else _BEGUN_ATOM.match(text, pos, end)
    return None if begun else _ATOM.match(text, pos, end) is not None


def _closed(char: str, stack: Sequence[str], depth: int) -> int | None:
    """Return how many brackets are open after a closing one, which may close several at once; None if it is stray."""
    wanted = "{" if char == "}" else "["
    return next((level for level in range(depth - 1, -1, -1) if stack[level] == wanted), None)


def _after_all(text: str, pos: int, end: int, place: QuotePlace) -> bool | None:
    """Return whether the text after the last bracket may follow the whole JSON."""
    start = pos
    pos = _skipped(text, pos, end)
    if pos >= end:
        return None
    char = text[pos]
    if char in ",}])<" or char in place.markers.starts or (char == "{" and place.nested):
        return True
    return pos > start and (char in "{[" or not place.nested)


def _goes_on(text: str, pos: int, end: int, place: QuotePlace, depth: int) -> bool | None:
    """Return whether the text after a comma is the next member or element, or a closing bracket."""
    pos = _skipped(text, pos, end, _COMMAS)
    if _BEGUN_SPACE.match(text, pos, end):
        return None
    char, bracket = text[pos], place.stack[depth - 1]
    if char in "}]":
        return _closed(char, place.stack, depth) is not None
    if char in "\"'":
        return _has_next(text, pos, end, bracket) if bracket == "{" or place.odd else True
    if bracket == "{":
        return _has_bare_key(text, pos, end, bare=place.bare_keys)
    if char in "{[":
        if _BRACKET.match(text, pos, end):
            return True
        return None if _BEGUN_BRACKET.match(text, pos, end) else False
    if _ATOM.match(text, pos, end) or (not place.odd and _BARE.match(text, pos, end)):
        return True
    return None if _BEGUN_ATOM.match(text, pos, end) else False


def _has_bare_key(text: str, pos: int, end: int, *, bare: bool) -> bool | None:
    """Return whether a key stands here without its first quote, or without both if others have none."""
    if _HALF_KEY.match(text, pos, end) or (bare and _BARE_KEY.match(text, pos, end)):
        return True
    begun = _BEGUN_HALF_KEY.match(text, pos, end) or (bare and _BEGUN_KEY.match(text, pos, end))
    return None if begun else False


def _has_next(text: str, pos: int, end: int, bracket: str) -> bool | None:
    """Return whether a string stands here, with what follows a key or an element."""
    keyed = bracket == "{"
    if keyed and _OPEN_MEMBER.match(text, pos, end):
        return True  # Maybe without its closing quote.
    match = (_KEY if keyed else _ELEMENT).match(text, pos, end)
    if match is None:
        return False if keyed and text.find("\n", pos, end) >= 0 else None
    after = _skipped(text, match.end(), end)
    if after >= end:
        return None
    return text[after] in (":" if keyed else ",]}")


def unclosed_key(text: str, pos: int, quote: str, *, closed: bool) -> str | None:
    """Return the key that begins here if its closing quote is missing, as in `{"city: "Paris"}`.

    Args:
        text: the text.
        pos: stands after the quote that begins the key.
        quote: that quote.
        closed: nothing follows the text.

    Returns:
        The key; empty if it has its closing quote, which a colon follows; None if more text decides it.
    """
    end = min(len(text), pos + _BOUND)
    last = closed or end - pos >= _BOUND
    match = _OPEN_KEY.match(text, pos, end) if quote in _REST_OF_KEY else None
    if match is None:
        begun = not last and quote in _REST_OF_KEY and _BEGUN_OPEN_KEY.match(text, pos, end)
        return None if begun else ""
    rest = _REST_OF_KEY[quote].match(text, match.end(), end)
    assert rest is not None
    if rest[1] is None:
        return (match[1] if closed else "") if last else None
    after = _skipped(text, rest.end(), end)
    if after >= end and not last:
        return None
    return "" if rest[1] == quote and text[after : after + 1] in (*":=", "") else match[1]


def _skipped(text: str, pos: int, end: int, pattern: re.Pattern[str] = _SPACE) -> int:
    match = pattern.match(text, pos, end)
    assert match is not None
    return match.end()
