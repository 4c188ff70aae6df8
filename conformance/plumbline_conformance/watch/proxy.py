"""Forward bytes between clients and a server, and pass a bounded copy of each exchange to a callback.

Only the path prefix and the `Host` header of requests change; responses are forwarded unchanged. Each client connection
has its own connection to the server, so nothing is reordered, and closing one closes the other.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable
from urllib.parse import urlsplit

from plumbline_conformance.recording.redaction import redacted_url
from plumbline_conformance.transcript.exchange import Exchange
from plumbline_conformance.watch.link import Link, LinkEnd

__all__ = ["Proxy"]

_BACKLOG = 2048
"""Pending connections of clients; further clients retry after a second."""
_PATIENCE = 10.0
"""Seconds to wait for a connection to the server. After a failure, seconds in which the client may send its request and
read the error."""


class Proxy:
    """Forward connections to one upstream server.

    Args:
        upstream: the URL of the server, such as `http://127.0.0.1:8000`.
        seen: called with each exchange when it has ended; must be fast.
        keep: bytes of a request and of a response to keep for judging; longer ones are also forwarded.
        connections: maximum number of connections to the upstream; further clients wait.

    Raises:
        ValueError: the upstream is not a valid URL.
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
            raise ValueError(f"{redacted_url(upstream)} is not the URL of a server")
        if not (parts.netloc + parts.path).isascii():
            raise ValueError(
                f"{redacted_url(upstream)} has non-ASCII characters, which must be escaped in a URL"
            )
        if "@" in parts.netloc:
            raise ValueError("URL must not contain credentials: clients send their own keys")
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
        """Number of exchanges in progress."""

    async def start(self, host: str, port: int) -> asyncio.Server:
        """Listen on host and port."""
        return await asyncio.get_running_loop().create_server(self._connected, host, port, backlog=_BACKLOG)

    async def stop(self) -> None:
        """Close all connections."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _connected(self) -> LinkEnd:
        link = Link(self, lambda: task.cancel())
        task = asyncio.get_running_loop().create_task(self._live(link))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return link.front

    async def _live(self, link: Link) -> None:
        """Connect to the server and wait until the link ends, which cancels this task."""
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
