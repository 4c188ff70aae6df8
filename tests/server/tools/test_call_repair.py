"""A failed call is asked for again in every API and mode (`x_repair_calls`), or the field is refused by name.

`tests/structured_output/test_call_repair.py` has the laws for every dialect.
"""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from support.servers.asgi import serving
from support.speaking import speaking

from plumbline.server.loading.served_model import ServedModel

PARAMETERS = {"type": "object", "properties": {"day": {"type": "integer"}}, "required": ["day"]}
FUNCTION = {"name": "book", "parameters": PARAMETERS}
MESSAGES = [{"role": "user", "content": "hi"}]
REQUESTS: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"messages": MESSAGES, "tools": [{"type": "function", "function": FUNCTION}]},
    "/v1/responses": {"input": "hi", "tools": [{"type": "function", **FUNCTION}]},
    "/v1/messages": {
        "messages": MESSAGES,
        "max_tokens": 400,
        "tools": [{"name": "book", "input_schema": PARAMETERS}],
    },
}
FAILED = {
    "arguments": 'Well.<tool_call>\n{"name": "book", "arguments": {"day": "Monday"}}\n</tool_call>',
    "tool": 'Well.<tool_call>\n{"name": "cook", "arguments": {"day": 1}}\n</tool_call>',
    "broken off": 'Well.<tool_call>\n{"name": "book", "arguments": {"day": ',
}
RIGHT = '<tool_call>\n{"name": "book", "arguments": {"day": 1}}\n</tool_call>'


def ask(model: ServedModel, path: str, **more: Any) -> Any:
    """Return the status and the body, or the events of a stream."""

    async def run() -> Any:
        async with serving(model) as server:
            body = {"model": "test-model", **REQUESTS[path], "x_repair_calls": True, **more}
            reply = await server.request("POST", path, body)
        if reply.status != 200:
            return reply.json
        if not more.get("stream"):
            return reply.json
        return [event.json for event in reply.events if event.data != "[DONE]"]

    return asyncio.run(run())


def of_chat(answer: Any) -> tuple[str, list[tuple[str, str]], Any]:
    message = answer["choices"][0]["message"]
    calls = [(call["function"]["name"], call["function"]["arguments"]) for call in message["tool_calls"]]
    assert answer["choices"][0]["finish_reason"] == "tool_calls"
    return message["content"], calls, answer["usage"]


def of_chat_stream(events: list[Any]) -> tuple[str, list[tuple[str, str]], Any]:
    deltas = [event["choices"][0]["delta"] for event in events if event["choices"]]
    calls: dict[int, tuple[str, str]] = {}
    for part in (part for delta in deltas for part in delta.get("tool_calls", [])):
        name, arguments = calls.get(part["index"], ("", ""))
        of = part["function"]
        calls[part["index"]] = (name + (of.get("name") or ""), arguments + of.get("arguments", ""))
    text = "".join(delta.get("content") or "" for delta in deltas)
    return text, list(calls.values()), events[-1]["usage"]


def of_response(answer: Any) -> tuple[str, list[tuple[str, str]], Any]:
    text, calls = "", []
    for item in answer["output"]:
        if item["type"] == "message":
            text += "".join(part["text"] for part in item["content"])
        elif item["type"] == "function_call":
            assert item["status"] == "completed"
            calls.append((item["name"], item["arguments"]))
    return text, calls, answer["usage"]


def of_message(answer: Any) -> tuple[str, list[tuple[str, str]], Any]:
    text = "".join(block["text"] for block in answer["content"] if block["type"] == "text")
    uses = [block for block in answer["content"] if block["type"] == "tool_use"]
    assert answer["stop_reason"] == "tool_use"
    return text, [(use["name"], json.dumps(use["input"])) for use in uses], answer["usage"]


def of_message_stream(events: list[Any]) -> tuple[str, list[tuple[str, str]], Any]:
    text, calls = "", []
    for event in events:
        if event["type"] == "content_block_start" and event["content_block"]["type"] == "tool_use":
            calls.append((event["content_block"]["name"], ""))
        elif event["type"] == "content_block_delta" and "text" in event["delta"]:
            text += event["delta"]["text"]
        elif event["type"] == "content_block_delta" and "partial_json" in event["delta"]:
            calls[-1] = (calls[-1][0], calls[-1][1] + event["delta"]["partial_json"])
    (end,) = (event for event in events if event["type"] == "message_delta")
    return text, calls, end["usage"]


def read(path: str, answer: Any) -> tuple[str, list[tuple[str, str]], Any]:
    """Return the text, the calls and the usage of an answer or a stream."""
    stream = isinstance(answer, list)
    if path == "/v1/responses":
        return of_response(answer[-1]["response"] if stream else answer)
    if path == "/v1/messages":
        return of_message_stream(answer) if stream else of_message(answer)
    return of_chat_stream(answer) if stream else of_chat(answer)


@pytest.mark.parametrize("path", REQUESTS)
def test_one_valid_call_comes_in_both_modes(path: str) -> None:
    for failed in FAILED.values():
        found = []
        for stream in (False, True):
            options = {"stream_options": {"include_usage": True}} if stream and "chat" in path else {}
            model = speaking(failed, RIGHT, grammars=True)
            found.append(read(path, ask(model, path, stream=stream, **options)))
        assert found[0] == found[1]
        text, calls, usage = found[0]
        assert text == "Well."
        assert [(name, json.loads(arguments)) for name, arguments in calls] == [("book", {"day": 1})]
        assert usage["x_repaired_calls"] == 1


@pytest.mark.parametrize("path", REQUESTS)
def test_an_answer_without_a_failed_call_does_not_name_repairs(path: str) -> None:
    _, calls, usage = read(path, ask(speaking(RIGHT, grammars=True), path))
    assert len(calls) == 1
    assert "x_repaired_calls" not in usage


@pytest.mark.parametrize(
    ("path", "more"),
    [
        ("/v1/chat/completions", {"tools": []}),
        ("/v1/chat/completions", {"tool_choice": "none"}),
        ("/v1/chat/completions", {"logprobs": True}),
        ("/v1/chat/completions", {"return_token_ids": True}),
        ("/v1/chat/completions", {"allowed_token_ids": [1, 2]}),
        ("/v1/responses", {"tools": []}),
        ("/v1/responses", {"include": ["message.output_text.logprobs"]}),
        ("/v1/messages", {"tools": []}),
    ],
)
def test_what_cannot_be_repaired_is_refused_by_name(path: str, more: dict[str, Any]) -> None:
    error = ask(speaking(RIGHT, grammars=True), path, **more)["error"]
    assert error.get("param", "x_repair_calls") == "x_repair_calls"
    assert "x_repair_calls" in error["message"]


@pytest.mark.parametrize("path", REQUESTS)
def test_an_engine_without_grammars_refuses_it_by_name(path: str) -> None:
    error = ask(speaking(RIGHT), path)["error"]
    assert "'x_repair_calls' is not supported" in error["message"]


@pytest.mark.parametrize("path", REQUESTS)
@pytest.mark.parametrize("text", ['```json\n{"name": "my-app", "version": "1"}\n```', "```json\n{}\n```"])
def test_json_in_a_fence_that_is_no_call_stays(path: str, text: str) -> None:
    assert json.dumps(text)[1:-1] in json.dumps(ask(speaking(text, RIGHT, grammars=True), path))
