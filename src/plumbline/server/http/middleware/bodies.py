"""Read the bodies of requests: when there is room for them, and no slower than a client may be."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from plumbline.contract.wire.errors import ApiError, engine_unavailable, rate_limited
from plumbline.server.limits.draining import Draining
from plumbline.server.limits.held_bytes import LEAST_RATE, ByteBudget, Reservation

__all__ = ["Bodies", "announced"]

Message = MutableMapping[str, Any]
Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]

_DRAINED_A_SECOND = 16 << 20
"""Bytes that are read of a body that is dropped: it must not take the time of other connections."""
_DRAIN_LIMIT = 8
"""A too large body is read up to this many times the allowed size before the connection is dropped."""


class Bodies:
    """The limits on bodies.

    Args:
        budget: the bytes that all clients may have.
        most: bytes of one body.
        timeout: seconds in which a body may be silent, or wait for room; 0 means no limit.
        draining: says whether the server stops, which ends bodies that are not whole.
    """

    def __init__(self, budget: ByteBudget, most: int, timeout: float, draining: Draining) -> None:
        self._budget = budget
        self._most = most
        self._timeout = timeout
        self._draining = draining

    def reader(self, scope: Scope, held: Reservation, receive: Receive) -> Receive:
        """Wrap `receive` so that a body is read when there is room for all of it.

        The listener stops reading meanwhile. Parts of many bodies could fill all room, and none would be complete.
        """
        receive = self._in_time(receive)
        size = announced(scope, self._most)
        if not size:
            return receive
        got, state = 0, "new"

        async def receive_with_room() -> Message:
            nonlocal got, state
            if state == "new":
                state = "reading"
                await self._room(held, size)
            message = await receive()
            if state == "reading":
                got += len(message.get("body", b""))
                if message["type"] != "http.request" or not message.get("more_body", False):
                    state = "complete"
                    held.set(min(got, size))
            return message

        return receive_with_room

    async def _room(self, held: Reservation, size: int) -> None:
        """Wait until there is room for a body.

        Raises:
            ApiError: 429 or 503, there was none for `body_timeout`; to wait on would only keep the client's connection.
        """
        try:
            async with asyncio.timeout(self._timeout or None) as limit:
                with self._draining.reading(limit):
                    await held.wait(size)
        except TimeoutError:
            if (stops := self._too_late()) is not None:
                raise stops from None
            if self._budget.is_own_fault(held, size):
                error = rate_limited(
                    "The bodies of your other requests fill your share of the server's memory."
                )
            else:
                error = engine_unavailable("The bodies of other requests fill the server's memory.")
            error.headers = {**error.headers, "Connection": "close"}
            raise error from None

    def _too_late(self) -> ApiError | None:
        """Return the error of a body that is not whole when the server ends what runs."""
        return self._draining.refusal if self._draining.has_ended else None

    def _in_time(self, receive: Receive) -> Receive:
        """Wrap `receive` so that a body that is silent for `body_timeout`, or late by as much, is a 408.

        One that is not whole when the server ends what runs is a 503, which its client may send to another server.
        """
        complete = False
        loop = asyncio.get_running_loop()
        deadline = 0.0

        async def receive_in_time() -> Message:
            nonlocal complete, deadline
            if complete:
                return await receive()
            deadline = deadline or loop.time() + self._timeout
            at = min(deadline, loop.time() + self._timeout) if self._timeout else None
            try:
                async with asyncio.timeout_at(at) as limit:
                    with self._draining.reading(limit):
                        message = await receive()
            except TimeoutError:
                complete = True
                raise self._too_late() or ApiError(
                    408,
                    f"No data of the request body, or too little, arrived for {self._timeout:g} seconds.",
                    code="request_timeout",
                    headers={"Connection": "close"},
                ) from None
            complete = message["type"] != "http.request" or not message.get("more_body", False)
            deadline += len(message.get("body", b"")) / LEAST_RATE
            return message

        return receive_in_time

    async def drain(self, receive: Receive) -> None:
        """Read and drop a body that is too large: a client that is still sending would see a reset, not the answer."""
        receive, seen = self._in_time(receive), 0
        with contextlib.suppress(ApiError):  # It is too slow: the answer is still that it is too large.
            while seen < self._most * _DRAIN_LIMIT:
                message = await receive()
                if message["type"] != "http.request" or not message.get("more_body", False):
                    return
                size = len(message.get("body", b""))
                seen += size
                await asyncio.sleep(size / _DRAINED_A_SECOND)


def announced(scope: Scope, most: int) -> int:
    """Return the bytes that a request's body may have."""
    headers = dict(scope["headers"])
    if b"transfer-encoding" in headers:
        return most
    length = headers.get(b"content-length", b"0")
    return min(int(length), most) if length.isdigit() else most
