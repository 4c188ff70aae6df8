"""Laws of TLS: answers are the same, silent connections are counted, and certificates are renewed."""

from __future__ import annotations

import asyncio
import socket
import ssl
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx2
import pytest
import trustme
from cryptography.hazmat.primitives import serialization
from support.models import scripted, served
from support.servers.live import Live, live

from plumbline.server.settings import OptionError, Settings
from plumbline.server.start.connections.tls import Handshake, Secured, tls_context

CHAT = {"model": "test-model", "messages": [{"role": "user", "content": "hi"}]}
PASSWORD = "a password"


class Certificates:
    """A folder with a certificate of an authority that clients trust.

    Args:
        folder: is empty.
    """

    def __init__(self, folder: Path) -> None:
        self.cert, self.key = folder / "cert.pem", folder / "key.pem"
        self._authority = trustme.CA()
        self.trusting = ssl.create_default_context()
        self.trust(self.trusting)
        self.issue()

    def trust(self, context: ssl.SSLContext) -> None:
        """Let a client trust the authority of the server."""
        self._authority.configure_trust(context)

    def issue(self) -> None:
        """Write a new certificate and its key."""
        leaf = self._authority.issue_cert("127.0.0.1")
        leaf.private_key_pem.write_to_path(self.key)
        leaf.cert_chain_pems[0].write_to_path(self.cert)

    def encrypt(self) -> None:
        """Encrypt the key with `PASSWORD`."""
        key = serialization.load_pem_private_key(self.key.read_bytes(), None)
        encryption = serialization.BestAvailableEncryption(PASSWORD.encode())
        kind = serialization.PrivateFormat.PKCS8
        self.key.write_bytes(key.private_bytes(serialization.Encoding.PEM, kind, encryption))

    def settings(self, **changes: object) -> Settings:
        """Return settings with the two files."""
        return Settings(ssl_certfile=str(self.cert), ssl_keyfile=str(self.key), **changes)  # type: ignore[arg-type]

    def presented(self, server: Live) -> bytes:
        """Return the certificate that a server shows a client."""
        with (
            socket.create_connection(("127.0.0.1", server.port), 20) as plain,
            self.trusting.wrap_socket(plain, server_hostname="127.0.0.1") as secured,
        ):
            found = secured.getpeercert(binary_form=True)
        assert found is not None
        return found


@pytest.fixture
def certificates(tmp_path: Path) -> Certificates:
    return Certificates(tmp_path)


def test_answers_over_tls(certificates: Certificates) -> None:
    with (
        live(lambda: served(scripted()), certificates.settings()) as server,
        httpx2.Client(verify=certificates.trusting) as client,
    ):
        url = f"https://127.0.0.1:{server.port}/v1/chat/completions"
        whole = client.post(url, json=CHAT)
        stream = client.post(url, json={**CHAT, "stream": True})
        large = client.post(url, json={**CHAT, "user": "x" * 1_000_000})

    assert whole.status_code == stream.status_code == 200
    assert stream.text.endswith("data: [DONE]\n\n")
    assert large.status_code in (200, 400)


def eventually(found: Callable[[], bool]) -> None:
    """Wait until something holds."""
    until = time.monotonic() + 20
    while not found():
        assert time.monotonic() < until
        time.sleep(0.02)


def is_closed(connection: socket.socket) -> bool:
    """Return whether the server has closed a connection on which it has sent nothing."""
    connection.settimeout(0.01)
    try:
        return connection.recv(1) == b""
    except TimeoutError:
        return False
    except ConnectionError:
        return True


def test_silent_connections_are_counted_before_their_handshake(certificates: Certificates) -> None:
    settings = certificates.settings(max_connections=5, header_timeout=600.0)
    with live(lambda: served(scripted()), settings) as server:
        silent = [socket.create_connection(("127.0.0.1", server.port), 20) for _ in range(12)]
        eventually(lambda: sum(map(is_closed, silent)) == 7)
        for one in silent:
            one.close()
        eventually(lambda: _answers(certificates, server))


def _answers(certificates: Certificates, server: Live) -> bool:
    try:
        return bool(certificates.presented(server))
    except OSError:
        return False


