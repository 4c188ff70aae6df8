"""Connect to an MCP server over HTTP: to allowed hosts and checked addresses only, with bounds on what it sends."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator
from functools import cache

import httpx2

from plumbline.answer.remote_tools import RemoteServer
from plumbline.server.addresses import WEB_PORTS, ForbiddenAddressError, Resolver
from plumbline.server.tools.mcp.hosts import AllowedHosts

__all__ = ["MAX_BYTES", "PinnedTransport", "http_client"]

MAX_BYTES = 4 * 1024 * 1024
"""Bytes of one answer of an MCP server."""


class PinnedTransport(httpx2.AsyncBaseTransport):
    """Send requests to the checked address of an allowed host.

    Args:
        hosts: the hosts that may be called.
        resolver: looks up and checks their addresses.
        connect_seconds: how long a connection may take.
        read_seconds: how long an answer may be silent.
    """

    def __init__(
        self, hosts: AllowedHosts, resolver: Resolver, connect_seconds: float, read_seconds: float
    ) -> None:
        self._hosts = hosts
        self._resolver = resolver
        self._timeout = {
            "connect": connect_seconds,
            "read": read_seconds,
            "write": connect_seconds,
            "pool": connect_seconds,
        }
        self._inner: httpx2.AsyncHTTPTransport | None = None
        self.status = 0
        """The status of the last answer."""
        self.problem: str | None = None
        """Why the last request was not answered, fit for the client: it has no part of the URL."""

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        """Send one request.

        Raises:
            httpx2.TransportError: the host is not allowed or did not answer; `problem` has the reason.
        """
        self.status, self.problem = 0, None
        try:
            response = await self._sent(request)
        except ForbiddenAddressError:
            raise self._failed("is at an address that this server does not connect to") from None
        except (httpx2.TimeoutException, TimeoutError):
            raise self._failed("did not answer in time") from None
        except (httpx2.TransportError, OSError, UnicodeError):
            raise self._failed("cannot be reached") from None
        self.status = response.status_code
        if response.headers.get("content-encoding", "identity") != "identity":
            await response.aclose()
            raise self._failed("compresses its answers, which was not asked for")
        return httpx2.Response(
            response.status_code,
            headers=response.headers,
            stream=_Bounded(self, response),
            extensions=response.extensions,
        )

    async def aclose(self) -> None:
        """Close all connections."""
        if self._inner is not None:
            await self._inner.aclose()

    def failed(self, problem: str) -> httpx2.TransportError:
        """Return the error for a problem, and keep the problem."""
        self.problem = problem
        return httpx2.ReadError(problem)

    _failed = failed

    async def _sent(self, request: httpx2.Request) -> httpx2.Response:
        url = request.url
        if not self._hosts.allows(str(url)):
            raise ForbiddenAddressError(url.host)
        if self._inner is None:
            self._inner = httpx2.AsyncHTTPTransport(
                verify=await asyncio.to_thread(_tls), trust_env=False, retries=0
            )
        connecting = asyncio.timeout(self._timeout["connect"])
        async with connecting:
            address = await self._resolver.address(url.host, url.port or WEB_PORTS[url.scheme])
        extensions = {
            **request.extensions,
            "sni_hostname": url.raw_host.decode("ascii"),
            "timeout": self._timeout,
        }
        return await self._inner.handle_async_request(
            httpx2.Request(
                request.method,
                url.copy_with(host=address),
                headers=request.headers,  # They have the name of the host.
                stream=request.stream,
                extensions=extensions,
            )
        )


class _Bounded(httpx2.AsyncByteStream):
    """The body of an answer, up to its largest size."""

    def __init__(self, transport: PinnedTransport, response: httpx2.Response) -> None:
        self._transport = transport
        self._response = response

    async def __aiter__(self) -> AsyncIterator[bytes]:
        size = 0
        try:
            async for part in self._response.stream:  # type: ignore[union-attr]
                size += len(part)
                if size > MAX_BYTES:
                    raise self._transport.failed(f"sent more than {MAX_BYTES} bytes")
                yield part
        except httpx2.TimeoutException:
            raise self._transport.failed("did not answer in time") from None

    async def aclose(self) -> None:
        await self._response.aclose()


@cache
def _tls() -> ssl.SSLContext:
    return ssl.create_default_context()


def http_client(server: RemoteServer, transport: PinnedTransport) -> httpx2.AsyncClient:
    """Return a client that sends the headers of a server with every request."""
    return httpx2.AsyncClient(
        transport=transport, headers={**server.headers, "accept-encoding": "identity"}, trust_env=False
    )
