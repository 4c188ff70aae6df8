"""The log: a line for each request if the operator wants it, one for each failure, and nobody's words in any.

Laws:
    1. With --access-log each request that has ended has one line, with id, status, model, tokens and the key's name.
    2. In JSON every line is an object; in text it is one line.
    3. No line has what was asked, what was answered, or a key.
    4. An answer of 5xx, and a stream that fails, has a line with its cause under its id.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from typing import Any

import pytest
from support.models import answer_with, scripted, served
from support.servers.asgi import serving

from plumbline.port.engine import GenerateRequest, TokenChunk
from plumbline.server.observe.logs import configure
from plumbline.server.settings import Settings
from plumbline.server.start.connections.configuration import configuration

ASKED, ANSWERED, KEY = "a planted question", "a planted answer", "planted-key"
HEADERS = {"authorization": f"Bearer {KEY}", "x-request-id": "mine"}
CHAT: dict[str, Any] = {"model": "test-model", "messages": [{"role": "user", "content": ASKED}]}
BODIES = {
    "/v1/chat/completions": CHAT,
    "/v1/completions": {"model": "test-model", "prompt": ASKED, "n": 2},
    "/v1/responses": {"model": "test-model", "input": ASKED},
    "/v1/messages": {**CHAT, "max_tokens": 50},
}


@pytest.mark.parametrize("path", BODIES)
@pytest.mark.parametrize("stream", [False, True])
async def test_a_request_has_one_line_without_its_words(
    path: str, stream: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    """Laws 1 to 3."""
    configure("json")
    model = served(scripted(answer_with(ANSWERED)))
    async with serving(model, access_log=True, api_keys=(f"{KEY} name=ann", "other")) as server:
        answer = await server.post(path, {**BODIES[path], "stream": stream}, headers=HEADERS)
        await server.get("/health")
        refused = await server.post(path, BODIES[path], headers={"authorization": "Bearer nobody"})
    assert (answer.status, refused.status) == (200, 401)
    printed = capsys.readouterr().err
    first, second = (json.loads(line) for line in printed.splitlines())
    assert (first["request_id"], first["path"], first["status"], first["key"]) == ("mine", path, 200, "ann")
    assert first["model"] == "test-model"
    assert first["prompt_tokens"] > 0
    assert first["completion_tokens"] > 0
    assert 0 < first["first_byte_seconds"] <= first["seconds"]
    assert (second["status"], "key" in second) == (401, False)
    for secret in (ASKED, ANSWERED, KEY, "nobody"):
        assert secret not in printed


async def test_lines_for_people_are_lines(capsys: pytest.CaptureFixture[str]) -> None:
    """Law 2."""
    configure("text")
    async with serving(served(scripted()), access_log=True) as server:
        await server.get("/v1/models/%0Aa%25s%20200%20key=ann%1b[2J")
    logging.getLogger("plumbline.server").error("%s", "a\r\nb\x1b[2J")
    line, other = capsys.readouterr().err.splitlines()
    assert " INFO GET /v1/models/%0Aa%25s%20200%20key=ann%1B%5B2J 404 request_id=req_" in line
    assert other.endswith(" ERROR a b [2J")


def test_what_uvicorn_logs_has_the_form_of_the_rest(capsys: pytest.CaptureFixture[str]) -> None:
    configure("json")
    configuration(None, Settings())
    logging.getLogger("uvicorn.error").warning("slow")
    assert json.loads(capsys.readouterr().err)["message"] == "slow"


@pytest.mark.parametrize("path", BODIES)
@pytest.mark.parametrize("stream", [False, True])
async def test_a_request_without_memory_is_a_503_in_one_line(
    path: str, stream: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    configure("text")

    def breaks(request: GenerateRequest) -> Iterator[TokenChunk]:
        if request is not None:
            raise MemoryError
        yield  # type: ignore[unreachable]

    async with serving(served(scripted(breaks))) as server:
        answer = await server.post(path, {**BODIES[path], "stream": stream})
    messages = path.startswith("/v1/messages")
    assert answer.status == (529 if messages else 503)
    assert answer.header("retry-after") == "1"
    assert "no memory left" in answer.error["message"]
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 1
    assert "status 503: The server has no memory left" in lines[0]


@pytest.mark.parametrize("path", BODIES)
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("bug", [False, True])
async def test_a_failure_of_the_server_has_a_line_with_its_cause(
    path: str, stream: bool, bug: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    """Law 4; ERR-13: the cause goes to the log, and the client gets an id."""
    configure("json")

    def breaks(request: GenerateRequest) -> Iterator[TokenChunk]:
        yield from [*answer_with(ANSWERED)(request)][:2]
        if bug:
            raise ZeroDivisionError("a cable was pulled")
        yield TokenChunk(finish_reason="error", error="a cable was pulled")

    async with serving(served(scripted(breaks))) as server:
        await server.post(path, {**BODIES[path], "stream": stream}, headers={"x-request-id": "mine"})
    printed = capsys.readouterr().err
    lines = [json.loads(line) for line in printed.splitlines()]
    assert {line["level"] for line in lines} == {"error"}
    assert all("request mine" in line["message"] for line in lines)
    assert "a cable was pulled" in printed
    assert ASKED not in printed
