"""Print to a pipe even if its reader leaves or its encoding lacks characters, and parse arguments.

Neither changes the result of a command: its files are written and its exit status stays the same.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress

__all__ = ["discard_output", "parsed", "put", "ready"]


def put(text: str, end: str = "\n") -> None:
    """Print, even if the pipe is closed."""
    try:
        print(text, end=end)
    except BrokenPipeError:
        discard_output()


def parsed(parser: argparse.ArgumentParser, argv: Sequence[str] | None) -> argparse.Namespace:
    """Parse arguments; exit after a help text, even if the pipe is closed (needed for Python 3.11.2).

    The error about unknown arguments repeats names of options only, because values may be secrets.
    """
    try:
        found, unknown = parser.parse_known_args(argv)
    except BrokenPipeError:
        discard_output()
        raise SystemExit(0) from None
    if unknown:
        names = [text.partition("=")[0] if text.startswith("-") else "…" for text in unknown]
        parser.error(f"unrecognized arguments: {' '.join(names)}")
    return found


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
            discard_output()


def discard_output() -> None:
    """Send further output nowhere, because the reader of the pipe has left."""
    # Python flushes again at exit; a closed pipe would then be an error and change the exit status.
    with suppress(OSError, ValueError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)
