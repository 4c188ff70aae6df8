"""Tell the SIGHUP of a terminal that was closed from that of an operator who changed the keys."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable

__all__ = ["on_hangup"]


def on_hangup(reload: Callable[[], None], end: Callable[[], None]) -> Callable[[], None]:
    """Return a handler of SIGHUP. Call this before the handler is set.

    Args:
        reload: is called for the signal of an operator.
        end: is called if the terminal that the server began with has gone; a server that went on would keep its port
            and its memory, and nobody would see it. `nohup` prevents that, as for other programs.
    """
    had_terminal = signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN and _has_terminal()

    def handle() -> None:
        (end if had_terminal and not _has_terminal() else reload)()

    return handle


def _has_terminal() -> bool:
    try:
        os.close(os.open("/dev/tty", os.O_RDONLY | os.O_NOCTTY))
    except OSError:
        return False
    return True
