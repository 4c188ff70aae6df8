"""Other ways to reach the server: web pages of other origins, TLS, a Unix socket, a refused WebSocket.

Laws:
    1. A page of an allowed origin may read every answer, errors too; other origins get no permission.
    2. A preflight request needs no key, and lets pages of origins that are named reach a server on loopback.
    3. Over TLS and over a Unix socket the answers are the same as over TCP.
    4. A WebSocket handshake is refused with the error envelope; a wrong key is a 401.
"""

from __future__ import annotations

import asyncio
import json
import os
import socket
import stat
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx2
import pytest
from support.models import scripted, served
from support.servers.asgi import serving
from support.servers.live import live
from websockets.exceptions import InvalidStatus
from websockets.sync.client import connect

from plumbline.server.loading.catalog import only
from plumbline.server.settings import OptionError, Settings, SettingsError
from plumbline.server.start.connections.base import ClientConnection
from plumbline.server.start.listener import listener
from plumbline.server.start.sockets import bound

CHAT = {"model": "test-model", "messages": [{"role": "user", "content": "hi"}]}
PAGE = "https://page.example"
PREFLIGHT = {
    "access-control-request-method": "POST",
    "access-control-request-headers": "authorization,content-type",
    "access-control-request-private-network": "true",
}


@pytest.mark.parametrize(
    ("origins", "origin", "allowed"),
    [
        ((PAGE,), PAGE, PAGE),
        (("*",), PAGE, "*"),
        (("https://*.example",), PAGE, PAGE),
        ((PAGE,), "https://other.example", None),
        ((PAGE,), PAGE + ".evil.test", None),
        ((), PAGE, None),
    ],
)
async def test_only_pages_of_allowed_origins_may_read_answers(
    origins: tuple[str, ...], origin: str, allowed: str | None
) -> None:
    async with serving(served(scripted()), cors_origins=origins, api_keys=("k",)) as server:
        headers = {"origin": origin, "authorization": "Bearer k"}
        answers = [
            await server.post("/v1/chat/completions", CHAT, headers=headers),
            await server.post("/v1/chat/completions", {**CHAT, "stream": True}, headers=headers),
            await server.post("/v1/chat/completions", CHAT, headers={"origin": origin}),
            await server.get("/nowhere", headers=headers),
        ]
        preflight = await server.request(
            "OPTIONS", "/v1/chat/completions", headers={"origin": origin, **PREFLIGHT}
        )

    assert [answer.status for answer in answers] == [200, 200, 401, 404]
    assert {answer.header("access-control-allow-origin") for answer in answers} == {allowed}
    assert preflight.header("access-control-allow-origin") == allowed
    private = preflight.header("access-control-allow-private-network")
    assert private == ("true" if allowed == origin else None)  # Not for the pages of everybody.
    if allowed is not None:
        assert preflight.status == 204
        assert preflight.header("access-control-allow-headers") == "authorization,content-type"
        assert "POST" in (preflight.header("access-control-allow-methods") or "")
        assert all("x-request-id" in (a.header("access-control-expose-headers") or "") for a in answers)


@contextmanager
def on_socket(path: Path) -> Iterator[None]:
    """Serve on a Unix socket while the block runs."""
    ready, stop = threading.Event(), threading.Event()

    async def main() -> None:
        server = listener(only(served(scripted())), Settings(uds=str(path)), host="127.0.0.1", port=0)
        server.install_signal_handlers = lambda: None  # type: ignore[attr-defined]
        running = asyncio.ensure_future(server._serve())
        while not server.started and not running.done():
            await asyncio.sleep(0.005)
        ready.set()
        await asyncio.to_thread(stop.wait)
        server.should_exit = True
        await running

    thread = threading.Thread(target=lambda: asyncio.run(main()), daemon=True)
    thread.start()
    assert ready.wait(20)
    try:
        yield
    finally:
        stop.set()
        thread.join(20)


