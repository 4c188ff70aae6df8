"""A server that stops loses no request.

Laws:
    1. From the signal on no connection is accepted, but those that the system has accepted are served.
    2. Whatever a connection was doing, a request that comes on it soon after is answered, not refused.
    3. Answers that begin after the signal say that their connection ends; silent connections are closed.
    4. A body that is not whole when the time of running requests is over is a 503, and holds no stop.
    5. A second signal ends what runs; the same wish that arrives twice does not.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import signal
import socket
import ssl
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import httpx2
import pytest
import trustme
from support.models import answer_with, scripted, served, slow_down, tiny_engine
from support.servers.live import Live, live

from plumbline.server.settings import Settings
from plumbline.server.start.repeats import Repeats

BODY = {"model": "test-model", "messages": [{"role": "user", "content": "hi"}]}
LIVE = b"GET /health/live HTTP/1.1\r\nhost: localhost\r\n\r\n"


def post(**fields: Any) -> bytes:
    content = json.dumps({**BODY, **fields}).encode()
    head = "POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
    return f"{head}content-length: {len(content)}\r\n\r\n".encode() + content


def connect(server: Live) -> closing[socket.socket]:
    return closing(socket.create_connection(("127.0.0.1", server.port), timeout=20))


def until(connection: socket.socket, end: bytes) -> bytes:
    """Read to some bytes, or to the end of the connection."""
    raw = b""
    while end not in raw and (piece := connection.recv(65536)):
        raw += piece
    return raw


@contextmanager
def draining(quiet: float = 20.0) -> Iterator[tuple[Live, dict[str, socket.socket]]]:
    """A server that stops while it has a connection in each state, and closes them after some seconds."""
    words = " ".join(map(str, range(30)))
    with (
        pytest.MonkeyPatch.context() as patch,
        live(lambda: served(scripted(answer_with(words), delay=0.01)), Settings()) as server,
        contextlib.ExitStack() as stack,
    ):
        patch.setattr("plumbline.server.start.connections.http._QUIET", quiet)
        found = {
            name: stack.enter_context(connect(server))
            for name in ("new", "idle", "in a head", "in a body", "waits", "streams")
        }
        found["idle"].sendall(LIVE)
        assert b"connection: close" not in until(found["idle"], b"}")
        found["in a head"].sendall(post()[:20])
        found["in a body"].sendall(post()[:-5])
        found["waits"].sendall(post())
        found["streams"].sendall(post(stream=True))
        assert b"connection: close" not in until(found["streams"], b"data: ")
        server.stop()
        while not server.server._draining.began:  # type: ignore[attr-defined]
            time.sleep(0.005)
        yield server, found


def test_every_request_on_a_connection_that_was_open_is_answered() -> None:
    """A proxy may not send a POST twice, so a request that was underway at the signal must not be lost."""
    with draining() as (_, found):
        for name in ("new", "idle"):
            found[name].sendall(post())
        found["in a head"].sendall(post()[20:])
        found["in a body"].sendall(post()[-5:])
        assert b"[DONE]" in until(found["streams"], b"0\r\n\r\n")
        # It was told that its connection goes on, and may send the next one at once.
        found["streams"].sendall(post())
        for name, connection in found.items():
            head, _, body = until(connection, b"no such bytes").partition(b"\r\n\r\n")
            assert head.startswith(b"HTTP/1.1 200"), name
            assert b"connection: close" in head, name
            assert json.loads(body)["choices"][0]["finish_reason"], name


def test_silent_connections_are_closed_and_late_heads_refused() -> None:
    with draining(0.2) as (server, found):
        for name in ("new", "idle"):
            assert found[name].recv(100) == b"", name
        refused = until(found["in a head"], b"no such bytes")
        assert refused.startswith(b"HTTP/1.1 503")
        assert b"The server is stopping." in refused
        found["in a body"].sendall(post()[-5:])
        for name in ("in a body", "waits"):
            assert until(found[name], b"no such bytes").startswith(b"HTTP/1.1 200"), name
        assert until(found["streams"], b"no such bytes").endswith(b"[DONE]\n\n\r\n0\r\n\r\n")
        server.thread.join(20)
        assert not server.thread.is_alive()


def test_a_refusal_before_the_end_of_a_body_is_read_and_no_reset() -> None:
    """The client is still sending when a server that stops has answered."""
    body = b"x" * 400_000
    with live(lambda: served(scripted()), Settings(api_keys=("secret",))) as server, connect(server) as late:
        late.sendall(LIVE)
        until(late, b"}")
        server.stop()
        while not server.server._draining.began:  # type: ignore[attr-defined]
            time.sleep(0.005)
        late.sendall(post()[: post().index(b"content-length")] + b"content-length: %d\r\n\r\n" % len(body))
        assert until(late, b"}}").startswith(b"HTTP/1.1 401")
        for place in range(0, len(body), 50_000):
            late.sendall(body[place : place + 50_000])
        assert until(late, b"no such bytes") == b""


def test_clients_of_tls_that_say_nothing_do_not_hold_a_stop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One is in its handshake, and one keeps its connection for later and does not read."""
    monkeypatch.setattr("plumbline.server.start.listener._GREETING", 0.2)
    authority = trustme.CA()
    authority.issue_cert("localhost").private_key_and_cert_chain_pem.write_to_path(str(tmp_path / "cert.pem"))
    trusting = ssl.create_default_context()
    authority.configure_trust(trusting)
    settings = Settings(ssl_certfile=str(tmp_path / "cert.pem"))
    with live(lambda: served(scripted()), settings) as server, connect(server), connect(server) as idle:
        kept = trusting.wrap_socket(idle, server_hostname="localhost")
        kept.sendall(LIVE)
        while b"}" not in kept.recv(65536):
            pass
        server.stop()
        server.thread.join(15)  # asyncio waits 30 s for either of them.
        assert not server.thread.is_alive()


