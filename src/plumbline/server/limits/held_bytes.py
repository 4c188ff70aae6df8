"""Bound the bytes that clients make the process hold: heads, bodies, messages and files, by client and in sum."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from plumbline.base.shares import within_share
from plumbline.contract.wire.errors import rate_limited

__all__ = ["LEAST_RATE", "ByteBudget", "HeldMessage", "Reservation"]

LEAST_RATE = 16 * 1024
"""Least bytes per second of a body or a message, beyond the time that it may be silent: a client that sends one byte
each second would otherwise keep its connection, and the room for its body, for months."""
_MESSAGES = 512 * 1024 * 1024
"""Bytes of all heads, bodies and messages."""


class ByteBudget:
    """The bytes that all clients may have together, and the share of each.

    Args:
        limit: bytes of all clients.
        share: bytes of one client; by default half of the limit. Beside others it is less: see `shares.py`.
    """

    def __init__(self, limit: int = _MESSAGES, share: int | None = None) -> None:
        self.limit = limit
        self.share = limit // 2 if share is None else share
        self.held = 0
        """Bytes."""
        self._clients: dict[str, int] = {}
        self._waiting: list[tuple[Reservation, int, Callable[[], None]]] = []

    @classmethod
    def for_messages(cls, max_body_bytes: int) -> ByteBudget:
        """Return a budget for bodies and messages, in which a client has room for two of the largest."""
        return cls(max(_MESSAGES, 4 * max_body_bytes))

    def of(self, client: str) -> int:
        """Return the bytes of one client."""
        return self._clients.get(client, 0)

    def fits(self, reservation: Reservation, size: int) -> bool:
        """Return whether a reservation may have further bytes; the first one of a client may have all that are free."""
        own = self.of(reservation.client)
        besides = 0 if own == reservation.size else own
        return own + size <= self.share and within_share(besides, size, self.held, self.limit)

    def is_own_fault(self, reservation: Reservation, size: int) -> bool:
        """Return whether what keeps a reservation from further bytes is what its client has already."""
        return self.held + size <= self.limit or self.of(reservation.client) + size > self.share

    def add(self, client: str, size: int) -> None:
        """Count bytes of a client, which may be negative, and let those go on that wait for the room."""
        self.held += size
        mine = self._clients.get(client, 0) + size
        if mine:
            self._clients[client] = mine
        else:
            self._clients.pop(client, None)
        if size < 0 and self._waiting:
            self._grant()

    def wait(self, reservation: Reservation, size: int, then: Callable[[], None]) -> None:
        """Call `then` when the reservation has got further bytes."""
        if self.take(reservation, size):
            then()
        else:
            self._waiting.append((reservation, size, then))
            self._grant()

    def take(self, reservation: Reservation, size: int) -> bool:
        """Give further bytes at once if there is room that nobody waits for; returns whether it did."""
        if self._waiting or not self.fits(reservation, size):
            return False
        reservation.set(reservation.size + size)
        return True

    def forget(self, reservation: Reservation) -> None:
        """Let a reservation wait no longer."""
        self._waiting = [each for each in self._waiting if each[0] is not reservation]

    def _grant(self) -> None:
        """Give room to the waiting client that has the least, and none past it: a large wish must not starve."""
        while self._waiting:
            within = [
                each for each in self._waiting if self.fits(*each[:2]) or not self.is_own_fault(*each[:2])
            ]  # A client beyond its share waits for itself, and holds up nobody.
            if not within:
                return
            chosen = min(within, key=lambda each: self.of(each[0].client))
            reservation, size, then = chosen
            if not self.fits(reservation, size):
                return
            self._waiting.remove(chosen)
            reservation.set(reservation.size + size)
            then()


class Reservation:
    """The bytes of one request, message or connection."""

    def __init__(self, budget: ByteBudget, client: str = "") -> None:
        self._budget = budget
        self.client = client
        self.size = 0
        """Bytes."""

    def set(self, size: int) -> bool:
        """Count this many bytes, which are there already; returns whether the client may have them."""
        change = size - self.size
        fits = change <= 0 or self._budget.fits(self, change)
        self.size = size
        self._budget.add(self.client, change)
        return fits

    def change(self, size: int) -> None:
        """Reserve further bytes before they come, or give some back if `size` is negative.

        Raises:
            ApiError: 429, there is no room; the reservation stays as it was.
        """
        if size > 0 and not self._budget.fits(self, size):
            raise rate_limited("The files of other requests use the memory for files; try again later.")
        self.set(self.size + size)

    def when_free(self, size: int, then: Callable[[], None]) -> None:
        """Call `then` when further bytes are reserved: at once, or when others have given theirs back."""
        self._budget.wait(self, size, then)

    async def wait(self, size: int) -> None:
        """Wait until further bytes are reserved; other clients with less go first."""
        if self._budget.take(self, size):
            return
        granted = asyncio.Event()
        self.when_free(size, granted.set)
        try:
            await granted.wait()
        except asyncio.CancelledError:
            self._budget.forget(self)
            if granted.is_set():
                self.set(self.size - size)
            raise

    def move(self, client: str) -> None:
        """Count the bytes for another client, whose key is known now."""
        size = self.size
        self.set(0)
        self.client = client
        self.set(size)

    def release(self) -> None:
        """Give all bytes back, and wait no longer."""
        self._budget.forget(self)
        if self.size:
            self.set(0)


class HeldMessage:
    """A message of a WebSocket, which counts until the application has ended what it asks for.

    Args:
        size: bytes.
        changed: called when the message was begun, and when it has ended.
    """

    def __init__(self, size: int, changed: Callable[[HeldMessage], None]) -> None:
        self.size = size
        self.begun = False
        """Whether it waits no longer for its turn."""
        self.ended = False
        self._changed = changed

    def begin(self) -> None:
        """Begin its turn: a further message may wait."""
        self.begun = True
        self._changed(self)

    def end(self) -> None:
        """Give its bytes back; a second call changes nothing."""
        if not self.ended:
            self.begun = self.ended = True
            self._changed(self)
