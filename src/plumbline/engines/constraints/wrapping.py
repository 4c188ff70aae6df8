"""Wrap a matcher in another one: what thinking budgets and bans share."""

from __future__ import annotations

from copy import copy
from typing import Self

import numpy as np
from numpy.typing import NDArray

from plumbline.engines.constraints.grammar import Matcher

__all__ = ["WrappingMatcher"]


class WrappingMatcher:
    """A matcher that restricts what another one allows; see `plumbline.engines.constraints.grammar.Matcher`.

    Args:
        inner: the matcher to restrict; None allows every token.
    """

    def __init__(self, inner: Matcher | None) -> None:
        self._inner = inner
        self._taken: list[int] = []

    def _inner_mask_into(self, row: NDArray[np.int32]) -> None:
        """Write what the inner matcher allows."""
        if self._inner is None:
            row.fill(-1)
        else:
            self._inner.mask_into(row)

    def accept(self, token_id: int) -> bool:
        """Advance by a token."""
        self._taken.append(token_id)
        return self._inner is None or self._inner.accept(token_id)

    def rollback(self, num_tokens: int) -> None:
        """Undo the last tokens."""
        del self._taken[len(self._taken) - num_tokens :]
        if self._inner is not None:
            self._inner.rollback(num_tokens)

    def copy(self) -> Self:
        """Return a matcher in the same state."""
        duplicate = copy(self)
        duplicate._taken = self._taken.copy()
        duplicate._inner = None if self._inner is None else self._inner.copy()
        return duplicate

    @property
    def may_be_slow(self) -> bool:
        """Whether masks and tokens of the inner matcher may take long from here."""
        return self._inner is not None and self._inner.may_be_slow

    def prepare(self) -> None:
        """Compute the next mask of the inner matcher."""
        if self._inner is not None:
            self._inner.prepare()

    @property
    def is_done(self) -> bool:
        """Whether the inner matcher is complete."""
        return self._inner is not None and self._inner.is_done
