"""Serve the pocket model in a forked process, with a fault in one module or with its lines noted.

The parent imports everything once (`import_all`). A fork has only to put the fault into the functions that are there
(`swap`) and to load the model, which takes 0.8 s of CPU time and not 5.6.
"""

from __future__ import annotations

import ctypes
import importlib
import os
import signal
import socket
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from multiprocessing import Pipe
from pathlib import Path
from types import FrameType
from typing import Any

from plumbline_conformance.suite.scenario import Target
from source_mutants.swap import Change, put

__all__ = ["DidNotStart", "LineNotes", "Lines", "import_all", "lines_of_imports", "served"]

MODEL = "plumbline-pocket"
KEY = "sk-of-nobody-but-this-run"
START_SECONDS = 30.0
"""A start takes one second, and 20 on a loaded machine."""
NOTING_SECONDS = 300.0
"""A start takes over a minute if the server notes its lines."""
ILL_SECONDS = 3.0
"""How long `/health` may answer with an error other than 503 until it is taken for the fault's."""
_DIE_WITH_PARENT = 1
"""PR_SET_PDEATHSIG of Linux."""

Lines = dict[str, set[int]]
"""By the path of a file below the package, the lines that ran."""


class DidNotStart(Exception):  # noqa: N818 - the name describes the event
    """The server exited, or was not healthy in time."""


class LineNotes:
    """Which lines of a package a forked process runs, and which modules it has.

    Args:
        package: the folder of the package; None if only the modules are wanted, because noting lines is slow.
    """

    def __init__(self, package: Path | None) -> None:
        self._parent, self._child = Pipe()
        self._traces = package is not None
        self._package = f"{package}/"
        self._seen: Lines = {}

    def take(self) -> tuple[Lines, list[str]]:
        """In the parent: return the lines that ran since the last call, and the modules in the order of imports."""
        self._parent.send(None)
        return self.wait()

    def wait(self) -> tuple[Lines, list[str]]:
        """In the parent: return what the child sends."""
        found: tuple[Lines, list[str]] = self._parent.recv()
        return found

    def begin(self) -> None:
        """In the child: note lines from now on, and answer the parent."""

        def trace(frame: FrameType, event: str, _: Any) -> Callable[..., Any] | None:
            name = frame.f_code.co_filename
            if not name.startswith(self._package):
                return None
            lines = self._seen.setdefault(name[len(self._package) :], set())

            def local(frame: FrameType, event: str, _: Any) -> Callable[..., Any]:
                lines.add(frame.f_lineno)
                return local

            return local(frame, event, None)

        threading.Thread(target=self._answer, daemon=True).start()
        if self._traces:
            threading.settrace(trace)
            sys.settrace(trace)

    def send(self) -> None:
        """In the child: send what has been noted."""
        found = {name: lines.copy() for name, lines in self._seen.copy().items()}
        for name, lines in found.items():
            self._seen[name] -= lines  # In place: frames that still run add to the same set.
        self._child.send((found, list(sys.modules)))

    def _answer(self) -> None:
        with suppress(EOFError, OSError):
            while True:
                self._child.recv()
                self.send()


def import_all(names: Iterable[str]) -> None:
    """Import these modules, so that forks need not."""
    for name in names:
        if name not in sys.modules:
            with suppress(Exception):  # Some are no files, such as `torch.ops`.
                importlib.import_module(name)


def lines_of_imports(names: Iterable[str], package: Path) -> Lines:
    """Return the lines of the package that run while a fork imports these modules."""
    notes = LineNotes(package)
    process = os.fork()
    if process == 0:
        try:
            notes.begin()
            import_all(names)
            notes.send()
        finally:
            os._exit(0)
    lines, _ = notes.wait()
    os.waitpid(process, 0)
    return lines


@contextmanager
def served(change: Change | None = None, notes: LineNotes | None = None) -> Iterator[Target]:
    """Serve in a forked process until the block ends; yield the server as a target of the judge.

    Raises:
        DidNotStart: the server exited or was not healthy in time.
    """
    with socket.socket() as one, socket.socket() as other:
        one.bind(("127.0.0.1", 0))
        other.bind(("127.0.0.1", 0))
        port, mcp = one.getsockname()[1], f"127.0.0.1:{other.getsockname()[1]}"
    with tempfile.TemporaryDirectory() as folder:
        options = (
            "--port",
            str(port),
            "--store",
            f"{folder}/responses.db",
            "--threads",
            "1",
            "--allow-mcp",
            mcp,
        )
        sys.stdout.flush()
        process = os.fork()
        if process == 0:
            _serve(options, change, notes)
        try:
            _wait(process, port, START_SECONDS if notes is None else NOTING_SECONDS)
            yield Target(base_url=f"http://127.0.0.1:{port}/v1", model=MODEL, api_key=KEY, mcp=mcp)
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process, signal.SIGKILL)
            with suppress(ChildProcessError):  # `_wait` has seen its end.
                os.waitpid(process, 0)


def _serve(options: Sequence[str], change: Change | None, notes: LineNotes | None) -> None:
    """Be the forked process: serve, and exit."""
    status = 1
    try:
        os.setsid()
        ctypes.CDLL(None).prctl(_DIE_WITH_PARENT, signal.SIGKILL)
        nothing = os.open(os.devnull, os.O_RDWR)
        for number in range(3):
            os.dup2(nothing, number)
        os.environ["PLUMBLINE_API_KEY"] = KEY
        if notes is not None:
            notes.begin()
        if change is not None:
            put(change)
        from plumbline.cli import main
        from plumbline.server.loading.served_model import load
        from plumbline.server.start import run as start_run
        from plumbline.server.start import serve as start_serve

        run: Any = start_run
        serve: Any = start_serve

        # The fault is in this process only.
        run.begin = lambda settings: None
        serve.load_apart = lambda settings, begun=None: load(settings)
        status = main(["serve", "--served-model-name", MODEL, *options])
    finally:
        os._exit(status)  # Nothing of the parent must run: no finaliser, no exit handler.


def _wait(process: int, port: int, patience: float) -> None:
    began = time.monotonic()
    ill: float | None = None
    """Since when the health is an error."""
    while (status := _health(port)) != 200:
        now = time.monotonic()
        ill = None if status in (0, 503) else ill or now
        if os.waitpid(process, os.WNOHANG) != (0, 0) or now > began + patience:
            raise DidNotStart
        if ill is not None and now > ill + ILL_SECONDS:
            raise DidNotStart
        time.sleep(0.03)


def _health(port: int) -> int:
    """Return the status of the health; 0 without an answer."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=2) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        return error.code
    except (urllib.error.URLError, OSError):
        return 0
