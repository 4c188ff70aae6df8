"""The terminal, or what stands in its place: a pipe whose reader may leave, and an encoding that may lack characters.

Neither changes what a command does: its files are written, and its exit status is that of what it found.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress

from rich.console import Console

__all__ = ["INTERRUPTED", "console", "parsed", "put", "ready"]

INTERRUPTED = 130
"""The exit status of what was interrupted, as shells have it."""


class _Console(Console):
    """One that goes on in silence when nobody reads any more; rich's own ends the process with status 1."""

    def on_broken_pipe(self) -> None:
        self.quiet = True
        _nobody_reads()


def console() -> Console:
    """Plain lines in a pipe, colours on a terminal; lines are never broken, so that commands can be copied."""
    return _Console(highlight=False, soft_wrap=True)


def put(text: str, end: str = "\n") -> None:
    """Print, whether or not anybody still reads."""
    try:
        print(text, end=end)
    except BrokenPipeError:
        _nobody_reads()


def parsed(parser: argparse.ArgumentParser, argv: Sequence[str] | None) -> argparse.Namespace:
    """The arguments, or the end where a help is printed, whether or not anybody reads it: Python 3.11.2 asks that."""
    try:
        return parser.parse_args(argv)
    except BrokenPipeError:
        _nobody_reads()
        raise SystemExit(0) from None


@contextmanager
def ready() -> Iterator[None]:
    """Within it, what an encoding lacks is printed as an escape; at its end everything is out, or nobody reads it."""
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
            _nobody_reads()


def _nobody_reads() -> None:
    # Python flushes once more when it ends, and would call that an error and change the exit status.
    with suppress(OSError, ValueError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)
