"""Start the process of an engine, watch it, and start it again when it dies."""

from __future__ import annotations

import contextlib
import logging
import os
import queue
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from plumbline.engines.remote import history, journal
from plumbline.engines.remote.history import History, history_of
from plumbline.port.progress import report
from plumbline.server.loading.model_files import find_files, model_name
from plumbline.server.settings import OptionError, Settings, SettingsError
from plumbline.server.start.engine_process.deaths import MOST_DEATHS, Deaths, Suspects, cause_of, kind_of
from plumbline.server.start.engine_process.start_messages import (
    Cleared,
    EngineReady,
    EngineStart,
    Failed,
    Loading,
    ModelsPlanned,
    Report,
)
from plumbline.server.start.explain import StartError

__all__ = ["Begun", "EngineProcess", "begin", "reported"]

_log = logging.getLogger("plumbline.engines")

_LONGEST_FOLDER = 70
"""Bytes of the path of a folder for temporary files; that of a Unix socket has 107 at most."""
_STOP_SECONDS = 60.0
"""Seconds for an engine to end its step, and what else it has started; then it is killed."""
_LAST_REPORTS = 2.0
"""Seconds for the reports of a process that has ended."""


class _Process:
    """One process, with threads that read its reports and wait for its end.

    Args:
        start: what it does.
        take: takes each report; called on a thread.
        ended: takes the exit status, negative for a signal, when nothing of the process is left; called on a thread.
    """

    def __init__(self, start: EngineStart, take: Any, ended: Any) -> None:
        reading, writing = os.pipe()
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "plumbline.server.start.engine_process.process", str(writing)],
                stdin=subprocess.PIPE,
                pass_fds=[writing],
                # Ctrl-C in a terminal reaches the server alone, which then ends this process.
                start_new_session=True,
            )
        except OSError as error:
            os.close(reading)
            raise StartError(f"the process of the engine cannot be started: {error}") from error
        finally:
            os.close(writing)
        self.pid = self._process.pid
        self._take = take
        self._ended = ended
        self._reader = threading.Thread(
            target=self._read, args=(reading,), name="engine-reports", daemon=True
        )
        self._reader.start()
        assert self._process.stdin is not None
        with contextlib.suppress(OSError):  # It has ended already.
            # The pipe stays open: its end tells the process that this one has ended.
            self._process.stdin.write(msgspec.json.encode(start) + b"\n")
            self._process.stdin.flush()
        threading.Thread(target=self._wait, name="engine-end", daemon=True).start()

    def stop(self) -> None:
        """Let the process end by itself."""
        assert self._process.stdin is not None
        with contextlib.suppress(OSError, ValueError):  # It has ended already.
            self._process.stdin.write(b"stop\n")
            self._process.stdin.flush()

    def kill(self) -> None:
        """Kill the process, unless it has ended."""
        self._process.kill()

    def _read(self, reading: int) -> None:
        with open(reading, "rb") as lines:
            for line in lines:
                with contextlib.suppress(msgspec.MsgspecError):  # A line that its end has cut.
                    self._take(msgspec.json.decode(line, type=Report))

    def _wait(self) -> None:
        # It is reaped after its group is killed, whose number is not used again before.
        os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOWAIT)
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)
        status = self._process.wait()
        self._reader.join(_LAST_REPORTS)
        assert self._process.stdin is not None
        with contextlib.suppress(OSError):
            self._process.stdin.close()
        self._ended(status)


