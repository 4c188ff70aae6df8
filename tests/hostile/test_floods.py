"""Laws of floods: a thousand clients, broken connections, thousands of generated requests."""

from __future__ import annotations

import asyncio
import json
import random
import re
import socket
import struct
import time
from collections import Counter
from collections.abc import Iterator

import pytest

from plumbline_conformance.fuzz.schemathesis_run import run_schemathesis
from plumbline_conformance.suite.scenario import Target as Judged

from .rows import CHAT, COMPLETIONS, RESPONSES, base
from .target import Target, running

pytestmark = pytest.mark.long

CLIENTS = 1_000
RESETS = 1_000
EXAMPLES = 5_000
FLOOD_CONNECTIONS = 16
FLOOD_SECONDS = 6.0
LEAST_RATE = 0.5
"""Of what a bystander had alone."""
LONGEST = 0.3
"""Seconds in which it may get nothing."""
SILENCE = 0.5
LOADED = 0.1
"""Silence of a bystander at rest from which the machine counts as loaded."""
OPERATIONS = ("createChatCompletion", "createCompletion", "createResponse", "countResponseInputTokens")
RESET = struct.pack("ii", 1, 0)
"""SO_LINGER that makes closing a socket send a reset."""


@pytest.fixture(scope="module")
def target() -> Iterator[Target]:
    """A server with the pocket model, and a bystander."""
    with running("--max-num-batched-tokens", "256") as found:
        yield found


def request(path: str, **changes: object) -> bytes:
    """Return the bytes of a request that closes its connection."""
    data = json.dumps({**base(path), **changes}).encode()
    head = (
        f"POST {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\ncontent-type: application/json\r\n"
        f"content-length: {len(data)}\r\n\r\n"
    )
    return head.encode() + data


def kept(method: str, path: str, body: bytes = b"", *, close: bool = False) -> bytes:
    """Return the bytes of a request that keeps its connection, or closes it."""
    head = f"{method} {path} HTTP/1.1\r\nhost: localhost\r\ncontent-length: {len(body)}\r\n"
    head += "connection: close\r\n" if close else ""
    return f"{head}content-type: application/json\r\n\r\n".encode() + body


CHEAP = {
    "models": kept("GET", "/v1/models"),
    "nothing": kept("GET", "/nowhere"),
    "refused": kept("POST", CHAT, b'{"model": "pocket", "messages": []}'),
    "invalid": kept("POST", CHAT, b"{"),
    "tokenize": kept("POST", "/tokenize", b'{"model": "pocket", "prompt": "Tell me a story."}'),
    "connections": kept("GET", "/v1/models", close=True),
}
"""Requests that no engine runs, a thousand of which a laptop sends in a second."""


@pytest.mark.parametrize("sent", CHEAP.values(), ids=CHEAP)
async def test_a_flood_of_cheap_requests_leaves_a_stream_half_of_its_rate(
    target: Target, sent: bytes
) -> None:
    await asyncio.to_thread(target.control, 2.0)
    end = time.monotonic() + FLOOD_SECONDS
    answers: Counter[bytes] = Counter()

    async def client() -> None:
        while time.monotonic() < end:
            reader, writer = await asyncio.open_connection("127.0.0.1", target.port)
            writer.write(sent)
            while head := await reader.readuntil(b"\r\n\r\n"):
                length = re.search(rb"content-length: (\d+)", head)
                assert length is not None
                await reader.readexactly(int(length[1]))
                answers[head[9:12]] += 1
                if time.monotonic() >= end or b"connection: close" in sent:
                    break
                writer.write(sent)
            writer.close()

    began = target.now()
    await asyncio.gather(*(client() for _ in range(FLOOD_CONNECTIONS)))
    rate, silence = target.rate_since(began), await asyncio.to_thread(target.silence_since, began)
    print(f"{dict(answers)} in {FLOOD_SECONDS:g} s, rate {rate:.2f}, silence {silence:.3f} s")
    assert answers.total() >= 100
    assert rate >= LEAST_RATE
    assert silence <= LONGEST


def in_flight(target: Target) -> int:
    """Return how many sequences the engine has, the bystander's included."""
    status, body, _ = target.send("GET", "/metrics", b"", {})
    assert status == 200
    lines = [line for line in body.decode().splitlines() if line.startswith("vllm:num_requests_")]
    return int(sum(float(line.rpartition(" ")[2]) for line in lines))


async def settled(target: Target) -> None:
    """Wait until the bystander is alone."""
    async with asyncio.timeout(60):
        while await asyncio.to_thread(in_flight, target) > 1:
            await asyncio.sleep(0.1)


async def test_a_thousand_clients_at_once_are_all_answered(target: Target) -> None:
    """Each gets its answer or a 429, and none an error of the server."""

    async def client(number: int) -> int:
        reader, writer = await asyncio.open_connection("127.0.0.1", target.port)
        path = (CHAT, COMPLETIONS, RESPONSES)[number % 3]
        writer.write(request(path, stream=number % 2 == 0))
        raw = await reader.read()
        writer.close()
        assert b"[DONE]" in raw or number % 2 or b" 429 " in raw[:20]
        return int(raw[9:12])

    async with asyncio.timeout(300):
        statuses = Counter(await asyncio.gather(*(client(number) for number in range(CLIENTS))))
    assert set(statuses) <= {200, 429}
    # By default one client may have 256 running sequences and 512 waiting ones, one of them the bystander.
    assert statuses[200] >= 256 + 512 - 1
    await settled(target)


async def test_connections_that_break_at_any_byte_leave_nothing_behind(target: Target) -> None:
    chance = random.Random(0)
    for _ in range(RESETS):
        sent = request(
            chance.choice([CHAT, COMPLETIONS, RESPONSES]), stream=chance.random() < 0.7, ignore_eos=True
        )
        with socket.create_connection(("127.0.0.1", target.port), timeout=20) as connection:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
            whole = chance.random() < 0.6
            connection.sendall(sent if whole else sent[: chance.randrange(len(sent))])
            if whole and chance.random() < 0.7:
                connection.recv(chance.randrange(1, 2_000))
    await settled(target)
    status, _, _ = target.send("POST", CHAT, json.dumps(base(CHAT)).encode(), {})
    assert status == 200


def test_thousands_of_generated_requests_find_no_error_and_no_stall(target: Target) -> None:
    began = target.now()
    judged = Judged(base_url=f"http://127.0.0.1:{target.port}/v1", model="pocket")
    found = run_schemathesis(judged, examples=EXAMPLES, seed=0, phases="fuzzing", operations=OPERATIONS)
    silence = target.silence_since(began)
    assert found == 0
    assert silence <= SILENCE * max(1.0, target.control() / LOADED)
