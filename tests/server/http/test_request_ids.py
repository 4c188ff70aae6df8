"""A client may name its request; the engine's name for it stays unique.

Laws:
    1. A printable `x-request-id` of at most 128 bytes comes back; any other is replaced.
    2. `request_id` and `rid` in the body do the same; the header wins.
    3. Requests with the same name run side by side.
"""

from __future__ import annotations

import asyncio
import re

import pytest
from support.bodies import BODIES
from support.models import scripted, served
from support.servers.asgi import serving

GENERATING = ["/v1/chat/completions", "/v1/completions", "/v1/responses"]


@pytest.mark.parametrize("path", GENERATING)
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("field", ["request_id", "rid"])
async def test_an_id_in_the_body_names_the_request(path: str, stream: bool, field: str) -> None:
    async with serving(served(scripted())) as server:
        body = {**BODIES[path], "stream": stream, field: "my-7"}
        named = await server.post(path, body)
        both = await server.post(path, body, headers={"x-request-id": "other"})
        bad = await server.post(path, {**body, field: "two words"})

    assert named.status == 200
    assert named.header("x-request-id") == "my-7"
    assert both.header("x-request-id") == "other"
    assert (bad.status, bad.error["param"]) == (400, field)


@pytest.mark.parametrize("name", ["a", "0b6c-4f", "x" * 128, "a/b:c"])
async def test_a_printable_header_comes_back(name: str) -> None:
    async with serving(served(scripted())) as server:
        answers = [
            await server.get("/v1/models", headers={"x-request-id": name}),
            await server.get("/nowhere", headers={"x-request-id": name}),
        ]

    assert [answer.header("x-request-id") for answer in answers] == [name, name]


@pytest.mark.parametrize("name", ["", "a b", "x" * 129, "a\tb"])
async def test_any_other_header_is_replaced(name: str) -> None:
    async with serving(served(scripted())) as server:
        answer = await server.get("/v1/models", headers={"x-request-id": name})

    assert re.fullmatch(r"req_[0-9a-f]{32}", answer.header("x-request-id") or "")


async def test_requests_with_one_name_run_side_by_side() -> None:
    async with serving(served(scripted())) as server:
        path = GENERATING[0]
        answers = await asyncio.gather(
            *(server.post(path, BODIES[path], headers={"x-request-id": "same"}) for _ in range(8))
        )

    assert {answer.status for answer in answers} == {200}
    assert {answer.header("x-request-id") for answer in answers} == {"same"}
