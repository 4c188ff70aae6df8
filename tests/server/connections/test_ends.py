"""A connection that is lost leaves nothing: no task, no byte, no open socket, whenever that happens.

The client resets its connection after each step of a conversation: before and within the handshake, a message and its
fragments, while messages wait, while a turn runs that it does not read.
"""

from __future__ import annotations

import asyncio
import json
import socket
import struct
import time
from collections.abc import Iterator

import httpx2
import pytest
from support.models import answer_with, scripted, served, tiny_engine
from support.servers.live import Live, live

from plumbline.server.settings import Settings

from .test_frame_guard import frame

RESET = struct.pack("ii", 1, 0)
"""SO_LINGER that makes closing a socket send a reset."""
HANDSHAKE = (
    b"GET /v1/responses HTTP/1.1\r\nhost: localhost\r\nupgrade: websocket\r\nconnection: upgrade\r\n"
    b"sec-websocket-version: 13\r\nsec-websocket-key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n"
)


def turn(**fields: object) -> bytes:
    event = {"type": "response.create", "model": "test-model", "input": "hi", "ignore_eos": True, **fields}
    return frame(1, json.dumps(event).encode())


LONG = turn(max_output_tokens=400)
LARGE = turn(input="x" * 300_000)
CHAT = json.dumps({"model": "test-model", "messages": [{"role": "user", "content": "x" * 50_000}]}).encode()
POST = b"POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
SIZED = POST + b"content-length: %d\r\n\r\n%s" % (len(CHAT), CHAT)
STEPS: dict[str, list[bytes]] = {
    "half a head": [POST],
    "half a body": [SIZED[:20_000]],
    "a request": [SIZED],
    "requests that wait": [SIZED * 20],
    "a bad chunk": [POST + b"transfer-encoding: chunked\r\n\r\n", b"zz\r\n"],
    "half a handshake": [HANDSHAKE[:60]],
    "a handshake": [HANDSHAKE],
    "a handshake and frames": [HANDSHAKE + LONG],
    "half a frame": [HANDSHAKE, LARGE[:100_000]],
    "half a message": [HANDSHAKE, frame(1, b"x" * 5_000, last=False) * 1],
    "a turn": [HANDSHAKE, LONG],
    "a turn and messages that wait": [HANDSHAKE, LONG, LARGE * 25],
    "lanes": [
        HANDSHAKE,
        b"".join(turn(stream_id=f"s{n}", max_output_tokens=400) for n in range(16)),
        LARGE * 3,
    ],
    "too many lanes": [
        HANDSHAKE,
        b"".join(turn(stream_id=f"s{n}", max_output_tokens=400) for n in range(40)),
    ],
    "tiny frames": [HANDSHAKE, frame(1, b"a", last=False) + frame(0, b"", last=False) * 5_000],
    "pings": [HANDSHAKE, frame(9, b"x" * 125) * 20_000],
    "invalid text": [HANDSHAKE, frame(1, b"\xff")],
    "a close and more": [HANDSHAKE, LONG + frame(8, b"\x03\xe8") + LARGE],
}


@pytest.fixture(scope="module")
def server() -> Iterator[Live]:
    with live(lambda: served(tiny_engine()), Settings()) as found:
        yield found


async def tasks() -> set[asyncio.Task[object]]:
    return asyncio.all_tasks() - {asyncio.current_task()}


def running(server: Live) -> set[asyncio.Task[object]]:
    """Return the tasks of the server."""
    return asyncio.run_coroutine_threadsafe(tasks(), server.loop).result(20)


def held(server: Live) -> dict[str, float]:
    lines = httpx2.get(f"{server.url}/metrics").text.splitlines()
    names = ("plumbline_held_bytes{", "plumbline_websockets_open", "plumbline_num_requests_")
    return {
        line.rpartition(" ")[0]: float(line.rpartition(" ")[2]) for line in lines if line.startswith(names)
    }


@pytest.mark.parametrize("pause", [0.0, 0.05, 0.4])
@pytest.mark.parametrize("name", STEPS)
def test_a_lost_connection_leaves_nothing(server: Live, name: str, pause: float) -> None:
    before = running(server)
    with socket.socket() as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
        connection.settimeout(0.5)
        connection.connect(("127.0.0.1", server.port))
        for step in STEPS[name]:
            try:
                connection.sendall(step)
            except OSError:  # The server reads no more, or has closed.
                break
            time.sleep(0.05)
        time.sleep(pause)
    until = time.monotonic() + 20
    while True:
        connections = server.server.server_state.connections
        left = {task for task in running(server) - before if not task.done()}
        values = held(server)
        if (not left and len(connections) <= 1 and not any(values.values())) or time.monotonic() > until:
            break
        time.sleep(0.02)
    assert left == set()
    assert len(connections) <= 1  # That of the metrics.
    assert not any(values.values()), values


def test_a_server_stops_at_once_when_clients_have_left() -> None:
    with live(lambda: served(scripted(answer_with("fine"))), Settings(shutdown_timeout=30)) as server:
        for _ in range(3):
            with socket.create_connection(("127.0.0.1", server.port)) as connection:
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
                connection.sendall(HANDSHAKE + LONG + LARGE * 20)
                time.sleep(0.1)
        server.stop()
        server.thread.join(10)
        assert not server.thread.is_alive()
