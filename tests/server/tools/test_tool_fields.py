"""Fields about tools over HTTP: invalid schemas, deprecated functions, namespaces and hosted tools."""

from __future__ import annotations

from typing import Any

import pytest
from support.models import scripted, served
from support.servers.api_calls import chat, respond, streamed
from support.servers.asgi import serving
from support.speaking import speaking

CALL = '<tool_call>\n{"name": "%s", "arguments": {"a": "b"}}\n</tool_call>'
USER = [{"role": "user", "content": "hello"}]
FUNCTION = {"name": "f", "parameters": {"type": "object", "properties": {}}}
PATHS = {
    "/v1/chat/completions": ("messages", "tools[0].function.parameters"),
    "/tokenize": ("messages", "tools[0].function.parameters"),
    "/v1/responses": ("input", "tools[0].parameters"),
}


def _tool(path: str, parameters: Any) -> dict[str, Any]:
    function = {"name": "f", "parameters": parameters}
    return (
        {"type": "function", **function}
        if "responses" in path
        else {"type": "function", "function": function}
    )


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    "parameters", [{"type": 7}, {"type": "nonsense"}, {"properties": {"a": {"enum": 3}}}]
)
async def test_parameters_that_are_no_schema_are_refused(path: str, stream: bool, parameters: Any) -> None:
    body: dict[str, Any] = {"model": "test-model", PATHS[path][0]: USER}
    body["tools"] = [_tool(path, parameters)]
    if path != "/tokenize":
        body["stream"] = stream
    async with serving(served(scripted())) as server:
        answer = await server.post(path, body)
    assert answer.status == 400
    assert answer.error["param"] == PATHS[path][1]
    assert answer.error["code"] == "invalid_json_schema"


@pytest.mark.parametrize("path", PATHS)
async def test_known_aliases_of_types_are_accepted(path: str) -> None:
    parameters = {"type": "dict", "properties": {"a": {"type": "float"}}}
    async with serving(speaking("Hello.", grammars=True)) as server:
        answer = await server.post(
            path, {"model": "test-model", PATHS[path][0]: USER, "tools": [_tool(path, parameters)]}
        )
    assert answer.status == 200, answer.body


FUNCTIONS = {"functions": [FUNCTION, {"name": "g", "description": "Does it."}]}


@pytest.mark.parametrize("choice", ["auto", {"name": "f"}, None])
async def test_functions_are_called_as_function_call_in_both_modes(choice: Any) -> None:
    """TOOL-16."""
    body = {"model": "test-model", "messages": USER, **FUNCTIONS, "function_call": choice}
    async with serving(speaking(CALL % "f", grammars=True)) as server:
        whole = (await server.post("/v1/chat/completions", body)).json["choices"][0]
        chunks = await streamed(server, "/v1/chat/completions", body)
    deltas = [chunk["choices"][0]["delta"] for chunk in chunks]
    calls = [delta["function_call"] for delta in deltas if "function_call" in delta]

    assert whole["message"]["function_call"] == {"name": "f", "arguments": '{"a": "b"}'}
    assert whole["finish_reason"] == chunks[-1]["choices"][0]["finish_reason"] == "function_call"
    assert [call["name"] for call in calls if "name" in call] == ["f"]
    assert "".join(call["arguments"] for call in calls) == '{"a": "b"}'
    assert "tool_calls" not in whole["message"]
    assert not any("tool_calls" in delta for delta in deltas)


async def test_an_answer_without_a_call_is_as_usual() -> None:
    body = {"model": "test-model", "messages": USER, **FUNCTIONS}
    async with serving(speaking("Hello.", grammars=True)) as server:
        choice = (await server.post("/v1/chat/completions", body)).json["choices"][0]
    assert choice["finish_reason"] == "stop"
    assert choice["message"]["content"] == "Hello."
    assert "function_call" not in choice["message"]


async def test_functions_and_tools_give_the_model_the_same_prompt() -> None:
    """Calls and results in the messages are read too (CHAT-13)."""
    call = {"name": "f", "arguments": "{}"}
    legacy = [*USER, {"role": "assistant", "content": None, "function_call": call},
              {"role": "function", "name": "f", "content": "result"}]  # fmt: skip
    tools = [{"type": "function", "function": function} for function in FUNCTIONS["functions"]]
    newer = [*USER, {"role": "assistant", "content": None,
                     "tool_calls": [{"id": "call_1", "type": "function", "function": call}]},
             {"role": "tool", "tool_call_id": "call_1", "content": "result"}]  # fmt: skip
    async with serving(speaking("Hello.", grammars=True)) as server:
        counts = [
            (await chat(server, messages=messages, **fields))["usage"]["prompt_tokens"]
            for messages, fields in ((legacy, FUNCTIONS), (newer, {"tools": tools}), (legacy, {}))
        ]
    assert counts[0] == counts[1] > counts[2]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({**FUNCTIONS, "function_call": {"name": "h"}}, "function_call.name"),
        ({"function_call": "auto"}, "function_call"),
        ({"functions": [{"name": "f", "parameters": {"type": 7}}]}, "functions[0].parameters"),
        ({"functions": [FUNCTION, FUNCTION]}, "functions[1].name"),
        ({**FUNCTIONS, "tools": [{"type": "function", "function": FUNCTION}]}, "functions"),
    ],
)
async def test_functions_that_make_no_sense_are_refused(fields: Any, param: str, stream: bool) -> None:
    body = {"model": "test-model", "messages": USER, "stream": stream, **fields}
    async with serving(speaking("Hello.", grammars=True)) as server:
        answer = await server.post("/v1/chat/completions", body)
    assert answer.status == 400
    assert answer.error["param"] == param


