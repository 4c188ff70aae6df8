"""Start the API servers, and keep them running in front of one engine."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import socket
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

import msgspec
import uvicorn
from prometheus_client import multiprocess

from plumbline.port.engine import Engine
from plumbline.server.limits.access import Access
from plumbline.server.limits.claims.hub import Hub
from plumbline.server.settings import OptionError, Settings, SettingsError
from plumbline.server.start.api_servers.start import Renewal, ServerStart
from plumbline.server.start.hangup import on_hangup
from plumbline.server.start.repeats import Repeats

__all__ = ["Supervisor", "supervise"]

_log = logging.getLogger("plumbline.server")

_GRACE = 10.0
"""Seconds beyond `stop_delay` and `shutdown_timeout` before an API server that has not ended is killed."""
_SHORT_LIFE = 10.0
"""Seconds; an API server that ends sooner is started again after a pause, which doubles each time up to `_LONGEST`."""
_BETWEEN = 0.2
"""Seconds between the two signals that end an API server at once."""
_PAUSE = 0.5
_LOOK = 1.0
"""Seconds between two looks whether the engine lives."""
_STARTS = 3
"""How often an API server is started that is killed before it is ready, as the system does when memory is short."""
_LONGEST = 30.0
_LONGEST_FOLDER = 80
"""Bytes; the path of a Unix socket has 107 at most."""


def supervise(
    engine: Engine,
    at: Path,
    settings: Settings,
    number: int,
    sockets: Sequence[socket.socket],
    announce: Callable[[], None],
    read: Callable[[], Settings] | None = None,
) -> int:
    """Serve an engine with several API servers until SIGINT or SIGTERM; return the exit status.

    Args:
        engine: the engine, not started.
        at: its socket.
        settings: the settings of each API server; limits such as `max_connections` hold for each.
        number: how many API servers.
        sockets: the sockets of the server's address, on which all API servers listen.
        announce: called when the first API server listens.
        read: reads the settings again at SIGHUP, of which the keys are used.

    Raises:
        SettingsError: the folder for temporary files has too long a name.
    """
    with TemporaryDirectory(prefix="plumbline-") as folder:
        if len(folder) > _LONGEST_FOLDER:
            raise OptionError(
                "--api-servers",
                f"needs sockets, and {folder} is too long for them: set TMPDIR to a shorter path",
            )
        supervisor = Supervisor(engine, at, settings, number, Path(folder), sockets, announce, read)
        config = uvicorn.Config("")  # It knows whether uvloop is installed.
        with asyncio.Runner(loop_factory=config.get_loop_factory()) as runner:
            for name in (signal.SIGINT, signal.SIGTERM):
                runner.get_loop().add_signal_handler(name, supervisor.stop, name)
            runner.get_loop().add_signal_handler(signal.SIGHUP, on_hangup(supervisor.renew, supervisor.stop))
            return runner.run(supervisor.run())


class Supervisor:
    """Run the API servers of the first process and restart them; a failing one loses only its own streams.

    Args:
        engine: the engine, not started.
        at: its socket, which API servers connect to.
        settings: the settings of each API server.
        number: how many API servers.
        folder: a private folder for sockets and counters.
        sockets: the sockets of the server's address. They stay open in this process as well, so a restart of an API
            server refuses no connection.
        announce: called when the first API server listens.
        read: reads the settings again at SIGHUP, of which the keys are used.
    """

    def __init__(
        self,
        engine: Engine,
        at: Path,
        settings: Settings,
        number: int,
        folder: Path,
        sockets: Sequence[socket.socket],
        announce: Callable[[], None] = lambda: None,
        read: Callable[[], Settings] | None = None,
    ) -> None:
        self._read = read
        self._access = Access(settings)
        self._engine = engine
        self._socket = at
        self._settings = settings
        self._number = number
        self._folder = folder
        self._sockets = sockets
        self._listening = [one.fileno() for one in sockets]
        self._announce = announce
        self._repeats = Repeats()
        self._hub = Hub(folder / "hub.sock", self._take_ready, self._access.rates.accounts)
        self._ready: dict[str, asyncio.Event] = {}
        self._processes: set[asyncio.subprocess.Process] = set()
        self._starting: dict[str, asyncio.subprocess.Process] = {}
        """By address, those that do not accept connections yet."""
        self._stopping = asyncio.Event()
        self._failed = False
        self._forced = False
        self._count = 0

    async def run(self) -> int:
        """Serve until `stop`; return 0, or 1 if the API servers could not start."""
        (self._folder / "metrics").mkdir()
        await self._engine.start()
        await self._hub.start()
        keepers: list[asyncio.Task[None]] = []
        try:
            # The first one creates the store's tables.
            for index in range(self._number):
                ready = asyncio.Event()
                keepers.append(asyncio.create_task(self._keep(index, ready)))
                await self._first(ready)
                if self._stopping.is_set():
                    break
                if not index:
                    self._announce()
            watching = asyncio.create_task(self._watch())
            await self._stopping.wait()
            watching.cancel()
            await asyncio.gather(*keepers)
        finally:
            for keeper in keepers:
                keeper.cancel()
            await asyncio.gather(*keepers, return_exceptions=True)
            await self._hub.stop()
            await self._engine.stop()
        return int(self._failed)

    def stop(self, by: signal.Signals = signal.SIGTERM) -> None:
        """Begin to stop: the API servers finish their streams as one server would. Call it on the loop of `run`.

        A second signal ends their streams with error events, as it does those of one server; a third one kills them.
        """
        if self._repeats.is_again(by) and self._stopping.is_set():
            self._send(signal.SIGKILL if self._forced else signal.SIGTERM)
            if not self._forced:
                # To an API server, SIGINT is the second one only after SIGTERM has arrived.
                asyncio.get_running_loop().call_later(_BETWEEN, self._send, signal.SIGINT)
            self._forced = True
        self._begin_to_stop()

    def _begin_to_stop(self) -> None:
        # Connections that wait are lost if the last process with their socket ends without having accepted them, which
        # API servers that listen do before they close theirs.
        for one in self._sockets:
            one.close()
        for process in self._starting.values():
            with contextlib.suppress(ProcessLookupError):
                process.kill()
        self._stopping.set()

    def renew(self) -> None:
        """Read the keys again, and let all API servers take them, and read their certificate again.

        If they cannot be used, all keep those that they have, which is a line in the log.
        """
        keys = None
        try:
            if self._read is not None:
                found = self._read()
                self._access.use(found)
                keys = found.api_keys
                self._settings = msgspec.structs.replace(self._settings, api_keys=keys)
        except (SettingsError, OSError) as error:
            _log.error("the keys stay as they are: %s", error)
        message = msgspec.json.encode(Renewal(keys)) + b"\n"
        for process in self._processes:
            # Its end is noticed elsewhere; a pipe that is closed raises, and the others must get theirs.
            if process.stdin is not None and not process.stdin.is_closing():
                with contextlib.suppress(RuntimeError, ConnectionError):
                    process.stdin.write(message)

    def _send(self, what: signal.Signals) -> None:
        """Send a signal to all API servers."""
        for process in self._processes:
            with contextlib.suppress(ProcessLookupError):
                process.send_signal(what)

    async def _watch(self) -> None:
        """Stop when the engine is dead, so that this server can be started again."""
        while self._engine.stats().alive:  # noqa: ASYNC110 - engines have no event of their end
            await asyncio.sleep(_LOOK)
        _log.error("the engine has failed: the server ends with status 1, to be started again")
        self._failed = True
        self._begin_to_stop()

    async def _first(self, ready: asyncio.Event) -> None:
        """Wait until an API server takes requests, or until all of them stop."""
        waiting = [asyncio.create_task(event.wait()) for event in (ready, self._stopping)]
        await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        for task in waiting:
            task.cancel()

    async def _keep(self, index: int, ready: asyncio.Event) -> None:
        """Run one API server, and start it again whenever it ends, until the supervisor stops."""
        pause = _PAUSE
        starts = 0
        while not self._stopping.is_set():
            starts += 1
            began = time.monotonic()
            process = await self._start(ready)
            await self._ended(process)
            self._starting = {name: one for name, one in self._starting.items() if one is not process}
            multiprocess.mark_process_dead(process.pid, str(self._folder / "metrics"))  # type: ignore[no-untyped-call]
            if self._stopping.is_set():
                return
            # One that was killed may start the next time; one that ended by itself has a reason that stays.
            killed = process.returncode is not None and process.returncode < 0
            if not ready.is_set() and (not killed or starts == _STARTS):
                _log.error("API server %d could not start: exit status %s", index + 1, process.returncode)
                self._failed = True
                self._begin_to_stop()
                return
            pause = min(pause * 2, _LONGEST) if time.monotonic() - began < _SHORT_LIFE else _PAUSE
            _log.error(
                "API server %d ended with status %s; starting it again in %.1f s",
                index + 1,
                process.returncode,
                pause,
            )
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._stopping.wait(), pause)

    async def _start(self, ready: asyncio.Event) -> asyncio.subprocess.Process:
        self._count += 1
        address = str(self._folder / f"api{self._count}.sock")
        self._ready[address] = ready
        start = ServerStart(
            settings=self._settings,
            listening=self._listening,
            engine=str(self._socket),
            hub=str(self._folder / "hub.sock"),
            address=address,
        )
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "plumbline.server.start.api_servers.process",
            stdin=asyncio.subprocess.PIPE,
            pass_fds=self._listening,
            env={**os.environ, "PROMETHEUS_MULTIPROC_DIR": str(self._folder / "metrics")},
            # Ctrl-C in a terminal reaches this process alone, which then ends the others one way.
            start_new_session=True,
        )
        assert process.stdin is not None
        self._processes.add(process)
        self._starting[address] = process
        with contextlib.suppress(ConnectionError):
            # The pipe stays open: its end tells the API server that this process has ended.
            process.stdin.write(msgspec.json.encode(start) + b"\n")
            await process.stdin.drain()
        return process

    async def _ended(self, process: asyncio.subprocess.Process) -> None:
        """Wait until a process has ended. When the supervisor stops it is asked to, and later killed."""
        waiting = asyncio.create_task(process.wait())
        stopping = asyncio.create_task(self._stopping.wait())
        try:
            await asyncio.wait({waiting, stopping}, return_when=asyncio.FIRST_COMPLETED)
            if not waiting.done():
                for one in tuple(self._starting.values()):  # They have been killed.
                    await one.wait()
                with contextlib.suppress(ProcessLookupError):
                    process.terminate()
                longest = self._settings.stop_delay + self._settings.shutdown_timeout + _GRACE
                await asyncio.wait({waiting}, timeout=longest)
        finally:
            stopping.cancel()
            if not waiting.done():
                with contextlib.suppress(ProcessLookupError):
                    process.kill()
                await waiting
            self._processes.discard(process)

    def _take_ready(self, address: str) -> None:
        self._starting.pop(address, None)
        event = self._ready.pop(address, None)
        if event is not None:
            event.set()
