"""Give memory that was freed back to the system.

glibc keeps freed memory of up to 32 MiB a block in the arenas of its threads: after some large images, or a flood of
requests, gigabytes of it.
"""

from __future__ import annotations

import asyncio
import ctypes
import mmap
import resource
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from typing import NoReturn

__all__ = ["Trimmer", "forget", "highest", "kept_trimmed", "resident", "trim"]

PAUSE = 5.0
"""Seconds between two looks at the memory of a process."""
_MUCH = 32 * 1024 * 1024
"""Bytes by which a process may grow before its unused memory is looked for."""


class Trimmer:
    """Return what a burst of requests has left unused.

    Args:
        resident: returns the bytes that the process has.
        trim: returns unused ones to the system.
    """

    def __init__(
        self, resident: Callable[[], int] | None = None, trim: Callable[[], None] | None = None
    ) -> None:
        self._resident = resident or _resident
        self._trim = trim or _trim
        self._level = self._resident()
        """What the process had after it was last trimmed, or less."""

    def look(self) -> None:
        """Trim the process if it has grown by much since the last time. Call it every few seconds, on any thread."""
        now = self._resident()
        if now > self._level + _MUCH:
            self._trim()
            now = self._level = self._resident()
        self._level = min(self._level, now)


async def kept_trimmed() -> NoReturn:
    """Look after the memory of this process until the task is cancelled."""
    trimmer = Trimmer()
    while True:
        await asyncio.sleep(PAUSE)
        await asyncio.to_thread(trimmer.look)


def trim() -> None:
    """Return unused pages to the system; nothing where the C library has no such function. Takes some milliseconds."""
    _trimmer()(0)


def resident() -> int:
    """Return the bytes of memory that this process has now; 0 where the system does not say."""
    with suppress(OSError), open("/proc/self/statm", encoding="ascii") as file:
        return int(file.read().split()[1]) * resource.getpagesize()
    return 0


def highest() -> int:
    """Return the most bytes of memory that this process has had at a time; 0 where the system does not say."""
    with suppress(OSError), open("/proc/self/status", encoding="ascii", errors="replace") as file:
        for line in file:
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    return 0


def forget(address: int, size: int) -> None:
    """Give back pages of a mapped file that were only read; they are read again when they are used.

    Does nothing to other memory, whose content would be lost, and where the system has no such call.
    """
    page = mmap.PAGESIZE
    start, end = -(-address // page) * page, (address + size) // page * page
    if start < end and _is_of_a_file(start, end):
        ctypes.CDLL(None).madvise(ctypes.c_void_p(start), ctypes.c_size_t(end - start), mmap.MADV_DONTNEED)


def _is_of_a_file(start: int, end: int) -> bool:
    with suppress(OSError), open("/proc/self/maps", encoding="utf-8", errors="replace") as file:
        for line in file:
            bounds, _, _, _, inode, *_ = line.split(maxsplit=5)
            first, _, last = bounds.partition("-")
            if int(first, 16) <= start < int(last, 16):
                return end <= int(last, 16) and inode != "0"
    return False


_resident, _trim = resident, trim


@cache
def _trimmer() -> Callable[[int], object]:
    # A call through ctypes does not hold the interpreter lock.
    return getattr(ctypes.CDLL(None), "malloc_trim", lambda pad: 0)
