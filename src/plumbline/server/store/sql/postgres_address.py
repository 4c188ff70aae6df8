"""Open PostgreSQL by an address as libpq documents it.

asyncpg reads most parameters as libpq does, and takes the rest for settings of the session, which the server refuses by
name if it does not know them. What libpq would do with the others is done here, or they are refused: an address with
`channel_binding=require` must not open a connection without it.

https://www.postgresql.org/docs/current/libpq-connect.html#LIBPQ-PARAMKEYWORDS
"""

from __future__ import annotations

import math
import socket
from typing import Any
from urllib.parse import parse_qsl, quote, unquote, urlencode, urlsplit, urlunsplit

from plumbline.server.store.interface import StoreUnavailableError

__all__ = ["BadAddressError", "PostgresAddress"]

_WITHOUT_EFFECT = {
    "channel_binding": ("prefer", "disable"),
    "client_encoding": ("utf8", "utf-8", "unicode", "auto"),
    "gssdelegation": ("0",),
    "gssencmode": ("prefer", "disable"),
    "keepalives": ("1",),
    "load_balance_hosts": ("disable",),
    "max_protocol_version": ("3.0", "latest"),
    "min_protocol_version": ("3.0",),
    "replication": ("0", "false", "off", "no"),
    "requiressl": ("0",),
    "sslcertmode": ("allow",),
    "sslcompression": ("0",),
    "sslsni": ("1",),
}
"""Parameters that only have an effect with other values, and those that asyncpg's connections agree with."""
_REFUSED = (
    "require_auth",
    "requirepeer",
    "sslcrldir",
    "scram_client_key",
    "scram_server_key",
    "sslkeylogfile",
)
_SOCKET_OPTIONS = {
    "keepalives_idle": "TCP_KEEPIDLE",
    "keepalives_interval": "TCP_KEEPINTVL",
    "keepalives_count": "TCP_KEEPCNT",
    "tcp_user_timeout": "TCP_USER_TIMEOUT",
}
"""Options of a TCP connection, in libpq's units, which are those of Linux."""
_OTHER_NAMES = {"ssl": {"true": "require", "false": "disable"}}
"""SQLAlchemy's name for `sslmode`, and its values that are others."""
_CACHE = "prepared_statement_cache_size"
_APPLICATION = "plumbline"


class BadAddressError(ValueError):
    """The address has a part that cannot be honoured; the message names it, without the password."""


class PostgresAddress:
    """Where a database is, and how connections to it are opened.

    Args:
        url: `postgresql://USER:PASSWORD@HOST:PORT/NAME?PARAMETER=VALUE`, with several hosts, a socket's folder as
            `?host=`, or parts left to the environment, as libpq takes them.

    Raises:
        BadAddressError: the URL cannot be parsed, or has a parameter that cannot be honoured.
    """

    def __init__(self, url: str) -> None:
        try:
            parts = urlsplit(url)
            query = dict(parse_qsl(parts.query, keep_blank_values=True, strict_parsing=bool(parts.query)))
        except ValueError:
            raise BadAddressError(
                "the URL of the store cannot be parsed; characters of a password such as @, /, # and % are written "
                "as %40, %2F, %23 and %25"
            ) from None
        _check_ports(parts.netloc)
        self._sockets = _numbers(query, _SOCKET_OPTIONS)
        self.statement_cache = _numbers(query, [_CACHE]).get(_CACHE)
        """Prepared statements that a connection keeps; None for the default."""
        seconds = _numbers(query, ["connect_timeout"]).get("connect_timeout", 0)
        # As libpq has it: 0 waits without a limit (here: as long as an operation may take), and 1 is 2.
        self._seconds = max(2, seconds) if seconds > 0 else None
        self._query = _read(query)
        netloc, database = _with_address(
            *_without_overridden(parts.netloc, parts.path, self._query), self._query
        )
        self._dsn = urlunsplit(("postgresql", netloc, database, urlencode(self._query, quote_via=quote), ""))
        user = netloc.rpartition("@")[0].partition(":")[0]
        where = netloc.rpartition("@")[2] or self._query.get("host", "")
        self.shown = f"postgresql://{user + '@' if user else ''}{where}{database}"
        """The address without its password."""

    async def connect(self) -> Any:
        """Open a connection of asyncpg.

        Raises:
            StoreUnavailableError: the server refuses it, or a parameter has a wrong value.
            OSError: the server cannot be reached, or did not answer in time.
        """
        import asyncpg  # Only here, because most stores are files.

        try:
            connection = await asyncpg.connect(self._dsn, timeout=self._seconds or math.inf)
        except (asyncpg.PostgresError, asyncpg.InterfaceError, ValueError) as error:
            raise StoreUnavailableError(str(error).strip().partition("\n")[0]) from error
        self._set_up(connection._transport.get_extra_info("socket"))
        return connection

    def _set_up(self, connected: Any) -> None:
        """Set the options of a TCP connection; on a Unix socket they have no effect, as with libpq."""
        if connected is None or connected.family == socket.AF_UNIX:
            return
        connected.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for name, value in self._sockets.items():
            option = getattr(socket, _SOCKET_OPTIONS[name], None)
            if option is not None and value > 0:  # 0 is the system's default.
                connected.setsockopt(socket.IPPROTO_TCP, option, value)


