"""Keep what has happened to an engine's process in a file, for the processes that use the engine."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec

__all__ = ["History", "history_of", "read", "write"]


class History(msgspec.Struct, frozen=True, kw_only=True):
    """The ends of an engine's process so far. The process that starts it again writes this at each end."""

    number: int = 1
    """The process that is there or comes next; the first one is 1."""
    cause: str = ""
    """Why the last one ended, such as `was killed by SIGSEGV`; empty if none has."""
    ended_at: float = 0.0
    """When, by `time.monotonic`, which all processes of a machine share."""
    fatal: tuple[tuple[int, int], ...] = ()
    """What it was computing: numbers of connections and streams."""
    deaths: dict[str, int] = {}
    """How often it ended, by kind: the name of a signal, or `error`."""
    num_quarantined: int = 0
    """Requests that are refused because it ended under them."""
    failed: str = ""
    """Why there will be no other process; empty as long as there is one."""


def history_of(socket: Path) -> Path:
    """Return the file that belongs to an engine's socket. It exists if somebody starts the engine again."""
    return socket.with_suffix(".history")


def read(path: Path) -> History | None:
    """Return the history, or None if there is none, or none that can be read."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=History)
    except (OSError, msgspec.MsgspecError):
        return None


def write(path: Path, history: History) -> None:
    """Write the history; readers see the old one or the new one.

    Raises:
        OSError: the disk is full.
    """
    new = path.with_suffix(".new")
    new.write_bytes(msgspec.json.encode(history))
    os.replace(new, path)
