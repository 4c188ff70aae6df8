"""Check URLs and addresses of MCP servers against the hosts of `--allow-mcp`."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable
from urllib.parse import urlsplit

from plumbline.server.addresses import WEB_PORTS, is_public

__all__ = ["AllowedHosts"]

_HOST = re.compile(r"([A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\])(:[0-9]{1,5})?")
_LOOPBACK = ("127.0.0.1", "::1")


class AllowedHosts:
    """The hosts that the operator names, each as HOST or HOST:PORT.

    Without a port the ports of http and https are meant. A private address is connected to only if it is named itself:
    whoever controls the name of an allowed host must not lead the server into its own network. `localhost` names the
    loopback addresses.

    Raises:
        ValueError: a text is not a host.
    """

    def __init__(self, texts: Iterable[str] = ()) -> None:
        self._ports: dict[str, set[int]] = {}
        self._addresses: set[str] = set()
        for text in texts:
            host, port = _parsed(text)
            ports = set(WEB_PORTS.values()) if port is None else {port}
            self._ports.setdefault(host, set()).update(ports)
            self._addresses.update(_LOOPBACK if host == "localhost" else [host] if _is_address(host) else ())

    def __bool__(self) -> bool:
        """Return whether any host is named."""
        return bool(self._ports)

    def allows(self, url: str) -> bool:
        """Return whether the host and the port of a URL are named."""
        parts = urlsplit(url)
        port = parts.port or WEB_PORTS.get(parts.scheme, 0)
        return port in self._ports.get(_normal(parts.hostname or ""), ())

    def connects(self, address: str, port: int) -> bool:
        """Return whether an allowed host may have this address; `allows` has checked the port."""
        return is_public(address, WEB_PORTS["https"]) or _normal(address) in self._addresses


def _parsed(text: str) -> tuple[str, int | None]:
    if _is_address(text):
        return _normal(text), None
    try:
        parts = urlsplit(f"//{text}")
        host, port = parts.hostname, parts.port
    except ValueError:
        host, port = None, None
    if not host or not _HOST.fullmatch(text):
        raise ValueError(
            f"must be HOST or HOST:PORT, such as mcp.example.com or 127.0.0.1:8001, got {text[:80]!r}"
        )
    return _normal(host), port


def _normal(host: str) -> str:
    if _is_address(host):
        return str(ipaddress.ip_address(host))
    return host.lower().rstrip(".")


def _is_address(text: str) -> bool:
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True
