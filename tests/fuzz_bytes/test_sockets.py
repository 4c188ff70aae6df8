"""Laws of damaged bytes on a socket: they are answered or the connection is closed, and others notice nothing.

- Whatever is sent, no answer has a status of 500 or more, and each error has the API's envelope.
- Another client's request is answered right afterwards.
- Nothing is logged as an error, and no connection is left when the clients have gone.

The targets are the start of a request, its body, the headers of a client that reads a stream, and WebSocket frames.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import logging
import re
import socket
import time
from collections.abc import Iterator
from typing import Any

import pytest
from support.models import answer_with, scripted, served
from support.servers.live import Live, live

from plumbline.server.settings import Settings

from .damage import damaged, damaged_json, explore

_WAIT = 0.02
"""Seconds for a server that waits for more bytes, after it has answered the other client."""
_CHAT: dict[str, Any] = {
    "model": "test-model",
    "messages": [{"role": "user", "content": "hi"}],
    "max_tokens": 4,
}
_TURN = {"type": "response.create", "model": "test-model", "input": "hi", "max_output_tokens": 4}
_TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {}}}}
_BODIES: list[tuple[bytes, dict[str, Any]]] = [
    (b"/v1/chat/completions\n", _CHAT),
    (b"/v1/responses\n", {"model": "test-model", "input": "hi", "max_output_tokens": 4}),
    (b"/v1/completions\n", {"model": "test-model", "prompt": "hi", "max_tokens": 4}),
    (b"/v1/messages\n", {**_CHAT, "system": "short"}),
    (b"/v1/chat/completions\n", {**_CHAT, "tools": [_TOOL], "tool_choice": "auto", "stream": True}),
    (b"/v1/chat/completions\n", {**_CHAT, "logprobs": True, "top_logprobs": 2, "stop": ["a"], "n": 2}),
]
_HEADERS = [
    b"host: localhost\r\naccept: text/event-stream\r\ncache-control: no-cache\r\nlast-event-id: 17\r\n",
    b"host: localhost\r\nauthorization: Bearer none\r\nx-request-id: a-1\r\nidempotency-key: b\r\ncookie: a=b\r\n",
    b"host: localhost\r\naccept-encoding: gzip;q=0.5, *;q=0\r\nexpect: 100-continue\r\nconnection: keep-alive, te\r\n",
    b"host: localhost\r\ntraceparent: 00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01\r\ntracestate: a=b\r\n",
    b"host: localhost\r\norigin: http://localhost:3000\r\naccept-language: de, en;q=0.7\r\nforwarded: for=1.2.3.4\r\n",
    b"host: localhost\r\nupgrade: websocket\r\nconnection: upgrade\r\nsec-websocket-version: 13\r\n",
]


def post(path: bytes, body: bytes, headers: bytes = b"host: localhost\r\n") -> bytes:
    """Write a request."""
    kind = b"content-type: application/json\r\ncontent-length: %d\r\n\r\n" % len(body)
    return b"POST %s HTTP/1.1\r\n" % path + headers + kind + body


_CHUNKED = b"host: localhost\r\ncontent-type: application/json\r\ntransfer-encoding: chunked\r\n\r\n"
_BODY = json.dumps(_CHAT).encode()
_REQUESTS = [
    b"GET /v1/models HTTP/1.1\r\nhost: localhost\r\n\r\n",
    b"GET /v1/responses/resp_1?stream=true&starting_after=2 HTTP/1.1\r\nhost: localhost\r\n\r\n",
    b"HEAD /health HTTP/1.0\r\nhost: localhost\r\n\r\n" * 2,
    post(b"/v1/chat/completions", _BODY),
    b"POST /v1/chat/completions HTTP/1.1\r\n" + _CHUNKED + b"%x\r\n%s\r\n0\r\n\r\n" % (len(_BODY), _BODY),
    post(b"/v1/responses", _BODY, b"host: localhost\r\nexpect: 100-continue\r\ncontent-encoding: gzip\r\n"),
    b"DELETE /v1/responses/resp_1 HTTP/1.1\r\nhost: localhost\r\n\r\nGET /health HTTP/1.1\r\nhost: localhost\r\n\r\n",
]
_HANDSHAKE = (
    b"GET /v1/responses HTTP/1.1\r\nhost: localhost\r\nupgrade: websocket\r\nconnection: upgrade\r\n"
    b"sec-websocket-version: 13\r\nsec-websocket-key: AAAAAAAAAAAAAAAAAAAAAA==\r\n%s\r\n"
)
_DEFLATE = b"sec-websocket-extensions: permessage-deflate; client_max_window_bits\r\n"


def frame(opcode: int, data: bytes, *, first_bits: int = 0x80) -> bytes:
    """Write a frame with a mask of zeros."""
    size = bytes([0x80 | len(data)]) if len(data) < 126 else b"\xfe" + len(data).to_bytes(2, "big")
    return bytes([first_bits | opcode]) + size + bytes(4) + data


_EVENT = json.dumps(_TURN).encode()
_FRAMES = [
    frame(1, _EVENT),
    frame(1, _EVENT[:30], first_bits=0) + frame(9, b"ping") + frame(0, _EVENT[30:]),
    frame(2, _EVENT) + frame(8, b"\x03\xe8bye"),
    frame(1, json.dumps({**_TURN, "stream_id": "a"}).encode()) * 3,
    frame(10, b"") + frame(1, b'{"type": "response.cancel"}') + frame(1, b""),
    frame(1, b"\xaaVJ\xcbOW\xb2RJJ,R\xaa\x05\x00", first_bits=0xC0),
]


class Errors(logging.Handler):
    """Collect what is logged as an error, or with a traceback."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        """Take a record."""
        if record.levelno >= logging.ERROR or record.exc_info:
            self.found.append(f"{record.getMessage()} {record.exc_info}")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    store = tmp_path_factory.mktemp("store") / "s.db"
    settings = Settings(store=str(store), header_timeout=1, body_timeout=1)
    with live(lambda: served(scripted(answer_with("fine"))), settings) as found:
        yield found


@contextlib.contextmanager
def watched(server: Live) -> Iterator[Errors]:
    """Check at the end that no error was logged and that no connection is left."""
    errors = Errors()
    loggers = [logging.getLogger(name) for name in ("", "plumbline", "uvicorn", "uvicorn.error")]
    for logger in loggers:
        logger.addHandler(errors)
    try:
        yield errors
    finally:
        for logger in loggers:
            logger.removeHandler(errors)
    until = time.monotonic() + 10
    while server.server.server_state.connections and time.monotonic() < until:
        time.sleep(0.01)
    assert not server.server.server_state.connections
    assert errors.found == []


class Neighbour:
    """Another client, with a connection of its own."""

    def __init__(self, server: Live) -> None:
        self._connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=20)

    def asks(self) -> None:
        """Send a request and check its answer."""
        self._connection.request("POST", "/v1/chat/completions", _BODY, {"content-type": "application/json"})
        answer = self._connection.getresponse()
        body = json.loads(answer.read())
        assert answer.status == 200
        assert body["choices"][0]["message"]["content"].startswith("fine")

    def close(self) -> None:
        """Leave."""
        self._connection.close()


def answer(server: Live, neighbour: Neighbour, sent: bytes) -> bytes:
    """Send bytes, let the neighbour ask, and return what has come by then."""
    received = b""
    with socket.create_connection(("127.0.0.1", server.port), timeout=20) as connection:
        # A server that has refused the beginning may close before it has read everything.
        with contextlib.suppress(ConnectionError):
            connection.sendall(sent)
        neighbour.asks()
        connection.settimeout(_WAIT)
        with contextlib.suppress(TimeoutError, ConnectionError):
            while piece := connection.recv(1 << 20):
                received += piece
    neighbour.asks()  # What the server does when the client has left is done by then.
    return received


def check(received: bytes) -> None:
    """Check the status of an answer, and the envelope of an error."""
    if not received:
        return
    head, _, body = received.partition(b"\r\n\r\n")
    found = re.match(rb"HTTP/1\.1 ([1-4]\d\d) ", head)
    assert found, received[:300]
    length = re.search(rb"\r\ncontent-length: (\d+)", head)
    if found[1] >= b"400" and length and 0 < int(length[1]) <= len(body):
        assert json.loads(body[: int(length[1])])["error"]["message"]


def explore_socket(server: Live, target: str, inputs: Any, write: Any) -> None:
    """Try the laws on one target; `write` makes the bytes to send of an input."""
    neighbour = Neighbour(server)

    with watched(server) as errors:

        def law(data: bytes) -> None:
            check(answer(server, neighbour, write(data)))
            found, errors.found[:] = errors.found[:], []
            assert found == []

        try:
            explore(target, inputs, law)
        finally:
            neighbour.close()


def test_a_client_that_leaves_within_its_body_is_no_error_of_the_server(server: Live) -> None:
    def law(data: bytes) -> None:
        check(answer(server, neighbour, data))

    neighbour = Neighbour(server)
    with watched(server):
        law(post(b"/v1/chat/completions", _BODY)[:-20])
        law(_REQUESTS[4][:-20])
        neighbour.close()


@pytest.mark.parametrize(
    "host", ["t:x", "[", "[::g]", "t:99999", "t: accept: a", "a/b", "a\r\nhost: b", "\xff"]
)
def test_an_invalid_host_is_refused(server: Live, host: str) -> None:
    neighbour = Neighbour(server)
    with watched(server):
        sent = f"GET /v1/models HTTP/1.1\r\nhost: {host}\r\n\r\n".encode("latin-1")
        received = answer(server, neighbour, sent)
        neighbour.close()
    check(received)
    assert received.startswith(b"HTTP/1.1 400 ")


def test_a_damaged_request_hurts_nobody(server: Live) -> None:
    explore_socket(server, "http", damaged(_REQUESTS), lambda data: data)


def test_a_damaged_body_hurts_nobody(server: Live) -> None:
    def write(data: bytes) -> bytes:
        path, _, body = data.partition(b"\n")
        known = re.fullmatch(rb"/v1/[a-z/]+", path)
        return post(path if known else b"/v1/responses", body)

    prefixes = [path for path, _ in _BODIES]
    texts = [path + json.dumps(body).encode() for path, body in _BODIES]
    inputs = damaged_json([body for _, body in _BODIES], prefixes) | damaged(texts)
    explore_socket(server, "json", inputs, write)


def test_damaged_headers_of_a_stream_hurt_nobody(server: Live) -> None:
    body = json.dumps({**_CHAT, "stream": True}).encode()
    explore_socket(
        server, "headers", damaged(_HEADERS), lambda data: post(b"/v1/chat/completions", body, data)
    )


@pytest.mark.parametrize("extension", ["plain", "deflate"])
def test_damaged_frames_hurt_nobody(server: Live, extension: str) -> None:
    handshake = _HANDSHAKE % (_DEFLATE if extension == "deflate" else b"")
    explore_socket(server, f"websocket-{extension}", damaged(_FRAMES), lambda data: handshake + data)
