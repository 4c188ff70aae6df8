"""The processes of a pool, as the server sees them: one that forks workers, and the workers."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import subprocess
import sys
from typing import Literal

import msgspec

from plumbline.base.workers.process import (
    FORK,
    HEAD,
    KILL,
    MOST_DETAIL,
    ORDER,
    RESULT,
    STATUS,
    Bounds,
    Setup,
)

__all__ = ["SlowCallError", "TemplateProcess", "Worker", "WorkerError"]

_START_SECONDS = 30.0
"""For the imports of a template process, on a machine that is busy."""
_REPORT_SECONDS = 2.0
"""For the exit status of a worker that has closed its connection."""

Reason = Literal["time", "memory", "result", "crash"]


class WorkerError(Exception):
    """A call ended without a result.

    Attributes:
        reason: `time`, `memory` or `result` for the bound that it exceeded; `crash` for anything else that ended the
            worker, and for an exception of the function.
    """

    def __init__(self, reason: Reason, detail: str) -> None:
        super().__init__(detail)
        self.reason = reason


class SlowCallError(WorkerError):
    """A call has used up its time of a CPU."""


def _popen(socket_: socket.socket) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        (sys.executable, "-P", "-m", "plumbline.base.workers.process"),
        stdin=socket_.fileno(),
        # No other variable of the server, such as an API key, is of use to it. A process with threads must not fork.
        env={
            "PATH": os.defpath,
            "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
            "OPENBLAS_NUM_THREADS": "1",
            "OMP_NUM_THREADS": "1",
            "RAYON_NUM_THREADS": "1",
        },
        # An interrupt on the terminal is for the server, which ends it. In a session of its own, Linux would weigh its
        # priority against nothing else ("autogroups").
        process_group=0,
    )


class TemplateProcess:
    """The template process, as the pool sees it."""

    def __init__(self, process: subprocess.Popen[bytes], control: socket.socket, bounds: Bounds) -> None:
        self.bounds = bounds
        self.has_ended = False
        self._process = process
        self._control = control
        control.setblocking(False)
        self._count = 0
        self._workers: dict[int, asyncio.Future[int]] = {}
        """The exit status of each worker, by its number."""
        self._unread = b""

    @classmethod
    async def started(cls, setup: Setup) -> TemplateProcess:
        """Start a process, and wait until it has imported the function.

        Raises:
            WorkerError: it did not start.
        """
        ours, theirs = socket.socketpair()
        with theirs:
            process = await asyncio.to_thread(_popen, theirs)
        template = cls(process, ours, setup.bounds)
        try:
            async with asyncio.timeout(_START_SECONDS):
                await template.prepare(setup)
        except BaseException as error:
            await template.close()
            if isinstance(error, OSError | EOFError | TimeoutError):
                raise WorkerError("crash", f"the process of {setup.factory} did not start") from error
            raise
        return template

    async def prepare(self, setup: Setup) -> None:
        """Send the setup, and wait until the function is imported."""
        loop = asyncio.get_running_loop()
        message = msgspec.msgpack.encode(setup)
        await loop.sock_sendall(self._control, HEAD.pack(RESULT, False, 0.0, len(message)) + message)
        await _received(self._control, ORDER.size)
        loop.add_reader(self._control, self._read)

    def fork(self) -> Worker:
        """Return a new worker.

        Raises:
            WorkerError: the template process has just ended.
        """
        ours, theirs = socket.socketpair()
        self._count += 1
        status: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._workers[self._count] = status
        with theirs:
            try:
                socket.send_fds(self._control, [ORDER.pack(FORK, self._count)], [theirs.fileno()])
            except OSError as error:
                ours.close()
                raise WorkerError("crash", "no worker could be started") from error
        return Worker(self, self._count, ours, status)

    def kill(self, number: int) -> None:
        """End a worker."""
        with contextlib.suppress(OSError):
            self._control.send(ORDER.pack(KILL, number))

    def _read(self) -> None:
        """Take the reports that have come."""
        try:
            data = self._control.recv(65536)
        except (BlockingIOError, InterruptedError):
            return
        except OSError:
            data = b""
        self._unread += data
        while len(self._unread) >= STATUS.size:
            number, status = STATUS.unpack(self._unread[: STATUS.size])
            self._unread = self._unread[STATUS.size :]
            _settle(self._workers.pop(number, None), status)
        if not data:
            self._end()

    def _end(self) -> None:
        """Take note that the process has ended, and its workers with it."""
        if not self.has_ended:
            self.has_ended = True
            asyncio.get_running_loop().remove_reader(self._control)
        while self._workers:
            _settle(self._workers.popitem()[1], -signal.SIGKILL)

    async def close(self) -> None:
        """End the process and its workers."""
        self._end()
        self._control.close()
        self._process.kill()  # The workers die with it.
        await asyncio.to_thread(self._process.wait)

    def kill_all(self) -> None:
        """End the process and its workers, without its event loop."""
        self._control.close()
        self._process.kill()
        self._process.wait()


def _settle(future: asyncio.Future[int] | None, status: int) -> None:
    if future is not None and not future.done():
        future.set_result(status)


class Worker:
    """One worker, lent to one caller at a time."""

    def __init__(
        self, template: TemplateProcess, number: int, connection: socket.socket, status: asyncio.Future[int]
    ) -> None:
        self.template = template
        self.is_idle = True
        """Whether it can take a call."""
        self._number = number
        self._connection = connection
        self._status = status
        connection.setblocking(False)

    @property
    def has_ended(self) -> bool:
        """Whether the process has ended."""
        return self._status.done()

    async def call(self, payload: bytes, seconds: float) -> bytes:
        """Return what the handler answers; see `LentWorker.call`.

        Args:
            payload: what the handler gets.
            seconds: of a CPU.
        """
        loop = asyncio.get_running_loop()
        self.is_idle = False
        try:
            await loop.sock_sendall(self._connection, HEAD.pack(RESULT, False, seconds, len(payload)))
            await loop.sock_sendall(self._connection, payload)
            kind, is_last, _, size = HEAD.unpack(await _received(self._connection, HEAD.size))
            if size > max(self.template.bounds.result, MOST_DETAIL):
                raise WorkerError("result", "its answer is too large")
            answer = bytes(await _received(self._connection, size))
        except (OSError, EOFError):
            raise await self._why(seconds) from None
        self.is_idle = not is_last
        match kind:
            case b"R":
                return answer
            case b"M":
                raise WorkerError("memory", "it needs more memory than it may have")
            case b"L":
                raise WorkerError("result", "its result is larger than it may be")
            case _:
                raise WorkerError("crash", answer.decode("utf-8", "replace"))

    def close(self) -> None:
        """Let the process end."""
        self._connection.close()

    def kill(self) -> None:
        """End the process, whatever it does."""
        self._connection.close()
        if not self.has_ended:
            self.template.kill(self._number)

    async def _why(self, seconds: float) -> WorkerError:
        """Return the error of a call that ended the worker."""
        try:
            async with asyncio.timeout(_REPORT_SECONDS):
                status = await asyncio.shield(self._status)
        except TimeoutError:
            return WorkerError("crash", "the worker closed its connection")
        if status == -signal.SIGPROF:
            return SlowCallError("time", f"it takes more than {seconds:g} s of CPU time")
        if status == -signal.SIGALRM:
            return WorkerError("time", f"it takes more than {self.template.bounds.seconds:g} s")
        if status == -signal.SIGABRT:  # Rust and C++ abort where an allocation fails.
            return WorkerError("memory", "it needs more memory than it may have")
        return WorkerError("crash", f"the worker ended with status {status}")


async def _received(connection: socket.socket, size: int) -> bytearray:
    """Return as many bytes.

    Raises:
        EOFError: the connection has closed.
    """
    loop = asyncio.get_running_loop()
    found = bytearray(size)
    view = memoryview(found)
    while view:
        count = await loop.sock_recv_into(connection, view)
        if not count:
            raise EOFError
        view = view[count:]
    return found
