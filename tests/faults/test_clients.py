"""Clients that break off, at every event of every API, change nothing for others and leave nothing behind."""

from __future__ import annotations

import json
import resource
import socket
import struct
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx2
import pytest
from support.servers.recovery import recovering

from .running import Running, bystander, running, wait_for

pytestmark = pytest.mark.long

_NAME = {"model": "pocket", "stream": True}
BODIES: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {**_NAME, "messages": [{"role": "user", "content": "hi"}], "max_tokens": 12},
    "/v1/completions": {**_NAME, "prompt": "hi", "max_tokens": 12},
    "/v1/responses": {**_NAME, "input": "hi", "max_output_tokens": 16},
    "/v1/messages": {**_NAME, "messages": [{"role": "user", "content": "hi"}], "max_tokens": 12},
}


def begin(port: int, path: str, body: dict[str, Any]) -> socket.socket:
    """Send a request whose connection will end with a reset."""
    data = json.dumps({**body, "ignore_eos": True}).encode()
    connection = socket.create_connection(("127.0.0.1", port), timeout=60)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    connection.sendall(
        b"POST %s HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\ncontent-type: application/json\r\n"
        b"content-length: %d\r\n\r\n%s" % (path.encode(), len(data), data)
    )
    return connection


def reset_after(port: int, path: str, body: dict[str, Any], events: int) -> bool:
    """Reset a stream after so many events; returns whether it had as many."""
    raw = b""
    with begin(port, path, body) as connection:
        while raw.count(b"\n\n") < events:
            piece = connection.recv(4096)
            if not piece:
                return False
            raw += piece
    return True


@pytest.mark.parametrize("path", BODIES)
def test_a_reset_at_any_event_changes_nothing_for_others(server: Running, path: str) -> None:
    with bystander(server):
        events = 0
        while reset_after(server.port, path, BODIES[path], events):
            events += 1
        assert events > 8
        with begin(server.port, path, BODIES[path]) as connection:
            connection.recv(4096)
    with recovering("A client resets its connection, at any event"):
        wait_for(server.is_idle)
    assert "Traceback" not in server.log


def test_more_connections_than_descriptors_get_a_503(tmp_path: Path) -> None:
    """The operator allows more connections than the system does; the clients that are connected notice nothing."""

    def few() -> None:
        resource.setrlimit(resource.RLIMIT_NOFILE, (96, 96))

    with running(tmp_path, "--max-connections=4096", before=few) as server:
        assert "96 descriptors: it takes 32 connections" in server.log
        with bystander(server) as other, ExitStack() as open_ones:
            other.another()
            for _ in range(150):
                open_ones.enter_context(socket.create_connection(("127.0.0.1", server.port), timeout=60))
            refused = httpx2.get(f"{server.url}/health", timeout=60)
            assert (refused.status_code, refused.headers["retry-after"]) == (503, "1")
            other.another()
        with recovering("More connections than allowed, or than the process has descriptors"):
            wait_for(lambda: httpx2.get(f"{server.url}/health", timeout=60).status_code == 200)
        wait_for(server.is_idle)
