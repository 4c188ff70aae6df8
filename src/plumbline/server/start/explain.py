"""Explain in one line why the server did not start."""

from __future__ import annotations

import contextlib
import re
import sys

from plumbline.server.store.interface import StoreUnavailableError

__all__ = ["StartError", "explained", "print_line"]


class StartError(Exception):
    """Another process could not start; the message says why, and what to do."""


_LONGEST = 400
"""Characters of an exception's message that are shown."""
_OUT_OF_MEMORY = re.compile(
    r"can't allocate memory: you tried to allocate (\d+) bytes|out of memory|Cannot allocate memory"
    r"|can't start new thread"
)


def explained(error: BaseException) -> str:
    """Return what is wrong and what to do, in one line, for an exception that ended the start."""
    while isinstance(error, BaseExceptionGroup):  # The application starts in a group of tasks.
        error = error.exceptions[0]
    text = " ".join(str(error).split())
    if len(text) > _LONGEST:
        text = f"{text[:_LONGEST]}…"
    if isinstance(error, StartError):
        return text
    if isinstance(error, StoreUnavailableError):
        return f"--store cannot be used: {text}. Give another database, or --store none to keep nothing"
    found = _OUT_OF_MEMORY.search(text)
    if found is not None or isinstance(error, MemoryError):
        wanted = f" for {found[1]} bytes more" if found is not None and found[1] else ""
        return (
            f"the memory does not suffice{wanted}: give a smaller --kv-cache-bytes, --max-model-len or --max-num-seqs, "
            "or a smaller model"
        )
    return f"the server did not start: {type(error).__name__}: {text or 'no message'}; --debug shows where"


def print_line(text: str) -> None:
    """Print to standard error at once; a full disk behind it ends nothing."""
    with contextlib.suppress(OSError):
        print(text, file=sys.stderr, flush=True)
