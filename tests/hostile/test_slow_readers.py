"""Laws of slow readers: an answer that a client does not read is not generated, and is all there when it does."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Iterable
from typing import Any

import pytest
from support.models import TOKENIZER, scripted, scripted_info, served
from support.servers.live import Live, live

from plumbline.engines.scripted import ScriptedEngine
from plumbline.port.engine import GenerateRequest, TokenChunk
from plumbline.server.settings import Settings

TOKENS = 100_000
WORD = TOKENIZER.encode_text("a")[0]
SMALL_BUFFER = 4_096

REQUESTS: dict[str, tuple[str, dict[str, Any]]] = {
    "chat": (
        "/v1/chat/completions",
        {"messages": [{"role": "user", "content": "hi"}], "max_completion_tokens": TOKENS},
    ),
    "two choices": (
        "/v1/chat/completions",
        {"messages": [{"role": "user", "content": "hi"}], "n": 2, "max_completion_tokens": TOKENS},
    ),
    "completions": ("/v1/completions", {"prompt": "hi", "max_tokens": TOKENS}),
    "responses": ("/v1/responses", {"input": "hi", "max_output_tokens": TOKENS}),
}


def endless(request: GenerateRequest) -> Iterable[TokenChunk]:
    """One token a chunk, as many as the request wants."""
    while True:
        yield TokenChunk(token_ids=(WORD,))


def generated(engine: ScriptedEngine) -> int:
    return engine.stats().generation_tokens


def settled(engine: ScriptedEngine) -> int:
    """Wait until no token has been generated for half a second, and return how many there are."""
    last, since = generated(engine), time.monotonic()
    while time.monotonic() - since < 0.5:
        time.sleep(0.02)
        if generated(engine) != last:
            last, since = generated(engine), time.monotonic()
    return last


def asked(server: Live, path: str, body: dict[str, Any]) -> socket.socket:
    """Send a streaming request over a connection with a small buffer."""
    connection = socket.socket()
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, SMALL_BUFFER)
    connection.settimeout(60)
    connection.connect(("127.0.0.1", server.port))
    data = json.dumps({"model": "test-model", "stream": True, **body}).encode()
    connection.sendall(
        f"POST {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\ncontent-type: application/json\r\n"
        f"content-length: {len(data)}\r\n\r\n".encode()
        + data
    )
    return connection


@pytest.mark.long
@pytest.mark.parametrize("name", REQUESTS)
def test_an_answer_that_nobody_reads_is_not_generated(name: str) -> None:
    path, body = REQUESTS[name]
    engine = scripted(endless, info=scripted_info(max_model_len=2 * TOKENS))
    with live(lambda: served(engine), Settings(keep_alive_interval=15.0)) as server:
        with asked(server, path, body) as connection:
            while not generated(engine):
                time.sleep(0.01)
            stopped = settled(engine)
            assert stopped < TOKENS / 2
            begun = connection.recv(1_000)
            assert begun.startswith(b"HTTP/1.1 200")
        # The client leaves; the server aborts and goes on.
        while engine.stats().num_running:
            time.sleep(0.01)
        assert generated(engine) < TOKENS


def test_a_client_that_reads_late_gets_the_whole_answer() -> None:
    engine = scripted(endless, info=scripted_info(max_model_len=2 * TOKENS))
    path, body = REQUESTS["completions"]
    few = TOKENS // 5
    with (
        live(lambda: served(engine), Settings()) as server,
        asked(server, path, {**body, "max_tokens": few}) as connection,
    ):
        while not generated(engine):
            time.sleep(0.01)
        settled(engine)
        raw = b""
        while piece := connection.recv(1 << 16):
            raw += piece
    assert raw.count(b'"text":"a"') == few
    assert b"[DONE]" in raw
