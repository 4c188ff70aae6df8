"""Show the progress of a start in the terminal: a bar where somebody watches, else a line now and then."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from plumbline.port.progress import LoadProgress
from plumbline.server.start.explain import print_line
from plumbline.server.start.waiting import text

__all__ = ["shown"]

_EVERY = 10.0
"""Seconds between two lines in a log."""


@contextmanager
def shown() -> Iterator[Callable[[LoadProgress], None]]:
    """Yield a function that shows each step of a start while the block runs."""
    # What rich takes for a terminal; importing it takes 50 ms.
    if (
        not sys.stderr.isatty()
        and not {"FORCE_COLOR", "TTY_INTERACTIVE", "TTY_COMPATIBLE"} & os.environ.keys()
    ):
        yield _Lines()
        return
    from plumbline.server.start.bar import bar

    with bar() as show:
        yield show or _Lines()


class _Lines:
    """A line for a step that takes long: logs of quick starts stay short."""

    def __init__(self) -> None:
        self._due = time.monotonic() + _EVERY

    def __call__(self, progress: LoadProgress) -> None:
        now = time.monotonic()
        if now >= self._due:
            self._due = now + _EVERY
            print_line(f"Starting: {text(progress)}")
