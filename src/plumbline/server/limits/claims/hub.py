"""Keep the claims of all API servers of one engine."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from plumbline.port.connection import Connection, FrameError
from plumbline.server.limits.claims.hub_messages import (
    Enter,
    Find,
    HubAnswer,
    Leave,
    LimitVerdict,
    NameClaim,
    Release,
    ServerReady,
    Take,
    ToHub,
)

__all__ = ["Hub", "KeyLimits"]

_log = logging.getLogger("plumbline.server")


class KeyLimits(Protocol):
    """The limits of keys, by their digests."""

    def admit(self, key: bytes) -> LimitVerdict:
        """Admit a request, which ends with `end`, or refuse it."""
        ...

    def end(self, key: bytes) -> None:
        """End a request that was admitted."""
        ...

    def take(self, key: bytes, amount: int) -> None:
        """Take tokens from the budget of a key."""
        ...


class Hub:
    """Keep claims, and the limits of keys, for API servers on a Unix socket.

    The end of a connection, of any kind, releases its claims, and ends its requests.

    Args:
        path: the socket to create, in a private folder.
        on_ready: is called with the address of each API server that begins to take requests.
        limits: the limits of keys.
    """

    def __init__(self, path: Path, on_ready: Callable[[str], None], limits: KeyLimits) -> None:
        self._limits = limits
        self._running: dict[Connection[ToHub], dict[int, bytes]] = {}
        """The keys of the requests of each API server, by the numbers of their messages."""
        self._path = path
        self._on_ready = on_ready
        self._holders: dict[str, Connection[ToHub]] = {}
        self._addresses: dict[Connection[ToHub], str] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None

    async def start(self) -> None:
        """Begin to listen.

        Raises:
            OSError: the socket cannot be created.
        """
        self._server = await asyncio.start_unix_server(self._serve, self._path)

    async def stop(self) -> None:
        """End all connections."""
        if self._server is not None:
            self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        connection: Connection[ToHub] = Connection(reader, writer, ToHub)
        try:
            while messages := await connection.receive():
                for message in messages:
                    self._take(connection, message)
                await connection.drained()
        except (FrameError, ConnectionError) as error:
            _log.error("an API server was disconnected from the hub: %s", error)
        except asyncio.CancelledError:
            pass  # The hub stops.
        finally:
            self._tasks.discard(task)
            self._addresses.pop(connection, None)
            for key in self._running.pop(connection, {}).values():
                self._limits.end(key)
            for name in [name for name, holder in self._holders.items() if holder is connection]:
                del self._holders[name]
            connection.close()

    def _take(self, connection: Connection[ToHub], message: ToHub) -> None:
        match message:
            case ServerReady(address):
                self._addresses[connection] = address
                self._on_ready(address)
            case NameClaim(number, name):
                granted = self._holders.setdefault(name, connection) is connection
                connection.send(HubAnswer(number, granted=granted))
            case Release(name):
                if self._holders.get(name) is connection:
                    del self._holders[name]
            case Enter(number, key):
                verdict = self._limits.admit(key)
                if not verdict.refusal:
                    self._running.setdefault(connection, {})[number] = key
                connection.send(HubAnswer(number, verdict=verdict))
            case Leave(number):
                ended = self._running.get(connection, {}).pop(number, None)
                if ended is not None:
                    self._limits.end(ended)
            case Take(key, amount):
                self._limits.take(key, amount)
            case Find(number, name):
                holder = self._holders.get(name)
                elsewhere = holder is not None and holder is not connection
                address = self._addresses.get(holder, "") if holder is not None and elsewhere else ""
                connection.send(HubAnswer(number, address=address))
