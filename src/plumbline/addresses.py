"""Decide which addresses the server connects to where a client names a URL, and look host names up."""

from __future__ import annotations

import asyncio
import ipaddress
import socket
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

__all__ = ["WEB_PORTS", "ForbiddenAddressError", "Resolver", "is_public"]

WEB_PORTS = {"http": 80, "https": 443}
"""The default ports of the schemes that URLs may have."""

_MAX_RESOLVERS = 8
_REFUSED_NETWORKS = tuple(
    ipaddress.ip_network(text) for text in ("64:ff9b::/96", "64:ff9b:1::/48", "2002::/16", "2001::/32")
)
"""IPv6 networks whose addresses contain an IPv4 address, which a gateway may connect to (NAT64, 6to4, Teredo)."""


class ForbiddenAddressError(Exception):
    """A host has an address that the server does not connect to."""


def is_public(address: str, port: int) -> bool:
    """Return whether a URL may lead to this address: it is public, and the port is the one of http or https."""
    found = ipaddress.ip_address(address)
    if isinstance(found, ipaddress.IPv6Address):
        if found.ipv4_mapped is not None:
            found = found.ipv4_mapped
        elif any(found in network for network in _REFUSED_NETWORKS):
            return False
    return found.is_global and not found.is_multicast and not found.is_reserved and port in WEB_PORTS.values()


class Resolver:
    """Look up host names, and refuse hosts with an address that is not allowed.

    A connection has to go to the address that was checked: a second look-up may return another one.

    Args:
        allowed: decides whether to connect to an address and port.
    """

    def __init__(self, allowed: Callable[[str, int], bool] = is_public) -> None:
        self._allowed = allowed
        # A name server that does not answer must not hold up other work in threads.
        self._resolvers = ThreadPoolExecutor(_MAX_RESOLVERS, thread_name_prefix="resolve")

    async def address(self, host: str, port: int) -> str:
        """Return an address of a host, after checking that all its addresses are allowed.

        Raises:
            ForbiddenAddressError: one is not.
            OSError: the host is not known.
        """
        loop = asyncio.get_running_loop()
        found = await loop.run_in_executor(
            self._resolvers, lambda: socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        )
        addresses = [str(entry[4][0]) for entry in found]
        if not addresses or not all(self._allowed(address, port) for address in addresses):
            raise ForbiddenAddressError(host)
        return addresses[0]
