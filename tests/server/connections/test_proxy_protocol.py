"""Laws of the PROXY protocol, by which proxies that pass bytes on say whose they are.

- An announcement is read alike however it is cut, and nothing of what follows is lost, also of a TLS handshake.
- The client of a request, and of a WebSocket, is the one that a named proxy announces. Others announce nothing.
- A connection of a named proxy that begins otherwise, or with silence, is closed.
"""

from __future__ import annotations

import ipaddress
import logging
import socket
import ssl
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
import trustme
import uvicorn
from hypothesis import given
from hypothesis import strategies as st
from support.models import scripted, served
from support.servers.live import Live, live

from plumbline.server.observe.logs import FIELDS
from plumbline.server.settings import Settings, SettingsError
from plumbline.server.start.connections.proxy_protocol import AnnouncementError, read_announcement

ADDRESSES = st.ip_addresses()
PORTS = st.integers(0, 65_535)
REQUEST = b"GET /v1/models HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n"
SIGNATURE = b"\r\n\r\n\x00\r\nQUIT\n"


def line(address: ipaddress.IPv4Address | ipaddress.IPv6Address, port: int) -> bytes:
    """Write version 1."""
    other = "192.0.2.1" if address.version == 4 else "2001:db8::1"
    return f"PROXY TCP{address.version} {address} {other} {port} 443\r\n".encode()


def binary(
    address: ipaddress.IPv4Address | ipaddress.IPv6Address, port: int, more: bytes = b"", command: int = 0x21
) -> bytes:
    """Write version 2."""
    body = address.packed + bytes(len(address.packed)) + port.to_bytes(2) + b"\x01\xbb" + more
    kind = 0x11 if address.version == 4 else 0x21
    return SIGNATURE + bytes([command, kind]) + len(body).to_bytes(2) + body


@given(address=ADDRESSES, port=PORTS, more=st.binary(max_size=300), rest=st.binary(max_size=20))
def test_what_is_written_is_read_and_nothing_else(
    address: ipaddress.IPv4Address, port: int, more: bytes, rest: bytes
) -> None:
    client = str(getattr(address, "ipv4_mapped", None) or address)
    for whole in (line(address, port), binary(address, port, more)):
        assert read_announcement(whole + rest) == (len(whole), (client, port))
        for cut in range(1, len(whole)):
            assert read_announcement(whole[:cut]) is None
    of_the_proxy = binary(address, port, more, command=0x20)
    assert read_announcement(of_the_proxy) == (len(of_the_proxy), None)


@pytest.mark.parametrize(
    "data",
    [
        b"G",
        REQUEST,
        b"PROXY TCP4 1.2.3.4 1.2.3.4 1\r\n",
        b"PROXY TCP4 ::1 ::1 1 2\r\n",
        b"PROXY TCP4 1.2.3.4 1.2.3.4 70000 2\r\n",
        b"PROXY TCP4 1.2.3.4 1.2.3.4 \xb2 2\r\n",
        b"PROXY TCP5 1.2.3.4 1.2.3.4 1 2\r\n",
        b"PROXY " + b"x" * 200,
        SIGNATURE + b"\x31\x11\x00\x0c" + bytes(12),
        SIGNATURE + b"\x21\x11\xff\xff",
        SIGNATURE + b"\x21\x11\x00\x04" + bytes(4),
        b"\x16\x03\x01\x02\x00",
    ],
)
def test_anything_else_is_refused(data: bytes) -> None:
    with pytest.raises(AnnouncementError):
        read_announcement(data)


@given(st.binary(max_size=60))
def test_no_bytes_break_the_reader(data: bytes) -> None:
    for begin in (b"", b"PROXY ", SIGNATURE):
        try:
            found = read_announcement(begin + data)
        except AnnouncementError:
            continue
        assert found is None or 0 < found[0] <= len(begin + data)


@pytest.fixture(params=[None, uvicorn.Config("").get_loop_factory()], ids=["asyncio", "server's"])
def loop(request: pytest.FixtureRequest) -> Any:
    """Make an event loop of Python, or of the kind that a server has: uvloop's reads at other times."""
    return request.param


@contextmanager
def behind(trusted: str = "127.0.0.1", loop: Any = None, **changes: object) -> Iterator[Live]:
    settings = Settings(forwarded_allow_ips=trusted, proxy_protocol=True, access_log=True, **changes)  # type: ignore[arg-type]
    with live(lambda: served(scripted()), settings, loop) as server:
        yield server


def exchange(server: Live, *pieces: bytes) -> bytes:
    """Send pieces, each in a packet of its own, and read until the end."""
    with socket.create_connection(("127.0.0.1", server.port), 20) as client:
        client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        found = b""
        try:
            for piece in pieces:
                client.sendall(piece)
            while data := client.recv(65_536):
                found += data
        except ConnectionError:
            pass
        return found


