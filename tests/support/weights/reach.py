"""Give the tokens of a step the reach that those of images have, for tests of attention."""

from __future__ import annotations

import torch
from torch import Tensor

from plumbline_kernels.attention import AttentionBatch

__all__ = ["reach_of_runs"]


def reach_of_runs(batch: AttentionBatch, run: int) -> Tensor:
    """Return the reach of new tokens of which each `run` in a row, and those that are left, attend to each other."""
    found = torch.zeros(len(batch.positions), dtype=torch.int64)
    starts = batch.query_start_loc.tolist()
    for start, stop, length in zip(starts[:-1], starts[1:], batch.seq_lens.tolist(), strict=True):
        count = stop - start
        for index in range(count):
            found[start + index] = length - count + min((index // run + 1) * run, count) - 1
    return found