NAMESPACE = {
    "type": "namespace", "name": "mcp__files", "description": "Files.",
    "tools": [{"type": "function", **FUNCTION}, {"type": "custom", "name": "patch"}],
}  # fmt: skip


async def test_calls_of_a_namespace_go_back_under_their_own_name_in_both_modes() -> None:
    body = {"model": "test-model", "input": "hi", "tools": [NAMESPACE]}
    async with serving(speaking(CALL % "mcp__files__f", grammars=True)) as server:
        (item,) = (await server.post("/v1/responses", body)).json["output"]
        events = await streamed(server, "/v1/responses", body)
    final = events[-1]["response"]
    added = next(event["item"] for event in events if event["type"] == "response.output_item.added")

    assert (item["type"], item["namespace"], item["name"]) == ("function_call", "mcp__files", "f")
    assert (added["namespace"], added["name"]) == ("mcp__files", "f")
    assert final["output"][0]["namespace"] == "mcp__files"
    assert final["tools"] == [NAMESPACE]


async def test_a_call_of_a_namespace_in_the_input_is_the_call_that_the_model_made() -> None:
    """The prompt shows the joined name: with it as a plain name the prompt is the same."""
    output = {"type": "function_call_output", "call_id": "c", "output": "done"}
    call = {"type": "function_call", "call_id": "c", "arguments": "{}"}
    async with serving(speaking("Hello.", grammars=True)) as server:
        counts = [
            (await respond(server, input=[USER[0], {**call, **named}, output], tools=[NAMESPACE]))["usage"][
                "input_tokens"
            ]
            for named in ({"name": "f", "namespace": "mcp__files"}, {"name": "mcp__files__f"}, {"name": "f"})
        ]
    assert counts[0] == counts[1] > counts[2]


async def test_a_tool_choice_may_name_a_tool_of_a_namespace() -> None:
    async with serving(speaking(CALL % "mcp__files__f", grammars=True)) as server:
        body = await respond(server, tools=[NAMESPACE], tool_choice={"type": "function", "name": "f"})
    assert body["output"][0]["name"] == "f"


@pytest.mark.parametrize(
    ("change", "param"),
    [
        ({"name": "a b"}, "tools[0].name"),
        ({"tools": []}, "tools[0].tools"),
        ({"tools": [{"type": "web_search"}]}, "tools[0].tools[0]"),
        (
            {"tools": [{"type": "function", "name": "f", "parameters": {"type": 7}}]},
            "tools[0].tools[0].parameters",
        ),
        (
            {"tools": [{"type": "function", "name": "f", "defer_loading": True}]},
            "tools[0].tools[0].defer_loading",
        ),
    ],
)
async def test_wrong_namespaces_are_refused(change: Any, param: str) -> None:
    async with serving(speaking("Hello.", grammars=True)) as server:
        answer = await server.post(
            "/v1/responses", {"model": "test-model", "input": "hi", "tools": [{**NAMESPACE, **change}]}
        )
    assert answer.status == 400
    assert answer.error["param"] == param


@pytest.mark.parametrize("stream", [False, True])
async def test_hosted_tools_are_named_as_unavailable(stream: bool) -> None:
    """TOOL-15."""
    tools = [{"type": "web_search"}, {"type": "file_search"}, {"type": "web_search"}, NAMESPACE]
    body = {"model": "test-model", "input": "hi", "stream": stream}
    async with serving(speaking("Hello.", grammars=True)) as server:
        answer = await server.post("/v1/responses", {**body, "tools": tools})
        plain = await server.post("/v1/responses", {**body, "tools": [NAMESPACE]})
        forced = await server.post(
            "/v1/responses", {**body, "tools": tools, "tool_choice": {"type": "file_search"}}
        )
    assert answer.header("x-plumbline-unavailable-tools") == "web_search, file_search"
    assert plain.header("x-plumbline-unavailable-tools") is None
    for one, named in ((answer, True), (plain, False)):
        whole = one.events[-2].json["response"] if stream else one.json
        assert whole.get("unavailable_tools") == (["web_search", "file_search"] if named else None)
    assert forced.status == 400
    assert forced.error["param"] == "tool_choice.type"


async def test_max_tool_calls_does_not_bound_calls_of_the_client_and_is_echoed() -> None:
    """TOOL-17."""
    two = CALL % "f" + "\n" + CALL % "f"
    async with serving(speaking(two)) as server:
        body = await respond(server, tools=[{"type": "function", **FUNCTION}], max_tool_calls=1)
    assert body["max_tool_calls"] == 1
    assert [item["type"] for item in body["output"]] == ["function_call"] * 2
