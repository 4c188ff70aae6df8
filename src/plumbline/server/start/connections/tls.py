"""Accept TLS connections: counted when they come, with a limit on the time of the handshake.

An event loop that is given certificates tells a protocol of a connection after the handshake, so no limit would hold
for silent ones. Here the protocol is told at once, and asks for TLS.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
from collections.abc import Callable, Coroutine, Generator
from functools import partial
from pathlib import Path
from typing import Any

from plumbline.server.settings import OptionError, Settings
from plumbline.server.start.connections.http import HttpConnection

__all__ = ["Handshake", "Named", "Peer", "Secured", "tls_context"]

Peer = tuple[str, int]
"""The address and the port of a client."""

_log = logging.getLogger("plumbline.server")

_PATIENCE = 60.0
"""Seconds of a handshake if `--header-timeout` is 0."""
_FAREWELL = 1.0
"""Seconds for a client to confirm the end of TLS; one that keeps its connection for later does not read meanwhile."""


def tls_context(settings: Settings) -> ssl.SSLContext:
    """Read the certificates of the settings.

    Raises:
        OptionError: a file has no certificate or key, they do not belong together, or the password is wrong.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    _load_chain(context, settings)
    if settings.ssl_ca_certs:
        try:
            context.load_verify_locations(settings.ssl_ca_certs)
        except OSError as error:
            raise OptionError(
                "--ssl-ca-certs",
                f"cannot be used: {settings.ssl_ca_certs} must be a PEM file with certificates",
            ) from error
        context.verify_mode = ssl.CERT_REQUIRED
    return context


def _load_chain(context: ssl.SSLContext, settings: Settings) -> None:
    asked = False

    def password() -> str:
        nonlocal asked
        asked = True
        file = settings.ssl_keyfile_password_file
        return Path(file).read_text("utf-8").rstrip("\r\n") if file else ""

    try:
        context.load_cert_chain(settings.ssl_certfile, settings.ssl_keyfile or None, password)
    except (OSError, ValueError) as error:  # ssl.SSLError is the first.
        key = settings.ssl_keyfile or settings.ssl_certfile
        if asked and not settings.ssl_keyfile_password_file:
            raise OptionError(
                "--ssl-keyfile", f"cannot be used: {key} is encrypted; give --ssl-keyfile-password-file"
            ) from error
        if asked:
            raise OptionError(
                "--ssl-keyfile-password-file", f"does not have the password of {key}"
            ) from error
        reason = getattr(error, "strerror", None) or error
        raise OptionError(
            "--ssl-certfile",
            f"cannot be used: {settings.ssl_certfile} and its key must be PEM files that belong together ({reason})",
        ) from error


class _NamedSocket:
    """A socket that says who is at the other end of the proxy; all else is the socket's own."""

    def __init__(self, inner: Any, peer: Peer) -> None:
        self._inner = inner
        self._peer = peer

    def getpeername(self) -> Peer:
        """Return the client."""
        return self._peer

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


class Named:
    """A transport that says who is at the other end of the proxy; all else is the transport's own."""

    def __init__(self, transport: asyncio.Transport, peer: Peer) -> None:
        self._transport = transport
        self._peer = peer

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        """Return a fact of the transport; its socket gives the address of the client as well."""
        if name == "peername":
            return self._peer
        found = self._transport.get_extra_info(name, default)
        return _NamedSocket(found, self._peer) if name == "socket" and found is not None else found

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)


