"""Print to a terminal or a pipe, even if its reader leaves or its encoding lacks characters.

Neither changes the result of a command: its files are written and its exit status stays the same.
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
"""The exit status of an interrupted command, as in shells."""


class _Console(Console):
    """A console that goes on silently when the pipe is closed; rich's own exits with status 1."""

    def on_broken_pipe(self) -> None:
        self.quiet = True
        _nobody_reads()


def console() -> Console:
    """Return a console: colours on a terminal, plain lines in a pipe, never wrapped, so that commands can be copied."""
    return _Console(highlight=False, soft_wrap=True)


def put(text: str, end: str = "\n") -> None:
    """Print, even if the pipe is closed."""
    try:
        print(text, end=end)
    except BrokenPipeError:
        _nobody_reads()


def parsed(parser: argparse.ArgumentParser, argv: Sequence[str] | None) -> argparse.Namespace:
    """Parse arguments; exit after a help text, even if the pipe is closed (needed for Python 3.11.2)."""
    try:
        return parser.parse_args(argv)
    except BrokenPipeError:
        _nobody_reads()
        raise SystemExit(0) from None


@contextmanager
def ready() -> Iterator[None]:
    """Print characters that the encoding lacks as escapes, and flush the output at the end."""
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
    # Python flushes again at exit; a closed pipe would then be an error and change the exit status.
    with suppress(OSError, ValueError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)
