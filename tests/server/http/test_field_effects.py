"""Sampling and routing fields have their effect over HTTP, whole and streamed.

Laws:
    1. `min_p: 1` at any temperature gives the greedy answer.
    2. A repetition penalty changes a greedy answer that repeats itself, and 1 does not.
    3. The engine gets the client's priority.
    4. What needs memory or another modality is refused by name.
"""

from __future__ import annotations

from typing import Any

import pytest
from support.models import scripted, served
from support.servers.api_calls import native_server, streamed
from support.servers.asgi import Server, serving

BODIES: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"messages": [{"role": "user", "content": "hello world"}], "max_tokens": 40},
    "/v1/completions": {"prompt": "hello world", "max_tokens": 40},
    "/v1/responses": {"input": "hello world", "max_output_tokens": 40},
}


def text_of(path: str, answer: Any) -> str:
    match path:
        case "/v1/chat/completions":
            return answer["choices"][0]["message"]["content"]  # type: ignore[no-any-return]
        case "/v1/completions":
            return answer["choices"][0]["text"]  # type: ignore[no-any-return]
        case _:
            return answer["output"][0]["content"][0]["text"]  # type: ignore[no-any-return]


def joined(path: str, events: list[Any]) -> str:
    match path:
        case "/v1/chat/completions":
            return "".join(c["delta"].get("content") or "" for e in events for c in e["choices"])
        case "/v1/completions":
            return "".join(c["text"] for e in events for c in e["choices"])
        case _:
            return "".join(e["delta"] for e in events if e["type"] == "response.output_text.delta")


async def generate(server: Server, path: str, *, stream: bool = False, **fields: Any) -> str:
    body = {**BODIES[path], **fields}
    if stream:
        return joined(path, await streamed(server, path, body))
    answer = await server.post(path, {"model": "test-model", **body})
    assert answer.status == 200, answer.body
    return text_of(path, answer.json)


@pytest.mark.parametrize("path", BODIES)
@pytest.mark.parametrize("stream", [False, True])
async def test_min_p_of_one_is_greedy(path: str, stream: bool) -> None:
    async with native_server() as server:
        greedy = await generate(server, path, temperature=0)
        drawn = await generate(server, path, stream=stream, temperature=1.5, seed=7)
        narrow = await generate(server, path, stream=stream, temperature=1.5, seed=7, min_p=1)

    assert narrow == greedy
    assert drawn != greedy


@pytest.mark.parametrize("path", BODIES)
@pytest.mark.parametrize("stream", [False, True])
async def test_a_repetition_penalty_ends_repetition(path: str, stream: bool) -> None:
    async with native_server() as server:
        greedy = await generate(server, path, temperature=0)
        same = await generate(server, path, stream=stream, temperature=0, repetition_penalty=1)
        other = await generate(server, path, stream=stream, temperature=0, repetition_penalty=2)

    assert same == greedy
    assert other != greedy


@pytest.mark.parametrize("path", BODIES)
@pytest.mark.parametrize("stream", [False, True])
async def test_the_priority_reaches_the_engine(path: str, stream: bool) -> None:
    seen: list[int] = []

    def script(request: Any) -> Any:
        seen.append(request.priority)
        return iter(())

    async with serving(served(scripted(script))) as server:
        for priority in (None, -3, 5):
            body = {"model": "test-model", "stream": stream, **BODIES[path], "priority": priority}
            assert (await server.post(path, body)).status == 200

    assert seen == [0, -3, 5]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("path", "fields", "param"),
    [
        ("/v1/chat/completions", {"modalities": ["text", "audio"]}, "modalities"),
        ("/v1/responses", {"background": True}, "background"),
        ("/v1/responses", {"previous_response_id": "resp_1"}, "previous_response_id"),
    ],
)
async def test_what_the_server_cannot_do_is_refused_by_name(
    path: str, fields: dict[str, Any], param: str, stream: bool
) -> None:
    async with serving(served(scripted())) as server:
        body = {"model": "test-model", "stream": stream, **BODIES[path]}
        refused = await server.post(path, {**body, **fields})
        harmless = await server.post(path, {**body, "modalities" if "messages" in body else "metadata": None})

    assert (refused.status, refused.error["param"]) == (400, param)
    assert harmless.status == 200
