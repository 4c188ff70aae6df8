"""Laws of `--compact-stream`: the last delta of a choice carries its finish reason, and nothing else changes."""

from __future__ import annotations

from typing import Any

import pytest
from support.models import scripted, served
from support.servers.api_calls import Json, streamed
from support.servers.asgi import serving
from support.speaking import speaking

from plumbline.port.engine import TokenChunk

PATHS = ["/v1/chat/completions", "/v1/completions"]
TEXT = "Hello, this is a longer answer in several pieces."
CALL = '<tool_call>{"name": "look", "arguments": {"at": "the sky"}}</tool_call>'


def body(path: str, **fields: Any) -> Json:
    if path == "/v1/completions":
        return {"prompt": "hello", "max_tokens": 100, **fields}
    return {"messages": [{"role": "user", "content": "hello"}], **fields}


def piece(choice: Json) -> Any:
    return choice.get("text") or choice.get("delta", {}).get("content") or ""


def by_choice(chunks: list[Json]) -> dict[int, list[Json]]:
    found: dict[int, list[Json]] = {}
    for chunk in chunks:
        for choice in chunk["choices"]:
            found.setdefault(choice["index"], []).append(choice)
    return found


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("n", [1, 3])
async def test_only_the_place_of_the_finish_reason_changes(path: str, n: int) -> None:
    fields = {
        "n": n,
        "return_token_ids": True,
        "stream_options": {"include_usage": True, "continuous_usage_stats": True},
    }
    async with serving(speaking(TEXT)) as server:
        plain = by_choice(await streamed(server, path, body(path, **fields)))
    async with serving(speaking(TEXT), compact_stream=True) as server:
        chunks = await streamed(server, path, body(path, **fields))
    compact = by_choice(chunks)
    assert list(compact) == list(range(n))
    for index, choices in compact.items():
        before = plain[index]
        assert piece(before[-1]) == ""
        assert len(choices) == len(before) - 1
        assert [piece(choice) for choice in choices] == [piece(choice) for choice in before[:-1]]
        assert [choice["finish_reason"] for choice in choices] == [None] * (len(choices) - 1) + ["stop"]
        ids = [[i for choice in side for i in choice["token_ids"]] for side in (choices, before)]
        assert ids[0] == ids[1]
    counts = [chunk["usage"]["completion_tokens"] for chunk in chunks]
    assert counts == sorted(counts)


async def test_the_last_piece_of_a_call_carries_the_finish_reason() -> None:
    tools = [{"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}]
    async with serving(speaking(CALL), compact_stream=True) as server:
        choices = by_choice(await streamed(server, PATHS[0], body(PATHS[0], tools=tools)))[0]
    assert choices[0]["delta"]["role"] == "assistant"
    assert choices[-1]["finish_reason"] == "tool_calls"
    assert choices[-1]["delta"]["tool_calls"][0]["function"]["arguments"]


async def test_an_empty_answer_has_its_role_and_its_reason_apart() -> None:
    async with serving(speaking(""), compact_stream=True) as server:
        choices = by_choice(await streamed(server, PATHS[0], body(PATHS[0])))[0]
    assert [choice["delta"].get("role") for choice in choices] == ["assistant", None]
    assert [choice["finish_reason"] for choice in choices] == [None, "stop"]


@pytest.mark.parametrize("path", PATHS)
async def test_a_failure_loses_no_text(path: str) -> None:
    engine = scripted(
        lambda _: [
            TokenChunk(token_ids=(72,)),
            TokenChunk(token_ids=(73,)),
            TokenChunk(finish_reason="error", error="The engine failed."),
        ]
    )
    texts = []
    for compact in (False, True):
        async with serving(served(engine), compact_stream=compact) as server:
            answer = await server.post(path, {"model": "test-model", "stream": True, **body(path)})
            found = [event.json for event in answer.events if event.data != "[DONE]"]
        assert "error" in found[-1]
        texts.append("".join(piece(c) for chunk in found[:-1] for c in chunk["choices"]))
    assert texts[0] == texts[1] != ""
