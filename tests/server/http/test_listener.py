"""What a socket may do to the server: broken HTTP, endless bodies, too many connections, a stop in mid-stream."""

from __future__ import annotations

import base64
import contextlib
import json
import re
import signal
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import httpx2
import pytest
from support.models import scripted, served, tiny_engine
from support.servers.asgi import as_catalog
from support.servers.live import Live, live

from plumbline.server.settings import Settings
from plumbline.server.start.listener import listener

BODY = {"model": "test-model", "messages": [{"role": "user", "content": "hi"}]}


@contextmanager
def connected(server: Live) -> Iterator[socket.socket]:
    with socket.create_connection(("127.0.0.1", server.port), timeout=20) as connection:
        yield connection


def dripped(connection: socket.socket, piece: bytes) -> tuple[int, dict[str, str], Any]:
    """Send a few bytes again and again until there is an answer, and return that."""
    connection.settimeout(0.02)
    raw = b""
    while not raw:
        connection.sendall(piece)
        with contextlib.suppress(TimeoutError):
            raw = connection.recv(65536)
    connection.settimeout(20)
    return response(connection, raw)


def response(connection: socket.socket, raw: bytes = b"") -> tuple[int, dict[str, str], Any]:
    """Read to the end of the connection."""
    while chunk := connection.recv(65536):
        raw += chunk
    head, _, body = raw.partition(b"\r\n\r\n")
    status, *lines = head.decode().split("\r\n")
    headers = dict(line.split(": ", 1) for line in lines)
    return int(status.split()[1]), headers, json.loads(body)


@pytest.mark.parametrize("sent", [b"garbage\r\n\r\n", b"GET / HTTP/9.9\r\n\r\n", b"\x16\x03\x01\x02\x00\x01"])
def test_what_is_no_http_gets_the_envelope(echoing: Live, sent: bytes) -> None:
    with connected(echoing) as connection:
        connection.sendall(sent)
        status, headers, body = response(connection)
    assert status == 400
    assert headers["content-type"] == "application/json"
    assert body["error"]["code"] == "invalid_http"
    assert body["error"]["type"] == "invalid_request_error"


def test_a_body_that_brings_nothing_is_given_up() -> None:
    with (
        live(lambda: served(scripted()), Settings(body_timeout=0.2)) as server,
        connected(server) as connection,
    ):
        connection.sendall(
            b"POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
            b'content-length: 100\r\n\r\n{"model"'
        )
        status, headers, body = response(connection)
    assert (status, body["error"]["code"]) == (408, "request_timeout")
    assert headers["connection"] == "close"


def test_a_body_that_comes_byte_by_byte_is_given_up() -> None:
    """It is never silent, but at this pace it would hold its connection for days."""
    with (
        live(lambda: served(scripted()), Settings(body_timeout=0.5)) as server,
        connected(server) as connection,
    ):
        connection.sendall(
            b"POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
            b"content-length: 1000000\r\n\r\n"
        )
        status, headers, body = dripped(connection, b" ")
    assert (status, body["error"]["code"]) == (408, "request_timeout")
    assert headers["connection"] == "close"


@pytest.mark.parametrize("fields", [{"stream": True}, {}, {"model": "unknown"}])
def test_an_answer_to_http_1_0_ends_with_its_connection(echoing: Live, fields: dict[str, Any]) -> None:
    """HTTP-20: the same bytes as by HTTP/1.1, but for ids and times, without chunks."""
    content = json.dumps(BODY | fields).encode()
    headers = {"content-type": "application/json", "authorization": "Bearer test-key"}
    given = {**headers, "connection": "keep-alive", "content-length": str(len(content))}
    lines = ["POST /v1/chat/completions HTTP/1.0", *map(": ".join, given.items()), "", ""]
    with connected(echoing) as connection:
        connection.sendall("\r\n".join(lines).encode() + content)
        raw = b""
        while part := connection.recv(65536):
            raw += part
    head, _, body = raw.partition(b"\r\n\r\n")
    assert b"transfer-encoding" not in head
    assert b"connection: close" in head
    wanted = httpx2.post(f"{echoing.url}/v1/chat/completions", content=content, headers=headers)
    assert head.split()[1] == str(wanted.status_code).encode()
    assert (b"content-length" in head) == ("content-length" in wanted.headers)
    assert shown(body) == shown(wanted.content)


