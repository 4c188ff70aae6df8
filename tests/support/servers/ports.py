"""Choose ports for servers that tests start as processes."""

from __future__ import annotations

import contextlib
import random
import socket

__all__ = ["free_port"]


def free_port() -> int:
    """Return a port on which nothing listens.

    The system gives it to no outgoing connection, which could take it before the server does.
    """
    while True:
        port = random.SystemRandom().randrange(20_000, 32_768)
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port