class Handshake(asyncio.Protocol):
    """A connection until its handshake is done, when a protocol of HTTP takes its place.

    Args:
        following: makes that protocol.
        is_private: whether the connection is one between our own processes, which have no certificate.
        context: the certificates.
        seconds: the time of the handshake; 0 means a minute.
        has_room: whether another connection may be held; the argument is how many are.
        open_handshakes: those of the server.
    """

    def __init__(
        self,
        following: Callable[[], Any],
        is_private: Callable[[asyncio.Transport], bool],
        context: ssl.SSLContext,
        seconds: float,
        has_room: Callable[[int], bool],
        open_handshakes: set[Handshake],
    ) -> None:
        self._following = following
        self._is_private = is_private
        self._context = context
        self._seconds = seconds or _PATIENCE
        self._has_room = has_room
        self._open = open_handshakes
        self.peer: Peer | None = None
        """The client, if a proxy has named another than the connection does."""
        self._early: list[bytes] = []
        """What has come since the handshake was done."""
        self._task: asyncio.Task[None] | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Ask for TLS, if there is room for a connection."""
        if self._is_private(transport):
            self._go_on(transport)
            return
        if not self._has_room(len(self._open)):
            transport.abort()  # An answer would need the handshake.
            return
        work = asyncio.get_running_loop().start_tls(
            transport,
            self,
            self._context,
            server_side=True,
            ssl_handshake_timeout=self._seconds,
            ssl_shutdown_timeout=_FAREWELL,
        )
        # At once: uvloop reads on when this returns, and the first message of the handshake may be there.
        begun = _Begun(work)
        self._open.add(self)
        self._task = asyncio.get_running_loop().create_task(self._shake_hands(transport, begun))

    def data_received(self, data: bytes) -> None:
        """Keep what a client sends with its last message of the handshake."""
        self._early.append(data)

    async def _shake_hands(self, transport: asyncio.Transport, begun: _Begun) -> None:
        try:
            inside = await begun
        except (OSError, ssl.SSLError):  # The client speaks no TLS, has left, or takes too long.
            transport.abort()
            return
        finally:
            self._open.discard(self)
        if inside is None or inside.is_closing():
            return
        self._go_on(inside)

    def _go_on(self, transport: asyncio.Transport) -> None:
        following = self._following()
        transport.set_protocol(following)
        following.connection_made(transport if self.peer is None else Named(transport, self.peer))
        if self._early:  # At once: the first part may hand the connection to another protocol.
            following.data_received(b"".join(self._early))
            self._early.clear()


class _Begun:
    """Runs a coroutine up to its first wait at once, and the rest when it is awaited."""

    def __init__(self, work: Coroutine[Any, Any, asyncio.Transport | None]) -> None:
        self._work = work
        self._first = work.send(None)

    def __await__(self) -> Generator[Any, Any, asyncio.Transport | None]:
        """Return what the coroutine returns."""
        try:
            yield self._first
        except BaseException as error:  # The task is cancelled.
            self._work.throw(error)
            raise
        return (yield from self._work.__await__())


class Secured:
    """Makes the protocols of TLS connections, in the place of a class of connections.

    Args:
        connection: the class; its `max_connections` and `header_timeout` hold for handshakes as well.
        settings: with certificates.

    Raises:
        OptionError: as for `tls_context`.
    """

    def __init__(self, connection: type[HttpConnection], settings: Settings) -> None:
        self._connection = connection
        self._settings = settings
        self._context = tls_context(settings)
        self._open: set[Handshake] = set()

    def __call__(self, **given: Any) -> Handshake:
        """Make a protocol with the arguments that uvicorn gives to one."""
        connections = given["server_state"].connections

        def has_room(handshakes: int) -> bool:
            most = self._connection.max_connections
            if most and handshakes + len(connections) >= most:
                self._connection.log_flood()
                return False
            return True

        following = partial(self._connection, **given)
        return Handshake(
            following, self._is_private, self._context, self._connection.header_timeout, has_room, self._open
        )

    @property
    def shakes_hands(self) -> bool:
        """Whether a handshake is under way."""
        return bool(self._open)

    def renew(self) -> None:
        """Read the files again, for connections that come; what cannot be used is logged, and the old ones stay."""
        try:
            self._context = tls_context(self._settings)
        except OptionError as error:
            _log.error("the certificates were not renewed: %s", error)
        else:
            _log.warning("the certificates were read again")

    def _is_private(self, transport: asyncio.Transport) -> bool:
        found = transport.get_extra_info("socket")
        return not self._settings.uds and found is not None and found.family == socket.AF_UNIX
