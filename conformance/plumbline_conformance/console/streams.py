"""Print to a pipe whose reader may leave or whose encoding may lack characters.

A problem of the pipe does not change the result of a command: it writes its files and exits with the same status.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TextIO

__all__ = ["discard_output", "put", "robust_output"]


def put(text: str, end: str = "\n") -> None:
    """Print a text; if the pipe is closed, discard this and all further output."""
    try:
        print(text, end=end)
    except BrokenPipeError:
        discard_output()


@contextmanager
def robust_output() -> Iterator[None]:
    """Print characters that the encoding lacks as escapes in this block, and flush the output at its end.

    A service manager may start a program without streams; what it prints goes nowhere then.
    """
    sys.stdout = sys.stdout or _nowhere()
    sys.stderr = sys.stderr or _nowhere()
    for stream in (sys.stdout, sys.stderr):
        reconfigure = getattr(stream, "reconfigure", None)
        if reconfigure is not None:
            reconfigure(errors="backslashreplace")
    try:
        yield
    finally:
        try:
            sys.stdout.flush()
        except BrokenPipeError:
            discard_output()


def _nowhere() -> TextIO:
    return os.fdopen(os.open(os.devnull, os.O_WRONLY), "w", encoding="utf-8")


def discard_output() -> None:
    """Discard further output, because the reader of the pipe has left."""
    # Python flushes again at exit; a closed pipe would then be an error and change the exit status.
    with suppress(OSError, ValueError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)
