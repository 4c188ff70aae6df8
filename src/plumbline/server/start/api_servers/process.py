"""Run one API server of several: the application, with an engine in another process.

The supervisor starts `python -m plumbline.server.start.api_servers.process` and writes a `ServerStart` to its standard
input.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import msgspec

from plumbline.engines.remote.client import RemoteEngine
from plumbline.server.limits.claims.shared import SharedClaims
from plumbline.server.loading.catalog import only
from plumbline.server.loading.served_model import load
from plumbline.server.loading.storage import build_store
from plumbline.server.observe.logs import configure
from plumbline.server.start.api_servers.start import Renewal, ServerStart
from plumbline.server.start.explain import explained, print_line
from plumbline.server.start.garbage import make_collections_rare
from plumbline.server.start.listener import listener

__all__ = ["main"]


def main() -> int:
    """Serve until a signal, or until the engine's process ends; return the exit status."""
    start = msgspec.json.decode(sys.stdin.buffer.readline(), type=ServerStart)
    configure(start.settings.log_format)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)  # The supervisor's messages say when to read anything again.
    try:
        return _serve(start)
    except Exception as error:
        if start.settings.debug:
            raise
        print_line(f"plumbline: {explained(error)}")
        return 1


def _serve(start: ServerStart) -> int:
    settings = start.settings
    engine = asyncio.run(
        RemoteEngine.connect(Path(start.engine), settings.stuck_after, settings.max_num_waiting)
    )
    model = load(settings, engine)
    make_collections_rare()
    own = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    own.bind(start.address)
    keys = settings.api_keys
    server = listener(
        only(model),
        settings,
        build_store(settings),
        host=settings.host,
        port=settings.port,
        shared=SharedClaims(Path(start.hub), start.address),
        private=own,
        read=lambda: msgspec.structs.replace(settings, api_keys=keys),
        handles_hangup=False,
    )

    def renew(message: Renewal) -> None:
        nonlocal keys
        keys = keys if message.api_keys is None else message.api_keys
        server.read_again(message.api_keys is not None)

    def end() -> None:
        server.should_exit = True

    # Without an engine nothing can be answered, and without a supervisor nobody starts another.
    engine.on_lost = end
    threading.Thread(target=_follow, args=(renew, end), name="supervisor", daemon=True).start()
    with contextlib.suppress(KeyboardInterrupt):  # uvicorn raises SIGINT again when it has stopped.
        server.run(sockets=[socket.socket(fileno=one) for one in start.listening])
    return 0 if server.started else 1


def _follow(renew: Callable[[Renewal], None], end: Callable[[], None]) -> None:
    """Call `renew` for each message of the supervisor, and `end` when it has ended: its end of the pipe closes then."""
    for line in sys.stdin.buffer:
        renew(msgspec.json.decode(line, type=Renewal))
    end()


if __name__ == "__main__":
    status = main()
    sys.stderr.flush()
    os._exit(status)  # Threads of libraries must not keep a process that has let its clients go.
