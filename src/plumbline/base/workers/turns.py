"""Share a few places among clients, by the time that each client has used.

A client that comes after a quiet time starts level with the others: unused time is not saved up.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import Counter, deque
from collections.abc import AsyncIterator, Callable

from plumbline.base.shares import within_share

__all__ = ["PlacesFullError", "Turns"]

_MOST_REMEMBERED = 1024
"""Clients whose used time is kept while others wait."""


class PlacesFullError(Exception):
    """As many callers wait as may wait."""


class Turns:
    """Give places to clients in turn.

    Of the clients that wait, the one with the fewest callers inside comes next, and of these the one that has used the
    least time. Callers of one client are served in the order of their arrival. One client has all places but one at
    most, because a turn may take seconds and cannot be interrupted. One event loop may use an object.

    Args:
        places: how many callers may be inside at once; where there is one place only, any client may have it.
        waiting: how many callers may wait; one client may have half of them, and beside others its share
            (`shares.py`), so that others find room.
        clock: returns seconds.
    """

    def __init__(self, places: int, waiting: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._free = places
        self._most = max(1, places - 1)
        self._waiting = waiting
        self._clock = clock
        self._queues: dict[str, deque[asyncio.Future[None]]] = {}
        self._inside: Counter[str] = Counter()
        self._used: dict[str, float] = {}
        """Seconds of each client, the level at which it came included."""
        self._level = 0.0
        """The most that a client had used when its turn came."""

    @property
    def num_waiting(self) -> int:
        """Callers that wait for a place."""
        return sum(map(len, self._queues.values()))

    @property
    def num_inside(self) -> int:
        """Callers that have a place."""
        return self._inside.total()

    @property
    def clients(self) -> set[str]:
        """Clients that have a place or wait for one."""
        return {*self._inside, *self._queues}

    @contextlib.asynccontextmanager
    async def turn(self, client: str) -> AsyncIterator[None]:
        """Wait for a place and keep it within the block.

        Args:
            client: whose turn it is, such as the hash of a key.

        Raises:
            PlacesFullError: too many callers wait, of this client or of all.
        """
        await self._enter(client)
        began = self._clock()
        try:
            yield
        finally:
            self._leave(client, self._clock() - began)

    async def _enter(self, client: str) -> None:
        self._used[client] = max(self._used.get(client, 0.0), 0.0 if client in self._inside else self._level)
        if self._free and self._inside[client] < self._most and not self._queues.get(client):
            self._take(client)
            return
        own = len(self._queues.get(client, ()))
        if own >= max(1, self._waiting // 2) or not within_share(own, 1, self.num_waiting, self._waiting):
            raise PlacesFullError
        place: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._queues.setdefault(client, deque()).append(place)
        try:
            await place
        except asyncio.CancelledError:
            if place.done() and not place.cancelled():  # The place was given in the same moment.
                self._leave(client, 0.0)
            elif place in self._queues.get(client, ()):
                self._drop(client, place)
            raise

    def _take(self, client: str) -> None:
        self._free -= 1
        self._inside[client] += 1
        self._level = max(self._level, self._used[client])

    def _leave(self, client: str, seconds: float) -> None:
        self._free += 1
        self._used[client] += seconds
        self._inside[client] -= 1
        if not self._inside[client]:
            del self._inside[client]
        while self._free:
            able = [each for each in self._queues if self._inside[each] < self._most]
            if not able:
                break
            chosen = min(able, key=lambda each: (self._inside[each], self._used[each]))
            place = self._queues[chosen][0]
            self._drop(chosen, place)
            if not place.done():  # Its caller was cancelled, and has not run since.
                self._take(chosen)
                place.set_result(None)
        self._forget()

    def _drop(self, client: str, place: asyncio.Future[None]) -> None:
        """Take a caller out of its queue, if it is there."""
        queue = self._queues.get(client)
        if queue is not None and place in queue:
            queue.remove(place)
            if not queue:
                del self._queues[client]

    def _forget(self) -> None:
        """Bound what is remembered: nothing while all places are free, and not too much of absent clients."""
        if not self._inside:
            self._used.clear()
            self._level = 0.0
        elif len(self._used) > _MOST_REMEMBERED:
            self._used = {
                client: used
                for client, used in self._used.items()
                if client in self._inside or client in self._queues
            }
