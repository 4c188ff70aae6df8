"""Count the requests that are being prepared for an engine."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["Arrivals"]


class Arrivals:
    """The requests that are being rendered and encoded, by client.

    They will want the room that there is now. Otherwise many that come at once would all be prepared, and most of them
    refused afterwards.
    """

    def __init__(self) -> None:
        self._counts: Counter[str] = Counter()
        self.total = 0
        """The requests of all clients."""

    @contextmanager
    def one(self, client: str) -> Iterator[None]:
        """Count a request of a client while the block runs."""
        self._counts[client] += 1
        self.total += 1
        try:
            yield
        finally:
            self.total -= 1
            self._counts[client] -= 1
            if not self._counts[client]:
                del self._counts[client]

    def __iter__(self) -> Iterator[str]:
        """Return the clients that have requests."""
        return iter(self._counts)

    def of(self, client: str) -> int:
        """Return how many requests of a client there are."""
        return self._counts.get(client, 0)
