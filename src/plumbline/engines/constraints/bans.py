"""Forbid token sequences and texts in an output.

Bans are a matcher, as grammars are, and wrap the answer's other matchers: before each draw they take away the
tokens that would complete a banned sequence or a banned text. So the output never contains one, without rewinding.

A text is matched over the bytes of the tokens, with ASCII letters in either case. It may be completed from inside
earlier tokens: if the output ends with the first k bytes of a banned text, all tokens that begin with the rest of it
are forbidden. In the sorted vocabulary these are one range.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Collection, Sequence
from functools import lru_cache
from itertools import accumulate

import numpy as np
from numpy.typing import NDArray

from plumbline.engines.constraints.grammar import GrammarError, GrammarVocabulary, Matcher, num_words
from plumbline.engines.constraints.wrapping import WrappingMatcher
from plumbline.port.engine import SamplingParams

__all__ = ["BanMatcher", "TokenTexts"]


class TokenTexts:
    """The texts of a vocabulary, in lower case, for two searches. Building it sorts the vocabulary.

    Args:
        vocabulary: the model's tokens; control tokens have no text.
    """

    def __init__(self, vocabulary: GrammarVocabulary) -> None:
        self.texts = [
            b"" if token_id in vocabulary.special_ids else text.lower()
            for token_id, text in enumerate(vocabulary.tokens)
        ]
        self._order = sorted(range(len(self.texts)), key=self.texts.__getitem__)
        self._sorted = [self.texts[token_id] for token_id in self._order]
        self._ids = np.array(self._order, dtype=np.int64)
        self._ends = list(accumulate(map(len, self.texts)))
        self._joined = b"".join(self.texts)
        self.containing = lru_cache(maxsize=256)(self._containing)

    def beginning_with(self, text: bytes) -> NDArray[np.int64]:
        """The ids of the tokens that begin with this text."""
        low = bisect_left(self._sorted, text)
        # No byte is above 0xFF, so every longer token that begins with `text` is before this bound.
        high = bisect_right(self._sorted, text + b"\xff" * 256, lo=low)
        return self._ids[low:high]

    def _containing(self, text: bytes) -> NDArray[np.int64]:
        """The ids of the tokens that contain this text."""
        found: list[int] = []
        place = self._joined.find(text)
        while place >= 0:
            token_id = bisect_right(self._ends, place)
            end = self._ends[token_id]
            if place + len(text) <= end:
                found.append(token_id)
                place = self._joined.find(text, end)
            else:  # The match spans two tokens.
                place = self._joined.find(text, place + 1)
        return np.array(found, dtype=np.int64)


class BanMatcher(WrappingMatcher):
    """The bans of one request.

    Args:
        sampling: has `bad_words`, `banned_strings` and `allowed_token_ids`.
        vocab_size: tokens of the model.
        texts: the vocabulary; needed only for `banned_strings`.
        inner: the matcher of the answer without bans, if there is one.
    """

    def __init__(
        self,
        sampling: SamplingParams,
        vocab_size: int,
        texts: TokenTexts | None = None,
        inner: Matcher | None = None,
    ) -> None:
        super().__init__(inner)
        self._sequences = sampling.bad_words
        self._texts = texts
        self._banned = sorted({text.encode().lower() for text in sampling.banned_strings})
        self._tail = b""
        """The end of the output, as much of it as may begin a banned text."""
        self._tail_size = max(map(len, self._banned), default=1) - 1
        self._allowed = _bits(sampling.allowed_token_ids, vocab_size)
        for text in self._banned:
            assert texts is not None
            self._ban(self._allowed, texts.containing(text))

    def mask_into(self, row: NDArray[np.int32]) -> None:
        """Write what the inner matcher allows, without what would complete a ban."""
        self._inner_mask_into(row)
        words = row.view(np.uint32)
        words &= self._allowed
        last = [s[-1] for s in self._sequences if self._follows(s)]
        self._ban(words, np.array(last, dtype=np.int64))
        for rest in self._rests():
            assert self._texts is not None
            self._ban(words, self._texts.beginning_with(rest))
        if not words.any():
            raise GrammarError("Its banned words and strings leave no token.")

    def accept(self, token_id: int) -> bool:
        """Advance by a token."""
        if self._texts is not None and self._tail_size:
            self._tail = (self._tail + self._texts.texts[token_id])[-self._tail_size :]
        return super().accept(token_id)

    def rollback(self, num_tokens: int) -> None:
        """Undo the last tokens."""
        super().rollback(num_tokens)
        if self._texts is not None and self._tail_size:
            self._tail = b"".join(self._texts.texts[i] for i in self._taken)[-self._tail_size :]

    def _follows(self, sequence: Sequence[int]) -> bool:
        """Whether the output ends with all but the last token of the sequence."""
        size, taken = len(sequence) - 1, self._taken
        if not size:
            return True
        # The last token is compared first: there may be a thousand sequences.
        return (
            len(taken) >= size and taken[-1] == sequence[-2] and tuple(taken[-size:]) == tuple(sequence[:-1])
        )

    def _rests(self) -> set[bytes]:
        """Return what would complete the texts that the output has begun."""
        tail = self._tail
        found: set[bytes] = set()
        for banned in self._banned:
            place = tail.find(banned[:1], max(0, len(tail) - len(banned) + 1))
            while place >= 0:
                if banned.startswith(tail[place:]):
                    found.add(banned[len(tail) - place :])
                place = tail.find(banned[:1], place + 1)
        return found

    @staticmethod
    def _ban(words: NDArray[np.uint32], ids: NDArray[np.int64]) -> None:
        """Clear the bits of these ids."""
        if ids.size:
            np.bitwise_and.at(words, ids // 32, ~np.left_shift(np.uint32(1), (ids % 32).astype(np.uint32)))


def _bits(allowed: Collection[int] | None, vocab_size: int) -> NDArray[np.uint32]:
    """Return a mask of the allowed tokens; None allows all."""
    found = np.zeros(num_words(vocab_size) * 32, dtype=np.uint8)
    found[
        slice(vocab_size) if allowed is None else np.fromiter(allowed, dtype=np.int64, count=len(allowed))
    ] = 1
    return np.packbits(found, bitorder="little").view(np.uint32)
