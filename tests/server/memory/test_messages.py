"""The Messages API over HTTP: errors, keys, headers, streams and counts."""

from __future__ import annotations

import json
from typing import Any

import pytest
from support.bodies import BODIES
from support.models import scripted, served
from support.servers.api_calls import native_server
from support.servers.asgi import serving
from support.speaking import speaking

MESSAGES, COUNT = "/v1/messages", "/v1/messages/count_tokens"
BODY = BODIES[MESSAGES]
TOOL = {"name": "f", "input_schema": {"type": "object", "properties": {"x": {"type": "string"}}}}


@pytest.mark.parametrize(
    ("text", "kinds", "reason"),
    [
        ("Hello.", ["text"], "end_turn"),
        ("<think>hm</think>Hello.", ["thinking", "text"], "end_turn"),
        ('<tool_call>{"name": "f", "arguments": {"x": "é"}}</tool_call>', ["tool_use"], "tool_use"),
        (
            '<think>hm</think>I ask.<tool_call>{"name": "f", "arguments": {}}</tool_call>',
            ["thinking", "text", "tool_use"],
            "tool_use",
        ),
    ],
)
async def test_an_answer_is_the_same_whole_and_streamed(text: str, kinds: list[str], reason: str) -> None:
    """MSG-01."""
    async with serving(speaking(text)) as server:
        body = {**BODY, "tools": [TOOL], "system": "Be brief.", "temperature": 0.5, "top_p": 0.9, "top_k": 3}
        whole = (await server.post(MESSAGES, body)).json
        answer = await server.post(MESSAGES, {**body, "stream": True})
    events = [event.json for event in answer.events]
    assert [event.name for event in answer.events] == [event["type"] for event in events]
    assert [block["type"] for block in whole["content"]] == kinds
    assert [e["content_block"]["type"] for e in events if e["type"] == "content_block_start"] == kinds
    ends = [event for event in events if event["type"] == "message_delta"]
    assert [(end["delta"]["stop_reason"], end["usage"]) for end in ends] == [(reason, whole["usage"])]
    assert events[-1] == {"type": "message_stop"}


async def test_a_stop_sequence_ends_an_answer_and_is_named() -> None:
    """MSG-09."""
    async with serving(speaking("one two three")) as server:
        answer = (await server.post(MESSAGES, {**BODY, "stop_sequences": [" three", " two"]})).json
    assert (answer["content"][0]["text"], answer["stop_reason"], answer["stop_sequence"]) == (
        "one",
        "stop_sequence",
        " two",
    )


async def test_a_limit_beyond_the_context_is_no_error() -> None:
    """MSG-09: clients ask for as much as their largest model writes."""
    async with serving(served(scripted())) as server:
        answer = await server.post(MESSAGES, {**BODY, "max_tokens": 10**6})
        too_long = await server.post(
            MESSAGES, {**BODY, "messages": [{"role": "user", "content": "hello " * 9000}]}
        )
    assert answer.status == 200
    assert (too_long.status, too_long.error["type"]) == (400, "invalid_request_error")
    assert "maximum context length" in too_long.error["message"]


async def test_a_count_is_that_of_the_answer() -> None:
    """MSG-12."""
    prompt = {
        "model": "test-model",
        "messages": [{"role": "user", "content": "hello"}],
        "system": "Be brief.",
        "tools": [TOOL],
        "tool_choice": {"type": "auto"},
        "thinking": {"type": "adaptive"},
        "output_config": {"effort": "low"},
        "cache_control": {"type": "ephemeral"},
        "speed": "standard",
    }
    async with serving(speaking("Hello.")) as server:
        count = (await server.post(COUNT, prompt)).json
        usage = (await server.post(MESSAGES, {**prompt, "max_tokens": 9})).json["usage"]
    assert count == {"input_tokens": usage["input_tokens"] + usage["cache_read_input_tokens"]}


async def test_a_stream_begins_with_the_counts_of_the_cache() -> None:
    """MSG-10."""
    body = {**BODY, "messages": [{"role": "user", "content": "hello " * 30}], "stream": True, "max_tokens": 4}
    async with native_server() as server:
        await server.post(MESSAGES, body)
        events = (await server.post(MESSAGES, body)).events
    begun, ended = events[0].json["message"]["usage"], events[-2].json["usage"]
    names = ("input_tokens", "cache_creation_input_tokens", "cache_read_input_tokens")
    assert [begun[name] for name in names] == [ended[name] for name in names]
    assert begun["cache_read_input_tokens"] > 0


@pytest.mark.parametrize("headers", [{"x-api-key": "one"}, {"authorization": "Bearer one"}])
async def test_a_key_comes_in_either_header(headers: dict[str, str]) -> None:
    """MSG-11."""
    async with serving(served(scripted()), api_keys=("one",)) as server:
        assert (await server.post(MESSAGES, BODY, headers=headers)).status == 200
        wrong = {name: value.replace("one", "two") for name, value in headers.items()}
        for refused in (await server.post(MESSAGES, BODY, headers=wrong), await server.post(MESSAGES, BODY)):
            assert refused.status == 401
            assert refused.json["error"]["type"] == "authentication_error"


@pytest.mark.parametrize(
    ("method", "path", "body", "status"),
    [
        ("POST", MESSAGES, {**BODY, "model": "other"}, 404),
        ("POST", MESSAGES, {**BODY, "messages": "hi"}, 400),
        ("POST", MESSAGES, {"model": "test-model"}, 400),
        ("GET", MESSAGES, None, 405),
        ("POST", "/v1/messages/batches", {}, 404),
    ],
)
async def test_an_error_has_the_form_of_messages(method: str, path: str, body: Any, status: int) -> None:
    """MSG-11."""
    async with serving(served(scripted())) as server:
        answer = await server.request(method, path, body)
        elsewhere = await server.post("/v1/chat/completions", {})
    assert answer.status == status
    assert set(answer.json) == {"type", "error", "request_id"}
    assert answer.header("request-id") == answer.header("x-request-id")
    assert answer.error["message"]
    assert ("Batches" in answer.error["message"]) is path.endswith("/batches")
    assert set(elsewhere.json) == {"error"}


async def test_headers_of_versions_and_betas_are_taken() -> None:
    headers = {"anthropic-version": "2023-06-01", "anthropic-beta": "some-beta-2026-01-01"}
    body = {**BODY, "metadata": {"user_id": "u"}, "service_tier": "auto", "speed": "fast"}
    async with serving(served(scripted())) as server:
        assert (await server.post(MESSAGES, body, headers=headers)).status == 200


async def test_a_schema_is_enforced_or_refused_by_its_name() -> None:
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
    config = {"format": {"type": "json_schema", "schema": schema}}
    broken = {"format": {"type": "json_schema", "schema": {"type": "nothing"}}}
    async with serving(speaking('{"a": 1}', grammars=True)) as server:
        answer = (await server.post(MESSAGES, {**BODY, "output_config": config})).json
        refused = await server.post(MESSAGES, {**BODY, "output_config": broken})
    assert json.loads(answer["content"][0]["text"]) == {"a": 1}
    assert refused.status == 400
    assert refused.error["message"].startswith("'output_config.format.schema': Invalid schema")