def test_answers_over_a_unix_socket(tmp_path: Path) -> None:
    path = tmp_path / "s"
    with on_socket(path), httpx2.Client(transport=httpx2.HTTPTransport(uds=str(path))) as client:
        answer = client.post("http://any/v1/chat/completions", json={**CHAT, "stream": True})

    assert answer.status_code == 200
    assert answer.text.endswith("data: [DONE]\n\n")


@pytest.mark.parametrize(("group", "mode"), [(False, 0o600), (True, 0o660)])
@pytest.mark.parametrize("umask", [0o000, 0o077])
def test_only_the_owner_can_use_the_unix_socket_and_its_group_by_option(
    tmp_path: Path, group: bool, mode: int, umask: int
) -> None:
    """Whoever can connect needs no API key, so the umask must not decide."""
    path = tmp_path / "s"
    before = os.umask(umask)
    try:
        with bound(Settings(uds=str(path), uds_group=group)):
            assert stat.S_IMODE(path.stat().st_mode) == mode
        assert os.umask(umask) == umask
    finally:
        os.umask(before)


@pytest.mark.parametrize("listens", [False, True])
def test_no_start_takes_the_unix_socket_of_another_server(tmp_path: Path, listens: bool) -> None:
    """A server that is starting does not listen yet, and one of another kind keeps no lock."""
    path = tmp_path / "s"
    with socket.socket(socket.AF_UNIX) as foreign:
        foreign.bind(str(path))
        if listens:
            foreign.listen(1)
            with pytest.raises(OptionError, match="another server uses it"), bound(Settings(uds=str(path))):
                pass
    for _ in range(2):  # A server that has ended leaves its socket.
        with bound(Settings(uds=str(path))) as (own,):
            before = path.stat().st_ino
            with pytest.raises(OptionError, match="another server uses it"), bound(Settings(uds=str(path))):
                pass
            assert path.stat().st_ino == before
            assert own.getsockname() == str(path)


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"uds_group": True}, "--uds-group needs --uds"),
        ({"ssl_keyfile": "k"}, "--ssl-certfile"),
        ({"ssl_ca_certs": "k"}, "--ssl-certfile"),
        ({"ssl_certfile": "missing.pem"}, "missing.pem"),
    ],
)
def test_incomplete_settings_of_the_transport_are_refused(changes: dict[str, str], named: str) -> None:
    with pytest.raises(SettingsError, match=named):
        Settings(**changes)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("path", "key", "status", "code"),
    [
        ("/v1/chat/completions", "test-key", 404, None),
        ("/v1/responses", "wrong", 401, "invalid_api_key"),
    ],
)
def test_a_refused_upgrade_has_the_envelope(
    path: str, key: str, status: int, code: str | None, capfd: pytest.CaptureFixture[str]
) -> None:
    with (
        live(lambda: served(scripted()), Settings(api_keys=("test-key",))) as server,
        pytest.raises(InvalidStatus) as refused,
    ):
        connect(
            f"ws://127.0.0.1:{server.port}{path}",
            additional_headers={"authorization": f"Bearer {key}"},
        )
    response = refused.value.response
    error = json.loads(response.body or b"")["error"]
    assert "handshake" not in capfd.readouterr().err

    assert response.status_code == status
    assert error["code"] == code
    assert set(error) == {"message", "type", "param", "code"}


def test_few_refused_connections_are_held_for_their_clients_and_the_last_one_has_its_answer() -> None:
    with live(lambda: served(scripted()), Settings(max_connections=2)) as server:
        silent = [socket.create_connection(("127.0.0.1", server.port), 20) for _ in range(60)]
        with socket.create_connection(("127.0.0.1", server.port), 20) as last:
            last.sendall(b"GET /health HTTP/1.1\r\nhost: localhost\r\n\r\n")
            assert last.recv(1000).startswith(b"HTTP/1.1 503")
            assert len(ClientConnection.lingering) <= 16
        for one in silent:
            one.close()
