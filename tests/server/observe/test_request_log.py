"""Requests and answers are logged where the operator asks for it.

Laws:
    1. Without the options nothing is logged.
    2. A line is one line, has a bounded length, and shows no secret, wherever a body is cut.
    3. Both lines of a request have its id, in both modes.
"""

from __future__ import annotations

import json
import logging
import os
import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.bodies import BODIES
from support.models import answer_with, scripted, served
from support.servers.asgi import serving
from support.servers.live import live
from websockets.sync.client import connect

from plumbline.server.observe.redaction import redacted
from plumbline.server.observe.request_log import shown
from plumbline.server.settings import Settings

CHAT = "/v1/chat/completions"
SECRET = "abcdefgh-not-to-be-seen"


def lines(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.name == "plumbline.requests"]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("path", [CHAT, "/v1/completions", "/v1/responses"])
async def test_the_lines_of_a_request_have_its_id(
    path: str, stream: bool, caplog: pytest.LogCaptureFixture
) -> None:
    for outputs in (False, True):
        caplog.clear()
        options = {"enable_log_outputs" if outputs else "enable_log_requests": True}
        async with serving(served(scripted(answer_with("forty-two"))), **options) as server:
            answer = await server.post(path, {**BODIES[path], "stream": stream})
        asked, answered = lines(caplog)
        name = f"request {answer.header('x-request-id')}: "
        assert asked.startswith(f"{name}POST {path} {{")
        assert '"model"' in asked
        assert answered.startswith(f"{name}status 200 after ")
        assert ('"object":' in answered) is outputs


async def test_nothing_is_logged_without_the_option(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG):
        async with serving(served(scripted())) as server:
            await server.post(CHAT, BODIES[CHAT])
    assert lines(caplog) == []


def test_messages_of_a_websocket_are_logged(caplog: pytest.LogCaptureFixture) -> None:
    settings = Settings(enable_log_outputs=True)
    with (
        live(lambda: served(scripted(answer_with("ok"))), settings) as server,
        connect(f"ws://127.0.0.1:{server.port}/v1/responses") as socket,
    ):
        socket.send(json.dumps({"type": "response.create", "model": "test-model", "input": "what is it?"}))
        while json.loads(socket.recv(timeout=20))["type"] != "response.completed":
            pass
    found = lines(caplog)
    assert sum("received" in line and "what is it?" in line for line in found) == 1
    assert sum('sent {"type":"response.completed"' in line for line in found) == 1


secrets = st.sampled_from(
    [
        {"api_key": SECRET},
        {"authorization": SECRET},
        {"X-Api-Key": SECRET},
        {"cache_salt": SECRET},
        {"prompt_cache_key": SECRET},
        {"tools": [{"type": "mcp", "headers": {"Authorization": f"Bearer {SECRET}", "x": SECRET}}]},
        {"client_secret": f'"{SECRET}\\'},
        {"headers": {"x": '{}}\\"}' + SECRET, "y": SECRET}},
        {"server_url": f"https://user:{SECRET}@mcp.example/{SECRET}?token={SECRET}"},
        {"server_url": f"HTTPS://mcp.example/{SECRET}"},
        {"server_url": f"mcp.example/{SECRET}"},
        {"authorization": [SECRET, {"x": [SECRET]}]},
        {"auth_token": {"a": {"b": SECRET}, "c": SECRET}},
        {"image_url": {"url": f"https://files.example/a.png?sig={SECRET}"}},
        {"file_url": f"https://u:{SECRET}@files.example"},
        {"password": 5, "secret": [[[SECRET]]]},
    ]
)
texts = st.text(max_size=30) | st.sampled_from(["\r\n\u2028", '"', "\\", "\x1b[2J"])


@given(
    secrets,
    st.dictionaries(texts, texts, max_size=4),
    st.integers(0, 400),
    st.integers(1, 200),
    st.booleans(),
    st.sampled_from([(), ("api_key", "authorization", "secret", "password", "server_url", "headers", "url")]),
)
def test_a_line_is_short_and_shows_no_secret(
    secret: dict[str, Any],
    around: dict[str, str],
    cut: int,
    most: int,
    ascii_only: bool,
    escaped: tuple[str, ...],
) -> None:
    text = json.dumps({**around, **secret, "model": "m"}, ensure_ascii=ascii_only)
    for name in escaped:  # A key may be written with any of its letters escaped.
        text = text.replace(f'"{name}', f'"\\u{ord(name[0]):04x}{name[1:]}').replace("://", ":\\/\\/")
    body = text.encode()
    line = shown(body[:cut], len(body), most)
    assert SECRET[:6] not in line
    assert len(line) <= most + len(f"… ({len(body)} bytes)")
    assert line.isprintable() or not any(char < " " or char in "\x7f\u2028\u2029" for char in line)


@pytest.mark.parametrize("url", ["https://mcp.example:8001/a?b", "https:\\/\\/u:p@mcp.example:8001\\/a"])
def test_the_host_of_an_mcp_server_is_shown(url: str) -> None:
    body = f'{{"server_url": "{url}", "input": "hi"}}'.encode()
    assert "mcp.example:8001…" in shown(body, len(body), 200).replace("\\", "")
    assert '", "input": "hi"}' in shown(body, len(body), 200)


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
        max_leaves=12,
    )
)
def test_what_has_no_secret_is_shown_as_it_is(value: object) -> None:
    text = json.dumps({"input": value, "token": "a"})
    assert redacted(text) == text


@pytest.mark.parametrize(
    "url", ["http://" + "a." * 32_000, "http://" + "@" * 65_000, "http:" + "/." * 32_000]
)
def test_what_is_nearly_a_url_takes_a_time_in_proportion_to_its_length(url: str) -> None:
    text = json.dumps({"a": f"{url} b"})
    began = time.process_time()
    assert redacted(text) == text
    assert time.process_time() - began < 5.0  # The square of its length takes half a minute.


def test_files_are_not_shown() -> None:
    data = os.urandom(3000).hex()
    body = json.dumps({"url": f"data:image/png;base64,{data}", "text": "look"}).encode()
    line = shown(body, len(body), 200)
    assert line == '{"url": "data:image/png;base64,…(6000 characters)", "text": "look"}'
