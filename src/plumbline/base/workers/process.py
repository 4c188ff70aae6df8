"""The template process of a pool: it imports a function once, and forks a worker for each connection that it is sent.

`pool.py` starts `python -P -m plumbline.base.workers.process`, with its end of a socket as standard input. The first
message says which function (`Setup`); then come orders (`FORK` with a descriptor, `KILL` with the number of a worker),
and it answers with the exit status of each worker that has ended. It ends with the socket, and its workers with it.

A fork of this process is warm after a millisecond, however long its imports took, and shares their memory.
"""

from __future__ import annotations

import ctypes
import importlib
import os
import resource
import selectors
import signal
import socket
import struct
from collections.abc import Callable
from contextlib import suppress

import msgspec

__all__ = [
    "FORK",
    "HEAD",
    "KILL",
    "MOST_DETAIL",
    "ORDER",
    "RESULT",
    "STATUS",
    "Bounds",
    "Handler",
    "Setup",
    "main",
]

Handler = Callable[[bytes], bytes]
"""What a worker runs."""
ORDER = struct.Struct("!cI")
"""An order: its kind and the number of a worker."""
STATUS = struct.Struct("!Ii")
"""A report: the number of a worker and its exit status."""
FORK, KILL = b"F", b"K"
HEAD = struct.Struct("!c?dQ")
"""Before each payload and each answer: the kind of an answer, whether the worker ends after it, the seconds of CPU time
that a call may take, and the number of bytes."""
RESULT, NO_MEMORY, LARGE, FAILED = b"R", b"M", b"L", b"X"
MOST_DETAIL = 4096
"""Bytes of the text of an exception."""
_PR_SET_PDEATHSIG = 1
_GROWN = 64 * 1024 * 1024
"""Bytes that a worker may keep after a call; one that has grown by more is replaced, which gives them back."""


class Bounds(msgspec.Struct, frozen=True):
    """What one call may take.

    Attributes:
        cpu_seconds: time of a CPU; a call may name another.
        seconds: time on the clock; more than `cpu_seconds`, because the machine may be busy.
        memory: bytes of addresses beyond those of the template process.
        result: bytes of the answer.
    """

    cpu_seconds: float
    seconds: float
    memory: int
    result: int


class Setup(msgspec.Struct, frozen=True):
    """The first message to a template process.

    Attributes:
        factory: `module:function`; the function takes `data` and returns the handler.
        data: what the handler needs for all calls, such as a vocabulary.
        bounds: of each call.
        niceness: of the workers.
    """

    factory: str
    data: bytes
    bounds: Bounds
    niceness: int = 0


def main() -> None:
    """Fork workers until the socket closes."""
    control = socket.socket(fileno=os.dup(0))
    setup = msgspec.msgpack.decode(_message(control)[1], type=Setup)
    module, _, name = setup.factory.partition(":")
    handler: Handler = getattr(importlib.import_module(module), name)(setup.data)
    control.sendall(ORDER.pack(FORK, 0))  # Ready.
    _Template(control, handler, setup).run()