def test_a_probe_on_an_open_connection_says_that_the_server_stops() -> None:
    with draining() as (_, found):
        found["idle"].sendall(LIVE.replace(b"live", b"ready"))
        answer = until(found["idle"], b"no such bytes")
        assert answer.startswith(b"HTTP/1.1 503")
        assert b'"status":"draining"' in answer


def test_a_connection_that_waits_to_be_accepted_is_served() -> None:
    """The system has told its client that it is connected."""
    with live(lambda: served(scripted()), Settings()) as server, contextlib.ExitStack() as stack:
        listener: Any = server.server

        async def waits() -> socket.socket:
            connection = stack.enter_context(connect(server))  # The loop stands still meanwhile.
            connection.sendall(LIVE)
            listener._draining.begin()
            await listener._stop_listening([])
            return connection

        connection = asyncio.run_coroutine_threadsafe(waits(), server.loop).result(20)
        with pytest.raises(ConnectionError):
            connect(server)
        answer = until(connection, b"no such bytes")
        assert answer.startswith(b"HTTP/1.1 200")
        assert b"connection: close" in answer


def test_connections_are_accepted_for_a_while_if_the_operator_wants_that() -> None:
    """Probes see that the server stops before it refuses anything."""
    with live(lambda: served(scripted()), Settings(stop_delay=600)) as server:
        server.stop()
        while httpx2.get(f"{server.url}/health/ready").status_code == 200:
            time.sleep(0.01)
        answer = httpx2.post(f"{server.url}/v1/chat/completions", json=BODY)
        assert (answer.status_code, answer.headers["connection"]) == (200, "close")
        server.server.force_exit = True
        server.thread.join(20)
        assert not server.thread.is_alive()


