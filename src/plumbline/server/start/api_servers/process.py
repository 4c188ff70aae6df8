"""Run one API server of several: the application, with an engine in another process.

The supervisor starts `python -m plumbline.server.start.api_servers.process` and writes a `Start` to its standard input.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import sys
from pathlib import Path

import msgspec

from plumbline.engines.remote.client import RemoteEngine
from plumbline.server.claims.shared import SharedClaims
from plumbline.server.loading.catalog import only
from plumbline.server.loading.model import load
from plumbline.server.loading.storage import build_store
from plumbline.server.observe.logs import configure
from plumbline.server.start.api_servers.start import Start
from plumbline.server.start.explain import explained
from plumbline.server.start.garbage import make_collections_rare
from plumbline.server.start.listener import listener
from plumbline.server.start.summary import print_line

__all__ = ["main"]


def main() -> int:
    """Serve until a signal, or until the engine's process ends; return the exit status."""
    start = msgspec.json.decode(sys.stdin.buffer.read(), type=Start)
    configure(start.settings.log_format)
    try:
        return _serve(start)
    except Exception as error:
        if start.settings.debug:
            raise
        print_line(f"plumbline: {explained(error)}")
        return 1


def _serve(start: Start) -> int:
    settings = start.settings
    engine = asyncio.run(RemoteEngine.connect(Path(start.engine), settings.stuck_after))
    model = load(settings, engine)
    make_collections_rare()
    server = listener(
        only(model),
        settings,
        build_store(settings),
        host=settings.host,
        port=settings.port,
        shared=SharedClaims(Path(start.hub), start.address),
    )

    def end() -> None:
        server.should_exit = True

    # Without an engine nothing can be answered; the supervisor, if it lives, starts all anew or ends.
    engine.on_lost = end
    own = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    own.bind(start.address)
    with contextlib.suppress(KeyboardInterrupt):  # uvicorn raises SIGINT again when it has stopped.
        server.run(sockets=[*(socket.socket(fileno=one) for one in start.listening), own])
    return 0 if server.started else 1


if __name__ == "__main__":
    status = main()
    sys.stderr.flush()
    os._exit(status)  # Threads of libraries must not keep a process that has let its clients go.
