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
_SPECIAL = """
0.0.0.0/8           this network
10.0.0.0/8          private use
100.64.0.0/10       shared by carriers; metadata of Alibaba Cloud
127.0.0.0/8         loopback
168.63.129.16/32    metadata of Azure
169.254.0.0/16      link local; metadata of most clouds
172.16.0.0/12       private use
192.0.0.0/24        protocols of the IETF; metadata of Oracle Cloud
192.0.2.0/24        documentation
192.31.196.0/24     AS112
192.52.193.0/24     automatic multicast tunnels
192.88.99.0/24      relays of 6to4, withdrawn
192.168.0.0/16      private use
192.175.48.0/24     AS112
198.18.0.0/15       benchmarks
198.51.100.0/24     documentation
203.0.113.0/24      documentation
224.0.0.0/4         multicast
240.0.0.0/4         reserved
2001::/23           protocols of the IETF; Teredo, which contains addresses of IPv4
2001:db8::/32       documentation
2002::/16           6to4, which contains addresses of IPv4
2620:4f:8000::/48   AS112
3fff::/20           documentation
"""
"""Networks that no URL may lead to: the special-purpose registries of IANA (RFC 6890 and its updates), and what clouds
answer their machines at. Python's own `is_global` differs from version to version."""
_REFUSED = tuple(ipaddress.ip_network(line.split()[0]) for line in _SPECIAL.split("\n") if line)
_UNICAST = ipaddress.ip_network("2000::/3")
"""All of IPv6 that has been given to anybody."""


class ForbiddenAddressError(Exception):
    """A host has an address that the server does not connect to."""


def is_public(address: str, port: int) -> bool:
    """Return whether a URL may lead to this address: it is public, and the port is the one of http or https."""
    found = ipaddress.ip_address(address)
    if isinstance(found, ipaddress.IPv6Address):
        if found.ipv4_mapped is not None:
            found = found.ipv4_mapped
        elif found not in _UNICAST:
            return False
    return port in WEB_PORTS.values() and not any(found in network for network in _REFUSED)


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
