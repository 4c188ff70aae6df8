"""A call of a tool that the request does not have is text, and `undeclared_tools` names the tool (TOOL-02)."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from support.servers.asgi import serving
from support.speaking import speaking

FUNCTION = {"name": "f", "description": "Does it.", "parameters": {"type": "object", "properties": {}}}
MESSAGES = [{"role": "user", "content": "hi"}]
REQUESTS: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"messages": MESSAGES, "tools": [{"type": "function", "function": FUNCTION}]},
    "/v1/responses": {"input": "hi", "tools": [{"type": "function", **FUNCTION}]},
    "/v1/messages": {
        "messages": MESSAGES,
        "max_tokens": 400,
        "tools": [{"name": "f", "input_schema": FUNCTION["parameters"]}],
    },
}


def call_of(name: str) -> str:
    """Return the markup of a call."""
    return f'<tool_call>\n{{"name": "{name}", "arguments": {{}}}}\n</tool_call>'


def reported(path: str, text: str, **more: Any) -> list[Any]:
    """Return `undeclared_tools` of the whole answer and of the end of the stream; None where it is absent."""

    async def ask() -> tuple[Any, list[Any]]:
        body = {"model": "test-model", **REQUESTS[path], **more}
        async with serving(speaking(text)) as server:
            whole = await server.request("POST", path, body)
            stream = await server.request("POST", path, {**body, "stream": True})
        assert whole.status == stream.status == 200, whole.body
        return whole.json, [event.json for event in stream.events if event.data != "[DONE]"]

    whole, events = asyncio.run(ask())
    match path:
        case "/v1/chat/completions":
            places = [whole["choices"][0], events[-1]["choices"][0]]
        case "/v1/responses":
            places = [whole, events[-1]["response"]]
        case _:
            (end,) = [event["delta"] for event in events if event["type"] == "message_delta"]
            places = [whole, end]
    return [place.get("undeclared_tools") for place in places]


@pytest.mark.parametrize("path", REQUESTS)
def test_the_name_is_in_both_modes(path: str) -> None:
    assert reported(path, f"Well. {call_of('other')}") == [["other"], ["other"]]


@pytest.mark.parametrize("path", REQUESTS)
def test_without_tools_the_answer_is_not_parsed_for_calls(path: str) -> None:
    assert reported(path, call_of("other"), tools=[]) == [None, None]


@pytest.mark.parametrize("path", REQUESTS)
def test_other_answers_do_not_have_the_field(path: str) -> None:
    for text in ("Only words.", f"Look: {call_of('f')}", "a <tool_call> in prose"):
        assert reported(path, text) == [None, None]


def test_each_name_comes_once_and_there_are_sixteen_at_most() -> None:
    path = "/v1/chat/completions"
    names = [f"g{number}" for number in range(20)]

    assert reported(path, call_of("g") + call_of("h") + call_of("g"))[0] == ["g", "h"]
    assert reported(path, "".join(map(call_of, names)))[0] == names[:16]


def test_a_long_name_is_cut() -> None:
    assert reported("/v1/chat/completions", call_of("x" * 100))[0] == ["x" * 64]


def test_choices_have_their_own() -> None:
    async def ask() -> Any:
        body = {"model": "test-model", **REQUESTS["/v1/chat/completions"], "n": 2}
        async with serving(speaking(call_of("g"))) as server:
            return (await server.request("POST", "/v1/chat/completions", body)).json

    assert [choice["undeclared_tools"] for choice in asyncio.run(ask())["choices"]] == [["g"], ["g"]]
