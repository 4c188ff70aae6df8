"""Choose how many threads share a decode step, by measuring some steps when a model is loaded.

With more threads a step of a small model may take longer, because its operations are so short that threads mostly wait
for each other. Answers do not depend on the number: every result is computed by one thread, in one order.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence

__all__ = ["candidates", "fastest"]

_SECONDS = 0.15
"""Time of the measurement; a round that has begun is ended."""
_ROUNDS, _FEWEST_ROUNDS = 20, 3
"""The shortest time of all rounds counts, so that a program that takes a core for a moment changes nothing."""
_LARGE = 0.01
"""Seconds of a step of one row above which all threads are taken at once: waiting takes microseconds in each of some
hundred operations."""
_LONG = 0.002
"""Seconds of such a step with the best number of threads above which all are taken, as rounds would take too long."""
_ROWS = (1, 8)
"""Rows of the measured steps: one stream, and several."""
_GAIN = 0.8
"""Fewer threads must take this part of the time of all of them, or less. A core that another program uses during the
start is free later, and then more threads are faster."""
_HOPELESS = 2.0
"""How many times as long a step takes with threads that are too few; fewer still are not tried."""


def candidates(most: int) -> tuple[int, ...]:
    """Return the numbers of threads to compare, the largest first."""
    return tuple(sorted({1, min(2, most), most}, reverse=True))


def fastest(
    counts: Sequence[int],
    step: Callable[[int, int], None],
    clock: Callable[[], float] = time.perf_counter,
) -> int:
    """Return the number of threads with which decode steps are fastest.

    Args:
        counts: the candidates, the largest first.
        step: computes a step of a number of rows with a number of threads.
        clock: returns seconds.
    """

    def seconds(rows: int, count: int) -> float:
        began = clock()
        step(rows, count)
        return clock() - began

    most, *fewer = counts
    began = clock()
    step(1, most)  # The first step prepares buffers.
    single = {most: seconds(1, most)}
    for count in fewer if single[most] <= _LARGE else ():
        single[count] = seconds(1, count)
        if single[count] > _HOPELESS * single[most]:
            break
    kept = [count for count, taken in single.items() if taken <= _HOPELESS * single[most]]
    if len(kept) == 1 or min(single.values()) > _LONG:
        return most
    least = {(rows, count): math.inf for rows in _ROWS for count in kept}
    for number in range(_ROUNDS):
        for rows, count in least:
            least[rows, count] = min(least[rows, count], seconds(rows, count))
        if number + 1 >= _FEWEST_ROUNDS and clock() - began > _SECONDS:
            break

    def beside_most(count: int) -> float:
        return math.prod(least[rows, count] / least[rows, most] for rows in _ROWS)

    best = min(kept, key=beside_most)
    return best if beside_most(best) <= _GAIN else most