class EngineProcess:
    """The process of an engine, which is started again when it dies.

    Args:
        start: what to load; the keeper fills in what is its own.
    """

    def __init__(self, start: EngineStart) -> None:
        self._folder = _private_folder()
        self._private = Path(self._folder.name)
        self.socket = self._private / "engine.sock"
        """The engine's socket."""
        self._journal = self._private / "engine.journal"
        self._start = msgspec.structs.replace(start, private=self._folder.name)
        self._reports: queue.SimpleQueue[Report | int] = queue.SimpleQueue()
        """Of the first process until it is ready, and its exit status if it ends before."""
        self._lock = threading.Lock()
        self._deaths, self._suspects = Deaths(), Suspects()
        self._ready: EngineReady | None = None
        self._start_failure: Exception | None = None
        """What the loading thread has taken from the reports."""
        self._failure: Failed | None = None
        """Why the present process ends, as it has reported."""
        self._killed_because: str | None = None
        self._was_ready = False
        self._began = time.monotonic()
        self._ready_at: float | None = None
        """When the process was ready, if it is."""
        self._stopping = False
        self._ended = threading.Event()
        """Whether there is no process and will be none."""
        self._history = History()
        self._write_history()
        journal.create(self._journal)
        self._process = self._launch()

    def ready(self) -> EngineReady:
        """Wait until the engine takes requests.

        Raises:
            SettingsError, StartError: the engine cannot be loaded.
        """
        while self._ready is None:
            self._next()
        return self._ready

    def _next(self) -> None:
        """Take the next report of the start."""
        if self._start_failure is None:
            match found := self._reports.get():
                case Loading(stage, done, total):
                    report(stage, done, total)
                case EngineReady():
                    self._ready = found
                case int():
                    self._start_failure = _start_error(self._failure, found)
                case _:
                    pass
        if self._start_failure is not None:
            raise self._start_failure

    def kill(self, reason: str) -> None:
        """Kill the process, which is started again.

        Args:
            reason: why, as the end of a sentence about the process.
        """
        self._killed_because = reason
        self._process.kill()

    def stop(self) -> None:
        """End the process, and wait for its end. Idempotent."""
        with self._lock:
            self._stopping = True
            process = self._process
        process.stop()
        if not self._ended.wait(_STOP_SECONDS):
            _log.error("the engine's process has not ended within %.0f s, and is killed", _STOP_SECONDS)
            process.kill()
            self._ended.wait(_STOP_SECONDS)
        self._folder.cleanup()

    def end(self) -> None:
        """Kill the process, which is not started again, and wait for its end."""
        self.discard()
        self._ended.wait(_STOP_SECONDS)
        self._folder.cleanup()

    def discard(self) -> None:
        """Kill the process, which is not started again. Idempotent; it may be called anywhere."""
        self._stopping = True
        self._process.kill()

    def _launch(self) -> _Process:
        self._failure, self._killed_because = None, None
        self._began, self._ready_at = time.monotonic(), None
        start = msgspec.structs.replace(
            self._start,
            number=self._history.number,
            quarantined=self._suspects.quarantined,
            suspects=self._suspects.known,
        )
        return _Process(start, self._take, self._process_ended)

    def _take(self, found: Report) -> None:
        if isinstance(found, EngineReady):
            self._ready_at = time.monotonic()
        match found:
            case Cleared(digest):
                self._suspects.clear(digest)
            case Failed():
                self._failure = found
            case EngineReady() if self._was_ready:
                _log.warning("the engine has started again, in %.1f s", time.monotonic() - self._began)
            case _ if not self._was_ready:
                self._was_ready = isinstance(found, EngineReady)
                self._reports.put(found)
            case _:
                pass

    def _process_ended(self, status: int) -> None:
        """Start another process, unless the server stops or this one has never been ready."""
        with self._lock:
            if self._stopping or not self._was_ready:
                self._ended.set()
                self._reports.put(status)
                return
            if not self._note_death(status):
                self._ended.set()
                return
            try:
                self._process = self._launch()
            except StartError as error:
                _log.error("%s", error)
                self._fail(str(error))
                self._ended.set()

    def _note_death(self, status: int) -> bool:
        """Write down the end of the process; returns whether another one may be started."""
        cause = cause_of(status, None if self._failure is None else self._failure.text)
        if self._killed_because is not None:
            cause = f"was killed: it {self._killed_because}"
        fatal = journal.read(self._journal)
        journal.create(self._journal)
        served = 0.0 if self._ready_at is None else time.monotonic() - self._ready_at
        goes_on = self._deaths.add(kind_of(status), served)
        self._suspects.add([entry.digest for entry in fatal])
        quarantined = self._suspects.quarantined
        self._history = History(
            number=self._history.number + 1,
            cause=cause,
            ended_at=time.monotonic(),
            fatal=tuple((entry.user, entry.stream) for entry in fatal),
            deaths=dict(self._deaths.counts),
            num_quarantined=len(quarantined),
        )
        if not goes_on:
            self._fail(
                f"its process has ended {MOST_DEATHS} times within a minute of serving; at last it {cause}"
            )
            return False
        self._write_history()
        _log.error(
            "the engine's process %s; it starts again, and %d requests that it was computing end with an error%s",
            cause,
            len(fatal),
            f"; {len(quarantined)} requests are refused from now on" if quarantined else "",
        )
        return True

    def _fail(self, reason: str) -> None:
        """Note that there will be no other process."""
        self._history = msgspec.structs.replace(self._history, failed=reason)
        self._write_history()
        _log.error("the engine has failed: %s; the server must be restarted", reason)

    def _write_history(self) -> None:
        try:
            history.write(history_of(self.socket), self._history)
        except OSError as error:  # Its readers then see the connection end, and connect again.
            _log.error("the history of the engine's process cannot be written: %s", error)


