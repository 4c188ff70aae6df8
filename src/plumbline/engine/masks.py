"""The masks of a step, computed in a thread beside the forward pass.

A mask needs the token before it and nothing of the forward pass that follows, so both run at the same time: `start`
before the pass, `wait` before the draw. llguidance does not hold the interpreter while it works.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from plumbline.engine.grammar import GrammarError, num_words
from plumbline.engine.request import RequestState

__all__ = ["MaskWorker", "StepMasks", "fill_mask"]


@dataclass(frozen=True, slots=True)
class StepMasks:
    """What the grammars of a step allow.

    Attributes:
        rows: which of the step's draws have a grammar, ascending.
        bitmask: int32 [len(rows), num_words(vocab)], in the layout of `plumbline_kernels.sampling.apply_bitmask`.
    """

    rows: list[int]
    bitmask: NDArray[np.int32]


class MaskWorker:
    """Computes masks in one thread, which is made when the first request with a grammar comes.

    Args:
        vocab_size: tokens of the model.
    """

    def __init__(self, vocab_size: int) -> None:
        self._num_words = num_words(vocab_size)
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="plumbline-masks")
        self._running: Future[StepMasks] | None = None

    def start(self, states: Sequence[RequestState]) -> None:
        """Begin with the masks of the step's draws, in their order."""
        if self._running is not None:
            # The step before this one failed between `start` and `wait`, and its matchers may be in use still.
            self._running.exception()
        rows = [row for row, state in enumerate(states) if state.matcher is not None]
        self._running = None
        if rows:
            self._running = self._thread.submit(self._fill, rows, [states[row] for row in rows])

    def wait(self) -> StepMasks | None:
        """The masks; None if no draw of the step has a grammar."""
        running, self._running = self._running, None
        return None if running is None else running.result()

    def _fill(self, rows: list[int], states: Sequence[RequestState]) -> StepMasks:
        bitmask = np.zeros((len(rows), self._num_words), dtype=np.int32)
        for row, state in zip(bitmask, states, strict=True):
            fill_mask(state, row)
        return StepMasks(rows, bitmask)


def fill_mask(state: RequestState, row: NDArray[np.int32]) -> None:
    """Write a request's mask into `row`. A grammar that fails allows everything and ends its request at the draw."""
    assert state.matcher is not None
    try:
        state.matcher.mask_into(row)
        if not row.any():
            raise GrammarError("No token of the model can continue it.")
    except GrammarError as error:
        state.error = f"The grammar of this request failed: {error}"
        row.fill(-1)
        return
    if state.num_tokens < state.min_len:
        # `min_tokens` puts the end off for as long as the grammar has another way to go on.
        longer = row.view(np.uint32).copy()
        for token_id in state.end_ids:
            longer[token_id // 32] &= ~np.uint32(1 << token_id % 32)
        if longer.any():
            row[:] = longer.view(np.int32)
