"""Laws of fetching files: only from public addresses, whatever names and redirects say, and within bounds."""

from __future__ import annotations

import asyncio
import ipaddress
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest
from hypothesis import given
from hypothesis import strategies as st

from plumbline.server.addresses import is_public
from plumbline.server.media.fetch import Fetcher, FetchError

PRIVATE = [
    "10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "127.0.0.0/8", "169.254.0.0/16", "0.0.0.0/8", "100.64.0.0/10",
    "192.0.2.0/24", "198.18.0.0/15", "224.0.0.0/4", "240.0.0.0/4", "::1/128", "::/128", "fc00::/7", "fe80::/10",
    "ff00::/8", "2001:db8::/32", "::ffff:10.0.0.0/104", "::ffff:127.0.0.0/104", "64:ff9b::a00:0/104", "2002:7f00::/24",
    "192.0.0.0/24", "168.63.129.16/32", "192.88.99.0/24", "192.31.196.0/24", "192.52.193.0/24", "192.175.48.0/24",
    "198.51.100.0/24", "203.0.113.0/24", "fec0::/10", "3fff::/20", "2001::/23", "2620:4f:8000::/48", "5f00::/16",
    "100::/64", "4000::/2", "8000::/1", "::ffff:168.63.129.16/128",
]  # fmt: skip


@given(st.data(), st.sampled_from(PRIVATE), st.sampled_from([80, 443]))
def test_no_address_of_a_private_network_is_public(data: st.DataObject, network: str, port: int) -> None:
    found = ipaddress.ip_network(network)
    first, last = int(found.network_address), int(found.broadcast_address)
    address = (
        ipaddress.ip_address(data.draw(st.integers(first, last)))
        if found.version == 4
        else (ipaddress.IPv6Address(data.draw(st.integers(first, last))))
    )
    assert not is_public(str(address), port)


def test_public_addresses_are_public_on_the_ports_of_the_web_only() -> None:
    beside = (
        "9.255.255.255",
        "11.0.0.0",
        "172.32.0.0",
        "192.0.1.0",
        "168.63.129.17",
        "223.255.255.255",
        "2001:200::1",
    )
    for address in ("8.8.8.8", "2606:4700::1111", "::ffff:8.8.8.8", *beside):
        assert is_public(address, 443)
        assert is_public(address, 80)
        assert not is_public(address, 25)


Answer = bytes | Callable[[], bytes]


@asynccontextmanager
async def serving(*answers: bytes, pause: float = 0.0) -> AsyncIterator[tuple[int, list[bytes]]]:
    """A server that gives these answers in turn; yields its port and the requests that it gets."""
    seen: list[bytes] = []
    left = list(answers)

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        seen.append(await reader.readuntil(b"\r\n\r\n"))
        await asyncio.sleep(pause)
        writer.write(left.pop(0))
        writer.close()

    server = await asyncio.start_server(handle, "127.0.0.1", 0)
    try:
        yield server.sockets[0].getsockname()[1], seen
    finally:
        server.close()


def ok(body: bytes, *headers: str) -> bytes:
    """An answer."""
    lines = ["HTTP/1.1 200 OK", "connection: close", *headers, "", ""]
    return "\r\n".join(lines).encode() + body


def to(place: str) -> bytes:
    """A redirect."""
    return f"HTTP/1.1 302 Found\r\nlocation: {place}\r\ncontent-length: 0\r\n\r\n".encode()


def loopback(address: str, port: int) -> bool:
    """Allow nothing but this machine's first address."""
    return address == "127.0.0.1"


async def refusal(fetcher: Fetcher, url: str, size: int = 1000) -> str:
    """The error of a fetch."""
    with pytest.raises(FetchError) as error:
        await fetcher.fetch(url, size)
    return str(error.value)