def clients(caplog: pytest.LogCaptureFixture) -> list[str]:
    """Return the clients that the access log names."""
    return [getattr(record, FIELDS)["client"] for record in caplog.records if hasattr(record, FIELDS)]


ANN = ipaddress.ip_address("203.0.113.7")
BOB = ipaddress.ip_address("2001:db8::7")


def test_the_client_is_the_one_that_the_proxy_announces(loop: Any, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    forged = REQUEST.replace(b"host:", b"x-forwarded-for: 192.0.2.99\r\nhost:")
    with behind(loop=loop) as server:
        whole = line(ANN, 4711)
        for pieces in (
            (whole + REQUEST,),
            (whole, REQUEST),
            (*(whole[i : i + 1] for i in range(len(whole))), REQUEST),
            (binary(BOB, 1, b"\x03\x00\x04abcd") + REQUEST[:5], REQUEST[5:]),
            (line(ANN, 4711) + forged,),
            (b"PROXY UNKNOWN\r\n" + REQUEST,),
        ):
            assert exchange(server, *pieces).startswith(b"HTTP/1.1 200")
        for refused in (REQUEST, b"PROXY nothing\r\n" + REQUEST, b"\x16\x03\x01"):
            assert exchange(server, refused) == b""
    found = clients(caplog)
    assert found == ["203.0.113.7"] * 3 + ["2001:db8::7", "203.0.113.7", "127.0.0.1"]


def test_a_silent_proxy_is_not_waited_for(loop: Any) -> None:
    with behind(loop=loop, header_timeout=0.1) as server:
        for begun in (b"", b"PROXY TCP4 "):
            assert exchange(server, begun) == b""


def test_an_announced_client_that_is_idle_is_not_kept(loop: Any) -> None:
    kept = REQUEST.replace(b"connection: close\r\n", b"")
    assert kept != REQUEST
    with behind(loop=loop, header_timeout=0.2, idle_timeout=0.2) as server:
        assert exchange(server, line(ANN, 4711)) == b""
        assert exchange(server, line(ANN, 4711) + kept).startswith(b"HTTP/1.1 200")


def test_what_a_proxy_announces_after_the_signal_is_answered(loop: Any) -> None:
    with (
        behind(loop=loop) as server,
        socket.create_connection(("127.0.0.1", server.port), 20) as client,
    ):
        http: Any = server.server.config.http
        while not http.waits:
            time.sleep(0.005)
        server.stop()
        while not server.server._draining.began:  # type: ignore[attr-defined]
            time.sleep(0.005)
        client.sendall(line(ANN, 4711) + REQUEST)
        assert client.recv(65_536).startswith(b"HTTP/1.1 200")


def test_a_client_of_ipv4_has_one_name() -> None:
    mapped = ipaddress.ip_address("::ffff:203.0.113.7")
    for whole in (line(mapped, 1), binary(mapped, 1)):
        assert read_announcement(whole) == (len(whole), ("203.0.113.7", 1))


def test_others_announce_nothing(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    with behind("192.0.2.1") as server:
        assert exchange(server, REQUEST).startswith(b"HTTP/1.1 200")
        assert exchange(server, line(ANN, 1) + REQUEST).startswith(b"HTTP/1.1 400")
    assert set(clients(caplog)) == {"127.0.0.1"}
    with pytest.raises(SettingsError, match="--proxy-protocol needs --forwarded-allow-ips"):
        Settings(proxy_protocol=True)
    with pytest.raises(SettingsError, match="--proxy-protocol needs --port"):
        Settings(proxy_protocol=True, forwarded_allow_ips="127.0.0.1", uds="/tmp/socket")


def test_an_announcement_comes_before_the_handshake(
    loop: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    authority = trustme.CA()
    leaf = authority.issue_cert("localhost")
    leaf.private_key_and_cert_chain_pem.write_to_path(str(tmp_path / "cert.pem"))
    trusting = ssl.create_default_context()
    authority.configure_trust(trusting)
    with behind(loop=loop, ssl_certfile=str(tmp_path / "cert.pem")) as server:
        for announced in (line(ANN, 4711), binary(BOB, 1)):
            incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
            talk = trusting.wrap_bio(incoming, outgoing, server_hostname="localhost")
            with socket.create_connection(("127.0.0.1", server.port), 20) as client:
                # The first message of the handshake comes in the same packet.
                first, found = announced, b""
                while True:
                    try:
                        talk.do_handshake()
                        break
                    except ssl.SSLWantReadError:
                        client.sendall(first + outgoing.read())
                        first = b""
                        incoming.write(client.recv(65_536))
                talk.write(REQUEST)
                client.sendall(outgoing.read())
                while not found.endswith(b"}"):
                    incoming.write(client.recv(65_536))
                    with suppress(ssl.SSLWantReadError):
                        while part := talk.read(65_536):
                            found += part
            assert found.startswith(b"HTTP/1.1 200")
    assert clients(caplog) == ["203.0.113.7", "2001:db8::7"]
