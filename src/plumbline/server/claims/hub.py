"""Keep the claims of all API servers of one engine."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from pathlib import Path

from plumbline.engines.remote.messages import Connection, FrameError
from plumbline.server.claims.messages import Answer, Claim, Find, Ready, Release, ToHub

__all__ = ["Hub"]

_log = logging.getLogger("plumbline.server")


class Hub:
    """Keep claims for API servers on a Unix socket. The end of a connection, of any kind, releases its claims.

    Args:
        path: the socket to create, in a private folder.
        on_ready: is called with the address of each API server that begins to take requests.
    """

    def __init__(self, path: Path, on_ready: Callable[[str], None]) -> None:
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
            for name in [name for name, holder in self._holders.items() if holder is connection]:
                del self._holders[name]
            connection.close()

    def _take(self, connection: Connection[ToHub], message: ToHub) -> None:
        match message:
            case Ready(address):
                self._addresses[connection] = address
                self._on_ready(address)
            case Claim(number, name):
                granted = self._holders.setdefault(name, connection) is connection
                connection.send(Answer(number, granted=granted))
            case Release(name):
                if self._holders.get(name) is connection:
                    del self._holders[name]
            case Find(number, name):
                holder = self._holders.get(name)
                elsewhere = holder is not None and holder is not connection
                address = self._addresses.get(holder, "") if holder is not None and elsewhere else ""
                connection.send(Answer(number, address=address))
