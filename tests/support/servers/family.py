"""Find the processes of a server: the one that was started, the engine's, and API servers."""

from __future__ import annotations

from pathlib import Path

__all__ = ["engine_of", "engines_of", "family", "status_field", "thread_count"]

_ENGINE = b"plumbline.server.start.engine_process.process"


def family(pid: int) -> list[int]:
    """Return a process and all that have come of it."""
    found = [pid]
    for each in found:
        for task in Path(f"/proc/{each}/task").glob("*/children"):
            try:
                found += [int(child) for child in task.read_text("ascii").split()]
            except OSError:  # It has ended meanwhile.
                continue
    return found


def engines_of(pid: int) -> list[int]:
    """Return the processes of a server's engines."""
    found = []
    for each in family(pid):
        try:
            arguments = Path(f"/proc/{each}/cmdline").read_bytes().split(b"\0")
        except OSError:
            continue
        if _ENGINE in arguments:
            found.append(each)
    return found


def engine_of(pid: int) -> int:
    """Return the process of a server's only engine."""
    (found,) = engines_of(pid)
    return found


def status_field(pid: int, name: str) -> int:
    """Return the sum of a field of `/proc/PID/status` over a server's processes; kilobytes for memory."""
    total = 0
    for each in family(pid):
        try:
            lines = Path(f"/proc/{each}/status").read_text("utf-8").splitlines()
        except OSError:
            continue
        total += next((int(line.split()[1]) for line in lines if line.startswith(f"{name}:")), 0)
    return total


def thread_count(pid: int) -> int:
    """Return the number of threads of a server's processes."""
    return status_field(pid, "Threads")
