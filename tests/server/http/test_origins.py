"""What pages of strangers may do at a server without keys.

Laws:
    1. A request or a handshake that names another host is a 421, whatever its path but those of health.
    2. A request of another origin that may change something, and its handshake of a WebSocket, is a 403, unless the
       origin is allowed. Safe methods are answered, because the browser keeps the answer from the page.
    3. The server's own page, the user, and programs that are no browser are answered.
    4. With keys, and on a Unix socket, hosts are not checked; with keys, origins neither.
    5. A body from a browser has its content type.
    6. A request of HTTP/1.1 without a Host header is a 400.
"""

from __future__ import annotations

import socket
from collections.abc import Iterator
from typing import Any

import pytest
from benchmarks.serving.processes import posted
from support.models import scripted, served
from support.servers.asgi import serving
from support.servers.live import Live, live
from websockets.exceptions import InvalidStatus
from websockets.sync.client import connect

from plumbline.server.settings import Settings

CHAT = {"model": "test-model", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 2}
EVIL = "https://evil.example"
PATHS = [("GET", "/v1/models"), ("GET", "/"), ("POST", "/v1/chat/completions"), ("GET", "/nowhere")]
OWN_HOSTS = [
    "localhost",
    "LOCALHOST:8000",
    "127.0.0.1",
    "127.8.9.1:80",
    "[::1]:8000",
    "app.localhost",
    "own.example:1",
]
OTHER_HOSTS = [
    "evil.example",
    "evil.example:8000",
    "localhost.evil.example",
    "10.0.0.1",
    "[2001:db8::1]",
    "0.0.0.0",
]


@pytest.mark.parametrize("host", OTHER_HOSTS)
@pytest.mark.parametrize(("method", "path"), PATHS)
async def test_a_foreign_host_is_refused(method: str, path: str, host: str) -> None:
    """Law 1."""
    async with serving(served(scripted())) as server:
        body = CHAT if method == "POST" else None
        answer = await server.request(method, path, body, headers={"host": host, "origin": f"http://{host}"})
        assert answer.status == 421
        assert "--allowed-host" in answer.error["message"]
        assert (await server.get("/health", headers={"host": host})).status == 200


@pytest.mark.parametrize("host", OWN_HOSTS)
async def test_an_own_host_is_answered(host: str) -> None:
    async with serving(served(scripted()), allowed_hosts=("*.other.example", "own.example")) as server:
        headers = {"host": host, "origin": f"http://{host}"}
        assert (await server.post("/v1/chat/completions", CHAT, headers=headers)).status == 200


async def test_hosts_are_not_checked_with_keys_or_on_a_unix_socket() -> None:
    """Law 4."""
    headers = {"host": "evil.example", "authorization": "Bearer k", "origin": EVIL}
    async with serving(served(scripted()), api_keys=("k",)) as server:
        assert (await server.post("/v1/chat/completions", CHAT, headers=headers)).status == 200
    async with serving(served(scripted()), uds="/tmp/unused") as server:
        assert (await server.post("/v1/chat/completions", CHAT, headers={"host": "a.example"})).status == 200
        foreign = {"host": "a.example", "origin": EVIL}
        assert (await server.post("/v1/chat/completions", CHAT, headers=foreign)).status == 403


BROWSERS = [
    ({"origin": EVIL}, 403),
    ({"origin": EVIL, "sec-fetch-site": "cross-site"}, 403),
    ({"sec-fetch-site": "cross-site"}, 403),
    ({"origin": "null"}, 403),
    ({"origin": "http://localhost:3000", "sec-fetch-site": "same-site"}, 403),
    ({"origin": "http://localhost:8000"}, 200),
    ({"origin": "https://page.example", "sec-fetch-site": "cross-site"}, 200),
    ({"origin": "http://proxy.example", "sec-fetch-site": "same-origin"}, 200),
    ({"sec-fetch-site": "none"}, 200),
    ({}, 200),
]


@pytest.mark.parametrize(("headers", "status"), BROWSERS)
async def test_only_own_and_allowed_pages_may_change_something(headers: dict[str, str], status: int) -> None:
    """Laws 2 and 3."""
    async with serving(served(scripted()), cors_origins=("https://page.example",)) as server:
        sent = {"host": "localhost:8000", **headers}
        for method, path in (
            ("POST", "/v1/chat/completions"),
            ("POST", "/v1/tokenize"),
            ("DELETE", "/v1/responses/a"),
        ):
            answer = await server.request(method, path, CHAT if method == "POST" else None, headers=sent)
            assert (answer.status == 403) is (status == 403)
        assert (await server.get("/v1/models", headers=sent)).status == 200


@pytest.fixture(scope="module")
def open_server() -> Iterator[Live]:
    with live(lambda: served(scripted()), Settings(cors_origins=("https://page.example",))) as found:
        yield found


@pytest.mark.parametrize(("headers", "status"), BROWSERS)
def test_handshakes_are_checked_as_requests_are(
    open_server: Live, headers: dict[str, str], status: int
) -> None:
    port = open_server.port
    sent = {name: value.replace("localhost:8000", f"127.0.0.1:{port}") for name, value in headers.items()}
    origin = sent.pop("origin", None)
    url = f"ws://127.0.0.1:{port}/v1/responses"
    options: Any = {"origin": origin, "additional_headers": sent}
    if status == 200:
        with connect(url, **options):
            return
    with pytest.raises(InvalidStatus) as refused, connect(url, **options):
        pass
    assert refused.value.response.status_code == status


HANDSHAKE = (
    b"GET /v1/responses HTTP/1.1\r\nHost: %s\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n"
)


@pytest.mark.parametrize(
    ("sent", "status"),
    [
        (HANDSHAKE % b"evil.example", 421),
        (HANDSHAKE % b"localhost", 101),
        (b"GET /v1/models HTTP/1.1\r\n\r\n", 400),
        (b"GET /v1/models HTTP/1.0\r\n\r\n", 200),
        (posted("/v1/chat/completions", CHAT), 200),
        (posted("/v1/chat/completions", CHAT, closes=False), 200),
    ],
)
def test_the_host_of_every_request_and_handshake_is_checked(
    open_server: Live, sent: bytes, status: int
) -> None:
    """Laws 1 and 6."""
    with socket.create_connection(("127.0.0.1", open_server.port), timeout=20) as connection:
        connection.sendall(sent)
        assert connection.recv(65536).startswith(b"HTTP/1.1 %d " % status)


async def test_a_body_of_a_browser_needs_its_type() -> None:
    """Law 5: a page may send one without a type to any server."""
    async with serving(served(scripted())) as server:
        own = {"host": "localhost", "origin": "http://localhost", "content-type": ""}
        assert (await server.post("/v1/chat/completions", CHAT, headers=own)).status == 415
        plain = {"host": "localhost", "content-type": "application/json"}
        assert (await server.post("/v1/chat/completions", CHAT, headers=plain)).status == 200
