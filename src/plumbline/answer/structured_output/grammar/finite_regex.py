"""List the texts of regexes that match only a few, such as `^score$` or `^(min|max)_[xy]$`."""

from __future__ import annotations

import re

__all__ = ["listed_texts"]

_TOKEN = re.compile(
    r"\\u[0-9A-Fa-f]{4}|\\x[0-9A-Fa-f]{2}|\\.|\{[0-9]+(?:,[0-9]*)?\}|\(\?:|\[(?:\\.|[^\\\]])*\]|.", re.DOTALL
)
_RANGE = re.compile(r"(\\.|[^\\])(?:-(\\.|[^\\]))?", re.DOTALL)
_MAX_DEPTH = 32
_MOST_WORK = 20_000
"""Texts that are put together for one regex."""


class _OtherError(Exception):
    """The regex matches many texts, or has syntax that is not read here."""


def listed_texts(pattern: str, most: int) -> list[str] | None:
    """Return the texts that a regex of ECMA-262 matches, if it is anchored at both ends and they are at most `most`.

    >>> listed_texts("^(min|max)_[xy]$", 10)
    ['min_x', 'min_y', 'max_x', 'max_y']
    """
    if not (pattern.startswith("^") and pattern.endswith("$")) or pattern.endswith("\\$"):
        return None
    reader = _Reader(_TOKEN.findall(pattern[1:-1]), most)
    try:
        found = reader.alternatives(0)
    except _OtherError:
        return None
    # An alternative at the top would be anchored at one end only: `^a|b$`.
    return found if reader.at_end and not reader.has_branches else None


class _Reader:
    def __init__(self, tokens: list[str], most: int) -> None:
        self._tokens = tokens
        self._most = most
        self._position = 0
        self._work = 0
        self.has_branches = False

    @property
    def at_end(self) -> bool:
        """Whether every token is read."""
        return self._position == len(self._tokens)

    def alternatives(self, depth: int) -> list[str]:
        """Read alternatives up to a closing bracket or the end."""
        if depth > _MAX_DEPTH:
            raise _OtherError
        found = self._sequence(depth)
        while self._peek() == "|":
            self._position += 1
            self.has_branches = self.has_branches or not depth
            found = found + self._sequence(depth)
        return self._few(found)

    def _sequence(self, depth: int) -> list[str]:
        found = [""]
        while self._peek() not in ("", "|", ")"):
            one = self._atom(depth)
            least, limit = self._times()
            repeated, times = [""] if not least else [], [""]
            for count in range(1, limit + 1):
                times = self._joined(times, one)
                repeated += times if count >= least else []
            found = self._joined(found, repeated)
        return found

    def _joined(self, before: list[str], after: list[str]) -> list[str]:
        self._work += len(before) * len(after)
        if self._work > _MOST_WORK:
            raise _OtherError
        return self._few([one + other for one in before for other in after])

    def _atom(self, depth: int) -> list[str]:
        token = self._tokens[self._position]
        self._position += 1
        if token in ("(", "(?:"):
            found = self.alternatives(depth + 1)
            if self._peek() != ")":
                raise _OtherError
            self._position += 1
            return found
        if token.startswith("[") and len(token) > 1:
            return self._class(token[1:-1])
        if token in ".*+?^$[]{}()|" or token.startswith("{"):
            raise _OtherError
        return [_character(token)]

    def _class(self, inside: str) -> list[str]:
        if inside.startswith("^") or not inside:
            raise _OtherError
        found: list[str] = []
        for low, high in _RANGE.findall(inside):
            first = _character(low)
            last = _character(high) if high else first
            if ord(last) - ord(first) > self._most:
                raise _OtherError
            found += map(chr, range(ord(first), ord(last) + 1))
        return self._few(found)

    def _times(self) -> tuple[int, int]:
        token = self._peek()
        if token == "?":
            self._position += 1
            return 0, 1
        if token.startswith("{") and len(token) > 1:
            self._position += 1
            least, comma, most = token[1:-1].partition(",")
            if (comma and not most) or int(most or least) > 8:
                raise _OtherError
            return int(least), int(most or least)
        if token in ("*", "+"):
            raise _OtherError
        return 1, 1

    def _few(self, texts: list[str]) -> list[str]:
        found = list(dict.fromkeys(texts))
        if len(found) > self._most:
            raise _OtherError
        return found

    def _peek(self) -> str:
        return self._tokens[self._position] if self._position < len(self._tokens) else ""


def _character(token: str) -> str:
    if len(token) == 1:
        return token
    if token[1] in "ux" and len(token) > 2:
        return chr(int(token[2:], 16))
    if token[1].isalnum():
        raise _OtherError  # A class such as `\\d`, or a reference.
    return token[1]