def test_a_handshake_has_the_time_of_the_headers(certificates: Certificates) -> None:
    with live(lambda: served(scripted()), certificates.settings(header_timeout=0.2)) as server:
        for sent in (b"", b"\x16\x03\x01\x02"):
            with socket.create_connection(("127.0.0.1", server.port), 20) as silent:
                silent.sendall(sent)
                eventually(lambda: is_closed(silent))
        with socket.create_connection(("127.0.0.1", server.port), 20) as plain:
            plain.sendall(b"GET /health HTTP/1.1\r\nhost: localhost\r\n\r\n")
            plain.settimeout(20)
            assert b"HTTP/1.1 200" not in plain.recv(100)
        assert certificates.presented(server)


def test_a_renewed_certificate_is_shown_and_a_damaged_one_is_not(certificates: Certificates) -> None:
    with live(lambda: served(scripted()), certificates.settings()) as server:
        secured: Any = server.server.config.http
        assert isinstance(secured, Secured)
        seen = [certificates.presented(server)]
        for change in (
            certificates.issue,
            lambda: certificates.cert.write_text("damaged"),
            certificates.issue,
        ):
            change()
            secured.renew()
            seen.append(certificates.presented(server))
    first, second, third, fourth = seen
    assert first != second == third != fourth


def test_clients_need_a_certificate_of_the_authorities_of_now(
    certificates: Certificates, tmp_path: Path
) -> None:
    authorities = tmp_path / "authorities.pem"
    old, new = trustme.CA(), trustme.CA()
    old.cert_pem.write_to_path(str(authorities))

    def greeted(by: trustme.CA | None) -> bool:
        trusting = ssl.create_default_context()
        certificates.trust(trusting)
        if by is not None:
            by.issue_cert("client@example.org").configure_cert(trusting)
        try:
            with httpx2.Client(verify=trusting) as client:
                return client.get(f"https://127.0.0.1:{server.port}/health").status_code == 200
        except httpx2.TransportError:
            return False

    with live(lambda: served(scripted()), certificates.settings(ssl_ca_certs=str(authorities))) as server:
        assert [greeted(None), greeted(old), greeted(new)] == [False, True, False]
        new.cert_pem.write_to_path(str(authorities))
        secured: Any = server.server.config.http
        assert isinstance(secured, Secured)
        secured.renew()
        assert [greeted(None), greeted(old), greeted(new)] == [False, False, True]


def test_an_encrypted_key_needs_its_password(certificates: Certificates, tmp_path: Path) -> None:
    certificates.encrypt()
    with pytest.raises(OptionError, match="is encrypted; give --ssl-keyfile-password-file"):
        tls_context(certificates.settings())
    password = tmp_path / "password"
    password.write_text("wrong\n")
    settings = certificates.settings(ssl_keyfile_password_file=str(password))
    with pytest.raises(OptionError, match="--ssl-keyfile-password-file does not have the password"):
        tls_context(settings)
    password.write_text(f"{PASSWORD}\n")
    assert tls_context(settings)


class _Echo(asyncio.Protocol):
    def connection_made(self, transport: Any) -> None:
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._transport.write(data)


@pytest.mark.parametrize("kind", ["asyncio", "uvloop"])
def test_every_event_loop_gets_the_first_message_of_a_handshake_that_comes_at_once(
    kind: str, tmp_path: Path
) -> None:
    """uvloop's transports are none of asyncio's classes, and read as soon as the protocol is told of them."""
    certificates = Certificates(tmp_path)
    context, count = tls_context(certificates.settings()), 40

    def ask(port: int) -> None:
        for _ in range(count):
            with (
                socket.create_connection(("127.0.0.1", port), 20) as plain,
                certificates.trusting.wrap_socket(plain, server_hostname="127.0.0.1") as secured,
            ):
                secured.sendall(b"hello")
                assert secured.recv(5) == b"hello"

    async def serve() -> None:
        open_handshakes: set[Handshake] = set()
        server = await asyncio.get_running_loop().create_server(
            lambda: Handshake(_Echo, lambda _: False, context, 10.0, lambda _: True, open_handshakes),
            "127.0.0.1",
        )
        async with server:
            await asyncio.to_thread(ask, server.sockets[0].getsockname()[1])
        assert not open_handshakes

    new_loop = pytest.importorskip("uvloop").new_event_loop if kind == "uvloop" else None
    with asyncio.Runner(loop_factory=new_loop) as runner:
        runner.run(serve())
