"""Count the bytes of files in memory, and refuse those that would exceed the limit."""

from __future__ import annotations

from plumbline.wire.errors import rate_limited

__all__ = ["FileMemory", "Reservation"]


class FileMemory:
    """The bytes that the files of all requests may have together.

    Args:
        limit: bytes.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.reserved = 0
        """Bytes; never above the limit."""


class Reservation:
    """The bytes of one request's files, reserved before they are loaded."""

    def __init__(self, memory: FileMemory) -> None:
        self._memory = memory
        self._size = 0

    def change(self, size: int) -> None:
        """Reserve further bytes, or give some back if `size` is negative.

        Raises:
            ApiError: 429, the memory is full; the reservation stays as it was.
        """
        if size > 0 and self._memory.reserved + size > self._memory.limit:
            raise rate_limited("The files of other requests use all memory for files; try again later.")
        self._memory.reserved += size
        self._size += size

    def release(self) -> None:
        """Give all bytes back."""
        self.change(-self._size)
