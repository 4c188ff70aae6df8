"""Compute the grammar masks of a step while the forward pass runs.

A mask depends on the token before it and not on the forward pass: call `start` before the pass and `wait` before the
draw. Cheap masks are computed in `wait`: a GPU still works on the pass then, and on a CPU a thread would cost more than
the masks. Expensive ones are computed in a thread, because llguidance releases the interpreter lock while it works.
"""

from __future__ import annotations

import time
from bisect import bisect_left
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from plumbline.engines.constraints.grammar import GrammarError, Matcher, num_words
from plumbline.engines.request import RequestState

__all__ = ["MaskWorker", "StepMasks", "delay_ends", "fill_mask", "mask_into"]


@dataclass(frozen=True, slots=True)
class StepMasks:
    """The tokens that the grammars of a step allow.

    Attributes:
        rows: indices of the draws that have a grammar, ascending.
        bitmask: int32 [len(rows), num_words(vocab)], in the layout of `plumbline_kernels.logits.apply_bitmask`.
    """

    rows: list[int]
    bitmask: NDArray[np.int32]

    def part(self, first: int, end: int) -> StepMasks | None:
        """Return the masks of the draws [first, end), numbered from there; None if none of them has a grammar."""
        start, stop = bisect_left(self.rows, first), bisect_left(self.rows, end)
        if start == stop:
            return None
        return StepMasks([row - first for row in self.rows[start:stop]], self.bitmask[start:stop])


_WORTH_A_THREAD = 1.5e-3
"""Seconds of mask work per step above which a thread is used. On two cores a thread slowed a pass of 3 ms down by
0.6 ms, while all masks of the step took 0.3 ms."""
_WEIGHT = 0.1
"""Weight of the last step in the moving average of the mask time."""


class MaskWorker:
    """Compute masks, in a thread once they are expensive. The thread is created when first needed.

    Args:
        vocab_size: tokens of the model.
    """

    def __init__(self, vocab_size: int) -> None:
        self._num_words = num_words(vocab_size)
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="plumbline-masks")
        self._running: Future[StepMasks] | None = None
        self._requested: tuple[list[int], list[RequestState], list[NDArray[np.int32] | None]] | None = None
        self._cost = 0.0

    def start(
        self, states: Sequence[RequestState], known: Sequence[NDArray[np.int32] | None] | None = None
    ) -> None:
        """Start to compute the masks of the step's draws.

        Args:
            states: the requests of the draws.
            known: for each draw the mask, int32 [num_words], if it is known.
        """
        if self._running is not None:
            # If the previous step failed between `start` and `wait`, its matchers may still be in use.
            self._running.exception()
        rows = [row for row, state in enumerate(states) if state.matcher is not None]
        self._running = self._requested = None
        if rows:
            masks = [None if known is None else known[row] for row in rows]
            self._requested = rows, [states[row] for row in rows], masks
            if self._cost >= _WORTH_A_THREAD:
                self._running = self._thread.submit(self._fill, *self._requested)

    def wait(self) -> StepMasks | None:
        """Return the masks; None if no draw of the step has a grammar."""
        running, self._running = self._running, None
        asked, self._requested = self._requested, None
        if running is not None:
            return running.result()
        return None if asked is None else self._fill(*asked)

    def _fill(
        self, rows: list[int], states: Sequence[RequestState], known: Sequence[NDArray[np.int32] | None]
    ) -> StepMasks:
        began = (
            time.thread_time()
        )  # Thread time, not wall time: waiting for the interpreter lock is not work.
        bitmask = np.zeros((len(rows), self._num_words), dtype=np.int32)
        for row, state, mask in zip(bitmask, states, known, strict=True):
            if mask is None:
                fill_mask(state, row)
            else:
                row[:] = mask
        self._cost += _WEIGHT * (time.thread_time() - began - self._cost)
        return StepMasks(rows, bitmask)


def fill_mask(state: RequestState, row: NDArray[np.int32]) -> None:
    """Write a request's mask into `row`; a grammar that fails allows all tokens and ends its request at the draw."""
    assert state.matcher is not None
    try:
        mask_into(row, state.matcher, state.late_ends())
    except GrammarError as error:
        state.error = f"The grammar of this request failed: {error}"
        row.fill(-1)


def mask_into(row: NDArray[np.int32], matcher: Matcher, late: frozenset[int]) -> None:
    """Write the mask of the next token into `row`, without the ends `late` where another token is allowed.

    Raises:
        GrammarError: the grammar fails, or allows no token.
    """
    matcher.mask_into(row)
    if not row.any():
        raise GrammarError("No token of the model can continue it.")
    delay_ends(row, late)


def delay_ends(row: NDArray[np.int32], late: frozenset[int]) -> None:
    """Forbid ends in a mask that `min_tokens` or `ignore_eos` rule out, as long as the grammar allows another token."""
    if late:
        longer = row.view(np.uint32).copy()
        for token_id in late:
            longer[token_id // 32] &= ~np.uint32(1 << token_id % 32)
        if longer.any():
            row[:] = longer.view(np.int32)
