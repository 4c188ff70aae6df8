"""The application behind a real uvicorn on a free port of this machine, in a thread."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from unittest.mock import patch

import uvicorn

from plumbline.server.loading.catalog import Catalog
from plumbline.server.loading.served_model import ServedModel
from plumbline.server.loading.storage import build_store
from plumbline.server.settings import Settings
from plumbline.server.start import listener as start
from support.servers.asgi import as_catalog
from support.servers.shared_routes import create_app


@dataclass(frozen=True)
class Live:
    """A server that listens."""

    port: int
    server: uvicorn.Server
    loop: asyncio.AbstractEventLoop
    thread: threading.Thread

    @property
    def url(self) -> str:
        """What a client puts before the path."""
        return f"http://127.0.0.1:{self.port}"

    def stop(self) -> None:
        """Stop as on SIGTERM. Returns at once; the thread ends when the streams have ended."""
        self.server.should_exit = True


@contextmanager
def live(
    make: Callable[[], ServedModel | Catalog],
    settings: Settings,
    loop: Callable[[], asyncio.AbstractEventLoop] | None = None,
) -> Iterator[Live]:
    """Serve while the block runs. The server's event loop, which `loop` makes, calls `make`."""
    ready = threading.Event()
    found: list[Live] = []

    async def main() -> None:
        with patch.object(start, "create_app", create_app):
            server = start.listener(
                as_catalog(make()), settings, build_store(settings), host="127.0.0.1", port=0
            )
        server.install_signal_handlers = lambda: None  # type: ignore[attr-defined]
        serving = asyncio.ensure_future(server._serve())
        while not server.started and not serving.done():
            await asyncio.sleep(0.005)
        port = server.servers[0].sockets[0].getsockname()[1]
        found.append(Live(port, server, asyncio.get_running_loop(), thread))
        ready.set()
        await serving

    def run() -> None:
        with asyncio.Runner(loop_factory=loop) as runner:
            runner.run(main())

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    assert ready.wait(20)
    try:
        yield found[0]
    finally:
        found[0].stop()
        thread.join(20)
        assert not thread.is_alive()
