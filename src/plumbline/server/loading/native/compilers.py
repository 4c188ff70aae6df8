"""Compile the GPU kernels of a model in parallel processes before its steps need them.

What they compile is in Triton's cache on disk, where the launches find it by their content: the source of the kernel,
the release of Triton and the GPU. A mark beside it says that a model has been compiled, so that the next start begins
no processes.
"""

from __future__ import annotations

import hashlib
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple, Self

import msgspec

import plumbline_kernels
from plumbline.engines import native
from plumbline.port.progress import report
from plumbline.server.loading.native.compile_share import BEGINS, ENDS, FOUND, Job
from plumbline_kernels.cpu.library import usable_cores

__all__ = ["Compiled", "CompilerError", "Compilers", "cache_folder"]

_MOST = 8
"""Processes, each of which takes about 500 MB."""
_SILENT = 300.0
"""Seconds that a kernel may take: 10 on a machine of two loaded cores."""
_STAGE = "compiling kernels"


class CompilerError(ValueError):
    """A compiler process has ended or hangs; the message names the kernel."""


class Compiled(NamedTuple):
    """Variants of kernels."""

    new: int
    """Those that were compiled."""
    found: int
    """Those that were in the cache."""


class _Process:
    """A compiler process."""

    def __init__(self, command: Sequence[str], lines: queue.SimpleQueue[tuple[_Process, str | None]]) -> None:
        self.kernel = ""
        """The one that it compiles."""
        self.heard_at = time.monotonic()
        self.process = subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            text=True,
            # No process touches the GPU, whose memory is for the model.
            env=os.environ | {"CUDA_VISIBLE_DEVICES": ""},
        )
        threading.Thread(target=self._read, args=(lines,), daemon=True).start()

    def _read(self, lines: queue.SimpleQueue[tuple[_Process, str | None]]) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            lines.put((self, line.rstrip("\n")))
        lines.put((self, None))


class Compilers:
    """Processes that compile the kernels of a model, from the construction to the end of the context.

    Args:
        job: the model and its limits.
        command: of a process; the number of its share and that of all shares are appended.
        silent: seconds after which a process hangs.
    """

    def __init__(self, job: Job, command: Sequence[str] | None = None, silent: float = _SILENT) -> None:
        self._silent = silent
        self._mark = cache_folder() / f"plumbline-{_digest(job)}"
        self._lines: queue.SimpleQueue[tuple[_Process, str | None]] = queue.SimpleQueue()
        self._processes: list[_Process] = []
        if self._mark.exists():
            return
        if command is None:
            module = "plumbline.server.loading.native.compile_share"
            command = (sys.executable, "-m", module, msgspec.json.encode(job).decode())
        count = max(1, min(usable_cores(), _MOST))
        self._processes = [
            _Process([*command, str(share), str(count)], self._lines) for share in range(count)
        ]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def wait(self) -> Compiled:
        """Wait for all of them, and report how many variants there are.

        Raises:
            CompilerError: one has ended before, or compiles one kernel for too long.
        """
        new = found = 0
        going = list(self._processes)
        try:
            while going:
                report(f"{_STAGE}, {new + found} done")
                try:
                    process, line = self._lines.get(timeout=min(1.0, self._silent))
                except queue.Empty:
                    _check_heard(going, self._silent)
                    continue
                process.heard_at = time.monotonic()
                if line is None:
                    going.remove(process)
                    _check_status(process)
                elif line.startswith(BEGINS):
                    process.kernel = line.removeprefix(BEGINS)
                elif line.startswith((ENDS, FOUND)):
                    new, found = new + line.startswith(ENDS), found + line.startswith(FOUND)
        finally:
            self.stop()
        if self._processes:
            # A cache that is mounted read-only takes no mark: then the next start looks again.
            with suppress(OSError):
                self._mark.parent.mkdir(parents=True, exist_ok=True)
                self._mark.touch()
        return Compiled(new, found)

    def stop(self) -> None:
        """End the processes. Idempotent."""
        for each in self._processes:
            each.process.kill()
            each.process.wait()


def _check_heard(going: Sequence[_Process], silent: float) -> None:
    late = [each for each in going if time.monotonic() - each.heard_at > silent]
    if late:
        raise CompilerError(f"the compiler of {_named(late[0])} has not ended within {silent:.0f} s")


def _check_status(process: _Process) -> None:
    status = process.process.wait()
    if status > 0:
        raise CompilerError(
            f"the compiler of {_named(process)} failed with status {status}; its log is above"
        )
    if status < 0:
        name = signal.Signals(-status).name
        memory = " (perhaps the system is out of memory)" if -status == signal.SIGKILL else ""
        raise CompilerError(f"the compiler of {_named(process)} was killed by {name}{memory}")


def _named(process: _Process) -> str:
    return f"the kernel {process.kernel}" if process.kernel else "the model's kernels"


def cache_folder() -> Path:
    """Return the folder of Triton's cache."""
    return Path(os.environ.get("TRITON_CACHE_DIR") or "~/.triton/cache").expanduser()


def _digest(job: Job) -> str:
    """Return a name for all that decides which variants there are and what they contain."""
    import triton  # Only where there is a GPU, or one is compiled for.

    digest = hashlib.sha256(triton.__version__.encode())
    digest.update(msgspec.json.encode(msgspec.structs.replace(job, folder="")))
    digest.update((Path(job.folder) / "config.json").read_bytes())
    for module in (plumbline_kernels, native):
        for path in sorted(Path(module.__path__[0]).rglob("*")):
            if path.suffix in (".py", ".json"):
                digest.update(path.read_bytes())
    return digest.hexdigest()[:32]
