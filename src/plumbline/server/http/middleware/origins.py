"""Tell requests of strangers' web pages from others, where no key does so.

A browser runs pages of strangers beside the server. Such a page sends requests without asking (a POST without a content
type, the handshake of a WebSocket), and reads all answers if the name of its own host leads to this machine (DNS
rebinding). A server with keys is safe from both, because browsers add no key by themselves. A server without keys
accepts only its own names as Host, and changes nothing for pages of other origins. So does Jupyter.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable, Mapping, MutableMapping
from functools import lru_cache
from typing import Any
from urllib.parse import urlsplit

from litestar.config.cors import CORSConfig

from plumbline.contract.wire.errors import ApiError

__all__ = ["Origins", "is_browser", "is_host"]

_HOST = re.compile(r"([\w.~%!$&'()*+,;=-]*|\[[\da-fA-F:.]+\])(:\d{0,5})?", re.ASCII)
"""A name or an address, and a port."""
_LOCAL = frozenset({"localhost", "localhost."})
_SAFE = frozenset({"GET", "HEAD", "OPTIONS"})
"""Methods that change nothing here; what they answer is kept from other origins by the browser."""
_PORTS = {"http": 80, "https": 443, "ws": 80, "wss": 443}
_OWN_SITES = frozenset({b"same-origin", b"none"})
"""Values of Sec-Fetch-Site for requests of the server's own page, and of the user."""


class Origins:
    """The hosts and origins that requests without a key may name.

    Args:
        cors: the origins that the operator allows.
        hosts: the names that the operator gave the server; `*` stands for any text. None accepts all, because a Unix
            socket is not reached by names.
    """

    def __init__(self, cors: CORSConfig, hosts: Iterable[str] | None = None) -> None:
        self._cors = cors
        self._hosts = None if hosts is None else _pattern(hosts)

    def error(self, scope: MutableMapping[str, Any]) -> ApiError | None:
        """Return why a request is refused, if it is."""
        headers = dict(scope["headers"])
        host = headers.get(b"host", b"").decode("latin-1")
        if self._hosts is not None and host and not self._is_own(host):
            return ApiError(
                421,
                f"This server is not {_name(host)[:100]!r}. If that is its name, start it with --allowed-host "
                f"{_name(host)[:100]}, or with an API key.",
                code="misdirected_request",
            )
        if scope["type"] == "http" and scope["method"] in _SAFE:
            return None
        return None if self._is_allowed(headers, host) else _foreign(headers)

    def _is_own(self, host: str) -> bool:
        name = _name(host)
        if name in _LOCAL or name.endswith(".localhost") or _is_loopback(name):
            return True
        return self._hosts is not None and self._hosts.fullmatch(name) is not None

    def _is_allowed(self, headers: Mapping[bytes, bytes], host: str) -> bool:
        site = headers.get(b"sec-fetch-site")
        origin = headers.get(b"origin")
        if site in _OWN_SITES:  # A proxy may have changed the Host.
            return True
        if origin is None:  # A browser gives one or the other, and other programs give neither.
            return site is None
        text = origin.decode("latin-1")
        return self._cors.is_origin_allowed(text) or _same(text, host)


def is_browser(headers: Mapping[bytes, bytes]) -> bool:
    """Return whether a browser sent a request for a page."""
    return b"origin" in headers or b"sec-fetch-site" in headers or b"sec-fetch-mode" in headers


@lru_cache(maxsize=64)  # Nearly all requests have the same; the listener bounds their length.
def is_host(host: bytes) -> bool:
    """Return whether a Host header names one host, with an optional port (RFC 9112, section 3.2)."""
    try:
        if not _HOST.fullmatch(host.decode()):
            return False
        urlsplit(f"//{host.decode()}").port  # noqa: B018 - it raises where a port or an IPv6 address is none.
    except ValueError:
        return False
    return True


def _pattern(hosts: Iterable[str]) -> re.Pattern[str]:
    names = (_name(host) for host in hosts if host)
    return re.compile("|".join(".*".join(map(re.escape, name.split("*"))) for name in names))


def _name(host: str) -> str:
    """Return the name or address in a Host header, without the port."""
    return (host[1:].partition("]")[0] if host.startswith("[") else host.partition(":")[0]).lower()


def _is_loopback(name: str) -> bool:
    try:
        return ipaddress.ip_address(name).is_loopback
    except ValueError:
        return False


def _same(origin: str, host: str) -> bool:
    """Return whether an origin is that of the server, by the host that the request names."""
    scheme, _, rest = origin.partition("://")
    port = _PORTS.get(scheme)
    return bool(host) and port is not None and _with_port(rest, port) == _with_port(host, port)


def _with_port(host: str, port: int) -> tuple[str, str]:
    return _name(host), host.rpartition("]")[2].partition(":")[2] or str(port)


def _foreign(headers: Mapping[bytes, bytes]) -> ApiError:
    origin = headers.get(b"origin", b"").decode("latin-1")[:100]
    return ApiError(
        403,
        f"Pages of {origin or 'other origins'} may not use this server. To allow them, start it with --cors-origin "
        f"{origin or 'ORIGIN'}.",
        code="origin_not_allowed",
    )
