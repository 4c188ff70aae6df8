"""Read the addresses of clients from the PROXY protocol, versions 1 and 2, as named proxies announce them.

The announcement comes before everything else, TLS included. No byte more than it has is taken from the transport,
because a handshake takes all its bytes from there.
"""

from __future__ import annotations

import asyncio
import ipaddress
from collections.abc import Callable
from functools import partial
from typing import Any

from plumbline.server.start.connections.tls import Handshake, Named, Peer

__all__ = ["Announced", "AnnouncementError", "read_announcement"]

_SIGNATURE = b"\r\n\r\n\x00\r\nQUIT\n"
_LONGEST_LINE = 107
"""Bytes of version 1, by its specification."""
_LONGEST = 16 + 2048
"""Bytes of version 2, which may have certificates and names after the addresses."""
_PATIENCE = 60.0
"""Seconds if `--header-timeout` is 0."""
_SHORTEST = len(b"PROXY UNKNOWN\r\n")
_WIDTHS = {0x11: 4, 0x21: 16}
"""The bytes of an address, by version 2's byte of TCP over IPv4 and over IPv6."""


class AnnouncementError(Exception):
    """A connection does not begin with the PROXY protocol."""


def read_announcement(data: bytes) -> tuple[int, Peer | None] | None:
    """Return the length of an announcement and the client that it names; None if it is not whole yet.

    The client is None if the proxy speaks for itself, such as to probe, or does not know it.

    Raises:
        AnnouncementError: these bytes begin no announcement.
    """
    if data.startswith(_SIGNATURE):
        return _read_binary(data)
    if data.startswith(b"PROXY "):
        return _read_line(data)
    if _SIGNATURE.startswith(data) or b"PROXY ".startswith(data):
        return None
    raise AnnouncementError


def _read_line(data: bytes) -> tuple[int, Peer | None] | None:
    line, end, _ = data[:_LONGEST_LINE].partition(b"\r\n")
    if not end:
        if len(data) >= _LONGEST_LINE:
            raise AnnouncementError
        return None
    size, words = len(line) + 2, line.decode("latin-1").split(" ")
    if words[1] == "UNKNOWN":
        return size, None
    try:
        _, kind, source, _, port, _ = words
        address = {"TCP4": ipaddress.IPv4Address, "TCP6": ipaddress.IPv6Address}[kind](source)
        if not (port.isascii() and port.isdigit() and int(port) < 1 << 16):
            raise AnnouncementError
    except (KeyError, ValueError):
        raise AnnouncementError from None
    return size, (_text(address), int(port))


def _read_binary(data: bytes) -> tuple[int, Peer | None] | None:
    if len(data) < 16:
        return None
    command, kind, size = data[12], data[13], 16 + int.from_bytes(data[14:16])
    if command not in (0x20, 0x21) or size > _LONGEST:
        raise AnnouncementError
    if len(data) < size:
        return None
    if command == 0x20 or kind not in _WIDTHS:
        return size, None
    width = _WIDTHS[kind]
    if size < 16 + 2 * width + 4:
        raise AnnouncementError
    port = int.from_bytes(data[16 + 2 * width : 18 + 2 * width])
    return size, (_text(ipaddress.ip_address(data[16 : 16 + width])), port)


def _text(address: object) -> str:
    """Write an address; a proxy that listens for both families may announce one of IPv4 as one of IPv6."""
    return str(getattr(address, "ipv4_mapped", None) or address)


def _missing(data: bytes | bytearray) -> int:
    """Return how many more bytes certainly belong to an announcement that is not whole."""
    if len(data) < _SHORTEST:
        return _SHORTEST - len(data)
    if not data.startswith(_SIGNATURE):
        return 1
    return (16 if len(data) < 16 else 16 + int.from_bytes(data[14:16])) - len(data)


class _Announcement(asyncio.BufferedProtocol):
    """A connection until it is known whom it is for. It takes no byte more from the transport."""

    def __init__(
        self,
        following: Callable[[], Any],
        is_proxy: Callable[[str], bool],
        seconds: float,
        waiting: set[_Announcement],
    ) -> None:
        self._waiting = waiting
        self._following = following
        self._is_proxy = is_proxy
        self._seconds = seconds or _PATIENCE
        self._data = bytearray()
        self._part = bytearray()
        self._late: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Go on at once with a connection of a client, and wait for what a proxy says."""
        self._transport = transport
        peer = transport.get_extra_info("peername")
        if isinstance(peer, tuple) and self._is_proxy(str(peer[0])):
            self._waiting.add(self)
            self._late = asyncio.get_running_loop().call_later(self._seconds, transport.abort)
        else:
            self._go_on(None)

    def connection_lost(self, exc: Exception | None) -> None:
        """Wait no longer."""
        self._waiting.discard(self)
        if self._late is not None:
            self._late.cancel()

    def get_buffer(self, sizehint: int) -> bytearray:
        """Return room for bytes of the announcement."""
        self._part = bytearray(_missing(self._data))
        return self._part

    def buffer_updated(self, nbytes: int) -> None:
        """Take bytes of the announcement."""
        self._data += self._part[:nbytes]
        try:
            found = read_announcement(bytes(self._data))
        except AnnouncementError:
            self._transport.abort()
            return
        if found is not None:
            self.connection_lost(None)
            self._transport.pause_reading()  # A transport may look at its protocol only when it begins to read.
            self._go_on(found[1])

    def _go_on(self, peer: Peer | None) -> None:
        following = self._following()
        self._transport.set_protocol(following)
        if isinstance(following, Handshake):
            following.peer = peer
            following.connection_made(self._transport)  # It resumes reading.
            return
        following.connection_made(self._transport if peer is None else Named(self._transport, peer))
        if not self._transport.is_reading() and not self._transport.is_closing():
            self._transport.resume_reading()


class Announced:
    """Makes the protocols of connections that named proxies announce.

    Args:
        following: makes the protocols of connections.
        is_proxy: whether an address is that of a proxy, whose connections are closed if they begin otherwise.
        seconds: the time for an announcement; 0 means a minute.
    """

    def __init__(
        self, following: Callable[..., Any], is_proxy: Callable[[str], bool], seconds: float
    ) -> None:
        self.following = following
        self._is_proxy = is_proxy
        self._seconds = seconds
        self._waiting: set[_Announcement] = set()

    @property
    def waits(self) -> bool:
        """Whether a proxy has yet to say whom a connection is for."""
        return bool(self._waiting)

    def __call__(self, **given: Any) -> asyncio.BaseProtocol:
        """Make a protocol with the arguments that uvicorn gives to one."""
        return _Announcement(partial(self.following, **given), self._is_proxy, self._seconds, self._waiting)
