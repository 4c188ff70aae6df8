"""Give memory that was freed back to the system.

glibc keeps freed memory of up to 32 MiB a block in the arenas of its threads: after some large images, or a flood of
requests, gigabytes of it.
"""

from __future__ import annotations

import ctypes
import resource
from collections.abc import Callable
from contextlib import suppress
from functools import cache

__all__ = ["resident", "trim"]


def trim() -> None:
    """Return unused pages to the system; nothing where the C library has no such function. Takes some milliseconds."""
    _trimmer()(0)


def resident() -> int:
    """Return the bytes of memory that this process has now; 0 where the system does not say."""
    with suppress(OSError), open("/proc/self/statm", encoding="ascii") as file:
        return int(file.read().split()[1]) * resource.getpagesize()
    return 0


@cache
def _trimmer() -> Callable[[int], object]:
    # A call through ctypes does not hold the interpreter lock.
    return getattr(ctypes.CDLL(None), "malloc_trim", lambda pad: 0)
