"""Measure the processor time of a process, so that other work on the machine does not count."""

from __future__ import annotations

import os
import time
from pathlib import Path

__all__ = ["own_time"]

_TICK = 1 / os.sysconf("SC_CLK_TCK") if hasattr(os, "sysconf") else 0.01


def own_time(pid: int) -> float:
    """Return the seconds that a process has run so far; wall-clock seconds where there is no /proc."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text("utf-8").rpartition(")")[2].split()
    except OSError:
        return time.monotonic()
    return (int(fields[11]) + int(fields[12])) * _TICK  # utime and stime, the 14th and 15th field
