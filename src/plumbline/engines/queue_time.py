"""Estimate how long a request would wait for its first token, from how fast others get theirs."""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Callable

__all__ = ["QueueTime"]

_WINDOW = 32
"""First tokens that the rate is measured over."""
_LEAST = 4
"""First tokens below which nothing is known; the estimate is 0 then, so that no request is refused for a guess."""
_LONGEST = 3600.0
"""Seconds; an engine that makes no progress would make the estimate endless."""


class QueueTime:
    """The requests that wait for their first token.

    Intervals between first tokens count only while requests wait: an engine with nothing to do starts few requests, and
    could start many. What was learned outlasts an empty queue, or each new queue would grow until it is learned again.

    Args:
        clock: returns seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._waiting: dict[str, str] = {}
        """The client of each request."""
        self._counts: Counter[str] = Counter()
        self._sizes: Counter[int] = Counter()
        """How many clients have so many requests; there are few sizes, however many clients wait."""
        self._intervals: deque[float] = deque(maxlen=_WINDOW)
        self._since = 0.0
        """When the last request left the queue, or the queue began."""

    def entered(self, request_id: str, client: str) -> None:
        """Count a request that waits from now on."""
        if not self._waiting:
            self._since = self._clock()
        self._waiting[request_id] = client
        self._count(client, 1)

    def started(self, request_id: str) -> None:
        """Count the first token of a request."""
        if self._leave(request_id):
            now = self._clock()
            self._intervals.append(now - self._since)
            self._since = now

    def left(self, request_id: str) -> None:
        """Forget a request that has ended; one without a first token also makes room, but is not part of the rate."""
        self._leave(request_id)

    def expected(self, client: str, arriving: int = 0) -> float:
        """Return the seconds that another request of a client would wait; 0 if that is not known.

        Clients take turns, so a client with few requests waits for few of the others.

        Args:
            client: who sends it.
            arriving: how many requests of the client are about to wait.
        """
        known = len(self._intervals)
        if known < _LEAST or not (self._waiting or arriving):
            return 0.0
        own = self._counts[client] + arriving
        # The sum has what of the client waits already.
        ahead = arriving + sum(number * min(size, own + 1) for size, number in self._sizes.items())
        interval = sum(self._intervals) / known
        silent = self._clock() - self._since if self._waiting else 0.0
        if silent > interval:
            interval = (known * interval + silent) / (known + 1)
        return min((ahead + 1) * interval, _LONGEST)

    def _leave(self, request_id: str) -> bool:
        client = self._waiting.pop(request_id, None)
        if client is None:
            return False
        self._count(client, -1)
        return True

    def _count(self, client: str, change: int) -> None:
        """Change the number of a client's requests, and keep no zeros."""
        size = self._counts.pop(client, 0)
        if size:
            self._sizes[size] -= 1
            if not self._sizes[size]:
                del self._sizes[size]
        size += change
        if size:
            self._counts[client] = size
            self._sizes[size] += 1