def test_a_client_of_http_1_0_never_gets_status_100(echoing: Live) -> None:
    """RFC 9110, section 10.1.1: its expectation is ignored, because it would read 100 as the answer."""
    content = json.dumps(BODY).encode()
    lines = [
        "POST /v1/chat/completions HTTP/1.0",
        "content-type: application/json",
        "authorization: Bearer test-key",
        "expect: 100-continue",
        f"content-length: {len(content)}",
        "",
        "",
    ]
    with connected(echoing) as connection:
        connection.sendall("\r\n".join(lines).encode())
        connection.settimeout(0.3)
        with pytest.raises(TimeoutError):  # Nothing comes before the body.
            connection.recv(1)
        connection.settimeout(20)
        connection.sendall(content)
        status, _, body = response(connection)
    assert (status, body["object"]) == (200, "chat.completion")


@pytest.mark.parametrize("method", ["GET", "HEAD"])
def test_a_pipelined_request_of_http_1_0_ends_the_connection(echoing: Live, method: str) -> None:
    """HTTP-20: also behind a request of HTTP/1.1, and nothing after it is answered."""
    first = b"GET /v1/models HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer test-key\r\n\r\n"
    old = f"{method} /v1/models HTTP/1.0\r\nauthorization: Bearer test-key\r\nconnection: keep-alive\r\n\r\n"
    raw = b""
    with connected(echoing) as connection:
        connection.sendall(first + old.encode() + first)
        while part := connection.recv(65536):
            raw += part
    assert raw.count(b"HTTP/1.1 ") == 2
    assert raw.count(b"connection: close") == 1
    assert b"transfer-encoding" not in raw.rpartition(b"HTTP/1.1 ")[2]


def shown(body: bytes) -> list[str]:
    """The lines of a body without what differs between two answers."""
    return re.sub(r'"(id|created|request_id)":("[^"]*"|\d+)|req_\w+', "", body.decode()).splitlines()


@pytest.mark.parametrize(
    ("sent", "status"),
    [(b"", None), (b"\r\n", None), (b"GET /health HTTP/1.1\r\nhost: localhost\r\nx-a: ", 408)],
)
def test_headers_that_do_not_come_end_the_connection(sent: bytes, status: int | None) -> None:
    with (
        live(lambda: served(scripted()), Settings(header_timeout=0.2)) as server,
        connected(server) as connection,
    ):
        connection.sendall(sent)
        if status is None:
            assert connection.recv(65536) == b""
        else:
            found, headers, body = response(connection)
            assert (found, body["error"]["code"]) == (status, "request_timeout")
            assert headers["connection"] == "close"


def test_headers_that_come_byte_by_byte_end_the_connection() -> None:
    with (
        live(lambda: served(scripted()), Settings(header_timeout=0.3)) as server,
        connected(server) as connection,
    ):
        connection.sendall(b"GET /health HTTP/1.1\r\nx-a: ")
        status, _, body = dripped(connection, b"a")
    assert (status, body["error"]["code"]) == (408, "request_timeout")


@pytest.mark.parametrize("sent", [b"", b"\r\n"])
def test_a_connection_that_stays_silent_after_an_answer_is_closed(sent: bytes) -> None:
    with (
        live(lambda: served(scripted()), Settings(idle_timeout=0.2, header_timeout=0.2)) as server,
        connected(server) as connection,
    ):
        connection.sendall(b"GET /health HTTP/1.1\r\nhost: localhost\r\n\r\n")
        answer = connection.recv(65536)
        assert answer.startswith(b"HTTP/1.1 200")
        connection.sendall(sent)
        while piece := connection.recv(65536):
            answer += piece
    assert answer.count(b"HTTP/1.1") == 1


def test_the_header_timeout_leaves_an_answer_alone() -> None:
    """A client may send the beginning of its next request while it still reads."""
    with live(lambda: served(scripted(delay=0.01)), Settings(header_timeout=0.05)) as server:
        data = json.dumps({**BODY, "stream": True}).encode()
        with connected(server) as connection:
            connection.sendall(
                b"POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
                b"content-length: %d\r\n\r\n%sGET /he" % (len(data), data)
            )
            raw = b""
            while piece := connection.recv(65536):
                raw += piece
    assert b"[DONE]" in raw
    assert raw.endswith(b"}")
    assert b"HTTP/1.1 408" in raw.partition(b"[DONE]")[2]


def http_request() -> tuple[bytes, ...]:
    body = {
        **BODY,
        "stream": True,
        "ignore_eos": True,
        "max_tokens": 400,
        "logprobs": True,
        "top_logprobs": 20,
    }
    data = json.dumps(body).encode()
    head = b"POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n"
    head += b"content-type: application/json\r\n"
    return (b"%scontent-length: %d\r\n\r\n%s" % (head, len(data), data),)


