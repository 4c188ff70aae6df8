"""Guard message text: characters of a control token that a client sends stay ordinary text in the rendered prompt."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import chain, islice

from plumbline.answer.dialects.streams.affixes import proper_prefixes, proper_suffixes

__all__ = ["Guard", "TokenPattern", "UnguardableTextError", "pattern_of"]

_FIRST_MARK = 0xE000
_WINDOW = 1 << 18
"""Characters that are searched at once; other threads run between two searches, each of which takes some
milliseconds."""
_ESCAPES = re.compile(r"\\u[0-9a-f]{4}")


class UnguardableTextError(ValueError):
    """The texts use every private-use character, so none is left for `Guard` to mark with."""


class TokenPattern:
    """Added tokens with a compiled pattern that finds them in text; built once per tokenizer."""

    def __init__(self, tokens: Iterable[str]) -> None:
        self.tokens = tuple(tokens)
        self.pattern = pattern_of({token: re.escape(token) for token in self.tokens})
        self.beginnings = proper_prefixes(self.tokens)
        self.ends = proper_suffixes(self.tokens)
        self._first = frozenset(end[0] for end in self.ends)
        self._last = frozenset(beginning[-1] for beginning in self.beginnings)
        self.longest = max(map(len, self.tokens), default=0)
        self.singles = tuple(token for token in self.tokens if len(token) == 1)

    def hidden(self, text: str, hide: Callable[[re.Match[str]], str]) -> str:
        """Return a text whose tokens are replaced, from left to right; of two at one place the longer."""
        if self.pattern is None:
            return text
        if len(text) <= _WINDOW:
            return self.pattern.sub(hide, text) if self.pattern.search(text) else text
        parts: list[str] = []
        start = 0
        while start < len(text):
            end = start + _WINDOW
            found = self.pattern.search(text, start, end + self.longest - 1)
            if found is None or found.start() >= end:
                parts.append(text[start:end])
                start = end
            else:
                parts += (text[start : found.start()], hide(found))
                start = found.end()
        return "".join(parts)

    def begins_with_end(self, text: str) -> bool:
        """Return whether a text begins like the end of a marker."""
        # Most texts of a large object are names and values of a few characters: one look decides about nearly all.
        if text[0] not in self._first:
            return False
        return any(text[:size] in self.ends for size in range(1, min(self.longest, len(text) + 1)))

    def ends_with_beginning(self, text: str) -> bool:
        """Return whether a text ends like the beginning of a marker."""
        if text[-1] not in self._last:
            return False
        return any(text[-size:] in self.beginnings for size in range(1, min(self.longest, len(text) + 1)))


class Guard:
    """Keep markers in message text from becoming control tokens.

    `protect` inserts marks between the characters of every marker, so that the prompt is not split there; `restore`
    removes the marks after splitting, also where a template has written the text as a JSON or Python literal and the
    mark as an escape. The mark is a private-use character that does not occur in the request, neither as itself nor as
    an escape. A text that ends like the beginning of a marker, or begins like the end of one, gets a mark there too, so
    that two adjacent texts cannot form a marker.

    Raises:
        UnguardableTextError: no private-use character is left.
    """

    def __init__(self, texts: Sequence[str], markers: TokenPattern | None = None) -> None:
        singles = () if markers is None else markers.singles
        self.mark, *stand_ins = _unused_marks(texts, 1 + len(singles))
        self._stand_ins = dict(zip(singles, stand_ins, strict=True))
        self._originals = {self.mark: "", _escaped(self.mark): ""}
        for single, stand_in in self._stand_ins.items():
            self._originals |= {stand_in: single, _escaped(stand_in): single}

    def protect(self, text: str, markers: TokenPattern) -> str:
        """Insert marks into every marker in the text."""
        if markers.pattern is None or not text:
            return text
        marked, before_it = markers.hidden(text, self._hidden), text
        while marked != before_it:  # Repeat, because markers may overlap.
            marked, before_it = markers.hidden(marked, self._hidden), marked
        before = self.mark if markers.begins_with_end(text) else ""
        after = self.mark if markers.ends_with_beginning(text) else ""
        return before + marked + after

    def marks_in(self, text: str) -> bool:
        """Return whether there are marks in a text."""
        return any(mark in text for mark in self._originals)

    def restore(self, piece: str) -> str:
        """Remove the marks."""
        for mark, original in self._originals.items():
            piece = piece.replace(mark, original)
        return piece

    def _hidden(self, match: re.Match[str]) -> str:
        # A marker of one character has no inside for a mark, so another character replaces it.
        return self.mark.join(self._stand_ins.get(character, character) for character in match.group())


def _escaped(mark: str) -> str:
    return f"\\u{ord(mark):04x}"


def _occurs(mark: str, texts: Sequence[str]) -> bool:
    escape = _escaped(mark)
    return any(mark in text or escape in text for text in texts)


def _unused_marks(texts: Sequence[str], count: int) -> list[str]:
    """Return private-use characters that are in none of the texts, neither as themselves nor as an escape."""
    first = [chr(_FIRST_MARK + index) for index in range(count)]
    if not any(_occurs(mark, texts) for mark in first):
        return first
    used = set(chain.from_iterable(texts)) | set(chain.from_iterable(map(_ESCAPES.findall, texts)))
    unused = (mark for mark in map(chr, range(_FIRST_MARK, 0xF900)) if not {mark, _escaped(mark)} & used)
    found = list(islice(unused, count))
    if len(found) < count:
        raise UnguardableTextError("The messages use every private-use character there is; leave one out.")
    return found


def pattern_of(tokens: Mapping[str, str]) -> re.Pattern[str] | None:
    """Return one pattern for all tokens, given the pattern of each; the longer of two with a common prefix wins."""
    if not tokens:
        return None
    longest_first = sorted(tokens, key=len, reverse=True)
    return re.compile("|".join(tokens[token] for token in longest_first))
