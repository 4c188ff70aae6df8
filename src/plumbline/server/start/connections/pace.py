"""Bound how many small pieces of work a client causes in a second, over all its connections."""

from __future__ import annotations

import time
from collections.abc import Callable

__all__ = ["CHUNKS", "FRAMES", "ClientPace"]

FRAMES = (1_000, 256)
"""Frames of WebSockets in a second, and at once. The parser takes 25 µs for one, so this is a fortieth of a core."""
CHUNKS = (10_000, 2_048)
"""Chunks of bodies. One takes 3 to 5 µs, and clients may send thousands without malice."""


class ClientPace:
    """What one client may still send.

    Args:
        limits: pieces a second, and pieces at once.
        clock: seconds that never go back.
    """

    def __init__(self, limits: tuple[int, int], clock: Callable[[], float] = time.monotonic) -> None:
        self._per_second, self._burst = limits
        self._clock = clock
        self._level = float(self._burst)
        self._at = clock()

    def take(self, pieces: int) -> float:
        """Count pieces; returns the seconds until the client may send more."""
        now = self._clock()
        self._level = min(self._burst, self._level + (now - self._at) * self._per_second) - pieces
        self._at = now
        return max(0.0, -self._level / self._per_second)
