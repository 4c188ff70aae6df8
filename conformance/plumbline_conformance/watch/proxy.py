"""The proxy: bytes go through as they come, and a copy of them, bounded, goes to whoever looks.

Of what a client sends only the target's prefix and the `Host` header change; of what a server sends nothing does. A
connection of a client has one connection to the server, so that nothing is reordered and whoever hangs up ends both.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable
from urllib.parse import urlsplit

from plumbline_conformance.recording.redaction import redacted_url
from plumbline_conformance.transcript.model import Exchange
from plumbline_conformance.watch.link import End, Link

__all__ = ["Proxy"]

_BACKLOG = 2048
"""Clients that connect at once; whoever finds no place tries again after a second."""
_PATIENCE = 10.0
"""Seconds that the server has to accept a connection; and a client, where it does not, to send its request and to read
that it is so."""


class Proxy:
    """Serves connections towards one upstream.

    Args:
        upstream: where requests go, such as `http://127.0.0.1:8000`.
        seen: called with each exchange when it has ended; must be quick.
        keep: bytes of a request and of a response that are kept for judging. What is longer passes all the same.
        connections: to the upstream at once, at most; clients beyond that wait.

    Raises:
        ValueError: the upstream is no address.
    """

    def __init__(
        self,
        upstream: str,
        seen: Callable[[Exchange], None],
        *,
        keep: int = 4 * 1024 * 1024,
        connections: int = 512,
    ) -> None:
        parts = urlsplit(upstream)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError(f"{redacted_url(upstream)} is no address of a server")
        if not (parts.netloc + parts.path).isascii():
            raise ValueError(f"{redacted_url(upstream)} has characters that an address has to spell in ASCII")
        if "@" in parts.netloc:
            raise ValueError("Every client sends its own key: the address of the upstream has none in it")
        self._tls = ssl.create_default_context() if parts.scheme == "https" else None
        self._host = parts.hostname
        self._port = parts.port or (443 if self._tls else 80)
        self.place = parts.netloc.rpartition("@")[2]
        self.prefix = parts.path.rstrip("/")
        self.origin = f"{parts.scheme}://{self.place}"
        self.seen = seen
        self.keep = keep
        self._gate = asyncio.Semaphore(connections)
        self._tasks: set[asyncio.Task[None]] = set()
        self.open = 0
        """Exchanges that are under way."""

    async def start(self, host: str, port: int) -> asyncio.Server:
        """Listen."""
        return await asyncio.get_running_loop().create_server(self._connected, host, port, backlog=_BACKLOG)

    async def stop(self) -> None:
        """End every connection."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _connected(self) -> End:
        link = Link(self, lambda: task.cancel())
        task = asyncio.get_running_loop().create_task(self._live(link))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return link.front

    async def _live(self, link: Link) -> None:
        """From a client's connection to the end of both, which cancels this, wherever it stands."""
        try:
            async with self._gate:
                try:
                    async with asyncio.timeout(_PATIENCE):
                        await asyncio.get_running_loop().create_connection(
                            lambda: link.back, self._host, self._port, ssl=self._tls
                        )
                except (OSError, UnicodeError) as error:
                    why = str(error) or f"no answer in {_PATIENCE:g} seconds"
                    link.refuse(f"{self.origin} cannot be reached: {why}")
                    await asyncio.sleep(_PATIENCE)
                else:
                    link.begin()
                    await asyncio.get_running_loop().create_future()
        finally:
            link.stop()
