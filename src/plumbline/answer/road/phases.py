"""Say how long each phase of an answer took."""

from __future__ import annotations

import time
from collections.abc import Callable

import msgspec

from plumbline.port.engine import TokenChunk

__all__ = ["Phases", "Watcher", "ignored"]


class Phases(msgspec.Struct):
    """The times of one choice, by `time.perf_counter`: it waits, its prompt is computed, its tokens are.

    A preempted request counts as computed for while it waits again.
    """

    began: float
    """When the engine got the request."""
    scheduled: float = 0.0
    """When its prompt was begun; `began` for engines that do not know it."""
    first: float = 0.0
    """When its first token came; 0 if none did."""
    ended: float = 0.0

    @classmethod
    def begin(cls) -> Phases:
        """Return phases that begin now."""
        return cls(time.perf_counter())

    def came(self, chunk: TokenChunk) -> None:
        """Note the first chunk of the engine."""
        self.first = time.perf_counter()
        self.scheduled = min(self.began + chunk.queued_seconds, self.first)

    def end(self) -> None:
        """Note that the choice has ended, in whichever way."""
        self.ended = time.perf_counter()


Watcher = Callable[[Phases], None]
"""Is given the times of each choice that ends."""


def ignored(_: Phases) -> None:
    """Do nothing with the times."""