async def test_what_is_allowed_is_fetched_in_full_and_never_more() -> None:
    body = bytes(range(200))
    async with serving(*[ok(body)] * 2, *[ok(body, "content-length: 200")] * 2) as (port, _):
        fetcher = Fetcher(5.0, loopback)
        for _ in range(2):
            assert await fetcher.fetch(f"http://127.0.0.1:{port}/a", 200) == body
            assert "more than 199 bytes" in await refusal(fetcher, f"http://127.0.0.1:{port}/a", 199)


@pytest.mark.parametrize(
    "host", ["127.0.0.1", "localhost", "0x7f000001", "2130706433", "127.1", "[::1]", "0.0.0.0"]
)
async def test_no_spelling_of_this_machine_is_connected_to(host: str) -> None:
    async with serving(ok(b"secret")) as (port, seen):
        assert "secret" not in await refusal(Fetcher(5.0), f"http://{host}:{port}/")
        assert not seen


async def test_every_address_of_a_name_is_checked_and_the_checked_one_is_connected_to(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A name that changes its address between the check and the connection does not matter."""
    known = {
        "first.test": ["127.0.0.1"],
        "mixed.test": ["127.0.0.1", "10.0.0.1"],
        "turned.test": ["127.0.0.1"],
    }
    real = socket.getaddrinfo
    lookups: list[str] = []

    def look_up(host: str, port: int, *args: object, **kwargs: object) -> object:
        if host in known:
            lookups.append(host)
            addresses, known["turned.test"] = known[host], ["10.0.0.1"]
            return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (each, port)) for each in addresses]
        return real(host, port, *args, **kwargs)  # type: ignore[arg-type]

    monkeypatch.setattr(socket, "getaddrinfo", look_up)
    async with serving(ok(b"file"), ok(b"file")) as (port, seen):
        fetcher = Fetcher(5.0, loopback)
        assert await fetcher.fetch(f"http://turned.test:{port}/x?y=z", 10) == b"file"
        assert seen[0].startswith(b"GET /x?y=z HTTP/1.1\r\n")
        assert f"host: turned.test:{port}".encode() in seen[0].lower()
        assert lookups == ["turned.test"]
        assert "address" in await refusal(fetcher, f"http://mixed.test:{port}/")
        assert len(seen) == 1


async def test_redirects_are_followed_as_far_as_they_are_allowed() -> None:
    async with serving(ok(b"there")) as (other, _):
        places = (to("/b"), to(f"http://127.0.0.1:{other}/c"))
        async with serving(*places) as (port, seen):
            assert await Fetcher(5.0, loopback).fetch(f"http://127.0.0.1:{port}/a", 10) == b"there"
            assert [request.split()[1] for request in seen] == [b"/a", b"/b"]
    for place in ("http://127.0.0.2/", "file:///etc/passwd", "http://a:b@127.0.0.1/", "gopher://127.0.0.1/"):
        async with serving(to(place)) as (port, _):
            await refusal(Fetcher(5.0, loopback), f"http://127.0.0.1:{port}/")
    async with serving(*[to("/again")] * 9) as (port, seen):
        assert "redirects" in await refusal(Fetcher(5.0, loopback), f"http://127.0.0.1:{port}/")
        assert len(seen) == 4


async def test_a_slow_or_odd_server_is_an_error_in_time() -> None:
    began = asyncio.get_running_loop().time()
    async with serving(ok(b"late"), pause=30.0) as (port, _):
        assert "0.2 seconds" in await refusal(Fetcher(0.2, loopback), f"http://127.0.0.1:{port}/")
    assert asyncio.get_running_loop().time() - began < 5
    fetcher = Fetcher(5.0, loopback)
    async with serving(ok(b"\x1f\x8b", "content-encoding: gzip")) as (port, _):
        assert "compresses" in await refusal(fetcher, f"http://127.0.0.1:{port}/")
    async with serving(b"HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\n\r\n") as (port, _):
        assert "404" in await refusal(fetcher, f"http://127.0.0.1:{port}/")
    async with serving(b"garbage\r\n\r\n") as (port, _):
        assert "garbage" not in await refusal(fetcher, f"http://127.0.0.1:{port}/")
