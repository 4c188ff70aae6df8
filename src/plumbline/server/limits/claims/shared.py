"""Claim names among all API servers of one engine."""

from __future__ import annotations

import asyncio
import contextlib
from pathlib import Path

from plumbline.port.connection import Connection, FrameError
from plumbline.server.limits.claims.hub_messages import (
    Enter,
    Find,
    FromHub,
    HubAnswer,
    Leave,
    LimitVerdict,
    NameClaim,
    Release,
    ServerReady,
    Take,
)

__all__ = ["SharedClaims"]


class SharedClaims:
    """The `Claims` of an API server, kept by the hub.

    Without the hub every claim is granted: it ends with the supervisor, and this process ends then as well.

    Args:
        path: the hub's Unix socket.
        address: the Unix socket where this API server takes requests that others pass on.
    """

    def __init__(self, path: Path, address: str) -> None:
        self._path = path
        self._address = address
        self._connection: Connection[FromHub] | None = None
        self._reading: asyncio.Task[None] | None = None
        self._waiting: dict[int, asyncio.Future[HubAnswer]] = {}
        self._own: set[str] = set()
        self._admitted: dict[bytes, list[int]] = {}
        self._count = 0

    async def start(self) -> None:
        """Connect to the hub.

        Raises:
            OSError: no process listens on the socket.
        """
        reader, writer = await asyncio.open_unix_connection(self._path)
        self._connection = Connection(reader, writer, FromHub)
        self._reading = asyncio.create_task(self._read(self._connection))

    def ready(self) -> None:
        """Tell the hub that this API server takes requests."""
        assert self._connection is not None, "started before"
        self._connection.send(ServerReady(self._address))

    async def stop(self) -> None:
        """Disconnect; the hub frees what is still claimed."""
        if self._connection is not None and self._reading is not None:
            self._connection.close()
            self._reading.cancel()
            await asyncio.gather(self._reading, return_exceptions=True)

    async def claim(self, name: str) -> bool:
        """See `Claims.claim`. A name that this process has claimed before is refused without asking."""
        if name in self._own:
            return False
        self._own.add(name)  # Before the answer, so that a second request of this process is refused.
        granted = False
        try:
            self._count += 1
            granted = (await self._answer(NameClaim(self._count, name), self._count)).granted
        finally:
            if not granted:
                self._own.discard(name)
                if self._connection is not None:  # A request that ended meanwhile may have been granted it.
                    self._connection.send(Release(name))
        return granted

    def release(self, name: str) -> None:
        """See `Claims.release`."""
        if name in self._own:
            self._own.discard(name)
            if self._connection is not None:
                self._connection.send(Release(name))

    async def holder(self, name: str) -> str:
        """See `Claims.holder`."""
        if name in self._own:
            return ""
        self._count += 1
        return (await self._answer(Find(self._count, name), self._count)).address

    async def admit(self, key: bytes) -> LimitVerdict:
        """See `Limits.admit`. A caller that is cancelled meanwhile has no request."""
        self._count += 1
        number = self._count
        try:
            verdict = (await self._answer(Enter(number, key), number)).verdict or LimitVerdict()
        except BaseException:
            self._send(Leave(number))
            raise
        if not verdict.refusal:
            self._admitted.setdefault(key, []).append(number)
        return verdict

    def end(self, key: bytes) -> None:
        """See `Limits.end`. Which request of the key it was does not matter."""
        numbers = self._admitted[key]
        self._send(Leave(numbers.pop()))
        if not numbers:
            del self._admitted[key]

    def take(self, key: bytes, amount: int) -> None:
        """See `Limits.take`."""
        self._send(Take(key, amount))

    def _send(self, message: Leave | Take) -> None:
        if self._connection is not None and self._reading is not None and not self._reading.done():
            self._connection.send(message)

    async def _answer(self, message: NameClaim | Find | Enter, number: int) -> HubAnswer:
        if self._connection is None or self._reading is None or self._reading.done():
            return HubAnswer(number, granted=True)
        waiting: asyncio.Future[HubAnswer] = asyncio.get_running_loop().create_future()
        self._waiting[number] = waiting
        try:
            self._connection.send(message)
            return await waiting
        finally:
            del self._waiting[number]

    async def _read(self, connection: Connection[FromHub]) -> None:
        try:
            with contextlib.suppress(FrameError):
                while messages := await connection.receive():
                    for message in messages:
                        waiting = self._waiting.get(message.number)
                        if waiting is not None and not waiting.done():
                            waiting.set_result(message)
        finally:
            for number, waiting in self._waiting.items():
                if not waiting.done():
                    waiting.set_result(HubAnswer(number, granted=True))