class _Template:
    """The loop that forks, kills and reports."""

    def __init__(self, control: socket.socket, handler: Handler, setup: Setup) -> None:
        self._control = control
        self._handler = handler
        self._setup = setup
        self._workers: dict[int, int] = {}
        """The number of each worker by its process id."""

    def run(self) -> None:
        """Follow orders until the socket closes, and end all workers."""
        wake, woken = os.pipe()
        for end in (wake, woken):
            os.set_blocking(end, False)
        signal.set_wakeup_fd(woken)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        ready = selectors.DefaultSelector()
        ready.register(self._control, selectors.EVENT_READ)
        ready.register(wake, selectors.EVENT_READ)
        while True:
            for key, _ in ready.select():
                if key.fileobj == wake:
                    with suppress(BlockingIOError):
                        os.read(wake, 4096)
                    self._report()
                elif not self._follow():
                    for process in self._workers:
                        os.kill(process, signal.SIGKILL)
                    return

    def _follow(self) -> bool:
        """Follow one order; return whether the pool is still there."""
        try:
            order, descriptors, _, _ = socket.recv_fds(self._control, ORDER.size, 1)
        except OSError:
            return False
        if len(order) < ORDER.size:
            return False
        kind, number = ORDER.unpack(order)
        if kind == FORK:
            process = os.fork()
            if not process:
                self._work(socket.socket(fileno=descriptors[0]))
            self._workers[process] = number
            os.close(descriptors[0])
        else:
            # A process that has ended is still ours until `_report` has waited for it, so this id is no other's.
            for process, known in self._workers.items():
                if known == number:
                    os.kill(process, signal.SIGKILL)
        return True

    def _report(self) -> None:
        """Tell the pool which workers have ended."""
        while self._workers:
            process, status = os.waitpid(-1, os.WNOHANG)
            if not process:
                return
            number = self._workers.pop(process)
            with suppress(OSError):
                self._control.sendall(STATUS.pack(number, os.waitstatus_to_exitcode(status)))

    def _work(self, connection: socket.socket) -> None:
        """Answer calls in a fork, which ends here."""
        status = 1
        try:
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            self._control.close()
            _end_with_parent()
            os.nice(self._setup.niceness)
            _serve(connection, self._handler, self._setup.bounds)
            status = 0
        finally:
            os._exit(status)


def _serve(connection: socket.socket, handler: Handler, bounds: Bounds) -> None:
    """Answer calls until the connection closes, or this process has grown."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    most = _addresses() + bounds.memory
    resource.setrlimit(resource.RLIMIT_AS, (most, most))
    before = _peak()
    is_last = False
    while not is_last:
        try:
            cpu_seconds, payload = _message(connection)
        except EOFError:
            return
        # The default action of both signals ends the process, also amid native code.
        signal.setitimer(signal.ITIMER_PROF, cpu_seconds)
        signal.setitimer(signal.ITIMER_REAL, bounds.seconds)
        kind, answer = _answer(handler, payload, bounds.result)
        del payload
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.setitimer(signal.ITIMER_REAL, 0)
        is_last = _peak() - before > _GROWN
        connection.sendall(HEAD.pack(kind, is_last, 0.0, len(answer)))
        connection.sendall(answer)


def _answer(handler: Handler, payload: bytes, most: int) -> tuple[bytes, bytes]:
    """Return the kind of the answer and its bytes."""
    try:
        answer = handler(payload)
    except MemoryError:
        return NO_MEMORY, b""
    except BaseException as error:  # A panic of Rust is not an `Exception`.
        return FAILED, f"{type(error).__name__}: {error}"[: MOST_DETAIL // 4].encode("utf-8", "replace")
    return (RESULT, answer) if len(answer) <= most else (LARGE, b"")


def _message(connection: socket.socket) -> tuple[float, bytes]:
    """Return the seconds and the payload of the next message.

    Raises:
        EOFError: the connection has closed.
    """
    _, _, seconds, size = HEAD.unpack(_exactly(connection, HEAD.size))
    return seconds, bytes(_exactly(connection, size))


def _exactly(connection: socket.socket, size: int) -> bytearray:
    found = bytearray(size)
    view = memoryview(found)
    while view:
        count = connection.recv_into(view)
        if not count:
            raise EOFError
        view = view[count:]
    return found


def _addresses() -> int:
    """Return the bytes of addresses of this process; 0 where the system does not say."""
    try:
        with open("/proc/self/statm", encoding="ascii") as file:
            return int(file.read().split()[0]) * resource.getpagesize()
    except OSError:
        return 0


def _peak() -> int:
    """Return the most bytes of memory that this process has had."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def _end_with_parent() -> None:
    """Ask the system to end this process when the template process ends, however it ends."""
    with suppress(OSError, AttributeError):  # Linux has it.
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


if __name__ == "__main__":
    main()