def _check_ports(netloc: str) -> None:
    for host in netloc.rpartition("@")[2].split(","):
        port = host.rpartition(":")[2] if ":" in host and not host.endswith("]") else ""
        if port and not (port.isascii() and port.isdecimal() and int(port) < 65536):
            raise BadAddressError(
                "the URL of the store cannot be parsed: a port is not a number below 65536. Characters of a "
                "password such as : and @ are written as %3A and %40"
            )


def _numbers(query: dict[str, str], names: Any) -> dict[str, int]:
    """Take the parameters out that are whole numbers."""
    found = {}
    for name in names:
        if name in query:
            try:
                found[name] = int(query.pop(name))
            except ValueError:
                raise BadAddressError(
                    f"the parameter {name!r} of its address is not a whole number"
                ) from None
    return found


def _read(query: dict[str, str]) -> dict[str, str]:
    """Return what asyncpg is to read.

    Raises:
        BadAddressError: a parameter cannot be honoured.
    """
    for name, accepted in _WITHOUT_EFFECT.items():
        if name in query and query.pop(name).lower() not in accepted:
            raise BadAddressError(
                f"its address has a {name!r} that is not supported; it may be {' or '.join(accepted)}, or left out"
            )
    for name in _REFUSED:
        if name in query:
            raise BadAddressError(f"its address has {name!r}, which is not supported; leave it out")
    for name, values in _OTHER_NAMES.items():
        if name in query:
            given = query.pop(name)
            query.setdefault("sslmode", values.get(given.lower(), given))
    if "hostaddr" in query and query.get("sslmode") == "verify-full":
        raise BadAddressError(
            "its address has 'hostaddr' with sslmode=verify-full, which is not supported; give the name of the host"
        )
    fallback = query.pop("fallback_application_name", _APPLICATION)
    query.setdefault("application_name", fallback)
    return query


def _without_overridden(netloc: str, database: str, query: dict[str, str]) -> tuple[str, str]:
    """Return an address without the parts that parameters replace: as in libpq, what comes last counts.

    Raises:
        BadAddressError: a host is a socket in the abstract namespace, which asyncpg does not open.
    """
    user, at, place = netloc.rpartition("@")
    if "host" in query or "port" in query:
        found = [_host_and_port(each) for each in place.split(",")] if place else []
        for name, values in zip(("host", "port"), zip(*found, strict=True), strict=False):
            if any(values):
                query.setdefault(name, ",".join(values))
        place = ""
    if any(host.startswith("@") for host in query.get("host", "").split(",")):
        raise BadAddressError(
            "its address has a 'host' in the abstract namespace (@), which is not supported"
        )
    name, colon, password = user.partition(":")
    if "user" in query:
        name = quote(query.pop("user"), safe="")
    if "password" in query:
        colon, password = ":", quote(query.pop("password"), safe="")
    if "dbname" in query:
        database = "/" + quote(query.pop("dbname"), safe="")
    user = f"{name}{colon}{password}"
    return f"{user}{at or '@' * bool(user)}{place}", database


def _host_and_port(place: str) -> tuple[str, str]:
    """Split a host from its port, which may be empty; the host is without its brackets and its escapes."""
    host, _, port = place.rpartition(":") if ":" in place and not place.endswith("]") else (place, "", "")
    return unquote(host.strip("[]")), port


def _with_address(netloc: str, database: str, query: dict[str, str]) -> tuple[str, str]:
    """Return an address and its database, with `hostaddr` in place of the name of a host."""
    numeric = query.pop("hostaddr", None)
    if numeric is None:
        return netloc, database
    user, at, place = netloc.rpartition("@")
    port = place.rpartition(":")[2] if ":" in place and not place.endswith("]") else query.pop("port", "")
    query.pop("host", None)
    return f"{user}{at}{f'[{numeric}]' if ':' in numeric else numeric}{':' if port else ''}{port}", database