def test_a_request_that_has_come_keeps_its_connection_open() -> None:
    """A busy event loop learns of it after the silence has ended."""
    with live(lambda: served(scripted()), Settings()) as server, connect(server) as connection:
        connection.sendall(LIVE)
        until(connection, b"}")
        (protocol,) = server.server.server_state.connections

        async def close_late() -> None:
            connection.sendall(LIVE)  # The loop does not read meanwhile.
            for handler in ("timeout_keep_alive_handler", "_on_header_timeout"):
                getattr(protocol, handler)()

        asyncio.run_coroutine_threadsafe(close_late(), server.loop).result(20)
        assert until(connection, b"}").startswith(b"HTTP/1.1 200")


@pytest.mark.parametrize(
    ("signals", "again"),
    [
        ([(0.0, signal.SIGTERM), (0.1, signal.SIGTERM)], False),
        ([(0.0, signal.SIGTERM), (0.1, signal.SIGTERM), (0.6, signal.SIGTERM)], True),
        ([(0.0, signal.SIGINT), (0.6, signal.SIGTERM)], True),
        ([(0.0, signal.SIGTERM), (0.1, signal.SIGINT)], True),
    ],
)
def test_a_second_signal_is_told_from_one_that_arrives_twice(
    signals: list[tuple[float, int]], again: bool
) -> None:
    """systemd, `timeout` and process managers send SIGTERM to a process and to its group."""
    now = 0.0
    repeats = Repeats(lambda: now)
    seen = []
    for now, what in signals:  # noqa: B007 - the clock reads it
        seen.append(repeats.is_again(what))
    assert seen == [False] * (len(signals) - 1) + [again]


def test_a_server_that_stops_finishes_responses_in_the_background(tmp_path: Path) -> None:
    slow, url = scripted(answer_with("one two three"), delay=0.02), f"sqlite:///{tmp_path / 's.db'}"
    body = {"model": "test-model", "input": "hi", "background": True}
    with live(lambda: served(slow), Settings(store=url)) as server:
        made = httpx2.post(f"{server.url}/v1/responses", json=body).json()
    with live(lambda: served(scripted()), Settings(store=url)) as server:
        found = httpx2.get(f"{server.url}/v1/responses/{made['id']}").json()
    assert found["status"] == "completed"


@pytest.mark.parametrize("twice", [False, True])
def test_a_stream_that_outlasts_the_shutdown_ends_with_an_error_event(twice: bool) -> None:
    """ERR-12: the client gets an error event instead of a broken connection, also after a second Ctrl-C."""
    endless = {**BODY, "stream": True, "ignore_eos": True}
    engine = tiny_engine()
    with live(lambda: served(engine), Settings(shutdown_timeout=600 if twice else 0.1)) as server:
        slow_down(engine)
        events = []
        with httpx2.stream("POST", f"{server.url}/v1/chat/completions", json=endless, timeout=20) as stream:
            for line in stream.iter_lines():
                if line.startswith("data: "):
                    events.append(line.removeprefix("data: "))
                    server.stop()
                    server.server.force_exit = twice
    assert events[-1] == "[DONE]"
    error = json.loads(events[-2])["error"]
    assert error["type"] == "server_error"
    assert "shutting down" in error["message"]


@pytest.mark.parametrize("twice", [False, True])
@pytest.mark.parametrize("body_timeout", [0.0, 30.0])
def test_a_client_that_drips_its_body_holds_no_stop(twice: bool, body_timeout: float) -> None:
    """It may send its request to another server, since nothing of it was done."""
    settings = Settings(shutdown_timeout=600 if twice else 0.2, body_timeout=body_timeout)
    with live(lambda: served(scripted()), settings) as server, connect(server) as connection:
        whole = post()
        connection.sendall(whole[:-20])
        while not server.server._draining.running:  # type: ignore[attr-defined]
            time.sleep(0.005)
        connection.sendall(whole[-20:-19])
        server.stop()
        server.server.force_exit = twice
        began = time.monotonic()
        answer = until(connection, b"}}")
        assert answer.startswith(b"HTTP/1.1 503"), answer
        assert b"Send the request to another one" in answer
        server.thread.join(20)
        assert not server.thread.is_alive()
        assert time.monotonic() - began < 2
