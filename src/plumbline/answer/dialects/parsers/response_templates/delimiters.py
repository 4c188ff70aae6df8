"""Search for the delimiters of a response template.

A search for a regular expression that may still be half written costs microseconds, and a template has several. Most of
them begin with plain text, white space before it aside, which is found in a fraction of the time. So a delimiter is
searched for only where its beginning stands; the result is the same.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from itertools import repeat
from typing import Any, Final, NamedTuple

from plumbline.answer.dialects.streams.cursor import Finder

__all__ = ["Delimiter", "Delimiters", "Found", "PatternHead", "head"]

SPACE: Final = (
    "\t\n\v\f\r \x85\xa0\u1680\u2000\u2001\u2002\u2003\u2004\u2005\u2006\u2007\u2008\u2009\u200a\u2028\u2029"
    "\u202f\u205f\u3000"
)
r"""What `\s` matches in the module `regex`: Unicode's white space, which is less than that of `str.isspace`."""

_TOKEN = re.compile(r"\\.|\[\^?\]?(?:\\.|[^\[\]\\])*\]|\(\?:|\(\?P<\w+>|.", re.DOTALL)
_QUANTIFIERS = frozenset("*+?{")
_ESCAPES = {r"\n": "\n", r"\t": "\t", r"\r": "\r"}


class PatternHead(NamedTuple):
    """The beginning of every text that a pattern matches."""

    texts: tuple[str, ...]
    """One of these, none of them empty."""
    padded: bool
    """White space of any amount may stand before it."""


class Delimiter(NamedTuple):
    """A pattern that opens or closes a region."""

    pattern: Any
    """A pattern of the module `regex`."""
    head: PatternHead | None
    settled: bool
    """A match at the end of the text stays the same, whatever follows."""
    field: Any
    """The field that it opens; None if it closes one."""


Found = tuple[int, Any, Any]
"""Where safe text ends, the delimiter after it (a match) if one is certain, and the field that it opens."""


class Delimiters:
    """The delimiters that may come next in one region. Immutable."""

    def __init__(self, delimiters: Sequence[Delimiter]) -> None:
        self._all = tuple(delimiters)
        self._headless = tuple(one for one in delimiters if one.head is None)
        heads = [one.head for one in delimiters if one.head is not None]
        self._padded = tuple(text for head in heads if head.padded for text in head.texts)
        texts = {text for head in heads for text in head.texts}
        self._apart = not any(one != other and one in other for one in texts for other in texts)
        self._begins: Callable[[str, int, bool], tuple[int, str | None]] = Finder(texts).search
        self._likely = {
            text: tuple(one for one in delimiters if one.head is None or text in one.head.texts)
            for text in (texts if self._apart else ())
            if text[0] not in SPACE
        }

    def search(self, text: str, pos: int, *, closed: bool) -> Found:
        """Find the first delimiter from `pos` on; of several at one place the longest, and openings before closings.

        Args:
            text: the text.
            pos: where to begin.
            closed: nothing follows the text.
        """
        hold = len(text)
        if pos > hold:
            return hold, None, None
        begins, whole = self._begins(text, pos, closed)
        if begins < hold:
            if whole is not None and (likely := self._likely.get(whole)):
                # No other delimiter begins within this one, so all others come later, and do not matter if one of
                # these is here or earlier.
                found = _search(likely, text, pos, hold, closed)
                if found[0] <= begins:
                    return found
            if whole is not None or not self._apart:
                return _search(self._all, text, pos, hold, closed)
            # Only a part of a beginning stands here, so nothing is certain from here on.
            hold = begins
            if any(map(str.startswith, self._padded, repeat(text[begins:]))):
                hold = max(pos, len(text[:begins].rstrip(SPACE)))
        if self._padded and not closed and hold > pos and text[-1] in SPACE:
            hold = min(hold, max(pos, len(text.rstrip(SPACE))))
        return _search(self._headless, text, pos, hold, closed) if self._headless else (hold, None, None)

    def begun(self, text: str, pos: int) -> int:
        """Return where text ends before a delimiter that the token limit has cut; a single character is text."""
        end = self.search(text, pos, closed=False)[0]
        rest = text[end:].lstrip()
        return end if len(rest) > 1 and not rest[0].isalnum() else len(text)


def _search(delimiters: Sequence[Delimiter], text: str, pos: int, hold: int, closed: bool) -> Found:
    """Search for each of these; text after `hold` may belong to another delimiter."""
    best: tuple[tuple[int, int, int], Any, Any] | None = None
    for pattern, _, settled, field in delimiters:
        match = pattern.search(text, pos) if closed else pattern.search(text, pos, partial=True)
        if match is None:
            continue
        start, end = match.span()
        if not closed and (match.partial or (end == len(text) and (start == end or not settled))):
            hold = min(hold, start)
            continue
        key = (start, start - end, 1 if field is None else 0)
        if best is None or key < best[0]:
            best = key, match, field
    if best is None or (best[0][0] >= hold and not closed):
        return hold, None, None
    return best[0][0], best[1], best[2]


def head(pattern: str) -> PatternHead | None:
    """Return the beginning of every match of a pattern; None if it is not known, which is always safe."""
    tokens = _TOKEN.findall(pattern)
    for token, following in zip(tokens, [*tokens[1:], ""], strict=True):
        # Sets of sets, flags, lookarounds and verbs change the meaning of the rest; `\K` moves the start of a match.
        if token in ("[", r"\K") or (token == "(" and following in ("?", "*")):
            return None
    return _head(tokens)


def _head(tokens: Sequence[str]) -> PatternHead | None:
    texts: list[str] = []
    padded: set[bool] = set()
    for alternative in _alternatives(tokens):
        # With `+` the text alone begins nothing, so its beginning is not known.
        spaced = alternative[:2] == [r"\s", "*"]
        if spaced:
            if alternative[2:3] in (["?"], ["+"]):
                return None
            alternative = alternative[2:]
        found = _first(alternative)
        if found is None:
            return None
        texts += found.texts
        padded.add(spaced or found.padded)
    # White space before one alternative does not stand before the others.
    return PatternHead(tuple(texts), padded.pop()) if len(padded) == 1 else None


def _first(tokens: list[str]) -> PatternHead | None:
    """Return the beginning of a sequence: of a group, or plain characters."""
    if tokens and tokens[0].startswith("("):
        depth = 0
        for index, token in enumerate(tokens):
            depth += token.startswith("(") - (token == ")")
            if depth == 0:
                return None if _repeated(tokens, index) else _head(tokens[1:index])
        return None
    text = ""
    for index, token in enumerate(tokens):
        char = _literal(token)
        if not char or _repeated(tokens, index):
            break
        text += char
    return PatternHead((text,), False) if text else None


def _repeated(tokens: Sequence[str], index: int) -> bool:
    """Whether a quantifier follows this token."""
    return index + 1 < len(tokens) and tokens[index + 1] in _QUANTIFIERS


def _literal(token: str) -> str:
    """Return the character that a token matches; empty if it matches several."""
    if token.startswith("\\"):
        plain = len(token) == 2 and not token[1].isalnum() and token[1] != "_"
        return _ESCAPES.get(token, token[1] if plain else "")
    return token if len(token) == 1 and token not in ".^$*+?{}[]()|" else ""


def _alternatives(tokens: Sequence[str]) -> list[list[str]]:
    """Split tokens at each `|` outside groups."""
    found: list[list[str]] = [[]]
    depth = 0
    for token in tokens:
        depth += token.startswith("(") - (token == ")")
        if token == "|" and depth == 0:
            found.append([])
        else:
            found[-1].append(token)
    return found
