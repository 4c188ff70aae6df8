"""Spans of bounded length: after a beginning, at most so many tokens until an end, which is forced when they are spent.

This is how a budget for thinking is kept. The engine knows neither what is thought nor in which words; it counts tokens
between two token sequences. A span is a matcher like that of a grammar and may have one inside it.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from plumbline.engines.grammar import Matcher
from plumbline.engines.port import ThinkingBudget

__all__ = ["ThinkingBudgetMatcher"]


class ThinkingBudgetMatcher:
    """Where one answer stands in its span; see `plumbline.engines.grammar.Matcher`.

    Args:
        limit: the span and its bound.
        inner: the grammar of the whole answer, the span included; None if it has none.
    """

    def __init__(self, limit: ThinkingBudget, inner: Matcher | None = None) -> None:
        self._limit = limit
        self._inner = inner
        self._taken: list[int] = []
        self._start: int | None = 0 if limit.inside else None
        """How many tokens had been taken when the span began; None outside of one."""
        self._place: int | None = 0
        """Where a span would have to begin: a number of tokens taken; None where none may."""
        self._spent = 0
        """Tokens of the spans before."""

    def mask_into(self, row: NDArray[np.int32]) -> None:
        """The next token of the end if the bound is reached; else what the grammar allows."""
        forced = self._forced()
        if forced is not None:
            row.fill(0)
            row.view(np.uint32)[forced // 32] = np.uint32(1 << forced % 32)
        elif self._inner is not None:
            self._inner.mask_into(row)
        else:
            row.fill(-1)

    def accept(self, token_id: int) -> bool:
        """Move on by a token."""
        self._taken.append(token_id)
        self._move()
        return self._inner is None or self._inner.accept(token_id)

    def rollback(self, num_tokens: int) -> None:
        """Take the last tokens back."""
        taken = self._taken[: len(self._taken) - num_tokens]
        self._taken, self._spent, self._place = [], 0, 0
        self._start = 0 if self._limit.inside else None
        for token_id in taken:
            self._taken.append(token_id)
            self._move()
        if self._inner is not None:
            self._inner.rollback(num_tokens)

    @property
    def is_done(self) -> bool:
        """Only a grammar says when an answer is complete."""
        return self._inner is not None and self._inner.is_done

    def _move(self) -> None:
        limit, taken = self._limit, self._taken
        if self._start is not None:
            if not self._ends_with(limit.end, since=self._start):
                return
            self._spent += len(taken) - self._start - len(limit.end)
            self._start = self._place = None
        elif self._place is not None:
            # Elsewhere the same tokens are words of the text.
            begun = tuple(taken[self._place :])
            if begun in limit.begin:
                self._start = len(taken)
                return
            if all(token_id in limit.blank for token_id in begun):
                self._place = len(taken)
            elif not any(begin[: len(begun)] == begun for begin in limit.begin):
                self._place = None
        if any(self._ends_with(ids) for ids in limit.after):
            self._place = len(taken)

    def _ends_with(self, ids: tuple[int, ...], since: int = 0) -> bool:
        size = len(ids)
        return len(self._taken) - since >= size and tuple(self._taken[-size:]) == ids

    def _forced(self) -> int | None:
        """The token that has to come now, if one has."""
        if self._start is None:
            return None
        end = self._limit.end
        spent = len(self._taken) - self._start
        if self._spent + spent < self._limit.max_tokens:
            return None
        # Where the model has begun the end by itself it goes on with it.
        begun = next(
            size
            for size in range(min(len(end) - 1, spent), -1, -1)
            if not size or tuple(self._taken[-size:]) == end[:size]
        )
        return end[begun]
