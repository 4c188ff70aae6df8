"""Find out how many threads compute single tokens fastest, while the tokens are computed.

Batches gain from every core. For one token of a small model, threads wait for each other and for the event loop longer
than they compute: one thread gave the pocket model 2,500 tokens per second through HTTP, two gave 2,000. For a large
model, and for a long context of a small one, it is the other way round.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from statistics import fmean

__all__ = ["Threads", "bound_waits"]

_TRIED = 16
"""Tokens that each number of threads computes in a trial."""
_KEPT = 256
"""Tokens until the next trial."""
_WORTH = 0.9
"""Part of the time of one thread that all may take at most: they keep the cores from everything else."""


def bound_waits() -> None:
    """Let OpenMP's threads spin for microseconds only before they sleep. Call it before torch is imported.

    llama.cpp's threads wait for each other some hundred times in a batch. By default they spin for milliseconds, and
    keep a thread that shares their core from working, such as the event loop or one of their own: a token of the pocket
    model then took 15 to 80 ms instead of 0.3.
    """
    if "OMP_WAIT_POLICY" not in os.environ:
        os.environ.setdefault("GOMP_SPINCOUNT", "2000")


class Threads:
    """Choose between one thread and all, by the time from one token to the next.

    Args:
        most: the threads that may be used.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._plan = [1] * _TRIED + [most] * _TRIED
        """Threads of the next tokens, in reverse."""
        self._times: dict[int, list[float]] = {1: [], most: []}
        self._last: tuple[int, float] | None = None

    def choose(self, num_tokens: int) -> int:
        """Return the threads for a batch that begins now."""
        now, last, self._last = time.perf_counter(), self._last, None
        if num_tokens > 1 or self._most == 1:
            return self._most
        if last is not None and len(self._plan) < 2 * _TRIED:
            threads, began = last
            self._times[threads].append(now - began)
        if not self._plan:
            one, every = (_typical(self._times[threads]) for threads in (1, self._most))
            best = self._most if every < _WORTH * one else 1
            self._plan = [1] * _TRIED + [self._most] * _TRIED + [best] * _KEPT
            self._times = {1: [], self._most: []}
        threads = self._plan.pop()
        self._last = threads, now
        return threads


def _typical(times: Sequence[float]) -> float:
    """Return the mean without the longest time, in which the engine may have waited for a request."""
    return fmean(sorted(times)[:-1] or [0.0])
