"""Keep what is known about the latest requests, without what they say."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import MutableMapping
from typing import Any

import msgspec

__all__ = ["RecentRequest", "RecentRequests"]

_KEPT = 50


class RecentRequest(msgspec.Struct, kw_only=True):
    """A request that was answered, or is being answered."""

    method: str
    path: str
    """Of the operation: an id of a stored object is another client's matter."""
    at: float
    """The time of its arrival by `time.perf_counter`, which is never set; `latest` has Unix times."""
    id: str = ""
    """Empty while it runs, because a body may name it."""
    status: int = 0
    """0 before there is one; 499 if the client left before."""
    first_byte: float | None = None
    """Seconds until the answer began."""
    seconds: float | None = None
    """Until the answer ended; None while it runs."""
    size: int = 0
    """Bytes of the answer so far."""

    def take(self, message: MutableMapping[str, Any]) -> None:
        """Count a message of the answer."""
        if message["type"] == "http.response.start":
            self.status = message["status"]
        elif message.get("body"):
            if self.first_byte is None:
                self.first_byte = time.perf_counter() - self.at
            self.size += len(message["body"])

    def end(self, name: str, status: int) -> None:
        """Note the end of the answer.

        Args:
            name: the id of the request.
            status: of the answer, 499 if the client left before.
        """
        self.id, self.status = name, status
        self.seconds = time.perf_counter() - self.at


class RecentRequests:
    """The latest requests of this process."""

    def __init__(self) -> None:
        self._requests: deque[RecentRequest] = deque(maxlen=_KEPT)

    def begin(self, method: str, path: str) -> RecentRequest:
        """Keep a request from its arrival on; the caller tells it about its answer."""
        request = RecentRequest(method=method, path=path, at=time.perf_counter())
        self._requests.append(request)
        return request

    def latest(self) -> list[RecentRequest]:
        """Return copies of the requests with the Unix time of their arrival, the latest first."""
        zero = time.time() - time.perf_counter()
        return [
            msgspec.structs.replace(request, at=zero + request.at) for request in reversed(self._requests)
        ]
