"""Time a call on a GPU as a part of a CUDA graph, so that the host's own time does not count."""

from __future__ import annotations

from collections.abc import Callable
from statistics import median
from typing import Any

import torch

__all__ = ["gpu_seconds"]

FLUSHED = 512 * 2**20
"""Bytes that are written before each timed run: more than the L2 cache of any GPU."""


def gpu_seconds(call: Callable[[], Any], runs: int = 30) -> float:
    """Return the median time of a call's kernels; compiling and the first runs do not count.

    Steps of decodes are graphs in the engine, too. What cannot be recorded is timed launch by launch.
    """
    for _ in range(3):
        call()
    torch.cuda.synchronize()
    replay = _recorded(call)
    room = torch.empty(FLUSHED // 4, dtype=torch.int32, device="cuda")
    marks = [[torch.cuda.Event(enable_timing=True) for _ in "be"] for _ in range(runs)]
    for before, after in marks:
        room.zero_()
        before.record()
        replay()
        after.record()
    torch.cuda.synchronize()
    return median(before.elapsed_time(after) for before, after in marks) / 1e3


def _recorded(call: Callable[[], Any]) -> Callable[[], Any]:
    graph = torch.cuda.CUDAGraph()
    try:
        with torch.cuda.graph(graph):
            call()
    except RuntimeError:
        torch.cuda.synchronize()
        return call
    return graph.replay
