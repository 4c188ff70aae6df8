"""Fields about how an answer is sent: padding and hints, over HTTP."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.asgi import serving
from support.speaking import speaking

from plumbline.protocols.common.obfuscation import BLOCK, obfuscated
from plumbline.wire.decode import encode

from .api_calls import Json, chat, streamed

TEXT = "Hello, this is a longer answer in several pieces."
BODIES: dict[str, Json] = {
    "/v1/chat/completions": {"messages": [{"role": "user", "content": "hello"}]},
    "/v1/completions": {"prompt": "hello", "max_tokens": 100},
    "/v1/responses": {"input": "hello"},
}


@given(
    st.dictionaries(st.text(min_size=1), st.text(), min_size=1).filter(lambda one: "obfuscation" not in one)
)
def test_a_padded_event_has_a_round_size_and_the_same_members(event: Json) -> None:
    import json

    padded = obfuscated(encode(event))
    found = json.loads(padded)
    assert len(padded) % BLOCK == 0
    assert found.pop("obfuscation")
    assert found == event


def _is_delta(path: str, event: Json) -> bool:
    return str(event["type"]).endswith(".delta") if "responses" in path else bool(event["choices"])


@pytest.mark.parametrize("path", BODIES)
async def test_deltas_are_padded_only_if_asked_for(path: str) -> None:
    """SSE-11: the padding changes nothing else of the stream."""
    async with serving(speaking(TEXT)) as server:
        plain = await streamed(server, path, BODIES[path])
        off = await streamed(server, path, {**BODIES[path], "stream_options": {"include_obfuscation": False}})
        padded = await streamed(
            server, path, {**BODIES[path], "stream_options": {"include_obfuscation": True}}
        )
    deltas = [event for event in padded if _is_delta(path, event)][1:]
    assert deltas
    assert all(event["obfuscation"] for event in deltas)
    assert not any("obfuscation" in event for event in plain + off)
    assert not any("obfuscation" in event for event in padded if not _is_delta(path, event))
    assert [_text(path, event) for event in padded] == [_text(path, event) for event in plain]


def _text(path: str, event: Json) -> Any:
    if "responses" in path:
        return event.get("delta")
    return [choice.get("text", choice.get("delta")) for choice in event["choices"]]


@pytest.mark.parametrize("stream", [False, True])
async def test_a_prediction_is_a_hint_that_is_checked(stream: bool) -> None:
    body = {"model": "test-model", "stream": stream, **BODIES["/v1/chat/completions"]}
    async with serving(speaking(TEXT)) as server:
        answer = await chat(
            server,
            **BODIES["/v1/chat/completions"],
            prediction={"type": "content", "content": [{"type": "text", "text": "Hello"}]},
        )
        for wrong in (
            {"type": "content"},
            {"type": "other", "content": "a"},
            {"type": "content", "content": 3},
        ):
            refused = await server.post("/v1/chat/completions", {**body, "prediction": wrong})
            assert refused.status == 400
            assert refused.error["param"].startswith("prediction")
    assert answer["choices"][0]["message"]["content"] == TEXT


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
@pytest.mark.parametrize("n", [1, 2])
async def test_every_chunk_reports_the_usage_so_far(path: str, n: int) -> None:
    options = {"include_usage": True, "continuous_usage_stats": True}
    async with serving(speaking(TEXT)) as server:
        plain = await streamed(
            server, path, {**BODIES[path], "n": n, "stream_options": {"include_usage": True}}
        )
        chunks = await streamed(server, path, {**BODIES[path], "n": n, "stream_options": options})
    counts = [chunk["usage"]["completion_tokens"] for chunk in chunks]
    last = chunks[-1]["usage"]

    assert last == plain[-1]["usage"]
    assert all(chunk["usage"] is None for chunk in plain[:-1])
    assert counts == sorted(counts)
    assert len(set(counts)) > 3
    assert counts[-2] == counts[-1]
    assert {chunk["usage"]["prompt_tokens"] for chunk in chunks} == {last["prompt_tokens"]}
    for usage in (chunk["usage"] for chunk in chunks):
        assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"]


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
async def test_usage_so_far_needs_usage(path: str) -> None:
    body = {"model": "test-model", **BODIES[path], "stream": True}
    async with serving(speaking(TEXT)) as server:
        answer = await server.post(path, {**body, "stream_options": {"continuous_usage_stats": True}})
    assert answer.status == 400
    assert answer.error["param"] == "stream_options.continuous_usage_stats"
