"""Determine from the text after a quote whether the quote ends a string.

The format has no escapes, so the quote of a string may also stand inside it. What follows decides: after the end of a
string the call continues with a comma and a parameter of the tool, or with brackets and the end of the call.

All functions look at text that has not been read, and return None while they need more of it.
"""

from __future__ import annotations

import re
from collections.abc import Collection

from plumbline.answer.dialects.streams.cursor import Finder

__all__ = ["QuoteLookahead", "after_space"]

_SPACE = re.compile(r"[ \t\r\n]*")
_KEY_AFTER = re.compile(
    r"""(?:QUOTE|["'])?([^\s,:{}\[\]<>|"']{1,64})(?:QUOTE|["'])?[ \t\r\n]{0,8}([:=])""".replace(
        "QUOTE", r"<[^<>]{1,16}>"
    )
)
_KEY_BEGUN = re.compile(
    r"""(?:<[^<>]{0,16}(?:>|\Z)|["'])?[^\s,:{}\[\]<>|"']{0,64}(?:<[^<>]{0,16}(?:>|\Z)|["'])?[ \t\r\n]{0,8}\Z"""
)
_VALUE_AFTER = re.compile(r"[\[{\-0-9]|[Tt]rue|[Ff]alse|null|None")
_VALUE_BEGUN = re.compile(r"(?:[Tt](?:ru?)?|[Ff](?:a(?:ls?)?)?|n(?:ul?)?|N(?:on?)?)\Z")
_UNOPENED = re.compile(r"[^<>{}\[\]\"\n]{0,128}")
_ANY_KEY = re.compile(r"[^,:={}\[\]]{1,200}")  # The caller checks that it has no quote.
_ANOTHER = re.compile(r",[ \t\r\n]*([A-Za-z_]\w{0,63})[ \t\r\n]*([:=])")


_OPENED = {"}": "{", "]": "[", ")": "("}


class QuoteLookahead:
    """Look at the text after the quotes of one call.

    Args:
        quote: the family's quote.
        ends: the markers that end a call (`CallSink.ends`).
        parameters: names after which `=` is read as `:`. After other words it may be prose inside a string.
    """

    def __init__(self, quote: str, ends: Finder, parameters: frozenset[str]) -> None:
        self._quote = quote
        self._ends = ends
        self._parameters = parameters

    def call_follows(
        self, text: str, pos: int, end: int, stack: str, names: Collection[str], quoting: bool, closes: bool
    ) -> bool | None:
        """Return whether text[pos:end], which comes after a quote, continues the call.

        The closing brackets are skipped, up to the first text that decides: the end of the call, or what comes after a
        comma.

        Args:
            text: the output so far.
            pos: where the quote ends.
            end: where the lookahead ends.
            stack: the brackets around the string.
            names: the members that may follow; empty if any may.
            quoting: a quotation inside the string is open: an odd number of its quotes came before.
            closes: it is the family's quote, and no quotation is open, so anything that the format allows may follow.
        """
        depth = len(stack)
        brackets = "}])" if stack.startswith("(") else "}]"
        while True:
            pos = after_space(text, pos, end)
            if pos >= end:
                return None
            char = text[pos]
            if not depth or char in self._ends.starts:
                certain, marker = self._ends.at(text, pos, False)
                complete = not depth and (closes or char in "}])")
                return (marker is not None or complete) if certain else None
            if char in brackets:
                if stack[depth - 1] != _OPENED[char]:
                    return False
                depth -= 1
                pos += 1
                continue
            if char != ",":  # A comma may be missing before a parameter of the tool.
                return depth == len(stack) and bool(names) and self._key_follows(text, pos, end, names)
            pos = after_space(text, pos + 1, end)
            if pos >= end:
                return None
            if text[pos] in "}]":
                continue
            if stack[depth - 1] != "[":
                return self._member_follows(text, pos, end, names if depth == len(stack) else (), closes)
            return self._element_follows(text, pos, end, quoting, closes)

    def _member_follows(
        self, text: str, pos: int, end: int, names: Collection[str], closes: bool
    ) -> bool | None:
        """Return whether a member of the object follows: one of `names`, or after a closing quote any member."""
        expected = self._key_follows(text, pos, end, names)
        if expected or not closes:
            return expected
        other = self._any_key_follows(text, pos, end)
        return None if expected is None and not other else other

    def _key_follows(self, text: str, pos: int, end: int, names: Collection[str]) -> bool | None:
        """Return whether a key follows: one of `names`, or any key (`_is_key`) if that is empty."""
        match = _KEY_AFTER.match(text, pos, end)
        if match is not None:
            return match[1] in names if names else self._is_key(match)
        return None if _KEY_BEGUN.match(text, pos, end) else False

    def has_member(self, text: str, names: Collection[str] | None) -> bool:
        """Return whether a member begins in a text: one of these, or any if None."""
        return any(
            self._is_key(match) if names is None else match[1] in names for match in _ANOTHER.finditer(text)
        )

    def _is_key(self, match: re.Match[str]) -> bool:
        """Return whether a word and its sign are a key, and not prose inside a string."""
        return match[2] == ":" or match[1] in self._parameters

    def _any_key_follows(self, text: str, pos: int, end: int) -> bool | None:
        """Return whether any key and the beginning of a value in the family's own format stand here."""
        quote = self._quote
        if text.startswith(quote, pos):
            close = text.find(quote, pos + len(quote), end)
            if close < 0:
                return None
            pos = after_space(text, close + len(quote), end)
        else:
            match = _ANY_KEY.match(text, pos, end)
            if match is None or quote in match.group():
                return False
            if match.end() >= end:
                return None
            pos = match.end()
        if pos >= end:
            return None
        if text[pos] not in ":=":
            return False
        pos = after_space(text, pos + 1, end)
        if pos >= end or quote.startswith(text[pos:end]):
            return None
        if text.startswith(quote, pos) or _VALUE_AFTER.match(text, pos, end):
            return True
        return None if _VALUE_BEGUN.match(text, pos, end) else False

    def _element_follows(self, text: str, pos: int, end: int, quoting: bool, closes: bool) -> bool | None:
        """Return whether an element of the array follows; while `quoting`, one that ends with a comma or bracket.

        After a closing quote it may be a string whose opening quote is missing.
        """
        if _VALUE_AFTER.match(text, pos):
            return True
        quote = text[pos] if text[pos] in "\"'" else self._quote
        if not text.startswith(quote, pos):
            if quote.startswith(text[pos:end]) or _VALUE_BEGUN.match(text, pos, end):
                return None
            return self._unopened_follows(text, pos, end) if closes else False
        if not quoting:
            return True
        close = text.find(quote, pos + len(quote), end)
        after = after_space(text, close + len(quote), end) if close >= 0 else end
        return None if after >= end else text[after] in ",]"

    def _unopened_follows(self, text: str, pos: int, end: int) -> bool | None:
        """Return whether a short text with a quote at its end alone follows, before a comma or the end of the array."""
        word = _UNOPENED.match(text, pos, end)
        assert word is not None
        if word.end() >= end or self._quote.startswith(text[word.end() : end]):
            return None
        if not word.group() or not text.startswith(self._quote, word.end()):
            return False
        after = after_space(text, word.end() + len(self._quote), end)
        return None if after >= end else text[after] in ",]"


def after_space(text: str, pos: int, end: int) -> int:
    """Return the position after the white space that begins at `pos`."""
    match = _SPACE.match(text, pos, end)
    assert match is not None
    return match.end()