def websocket_turn() -> tuple[bytes, ...]:
    body = {
        "type": "response.create",
        "model": "test-model",
        "input": "hi",
        "store": False,
        "ignore_eos": True,
    }
    body |= {"top_logprobs": 20, "include": ["message.output_text.logprobs"], "max_output_tokens": 400}
    data = json.dumps(body).encode()
    return (
        b"GET /v1/responses HTTP/1.1\r\nhost: localhost\r\nupgrade: websocket\r\nconnection: upgrade\r\n"
        b"sec-websocket-version: 13\r\nsec-websocket-key: %s\r\n\r\n" % base64.b64encode(bytes(16)),
        b"\x81\xfe%s\0\0\0\0%s" % (len(data).to_bytes(2, "big"), data),  # One frame, with a mask of zeros.
    )


@contextmanager
def unread_stream(server: Live, *requests: bytes) -> Iterator[socket.socket]:
    """A client that asks for a long stream and has not read any of it."""
    server.server.servers[0].sockets[0].setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
    with socket.socket() as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        connection.settimeout(20)
        connection.connect(("127.0.0.1", server.port))
        connection.sendall(requests[0])
        for request in requests[1:]:
            assert connection.recv(1024).startswith(b"HTTP/1.1 101")
            connection.sendall(request)
        yield connection


def read_to_the_end(connection: socket.socket) -> bytes:
    raw = b""
    with contextlib.suppress(ConnectionResetError):
        while piece := connection.recv(65536):
            raw += piece
    return raw


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


@pytest.mark.parametrize("requests", [http_request, websocket_turn])
def test_a_client_that_does_not_read_is_given_up(
    requests: Callable[[], tuple[bytes, ...]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its request would keep its model loaded for ever, and others may wait for that memory."""
    monkeypatch.setattr("plumbline.server.start.connections.base.ClientConnection.unread_timeout", 0.2)
    with (
        live(lambda: served(tiny_engine()), Settings()) as server,
        unread_stream(server, *requests()) as connection,
    ):
        connections = server.server.server_state.connections
        until(lambda: bool(connections))
        until(lambda: not connections)
        raw = read_to_the_end(connection)
    assert raw
    assert b"[DONE]" not in raw
    assert b"response.completed" not in raw


def test_a_client_that_reads_on_in_time_misses_nothing() -> None:
    with (
        live(lambda: served(tiny_engine()), Settings()) as server,
        unread_stream(server, *http_request()) as connection,
    ):
        connections: Any = server.server.server_state.connections
        until(lambda: any(one.flow.write_paused for one in connections))
        (protocol,) = connections
        assert protocol._unread_timer is not None
        raw = read_to_the_end(connection)
        assert protocol._unread_timer is None
    assert b"[DONE]" in raw


def test_more_connections_than_allowed_are_turned_away(caplog: pytest.LogCaptureFixture) -> None:
    with live(lambda: served(scripted()), Settings(max_connections=2)) as server:
        with connected(server) as first, connected(server), connected(server) as third:
            status, headers, body = response(third)
            assert (status, body["error"]["code"]) == (503, "engine_unavailable")
            assert headers["retry-after"] == "1"
            with connected(server) as fourth:
                assert response(fourth)[0] == 503
            first.sendall(b"GET /health HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n")
            assert response(first)[0] == 200
        assert httpx2.get(f"{server.url}/health").status_code == 200
    assert [line for line in caplog.messages if "connections" in line] == [
        "status 503: more than 2 connections (--max-connections)"
    ]


async def test_a_system_without_sighup_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Windows has no such signal, and its event loops take no handlers."""
    monkeypatch.delattr(signal, "SIGHUP")
    settings = Settings(store="none")
    server = listener(
        as_catalog(served(scripted())), settings, host="127.0.0.1", port=0, read=lambda: settings
    )
    server.config.load()
    server.lifespan = server.config.lifespan_class(server.config)
    await server.startup()
    assert server.started
    await server.shutdown()


def test_a_server_with_a_dead_engine_ends_so_that_it_is_started_again() -> None:
    """systemd and Kubernetes start a process again that has ended, and not one that answers 503 for ever."""
    engine = scripted()
    with live(lambda: served(engine), Settings()) as server:
        assert httpx2.get(f"{server.url}/health/live").status_code == 200
        engine._closed = True
        server.thread.join(20)
        assert not server.thread.is_alive()
        assert server.server.failed  # type: ignore[attr-defined]
