"""Enforce a thinking budget: count thinking tokens and force the end of thinking when they are used up.

The engine does not know the markers as text: it counts tokens between two token sequences (`ThinkingBudget`). The
budget is a matcher, as grammars are, and wraps the grammar of the answer if it has one.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from plumbline.engines.constraints.grammar import Matcher
from plumbline.engines.constraints.wrapping import WrappingMatcher
from plumbline.port.engine import ThinkingBudget

__all__ = ["ThinkingBudgetMatcher"]


class ThinkingBudgetMatcher(WrappingMatcher):
    """The thinking of one answer so far.

    Args:
        limit: the budget and the token sequences around thoughts.
        inner: the grammar of the whole answer, thinking included, if there is one.
    """

    def __init__(self, limit: ThinkingBudget, inner: Matcher | None = None) -> None:
        super().__init__(inner)
        self._limit = limit
        self._start: int | None = 0 if limit.inside else None
        """The number of tokens taken when the current thought began; None outside thoughts."""
        self._place: int | None = 0
        """The number of tokens taken where a thought may begin; None where a thought may not begin."""
        self._spent = 0
        """Tokens of earlier thoughts."""

    def mask_into(self, row: NDArray[np.int32]) -> None:
        """Allow only the next token of the end if the budget is used up; else what the grammar allows."""
        forced = self._forced()
        if forced is not None:
            row.fill(0)
            row.view(np.uint32)[forced // 32] = np.uint32(1 << forced % 32)
        else:
            self._inner_mask_into(row)

    def accept(self, token_id: int) -> bool:
        """Advance by a token."""
        is_accepted = super().accept(token_id)
        self._move()
        return is_accepted

    def rollback(self, num_tokens: int) -> None:
        """Undo the last tokens."""
        super().rollback(num_tokens)
        taken, self._taken = self._taken, []
        self._spent = self._place = 0
        self._start = 0 if self._limit.inside else None
        for token_id in taken:
            self._taken.append(token_id)
            self._move()

    def _move(self) -> None:
        limit, taken = self._limit, self._taken
        if self._start is not None:
            if not self._ends_with(limit.end, since=self._start):
                return
            self._spent += len(taken) - self._start - len(limit.end)
            self._start = self._place = None
        elif limit.anywhere and any(map(self._ends_with, limit.begin)):
            self._start = len(taken)
            return
        elif self._place is not None:
            # Anywhere else the same tokens are ordinary text.
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
        """Return the token that must come now, if the end is forced."""
        if self._start is None:
            return None
        end = self._limit.end
        spent = len(self._taken) - self._start
        if self._spent + spent < self._limit.max_tokens:
            return None
        # If the model has begun the end by itself, continue it.
        begun = next(
            size
            for size in range(min(len(end) - 1, spent), -1, -1)
            if not size or tuple(self._taken[-size:]) == end[:size]
        )
        return end[begun]
