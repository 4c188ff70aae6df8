"""A proxy on a Unix socket whose connections can fall silent, as those of a network that was cut."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

__all__ = ["SilentProxy", "silent_proxy"]


class SilentProxy:
    """Passes bytes on; of connections that fell silent it passes nothing on, and never closes them."""

    def __init__(self, target: Path) -> None:
        self._target = target
        self._open: list[list[bool]] = []
        self._tasks: list[asyncio.Task[None] | None] = []
        self.num_opened = 0

    def silence(self) -> None:
        """Let all connections that there are fall silent; later ones work."""
        for speaks in self._open:
            speaks[0] = False

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve a connection."""
        self.num_opened += 1
        speaks = [True]
        self._open.append(speaks)
        there, back = await asyncio.open_unix_connection(self._target)

        async def copy(source: asyncio.StreamReader, to: asyncio.StreamWriter) -> None:
            while data := await source.read(1 << 16):
                if speaks[0]:
                    to.write(data)
            if speaks[0]:
                to.close()

        self._tasks.append(asyncio.current_task())
        try:
            await asyncio.gather(copy(reader, back), copy(there, writer), return_exceptions=True)
        except asyncio.CancelledError:
            for each in (writer, back):
                each.close()

    def end(self) -> None:
        """End all connections."""
        for task in self._tasks:
            if task is not None:
                task.cancel()


@asynccontextmanager
async def silent_proxy(target: Path, path: Path) -> AsyncIterator[SilentProxy]:
    """Serve `target` at `path` while the block runs."""
    proxy = SilentProxy(target)
    server = await asyncio.start_unix_server(proxy.serve, path)
    try:
        yield proxy
    finally:
        server.close()
        proxy.end()