class Begun(NamedTuple):
    """An engine that a process has begun to load."""

    settings: Settings
    """With the path of the model's files."""
    process: EngineProcess


def begin(settings: Settings) -> Begun:
    """Start the process of the only model of the settings.

    Raises:
        OptionError: the model is neither a folder, nor a GGUF file, nor a hub id that can be reached.
        StartError: the process cannot be started.
    """
    folder, gguf = find_files(settings)
    name = model_name(folder, gguf, settings)
    if settings.models:  # Files of the hub are looked up once.
        settings = msgspec.structs.replace(settings, models=((name, str(gguf or folder)),))
    return Begun(
        settings,
        EngineProcess(
            EngineStart(
                settings=settings,
                folder=str(folder),
                gguf=None if gguf is None else str(gguf),
                name=(settings.served_model_names or (name,))[0],
            )
        ),
    )


def reported(start: EngineStart) -> ModelsPlanned:
    """Run a process that plans the models of the settings, and return its report.

    Raises:
        SettingsError, StartError: it has failed.
    """
    reports: queue.SimpleQueue[Report | int] = queue.SimpleQueue()
    _Process(start, reports.put, reports.put)
    failed: Failed | None = None
    while True:
        found = reports.get()
        if isinstance(found, ModelsPlanned):
            return found
        if isinstance(found, Failed):
            failed = found
        if isinstance(found, int):
            raise _start_error(failed, found)


def _start_error(failed: Failed | None, status: int) -> Exception:
    """Return the error of a start."""
    if failed is None:
        return StartError(f"the engine's process {cause_of(status, None)} while it loaded the model")
    if failed.option is not None:
        return OptionError(failed.option, failed.text)
    return SettingsError(failed.text) if failed.explains_itself else StartError(failed.text)


def _private_folder() -> tempfile.TemporaryDirectory[str]:
    """Make the folder that is shared with the engine's process.

    A container with a read-only root may have no other place than `/dev/shm`, and the folder of the environment may
    have too long a name for sockets.

    Raises:
        StartError: no folder can be made.
    """
    last: OSError | None = None
    for folder in (None, "/tmp", "/dev/shm"):  # noqa: S108 - the name of what is made there is random, its mode 0700
        try:
            if len(folder or tempfile.gettempdir()) <= _LONGEST_FOLDER:
                return tempfile.TemporaryDirectory(
                    prefix="plumbline-", dir=folder, ignore_cleanup_errors=True
                )
        except OSError as error:
            last = error
    raise StartError(
        f"the engine's process needs a folder for its socket, and none can be made ({last}): set TMPDIR to a "
        f"folder that can be written, with a path of at most {_LONGEST_FOLDER} bytes"
    )
