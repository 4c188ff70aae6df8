"""Count the ends of an engine's process, name their causes, and find the requests that cause them."""

from __future__ import annotations

import signal
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Sequence

__all__ = ["MOST_DEATHS", "Deaths", "Suspects", "cause_of", "kind_of"]

MOST_DEATHS = 3
"""Ends within `_WINDOW` after which no other process is started."""
_WINDOW = 60.0
"""Seconds that processes served. Starts do not count: an engine that takes a minute to start could end for ever."""
_TWICE = 2
"""How often the process must end under a request until that is refused."""
_QUARANTINE = 3600.0
"""Seconds until a request may be computed again: innocent ones that ran beside are refused as well."""
_MOST_SUSPECTS = 4096
"""Requests that are remembered, the latest ones."""


def kind_of(status: int) -> str:
    """Return the kind of an end: the name of the signal, or `error`."""
    if status >= 0:
        return "error"
    try:
        return signal.Signals(-status).name
    except ValueError:  # A real-time signal.
        return f"signal {-status}"


def cause_of(status: int, reason: str | None) -> str:
    """Return why a process has ended, as the end of a sentence about it.

    Args:
        status: its exit status, negative for a signal.
        reason: what it has reported.
    """
    if reason is not None:
        return f"ended: {reason}"
    if status >= 0:
        return f"ended with status {status}"
    hint = " (perhaps the system is out of memory)" if -status == signal.SIGKILL else ""
    return f"was killed by {kind_of(status)}{hint}"


class Deaths:
    """The ends of an engine's processes."""

    def __init__(self) -> None:
        self._served: deque[float] = deque(maxlen=MOST_DEATHS - 1)
        """Seconds between the latest ends, without starts."""
        self.counts: dict[str, int] = {}
        """By kind."""

    def add(self, kind: str, served: float) -> bool:
        """Count an end; returns whether another process may be started.

        Args:
            kind: of the end.
            served: seconds since the process was ready; 0 if it never was.
        """
        self.counts[kind] = self.counts.get(kind, 0) + 1
        self._served.append(served)
        return sum(self.counts.values()) < MOST_DEATHS or sum(self._served) > _WINDOW


class Suspects:
    """What was being computed when the process ended.

    Args:
        clock: seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._found: OrderedDict[bytes, tuple[int, float]] = OrderedDict()
        """By digest: how often, and when last."""

    def add(self, digests: Sequence[bytes]) -> None:
        """Note what the process was computing at its end."""
        for digest in set(digests):
            times, _ = self._found.pop(digest, (0, 0.0))
            self._found[digest] = times + 1, self._clock()
        while len(self._found) > _MOST_SUSPECTS:
            self._found.popitem(last=False)

    def clear(self, digest: bytes) -> None:
        """Forget what was computed to its end, unless it is refused already."""
        if self._found.get(digest, (0, 0.0))[0] < _TWICE:
            self._found.pop(digest, None)

    @property
    def quarantined(self) -> tuple[bytes, ...]:
        """What is refused."""
        since = self._clock() - _QUARANTINE
        return tuple(digest for digest, (times, at) in self._found.items() if times >= _TWICE and at > since)

    @property
    def known(self) -> tuple[bytes, ...]:
        """What the process may have ended of, but is not refused."""
        return tuple(digest for digest, (times, _) in self._found.items() if times < _TWICE)
