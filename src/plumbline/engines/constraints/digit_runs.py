"""End numbers that would never end: a grammar of JSON allows any number of digits, and some models never stop.

After 80 digits in a row a number must end, if it may; an exponent after two. So every number of an answer is finite,
and no answer is digits up to its token limit. Texts, and grammars that are not JSON, are left alone: there other
characters than those of a number may follow as well.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

__all__ = ["DigitRun", "DigitRunMatcher", "DigitTokens", "digit_tokens"]

_MOST_DIGITS = 80
"""Digits of an integer part or a fraction; 256 bits have 78."""
_MOST_EXPONENT = 2
_DIGITS = b"0123456789"
_MOST_UNDONE = 256
"""Tokens that may be undone; speculation undoes some tens."""
_OTHERS = (b'"', b"a", b"x", b"Z", b"_")
"""If one of these may follow, the digits are in a text."""


class DigitTokens(NamedTuple):
    """What a vocabulary has of digits.

    Attributes:
        tokens: the bytes of each token.
        keep: a mask row without the tokens that begin with a digit.
        others: ids of tokens that no number has.
    """

    tokens: Sequence[bytes]
    keep: NDArray[np.int32]
    others: tuple[int, ...]


class DigitRun(NamedTuple):
    """The digits at the end of a text.

    Attributes:
        num_digits: how many they are.
        before: the last two bytes before them.
    """

    num_digits: int = 0
    before: bytes = b""

    def after(self, token: bytes) -> DigitRun:
        """Return the digits at the end of the text with one more token."""
        rest = token.rstrip(_DIGITS)
        if not rest:
            return DigitRun(self.num_digits + len(token), self.before)
        last = b"0" if self.num_digits else self.before[-1:]
        return DigitRun(len(token) - len(rest), (last + rest)[-2:])

    @property
    def is_long(self) -> bool:
        """Whether a number with these digits should end."""
        if self.num_digits < _MOST_EXPONENT:
            return False
        before = self.before[:-1] if self.before[-1:] in (b"+", b"-") else self.before
        is_exponent = before[-1:] in (b"e", b"E")
        return self.num_digits >= (_MOST_EXPONENT if is_exponent else _MOST_DIGITS)


def digit_tokens(tokens: Sequence[bytes], words: int) -> DigitTokens:
    """Return what a vocabulary has of digits; `words` is the length of a mask row."""
    begins = np.zeros(words * 32, dtype=np.uint8)
    for token_id, token in enumerate(tokens):
        if token and token[0] in _DIGITS:
            begins[token_id] = 1
    keep = np.invert(np.packbits(begins, bitorder="little").view(np.int32))
    ids = {token: token_id for token_id, token in enumerate(tokens) if token in _OTHERS}
    return DigitTokens(tokens, keep, tuple(ids.values()))


def _shorten(row: NDArray[np.int32], known: DigitTokens) -> None:
    """Take the digits out of a mask, if it is the mask inside a number that may end here."""
    if any(int(row[token_id >> 5]) >> (token_id & 31) & 1 for token_id in known.others):
        return
    rest = row & known.keep
    if rest.any():
        row[:] = rest


class _Inner(Protocol):
    """What is wrapped; see `plumbline.engines.constraints.grammar.Matcher`."""

    def mask_into(self, row: NDArray[np.int32]) -> None: ...
    def accept(self, token_id: int) -> bool: ...
    def rollback(self, num_tokens: int) -> None: ...
    def copy(self) -> _Inner: ...
    @property
    def may_be_slow(self) -> bool: ...
    def prepare(self) -> None: ...
    @property
    def is_done(self) -> bool: ...


class DigitRunMatcher:
    """Wrap the matcher of a grammar of JSON: end numbers that have become long.

    See `plumbline.engines.constraints.grammar.Matcher`.
    """

    def __init__(self, inner: _Inner, known: DigitTokens, runs: deque[DigitRun] | None = None) -> None:
        self._inner = inner
        self._known = known
        self._runs = deque([DigitRun()], maxlen=_MOST_UNDONE) if runs is None else runs
        """The digits after each of the last tokens."""

    def mask_into(self, row: NDArray[np.int32]) -> None:
        """Write the next mask."""
        self._inner.mask_into(row)
        if self._runs[-1].is_long:
            _shorten(row, self._known)

    def accept(self, token_id: int) -> bool:
        """Advance by a token."""
        self._runs.append(self._runs[-1].after(self._known.tokens[token_id]))
        return self._inner.accept(token_id)

    def rollback(self, num_tokens: int) -> None:
        """Undo the last tokens."""
        for _ in range(min(num_tokens, len(self._runs) - 1)):
            self._runs.pop()
        self._inner.rollback(num_tokens)

    def copy(self) -> DigitRunMatcher:
        """Return a matcher in the same state."""
        return DigitRunMatcher(self._inner.copy(), self._known, self._runs.copy())

    @property
    def may_be_slow(self) -> bool:
        """Whether masks and tokens may take long from here."""
        return self._inner.may_be_slow

    def prepare(self) -> None:
        """Compute the next mask."""
        self._inner.prepare()

    @property
    def is_done(self) -> bool:
        """Whether the text is complete."""
        return self._inner.is_done
