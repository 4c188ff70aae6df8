"""Leave half of the event loop to answers that stream, and share the rest among clients.

Requests that cost little, thousands a second on a few connections, would otherwise take most turns of the loop: each
event of a stream needs several turns, and waits for all of them in each.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
import time
from collections import deque
from collections.abc import Callable, Coroutine, Generator
from typing import Any

__all__ = ["LoopShare", "Timed"]

SHARE = 0.5
"""The part of the loop's time that requests may use while answers stream."""
BURST = 0.05
"""Seconds of the loop that may be used at once, and that may be owed. A request beyond it is paid back by half."""
TYPICAL = 0.001
"""Seconds that are counted for a request until it has ended."""
QUIET = 0.5
"""Seconds after the last event of any stream in which the loop still counts as used by streams."""

_SHORTEST = 1e-5
"""Seconds that are no wait: the loop takes longer to come back."""


class LoopShare:
    """Tells requests when to begin.

    While no answer streams they begin at once. Of the clients that wait, the one that has used the least time comes
    next, and a client's own requests in the order of their arrival. One event loop may use an object.

    Args:
        clock: seconds that never go back.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._streamed = -QUIET
        self._left, self._at = BURST, clock()
        self._queues: dict[str, deque[Callable[[], None]]] = {}
        self._used: dict[str, float] = {}
        """Seconds of each client that waits; the level at which it came is included."""
        self._order: list[tuple[float, int, str]] = []
        """A heap: used time, number and name of the clients that wait. The time may be less than it is by now."""
        self._numbers = itertools.count()
        self._level = 0.0
        self._timer: asyncio.TimerHandle | None = None

    @property
    def num_waiting(self) -> int:
        """Requests that have not begun."""
        return sum(map(len, self._queues.values()))

    def streamed(self) -> None:
        """Note that an event of a stream was sent."""
        self._streamed = self._clock()

    def begin(self, client: str, start: Callable[[], None]) -> None:
        """Call `start` now, or later from the event loop.

        Args:
            client: whose request it is.
            start: begins the request. `spent` follows when it has ended.
        """
        if not self._queues and not self._wait():
            self._left -= TYPICAL
            start()
            return
        queue = self._queues.setdefault(client, deque())
        queue.append(start)
        if len(queue) == 1:
            self._used[client] = used = max(self._used.get(client, 0.0), self._level)
            heapq.heappush(self._order, (used, next(self._numbers), client))
        self._wind()

    def spent(self, client: str, seconds: float) -> None:
        """Count what a request has used of the loop; 0 for one that streamed, whose time is the other half's."""
        self._refill()
        self._left = max(-BURST, self._left + TYPICAL - seconds)
        if client in self._used:
            self._used[client] += seconds - TYPICAL

    def _refill(self) -> None:
        now = self._clock()
        self._left = min(BURST, self._left + (now - self._at) * SHARE)
        self._at = now

    def _wait(self) -> float:
        """Return the seconds until the next request may begin, if nothing changes; 0 if it may do so now."""
        self._refill()
        wait = min(self._streamed + QUIET - self._at, -self._left / SHARE)
        return wait if wait > _SHORTEST else 0.0

    def _wind(self) -> None:
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(self._wait(), self._go_on)

    def _go_on(self) -> None:
        self._timer = None
        try:
            while self._order and not self._wait():
                self._begin_next()
        finally:  # Nothing else wakes those that wait.
            if self._order:
                self._wind()

    def _begin_next(self) -> None:
        noted, _, client = heapq.heappop(self._order)
        used = self._used[client]
        if noted < used:
            heapq.heappush(self._order, (used, next(self._numbers), client))
            return
        self._level = used
        queue = self._queues[client]
        start = queue.popleft()
        if queue:
            self._used[client] = used + TYPICAL
            heapq.heappush(self._order, (used + TYPICAL, next(self._numbers), client))
        else:
            del self._queues[client], self._used[client]
        self._left -= TYPICAL
        start()


class Timed:
    """Awaits a coroutine and adds up the time in which it runs.

    Attributes:
        seconds: the time so far, that of other tasks which it awaits not included.
    """

    def __init__(self, work: Coroutine[Any, Any, Any]) -> None:
        self.seconds = 0.0
        self._work = work

    def __await__(self) -> Generator[Any, Any, Any]:
        """Run the coroutine."""
        work, value = self._work, None
        step: Callable[[Any], Any] = work.send
        while True:
            began = time.monotonic()
            try:
                awaited = step(value)
            except StopIteration as end:
                return end.value
            finally:
                self.seconds += time.monotonic() - began
            try:
                value = yield awaited
                step = work.send
            except GeneratorExit:
                work.close()
                raise
            except BaseException as error:
                value, step = error, work.throw
