"""Laws of hostile connections: what others get beside them, and the memory that stays.

Eight connections send as fast as they can what never ends or is far too small. The rate of another client's stream
stays above half of what it is alone, it is never silent for long, and the memory comes back. Most rows have no key.
"""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import suppress

import pytest

from .target import Target, running
from .test_requests import STALLED_BY_OTHERS, TRIES

pytestmark = pytest.mark.long

SECONDS = 4.0
CONNECTIONS = 8
RATE = 0.5
SILENCE = 0.3
MEGABYTES = 150
KEY = "a-key"

HEAD = b"POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
KEYED = HEAD + b"authorization: Bearer %s\r\n" % KEY.encode()
CHUNKED = b"transfer-encoding: chunked\r\n\r\n"
HANDSHAKE = (
    b"GET /v1/responses HTTP/1.1\r\nhost: localhost\r\nupgrade: websocket\r\nconnection: upgrade\r\n"
    b"sec-websocket-version: 13\r\nsec-websocket-key: AAAAAAAAAAAAAAAAAAAAAA==\r\n"
    b"authorization: Bearer %s\r\n\r\n" % KEY.encode()
)


def frame(opcode: int, data: bytes, *, last: bool = True) -> bytes:
    """Write a frame with a mask of zeros."""
    size = bytes([0x80 | len(data)]) if len(data) < 126 else b"\xff" + len(data).to_bytes(8, "big")
    return bytes([last << 7 | opcode]) + size + bytes(4) + data


def turn(**fields: object) -> bytes:
    event = {"type": "response.create", "model": "pocket", "store": False, "ignore_eos": True, **fields}
    return frame(1, json.dumps(event).encode())


BEGUN = frame(1, b"a", last=False)
ROWS: dict[str, tuple[bytes, bytes]] = {
    "a header that does not end": (HEAD + b"x: ", b"a" * 65_536),
    "headers that do not end": (HEAD, b"a:b\r\n" * 13_000),
    "a target that does not end": (b"GET /", b"a" * 65_536),
    "trailers that do not end": (HEAD + CHUNKED + b"0\r\n", b"a:b\r\n" * 13_000),
    "an extension that does not end": (HEAD + CHUNKED + b"5;", b"a" * 65_536),
    "a size that does not end": (HEAD + CHUNKED, b"0" * 65_536),
    "empty lines": (b"", b"\r\n" * 32_768),
    "pipelined requests": (b"", b"GET /health HTTP/1.1\r\nhost: localhost\r\n\r\n" * 1_700),
    "pipelined requests that are refused": (
        b"",
        b"GET /v1/models HTTP/1.1\r\nhost: localhost\r\n\r\n" * 1_500,
    ),
    "tiny chunks without a key": (HEAD + CHUNKED, b"1\r\n \r\n" * 10_000),
    "tiny chunks": (KEYED + CHUNKED, b"1\r\n \r\n" * 10_000),
    "a refused body that does not end": (HEAD + CHUNKED, b"10000\r\n" + b"a" * 65_536 + b"\r\n"),
    "an answered body that does not end": (
        b"GET /health HTTP/1.1\r\nhost: localhost\r\n" + CHUNKED,
        b"10000\r\n" + b"a" * 65_536 + b"\r\n",
    ),
    "a body that is too large": (KEYED + b"content-length: 99999999999\r\n\r\n", b"a" * 65_536),
    "empty fragments": (HANDSHAKE + BEGUN, frame(0, b"", last=False) * 8_000),
    "tiny fragments": (HANDSHAKE + BEGUN, frame(0, b"a", last=False) * 8_000),
    "tiny messages": (HANDSHAKE, frame(1, b"{}") * 8_000),
    "messages that are no JSON": (HANDSHAKE, frame(1, b"x") * 8_000),
    "pings": (HANDSHAKE, frame(9, b"x" * 125) * 500),
    "large messages that wait": (
        HANDSHAKE + turn(input="hi", max_output_tokens=3_000),
        turn(input="x" * 9_000_000),
    ),
    "halves of bodies": (KEYED + b"content-length: 10000000\r\n\r\n" + b" " * 9_000_000, b""),
}
ALONE = {"large messages that wait"}
"""Rows of one connection: each has a turn that takes its part of the engine."""


@pytest.fixture(scope="module", params=["one process", "API servers"])
def target(request: pytest.FixtureRequest) -> Iterator[Target]:
    """A server with a key, and a bystander."""
    options = ["--api-servers", "2"] if request.param == "API servers" else []
    with running("--max-num-batched-tokens", "256", "--api-key", KEY, *options, key=KEY) as found:
        yield found


def attack(port: int, begin: bytes, piece: bytes, until: float) -> None:
    """Send from one connection, and from a new one when it is closed; read nothing."""
    while time.monotonic() < until:
        with suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1) as connection:
            connection.sendall(begin)
            while time.monotonic() < until:
                with suppress(TimeoutError):
                    connection.sendall(piece) if piece else time.sleep(0.1)
        time.sleep(0.02)


def under_attack(target: Target, name: str) -> tuple[float, float, float]:
    """Return the bystander's part of its rate alone, its longest silence, and the megabytes that stay."""
    before = target.memory()
    alone = rate_alone(target)
    began = target.now()
    until = time.monotonic() + SECONDS
    threads = [
        threading.Thread(target=attack, args=(target.port, *ROWS[name], until))
        for _ in range(1 if name in ALONE else CONNECTIONS)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    ended = target.now()
    silence = target.silence_since(began)
    part = target.rate(began, ended)
    deadline = time.monotonic() + 5.0
    while target.memory() - before > MEGABYTES and time.monotonic() < deadline:
        time.sleep(0.2)
    megabytes = target.memory() - before
    # Other work on the machine comes and goes.
    return part / max(1.0, min(alone, rate_alone(target))), silence, megabytes


def rate_alone(target: Target) -> float:
    """Return the bystander's rate while nothing else happens."""
    began = target.now()
    time.sleep(2.0)
    return target.rate(began, target.now())


@pytest.mark.parametrize("name", ROWS)
def test_others_get_at_least_half(target: Target, name: str) -> None:
    found: tuple[float, float, float] = (0.0, 0.0, 0.0)
    slowness = 1.0
    for _ in range(TRIES):
        part, silence, megabytes = found = under_attack(target, name)
        if part >= RATE and silence <= SILENCE * slowness and megabytes <= MEGABYTES:
            break
        slowness = max(1.0, target.control() / STALLED_BY_OTHERS)
    part, silence, megabytes = found
    print(f"{name}: {part:.0%} of the rate, {silence:.2f} s of silence, {megabytes:.0f} MB stay")
    assert part >= RATE
    assert silence <= SILENCE * slowness
    assert megabytes <= MEGABYTES
