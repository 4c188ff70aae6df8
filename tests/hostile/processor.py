"""Measure processor time, so that other work on the machine does not count, and how slow the machine itself is."""

from __future__ import annotations

import os
import time
from contextlib import suppress
from pathlib import Path

__all__ = ["lasting", "own_time", "slowness"]

_TICK = 1 / os.sysconf("SC_CLK_TCK") if hasattr(os, "sysconf") else 0.01


def own_time(pid: int) -> float:
    """Return the seconds that a server and its engine have run so far; wall-clock seconds where there is no /proc."""
    total = 0.0
    for process in lasting(pid):
        with suppress(OSError):
            fields = Path(f"/proc/{process}/stat").read_text("utf-8").rpartition(")")[2].split()
            total += (int(fields[11]) + int(fields[12])) * _TICK  # utime and stime, the 14th and 15th field
    return total or time.monotonic()


def lasting(pid: int) -> tuple[int, ...]:
    """Return a process and those of its children that are not workers; looked up twice a second."""
    now = time.monotonic()
    at, found = _LASTING.get(pid, (-1.0, ()))
    if now - at > 0.5:
        children: list[int] = []
        with suppress(OSError):
            for task in Path(f"/proc/{pid}/task").iterdir():
                children += map(int, (task / "children").read_text().split())
        found = (pid, *(each for each in children if not _is_worker(each)))
        _LASTING[pid] = now, found
    return found


def _is_worker(pid: int) -> bool:
    try:
        command = Path(f"/proc/{pid}/cmdline").read_bytes()
        return b"plumbline.base.workers.process" in command or b"judge_worker" in command
    except OSError:
        return True


_LASTING: dict[int, tuple[float, tuple[int, ...]]] = {}
_REFERENCE = 0.0113
"""Seconds of CPU of `_work` on the machine that the bounds of hostile requests were set on. An estimate: a machine that
takes 0.0226 s was at least two times as slow in the committed micro benchmarks (2026-11-23-cpu-micro.json)."""


def slowness() -> float:
    """Return how many times as long one core takes for fixed work as the reference machine, now; at least 1.

    The promises are about work in proportion to a request, such as decoding 10 MB, on a machine like the reference.
    Shared machines change their speed by a factor of two within seconds, so the slowest of several runs counts.
    """
    times = []
    for _ in range(7):
        began = time.process_time()
        _work()
        times.append(time.process_time() - began)
    return max(1.0, max(times) / _REFERENCE)


def _work() -> int:
    total = 0
    for number in range(300_000):
        total += number % 7
    return total
