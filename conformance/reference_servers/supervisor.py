"""Keep a server running: start it again each time its process ends, until the block ends."""

from __future__ import annotations

import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

__all__ = ["supervised"]

Start = Callable[[], AbstractContextManager["subprocess.Popen[bytes]"]]
_LOOK = 0.2
"""Seconds between looks at the process."""


@contextmanager
def supervised(start: Start) -> Iterator[None]:
    """Start a server, and again whenever it dies; the judge waits for it with `--restart-wait`.

    Args:
        start: returns a context manager that starts the server and ends it.

    Raises:
        RuntimeError: the first start failed. A later one that fails leaves the server dead.
    """
    stop = threading.Event()
    first = start()
    process = first.__enter__()

    def keep() -> None:
        nonlocal first, process
        while not stop.wait(_LOOK):
            if process.poll() is None:
                continue
            first.__exit__(None, None, None)
            again = start()
            try:
                process = again.__enter__()
            except RuntimeError:
                return
            first = again

    thread = threading.Thread(target=keep)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()
        first.__exit__(None, None, None)
