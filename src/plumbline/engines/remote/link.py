"""Keep the connection to an engine's process: read it, watch for silence, and connect again to the next process.

connected ──► silent ──► connected            the process sends nothing, such as one that was stopped
    │
    └──► out ──► connected                    it has ended, and its keeper starts another
          │
          └──► closed                         there will be no other, or nobody starts one
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Collection
from pathlib import Path

from plumbline.engines.remote import history
from plumbline.engines.remote.history import History, history_of
from plumbline.engines.remote.messages import FromHost, Hello
from plumbline.port.connection import Connection, FrameError
from plumbline.port.engine import EngineInfo

__all__ = ["LOST", "SILENT", "EngineLink", "engine_info"]

_log = logging.getLogger("plumbline.engines")

LOST = "The engine's process has ended."
SILENT = "The engine's process does not answer."
_LONGEST_LOOK = 1.0
"""Seconds between two looks at what the host has sent."""
_LATE = 5.0
"""Seconds without a message, which a host sends five times a second, until no further requests should come."""
_HANGS = 3.0
"""A process hangs when it is silent for this many times the seconds after which it counts as silent."""
_RECORD_SECONDS = 1.0
"""Seconds until the end of a process is in its history; what was lost is told to clients only then."""
_RETRY_SECONDS = 0.02


class EngineLink:
    """The connection of this process to an engine.

    Args:
        path: the host's socket.
        silent_after: seconds without a message after which the host counts as silent.
        take: takes each message.
        lost: called when nothing of what was asked for will be answered, with the words for clients, and the numbers of
            the streams that were being computed; None if all of them end.
        found: called when there is a new process.
        closed: called when there will be none, with the words for clients.
    """

    def __init__(
        self,
        path: Path,
        silent_after: float,
        *,
        take: Callable[[FromHost], None],
        lost: Callable[[str, Collection[int] | None], None],
        found: Callable[[], None],
        closed: Callable[[str], None],
    ) -> None:
        self._path = path
        self._silent_after = silent_after
        self._take = take
        self._on_lost = lost
        self._on_found = found
        self._on_closed = closed
        self.on_hang: Callable[[str], None] = lambda reason: None
        """Is called when the process has been silent for so long that it will not answer any more."""
        self.connection: Connection[FromHost] | None = None
        self.closed: str | None = "The engine has not been started."
        """Why there is no process and will be none."""
        self.outage = ""
        """Why nothing is computed just now."""
        self.is_silent = False
        self.history = History()
        self.found_again = 0.0
        """When the next process was there, by the monotonic clock."""
        self._hello: Hello | None = None
        self._num_heard = 0
        """Messages of the host so far."""
        self._tasks: list[asyncio.Task[None]] = []

    async def start(self) -> None:
        """Connect; raises as `engine_info`."""
        self.connection, self._hello = await _connected(self._path)
        self.history = history.read(history_of(self._path)) or History()
        self.closed, self.outage, self.is_silent = None, "", False
        self._tasks = [asyncio.create_task(self._keep(self.connection)), asyncio.create_task(self._watch())]

    async def stop(self) -> None:
        """Disconnect. Idempotent."""
        if self.closed is None:
            self.closed = "The server is shutting down."
        tasks, self._tasks = self._tasks, []
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        connection, self.connection = self.connection, None
        if connection is not None:
            connection.close()

    @property
    def is_open(self) -> bool:
        """Whether messages are read."""
        return self.connection is not None and self.closed is None and not self.is_silent

    def send(self, message: object) -> None:
        """Send a message if there is a process."""
        if self.connection is not None:
            self.connection.send(message)

    async def _keep(self, connection: Connection[FromHost]) -> None:
        """Read until the process ends, then read from the next one."""
        while True:
            await self._read(connection)
            connection.close()
            self.connection, self.is_silent = None, False
            self.outage = LOST
            kept = await self._recorded()
            if kept is None or kept.failed:
                return self._close("" if kept is None else kept.failed)
            self._lose(kept)
            again = await self._connect_again()
            if again is None:
                kept = history.read(history_of(self._path))
                return self._close("" if kept is None else kept.failed)
            connection = self.connection = again
            self.outage, self.found_again = "", time.monotonic()
            self._on_found()

    async def _read(self, connection: Connection[FromHost]) -> None:
        with contextlib.suppress(FrameError):
            while messages := await connection.receive():
                self._num_heard += 1
                self.outage = (
                    ""  # At once, not at the next look: `/health/ready` is 200 from this message on.
                )
                if self.is_silent:
                    _log.warning("the engine's process answers again")
                    self.is_silent = False
                for message in messages:
                    self._take(message)

    async def _recorded(self) -> History | None:
        """Return the history with the end of the process; without it if the connection alone has ended."""
        assert self._hello is not None
        end = time.monotonic() + _RECORD_SECONDS
        while (found := history.read(history_of(self._path))) is not None:
            if found.number > self._hello.process or found.failed or time.monotonic() > end:
                break
            await asyncio.sleep(_RETRY_SECONDS)
        return found

    def _lose(self, kept: History) -> None:
        assert self._hello is not None
        has_ended = kept.number > self._hello.process
        self.history = kept
        if has_ended:
            self.outage = f"The engine's process {kept.cause}; it starts again."
        fatal = [stream for user, stream in kept.fatal if user == self._hello.user] if has_ended else []
        self._on_lost(
            f"The engine's process {kept.cause} while it computed this request. It starts again: send the request "
            "again."
            if has_ended
            else LOST,
            fatal,
        )

    async def _connect_again(self) -> Connection[FromHost] | None:
        """Return a connection to the next process; None if there will be none."""
        try:
            connection, self._hello = await _connected(
                self._path, self._note, _HANGS * self._silent_after, self.on_hang
            )
        except (OSError, FrameError):
            return None
        return connection

    def _note(self, found: History) -> None:
        """Note that the next process ended before it was there."""
        if found.number > self.history.number:
            self.history = found
            self.outage = f"The engine's process {found.cause}; it starts again."

    def _close(self, reason: str) -> None:
        self.history = history.read(history_of(self._path)) or self.history
        self.closed = f"The engine has failed: {reason}." if reason else LOST
        self._on_lost(self.closed, None)
        self._on_closed(self.closed)

    async def _watch(self) -> None:
        """Fail what waits for a silent host. Looks are counted, because this process may have been stopped itself."""
        look = min(_LONGEST_LOOK, self._silent_after / 10)
        looks, seen = 0, -1
        while True:
            await asyncio.sleep(look)
            looks = looks + 1 if self._num_heard == seen and self.connection is not None else 0
            seen = self._num_heard
            silent = looks * look
            if silent >= min(_LATE, self._silent_after):
                self.outage = f"the engine's process has sent nothing for {silent:.0f} s"
            if silent >= self._silent_after and not self.is_silent:
                _log.error("the engine's process has sent nothing for %.0f s", silent)
                self.is_silent = True
                self._on_lost(SILENT, None)
            if silent >= _HANGS * self._silent_after:
                looks = 0
                self.on_hang(f"sent nothing for {silent:.0f} s")


async def _greeting(path: Path) -> tuple[Connection[FromHost], Hello]:
    """Connect, and return the connection with the facts that the host sends first.

    Raises:
        OSError: no process listens on the socket.
        FrameError: the peer is not an engine host.
    """
    reader, writer = await asyncio.open_unix_connection(path)
    connection: Connection[FromHost] = Connection(reader, writer, FromHost)
    try:
        messages = await connection.receive()
        if not messages or not isinstance(messages[0], Hello):
            raise FrameError("the engine's process did not send its greeting first")
    except BaseException:
        connection.close()
        raise
    return connection, messages[0]


async def _connected(
    path: Path,
    note: Callable[[History], None] = lambda found: None,
    longest: float | None = None,
    hangs: Callable[[str], None] = lambda reason: None,
) -> tuple[Connection[FromHost], Hello]:
    """Connect, also to a process that is only started.

    Args:
        path: the socket.
        note: called with the history each time that no process is there yet.
        longest: seconds for the greeting of a process that listens; None for any number.
        hangs: called when a process does not greet in time.
    """
    while True:
        try:
            async with asyncio.timeout(longest):
                return await _greeting(path)
        except TimeoutError:
            hangs(f"did not answer for {longest:.0f} s")
        except (OSError, FrameError):
            found = history.read(history_of(path))
            if found is None:
                raise
            if found.failed:
                raise ConnectionError(f"The engine has failed: {found.failed}.") from None
            note(found)
        await asyncio.sleep(_RETRY_SECONDS)


async def engine_info(path: Path) -> EngineInfo:
    """Ask the host for the engine's facts. If its process has ended, wait for the next one.

    Raises:
        OSError: no process listens on the socket, and nobody starts one; the message has the reason if it is known.
        FrameError: the peer is not an engine host.
    """
    connection, hello = await _connected(path)
    connection.close()
    return hello.info
