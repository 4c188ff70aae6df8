"""Fetch files from the public internet, and never from a private network.

A client that names a URL lets this server make a request. So every address of the host is checked, the connection goes
to the checked address and not to what a second look-up returns, and redirects are checked in the same way.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable

import httpx2

from plumbline.server.addresses import WEB_PORTS, ForbiddenAddressError, Resolver, is_public

__all__ = ["FetchError", "Fetcher"]

_MAX_REDIRECTS = 3


class FetchError(Exception):
    """A file could not be fetched; the message is fit for the client."""


class Fetcher:
    """Fetch files with bounds on their size and time.

    Args:
        timeout: seconds for a file, with its redirects.
        allowed: decides whether to connect to an address and port.
    """

    def __init__(self, timeout: float, allowed: Callable[[str, int], bool] = is_public) -> None:
        self._timeout = timeout
        self._resolver = Resolver(allowed)
        self._tls: ssl.SSLContext | None = None

    async def fetch(self, url: str, max_bytes: int) -> bytes:
        """Fetch a file and return its bytes.

        Args:
            url: its http or https URL.
            max_bytes: its largest size.

        Raises:
            FetchError: the file is larger, its host has an address that is not allowed, or the host does not answer
                with a file in time.
        """
        try:
            async with asyncio.timeout(self._timeout):
                return await self._fetch(url, max_bytes)
        except TimeoutError:
            raise FetchError(f"did not arrive within {self._timeout:g} seconds") from None
        except (httpx2.HTTPError, httpx2.InvalidURL, ssl.SSLError, OSError, UnicodeError):
            # The reason may describe the network of this server, so the client does not see it.
            raise FetchError("could not be fetched") from None

    async def _fetch(self, url: str, max_bytes: int) -> bytes:
        if self._tls is None:
            self._tls = await asyncio.to_thread(ssl.create_default_context)
        place = httpx2.URL(url)
        for _ in range(_MAX_REDIRECTS + 1):
            found = await self._once(place, max_bytes)
            if isinstance(found, bytes):
                return found
            place = found
        raise FetchError(f"has more than {_MAX_REDIRECTS} redirects")

    async def _once(self, url: httpx2.URL, max_bytes: int) -> bytes | httpx2.URL:
        """Make one request; returns the body, or where it redirects to."""
        if url.scheme not in WEB_PORTS or not url.host or url.userinfo:
            raise FetchError("leads to a URL that is not http or https, or has a password")
        address = await self._address(url.host, url.port or WEB_PORTS[url.scheme])
        headers = {"host": url.netloc.decode("ascii"), "accept": "image/*", "accept-encoding": "identity"}
        client = httpx2.AsyncClient(verify=self._tls or True, trust_env=False, timeout=self._timeout)
        async with (
            client,
            client.stream(
                "GET",
                url.copy_with(host=address),
                headers=headers,
                extensions={"sni_hostname": url.raw_host.decode("ascii")},
            ) as response,
        ):
            if response.has_redirect_location:
                return url.join(response.headers["location"])
            if response.status_code != 200:
                raise FetchError(f"could not be fetched: its server answered {response.status_code}")
            if response.headers.get("content-encoding", "identity") != "identity":
                raise FetchError("could not be fetched: its server compresses it")
            parts: list[bytes] = []
            size = 0
            async for part in response.aiter_raw():
                size += len(part)
                if size > max_bytes:
                    raise FetchError(f"has more than {max_bytes} bytes")
                parts.append(part)
            return b"".join(parts)

    async def _address(self, host: str, port: int) -> str:
        try:
            return await self._resolver.address(host, port)
        except ForbiddenAddressError:
            raise FetchError("is at an address that this server does not connect to") from None
