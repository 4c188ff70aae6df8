"""Find the repeated sequences that the DRY penalty punishes.

DRY ("don't repeat yourself", p-e-w, oobabooga/text-generation-webui#5677; definition as in llama.cpp) looks for earlier
places of the text that end like the text ends now. A token that followed such a place would extend the repetition, and
gets a penalty that grows exponentially with the length of the match. A sequence breaker ends a match.

The lengths are updated token by token: the place `i` matches `l(i - 1) + 1` tokens if its token is the newest one, and
none otherwise. That is a few NumPy operations over the window for each token; only the prompt takes one pass of the
Z-algorithm.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from plumbline.port.engine import Dry

__all__ = ["MAX_WINDOW", "DryHistory"]

MAX_WINDOW = 16384
"""Tokens that DRY looks at, at most. At this size a token costs about 0.05 ms, the start of a request about 10 ms."""

_MAX_LOG = 88.0
"""Logarithm of the largest penalty factor, so that the penalty fits fp32."""


class DryHistory:
    """The end of one request's tokens, with the length of the match at each place.

    Args:
        params: the penalty.
        token_ids: the prompt, and what was generated so far.
    """

    def __init__(self, params: Dry, token_ids: Sequence[int]) -> None:
        self._params = params
        self._window = min(MAX_WINDOW, params.last_n if params.last_n >= 0 else MAX_WINDOW)
        longest = max(map(len, params.breaker_sequences), default=0)
        tail = list(token_ids[-self._window :]) if self._window else []
        self._tokens: NDArray[np.int64] = np.array(tail, dtype=np.int64)
        self._tail_size = max(longest, 1)
        self._lengths, last_break = _begun(
            self._tokens.tobytes(), params.breaker_ids, params.breaker_sequences
        )
        self._since_break = len(tail) - last_break

    def accept(self, token_id: int) -> None:
        """Append a token."""
        if not self._window:
            return
        matches = self._tokens == token_id
        lengths = np.zeros(len(self._tokens) + 1, dtype=np.int64)
        # A place matches one token more than the place before it did, if its token is the new one.
        lengths[:-1][matches] = 1
        lengths[1:-1][matches[1:]] += self._lengths[:-1][matches[1:]]
        self._tokens = np.append(self._tokens, token_id)[-self._window :]
        self._lengths = lengths[-self._window :]
        self._count(self._tokens[-self._tail_size :].tolist())

    def penalties(self) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        """Return the tokens that would extend a repeated sequence, and the penalty to subtract from their logits."""
        params = self._params
        size = len(self._tokens)
        # A match cannot begin before the window or before the last breaker.
        lengths = np.minimum(self._lengths[:-1], np.arange(1, size)) if size > 1 else self._lengths[:0]
        lengths = np.minimum(lengths, self._since_break)
        places = np.flatnonzero(lengths >= params.allowed_length)
        if size <= params.allowed_length or self._since_break < params.allowed_length or not places.size:
            return np.zeros(0, dtype=np.int64), np.zeros(0)
        ids, group = np.unique(self._tokens[places + 1], return_inverse=True)
        longest = np.zeros(len(ids), dtype=np.int64)
        np.maximum.at(longest, group, lengths[places])
        limit = _MAX_LOG / math.log(params.base) if params.base > 1.000001 else math.inf
        exponents = np.minimum(longest - params.allowed_length, limit)
        return ids, params.multiplier * params.base**exponents

    def _count(self, tail: list[int]) -> None:
        """Count the tokens since the last breaker; `tail` ends with the newest token."""
        params = self._params
        breaks = tail[-1] in params.breaker_ids or any(
            tuple(tail[-len(sequence) :]) == sequence for sequence in params.breaker_sequences
        )
        self._since_break = 0 if breaks else self._since_break + 1


@lru_cache(maxsize=8)
def _begun(
    tokens: bytes, ids: frozenset[int], sequences: tuple[tuple[int, ...], ...]
) -> tuple[NDArray[np.int64], int]:
    """Return the lengths of matches and the last break of a prompt, which all choices of a request share."""
    found = np.frombuffer(tokens, dtype=np.int64)
    return suffix_matches(found.tolist()), _last_break(found, ids, sequences)


def _last_break(
    tokens: NDArray[np.int64], ids: frozenset[int], sequences: tuple[tuple[int, ...], ...]
) -> int:
    """Return the number of tokens through the end of the last breaker; 0 without a breaker."""
    singles = np.flatnonzero(np.isin(tokens, np.fromiter(ids, dtype=np.int64, count=len(ids))))
    last = int(singles[-1]) + 1 if singles.size else 0
    for sequence in sequences:
        # Earlier ends do not count.
        starts = np.arange(max(0, last - len(sequence)), max(0, len(tokens) - len(sequence) + 1))
        for offset in range(len(sequence) - 1, -1, -1):
            if not starts.size:
                break
            starts = starts[tokens[starts + offset] == sequence[offset]]
        if starts.size:
            last = max(last, int(starts[-1]) + len(sequence))
    return last


def suffix_matches(token_ids: Sequence[int]) -> NDArray[np.int64]:
    """Return for each place how many tokens up to it equal the last tokens of the sequence.

    The last place has 0: it is the end itself. This is the Z-algorithm over the reversed sequence, in linear time.
    """
    backwards = token_ids[::-1]
    size = len(backwards)
    found = [0] * size
    left = right = 0
    for place in range(1, size):
        length = min(right - place, found[place - left]) if place < right else 0
        while place + length < size and backwards[length] == backwards[place + length]:
            length += 1
        found[place] = length
        if place + length > right:
            left, right = place, place + length
    return np.array(found[::-1], dtype=np.int64)
