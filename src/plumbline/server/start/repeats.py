"""Tell a second wish to stop from one that arrives twice."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable

__all__ = ["Repeats"]

_SAME = 0.5
"""Seconds in which SIGTERM is still the first one: systemd sends it to all processes of a service, and those that have
children pass it on; `timeout` sends it to its child and to the group of the child."""


class Repeats:
    """The signals to stop that a process has had.

    Args:
        clock: the time in seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._first: float | None = None

    def is_again(self, what: int) -> bool:
        """Note a signal; return whether it asks a server that stops to stop sooner."""
        now = self._clock()
        if self._first is None:
            self._first = now
            return False
        return what == signal.SIGINT or now - self._first > _SAME
