"""Take the address of the server before the model is loaded, which may take minutes."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import socket
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from plumbline.server.settings import OptionError, Settings

__all__ = ["bound", "make_reusable"]


@contextmanager
def bound(settings: Settings) -> Iterator[list[socket.socket]]:
    """Yield the sockets of the server's address, not listening yet; a name such as localhost may have several.

    Raises:
        OptionError: the address is taken, or does not belong to this machine.
    """
    with ExitStack() as stack:
        try:
            if settings.uds:
                stack.enter_context(_held(Path(settings.uds)))
                found = [_unix_socket(Path(settings.uds), 0o660 if settings.uds_group else 0o600)]
            else:
                found = [_tcp_socket(*address) for address in _addresses(settings)]
        except OSError as error:
            raise _refusal(settings, error) from error
        for one in found:
            stack.enter_context(contextlib.closing(one))
        yield found


def _addresses(settings: Settings) -> list[tuple[socket.AddressFamily, Any]]:
    found = socket.getaddrinfo(
        settings.host or None, settings.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    )
    return list(dict.fromkeys((family, address) for family, _, _, _, address in found))


def _tcp_socket(family: socket.AddressFamily, address: Any) -> socket.socket:
    one = socket.socket(family, socket.SOCK_STREAM)
    try:
        if family == socket.AF_INET6:  # The address of IPv4 has a socket of its own.
            one.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        try:
            one.bind(address)
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                raise
            make_reusable([one])  # Connections of the last server may still be closing.
            one.bind(address)
    except OSError:
        one.close()
        raise
    return one


def make_reusable(sockets: Iterable[socket.socket]) -> None:
    """Let the next server bind these addresses while connections of this one are closing.

    Call it just before `listen`: sockets that are reusable and do not listen yet would share an address, so of two
    servers that load at the same time the second would find out late.
    """
    for one in sockets:
        if one.family != socket.AF_UNIX:
            one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)


@contextmanager
def _held(path: Path) -> Iterator[None]:
    """Hold the path of a Unix socket; a server that is starting has bound its own and does not answer yet.

    Raises:
        OSError: another server holds it, or answers there.
    """
    lock = os.open(f"{path}.lock", os.O_CREAT | os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    with contextlib.closing(os.fdopen(lock)):
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise OSError(errno.EADDRINUSE, "another server uses it") from error
        if _answers(path):
            raise OSError(errno.EADDRINUSE, "another server uses it")
        yield


def _answers(path: Path) -> bool:
    """Return whether a server listens on a Unix socket, be it one that knows no locks."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.setblocking(False)
        try:
            probe.connect(str(path))
        except BlockingIOError:  # It does, and is busy.
            return True
        except OSError:
            return False
    return True


def _unix_socket(path: Path, mode: int) -> socket.socket:
    """Bind a Unix socket that never has more permissions than `mode`, whatever the umask."""
    one = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        if path.is_socket():  # Of a server that has ended.
            path.unlink()
        umask = os.umask(0o177)
        try:
            one.bind(str(path))
        finally:
            os.umask(umask)
        path.chmod(mode)
    except OSError:
        one.close()
        raise
    return one


def _refusal(settings: Settings, error: OSError) -> OptionError:
    reason = (error.strerror or str(error)).lower()
    if settings.uds:
        return OptionError("--uds", f"cannot be used: the socket {settings.uds} cannot be made ({reason})")
    if isinstance(error, socket.gaierror):
        return OptionError(
            "--host", f"cannot be used: {settings.host} is not an address of this machine ({reason})"
        )
    with contextlib.suppress(OSError), socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        free = probe.getsockname()[1]
        return OptionError(
            "--port",
            f"{settings.port} cannot be used on {settings.host} ({reason}): {free} is free, or give --port 0",
        )
    return OptionError("--port", f"{settings.port} cannot be used on {settings.host} ({reason})")
