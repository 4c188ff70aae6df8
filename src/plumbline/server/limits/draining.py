"""Count the requests that run, and say while the server stops that it does."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

import msgspec

from plumbline.contract._generated.utilities import Health
from plumbline.contract.wire.errors import ApiError, engine_unavailable

__all__ = ["DRAINING", "LIVE", "PROBES", "Draining"]

DRAINING = "draining"
"""Key of the application's state."""

LIVE = "/health/live"
PROBES = frozenset({LIVE, "/health", "/health/ready"})
"""Paths that say how the server is; they need no key, and nobody waits for them when the server stops."""
_RETRY_AFTER = 1
"""Seconds: another server may answer at once."""


class Draining:
    """Whether the server stops, and how many requests it still answers."""

    def __init__(self) -> None:
        self.began = False
        self.has_ended = False
        """Whether the time of what ran is over."""
        self.running = 0
        self._readings: set[asyncio.Timeout] = set()

    def begin(self) -> int:
        """Begin to stop; return how many requests run."""
        self.began = True
        return self.running

    @contextmanager
    def counted(self) -> Iterator[None]:
        """Count a request, which a server that stops waits for while this block runs."""
        self.running += 1
        try:
            yield
        finally:
            self.running -= 1

    def end(self) -> None:
        """End what is still being read: nobody knows when the rest of a body comes."""
        self.has_ended = True
        for each in self._readings:
            if not each.expired():
                each.reschedule(0.0)

    @contextmanager
    def reading(self, limit: asyncio.Timeout) -> Iterator[None]:
        """Let `end` end the time limit of reading a body while this block runs."""
        self._readings.add(limit)
        if self.has_ended:
            limit.reschedule(0.0)
        try:
            yield
        finally:
            self._readings.discard(limit)

    @property
    def refusal(self) -> ApiError | None:
        """The error of a request that comes too late: a handshake or turn of a WebSocket, a head or body that is not
        whole."""
        if not self.began:
            return None
        error = engine_unavailable("The server is stopping. Send the request to another one, or again later.")
        error.headers = {**error.headers, "Retry-After": str(_RETRY_AFTER), "Connection": "close"}
        return error

    def health(self, path: str) -> tuple[int, bytes]:
        """Return status and body of a probe while the server stops: it lives, and is not ready."""
        body = msgspec.json.encode(
            Health(status="draining", reasons=[f"the server stops; {self.running} requests still run"])
        )
        return (200 if path == LIVE else 503), body
