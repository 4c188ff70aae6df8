"""Fields about how an answer is sent: padding and hints, over HTTP."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.servers.api_calls import Json, chat, streamed
from support.servers.asgi import serving
from support.speaking import speaking

from plumbline.contract.wire.decode import encode
from plumbline.server.protocols.common.obfuscation import BLOCK, obfuscated

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
    if "chat" in path:  # The chunk with the role carries no token.
        assert counts[0] == 0
    assert {chunk["usage"]["prompt_tokens"] for chunk in chunks} == {last["prompt_tokens"]}
    for usage in (chunk["usage"] for chunk in chunks):
        assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"]


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
async def test_usage_so_far_comes_alone(path: str) -> None:
    """Without `include_usage` every chunk has the counts, and there is no chunk more; with a false one none has."""
    async with serving(speaking(TEXT)) as server:
        both, alone, neither = [
            await streamed(server, path, {**BODIES[path], "stream_options": options})
            for options in (
                {"continuous_usage_stats": True, "include_usage": True},
                {"continuous_usage_stats": True},
                {"continuous_usage_stats": True, "include_usage": False},
            )
        ]
    assert [chunk["usage"] for chunk in alone] == [chunk["usage"] for chunk in both[:-1]]
    assert all(chunk.get("usage") is None for chunk in neither)


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
@pytest.mark.parametrize(("stop", "matched"), [({"stop": "longer"}, "longer"), ({}, None)])
async def test_what_ended_an_answer_is_told_under_both_names(
    path: str, stop: Json, matched: str | None
) -> None:
    """vLLM's clients read `stop_reason`, SGLang's `matched_stop`."""
    async with serving(speaking(TEXT)) as server:
        body = {**BODIES[path], **stop}
        whole = (await server.post(path, {"model": "test-model", **body})).json["choices"][0]
        last = (await streamed(server, path, body))[-1]["choices"][0]
    for choice in (whole, last):
        assert choice.get("stop_reason") == choice.get("matched_stop") == matched


@pytest.mark.parametrize("n", [1, 3])
async def test_an_echo_begins_every_choice_of_a_stream(n: int) -> None:
    body = {**BODIES["/v1/chat/completions"], "response_prefix": "So then: ", "echo": True, "n": n}
    async with serving(speaking(TEXT)) as server:
        whole = [choice["message"]["content"] for choice in (await chat(server, **body))["choices"]]
        chunks = await streamed(server, "/v1/chat/completions", body)
    texts = [""] * n
    for choice in (choice for chunk in chunks for choice in chunk["choices"]):
        texts[choice["index"]] += choice["delta"].get("content") or ""
    assert texts == whole == ["So then: " + TEXT] * n


@pytest.mark.parametrize("stream", [False, True])
async def test_template_vars_are_template_kwargs_under_another_name(stream: bool) -> None:
    """The template of the tests has no variables of its own, so the law is about refusals."""
    body = {"model": "test-model", "stream": stream, **BODIES["/v1/chat/completions"]}
    async with serving(speaking(TEXT)) as server:
        same = await server.post(
            "/v1/chat/completions", {**body, "template_vars": {"a": 1}, "chat_template_kwargs": {"a": 1}}
        )
        other = await server.post(
            "/v1/chat/completions", {**body, "template_vars": {"a": 1}, "chat_template_kwargs": {"a": 2}}
        )
        owned = await server.post("/v1/chat/completions", {**body, "template_vars": {"messages": []}})
    assert same.status == 200
    assert (other.status, other.error["param"]) == (400, "template_vars")
    assert (owned.status, owned.error["param"]) == (400, "template_vars.messages")
