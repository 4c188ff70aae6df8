"""Print to a pipe whose reader may leave or whose encoding may lack characters, and parse arguments.

A problem of the pipe does not change the result of a command: it writes its files and exits with the same status.
"""

from __future__ import annotations

import argparse
import difflib
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import TextIO

__all__ = ["discard_output", "parse_arguments", "put", "robust_output"]

_LONGEST_NAME = 64
"""Characters of an unknown option that are compared with the known ones."""


def put(text: str, end: str = "\n") -> None:
    """Print a text; if the pipe is closed, discard this and all further output."""
    try:
        print(text, end=end)
    except BrokenPipeError:
        discard_output()


def parse_arguments(parser: argparse.ArgumentParser, argv: Sequence[str] | None) -> argparse.Namespace:
    """Parse arguments, or print the help text and exit with status 0 even if the pipe is closed.

    argparse of Python 3.11.2 raises an error in the latter case. The error about unknown arguments names the nearest
    option, and repeats names of options only, because values may be secrets.
    """
    try:
        found, unknown = parser.parse_known_args(argv)
    except BrokenPipeError:
        discard_output()
        raise SystemExit(0) from None
    if unknown and hasattr(found, "ids") and not any(text.startswith("-") for text in unknown):
        # argparse takes a list in one piece, and so none of it after an option that follows the list's beginning.
        found.ids, unknown = [*found.ids, *unknown], []
    if unknown:
        names = [text.partition("=")[0] if text.startswith("-") else "…" for text in unknown]
        wrong = next((name for name in names if name.startswith("--")), "")
        near = difflib.get_close_matches(wrong[:_LONGEST_NAME], _options(parser, found), 1)
        hint = f" (did you mean {near[0]}?)" if near else ""
        parser.error(f"unrecognized arguments: {' '.join(names)}{hint}")
    return found


def _options(parser: argparse.ArgumentParser, found: argparse.Namespace) -> list[str]:
    """Return the options of a parser and of the command that was found, such as `--port`."""
    parsers = [parser]
    for action in parser._actions:
        # The name of the command is in the namespace under the `dest` of its action.
        if isinstance(action, argparse._SubParsersAction):
            command = getattr(found, action.dest, None)
            parsers += [one for name, one in action.choices.items() if name == command]
    return [name for each in parsers for action in each._actions for name in action.option_strings]


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
