"""Measure the memory of an engine's process, for the processes that use the engine."""

from __future__ import annotations

import os
import sys
import time
from contextlib import suppress
from pathlib import Path

__all__ = ["MemoryUse"]

_SECONDS = 1.0
"""Least seconds between two measurements."""


class MemoryUse:
    """The memory of this process and of its accelerator, measured once a second at most."""

    def __init__(self) -> None:
        self._until = 0.0
        self.resident = 0
        """Bytes of this process in memory; 0 where the system does not tell."""
        self.device: tuple[int, int] | None = None
        """Used and total bytes of the accelerator; None on a CPU."""

    def measure(self) -> None:
        """Measure anew unless that was done just now."""
        now = time.monotonic()
        if now < self._until:
            return
        self._until = now + _SECONDS
        with suppress(OSError, ValueError, IndexError):
            pages = int(Path("/proc/self/statm").read_text("ascii").split()[1])
            self.resident = pages * os.sysconf("SC_PAGE_SIZE")
        torch = sys.modules.get("torch")
        if torch is not None and torch.cuda.is_initialized():
            free, total = torch.cuda.mem_get_info()
            self.device = total - free, total
