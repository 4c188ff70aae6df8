"""Report what the start of an engine is doing, for the terminal and for `/health/live`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

import msgspec

__all__ = ["LoadProgress", "report", "watched"]


class LoadProgress(msgspec.Struct, frozen=True):
    """A step of the start, and how much of it is done."""

    stage: str
    """What is done, such as `loading weights`."""
    done: int = 0
    """Bytes."""
    total: int = 0
    """Bytes of the whole step; 0 if the number is not known."""


Watcher = Callable[[LoadProgress], None]

_watcher: ContextVar[Watcher | None] = ContextVar("watcher", default=None)


@contextmanager
def watched(watcher: Watcher) -> Iterator[None]:
    """Call `watcher` for each report of this thread within the block; it must return at once."""
    token = _watcher.set(watcher)
    try:
        yield
    finally:
        _watcher.reset(token)


def report(stage: str, done: int = 0, total: int = 0) -> None:
    """Pass progress to the watcher of this context, if there is one."""
    watcher = _watcher.get()
    if watcher is not None:
        watcher(LoadProgress(stage, done, total))
