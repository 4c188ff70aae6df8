"""A search for tools that the client runs: what it loads is shown to the model, and nothing else that is deferred."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from openai.types.responses import ResponseOutputItem
from pydantic import TypeAdapter
from support.judges import check_response, fold_response
from support.servers.asgi import Server, serving
from support.speaking import speaking

from plumbline.contract._generated.tool_search import ToolSearchOutputItemParam
from plumbline.contract._generated.tools import Tool
from plumbline.contract.wire.errors import ApiError
from plumbline.server.protocols.responses.client_tools.search import shown_tools
from plumbline.server.protocols.responses.mcp.declared import read_servers

Json = dict[str, Any]
RESPONSES = "/v1/responses"
SEARCH = {"type": "tool_search", "execution": "client"}
WEATHER = {"type": "function", "name": "get_weather", "parameters": {"type": "object", "properties": {}}}
LATER = {**WEATHER, "defer_loading": True}
FILES = {
    "type": "namespace",
    "name": "mcp__files",
    "description": "Files.",
    "tools": [{**LATER, "name": "read"}],
}
USER = {"role": "user", "content": "hi"}
CALL = {"type": "tool_search_call", "call_id": "s", "execution": "client", "arguments": {"query": "weather"}}
OFFICIAL: TypeAdapter[Any] = TypeAdapter(ResponseOutputItem)


def output(*tools: Json, **more: Any) -> Json:
    return {"type": "tool_search_output", "call_id": "s", "execution": "client", "tools": [*tools], **more}


def written(name: str, arguments: Any) -> str:
    """Return a call as the model writes it."""
    return f'<tool_call>\n{{"name": "{name}", "arguments": {json.dumps(arguments)}}}\n</tool_call>'


async def respond(server: Server, stream: bool = False, **fields: Any) -> Json:
    body = {"model": "test-model", "input": "hi", "tools": [SEARCH, LATER], "stream": stream, **fields}
    answer = await server.post(RESPONSES, body)
    assert answer.status == 200, answer.body
    return fold_response([event.json for event in answer.events[:-1]]) if stream else answer.json


@pytest.mark.parametrize("stream", [False, True])
async def test_a_search_is_called_by_its_official_item(stream: bool) -> None:
    """TOOL-22."""
    async with serving(speaking(written("tool_search", {"query": "é"}))) as server:
        final = await respond(server, stream)
    [item] = final["output"]
    assert (item["type"], item["status"], item["execution"]) == ("tool_search_call", "completed", "client")
    assert item["arguments"] == {"query": "é"}
    assert item["call_id"]
    check_response(final)
    assert OFFICIAL.validate_python(item).type == "tool_search_call"


async def test_parameters_of_deferred_tools_cost_no_tokens_until_a_search_has_loaded_them() -> None:
    """What can be searched is named in the description of the search."""
    large = {**LATER, "parameters": {"type": "object", "properties": {"a" * 500: {"type": "string"}}}}
    async with serving(speaking("Done.")) as server:
        alone = await respond(server, tools=[SEARCH])
        small = await respond(server, tools=[SEARCH, LATER])
        later = await respond(server, tools=[SEARCH, large])
        files = await respond(server, tools=[SEARCH, FILES])
        found = [await respond(server, input=[USER, CALL, output(*tools)]) for tools in ((), (large,))]
    counts = [one["usage"]["input_tokens"] for one in (alone, small, later, files)]
    assert counts[0] + len("get_weather") <= counts[1] == counts[2]
    assert counts[3] > counts[0] + len("mcp__files: Files.")
    assert found[1]["usage"]["input_tokens"] > found[0]["usage"]["input_tokens"] + 500


@pytest.mark.parametrize("stream", [False, True])
async def test_a_tool_that_waits_cannot_be_called(stream: bool) -> None:
    """TOOL-02."""
    async with serving(speaking(written("get_weather", {}))) as server:
        final = await respond(server, stream)
        loaded = await respond(server, stream, input=[USER, CALL, output(LATER)])
    assert [item["type"] for item in final["output"]] == ["message"]
    assert [item["type"] for item in loaded["output"]] == ["function_call"]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("declared", [[SEARCH], [SEARCH, FILES]])
async def test_a_loaded_tool_of_a_namespace_is_called_by_its_name_there(
    declared: list[Json], stream: bool, tmp_path: Path
) -> None:
    """Codex loads the tools of its MCP servers so, and does not list them in `tools`."""
    model = speaking(written("mcp__files__read", {}), "Done.")
    async with serving(model, store=str(tmp_path / "s.db")) as server:
        final = await respond(
            server,
            stream,
            tools=declared,
            input=[USER, CALL, output(FILES)],
            store=True,
        )
        again = await server.get(f"{RESPONSES}/{final['id']}?stream=true")
        replayed = fold_response([event.json for event in again.events if event.data != "[DONE]"])
        [call] = final["output"]
        result = {"type": "function_call_output", "call_id": call["call_id"], "output": "21"}
        chained = await respond(server, tools=declared, input=[result], previous_response_id=final["id"])
    assert (call["type"], call["namespace"], call["name"]) == ("function_call", "mcp__files", "read")
    assert replayed["output"] == final["output"]
    assert chained["output"][0]["content"][0]["text"] == "Done."


async def test_a_stored_search_gives_the_model_the_same_messages_as_one_that_is_sent(tmp_path: Path) -> None:
    """ST-04: also where the items are listed, and where a conversation keeps them."""
    model = speaking(written("tool_search", {"query": "weather"}), "Done.", "Done.", "Done.")
    async with serving(model, store=str(tmp_path / "s.db")) as server:
        first = await respond(server, store=True)
        [call] = first["output"]
        found = output(LATER, FILES, call_id=call["call_id"])
        sent = await respond(server, input=[USER, call, found], store=False)
        chained = await respond(server, input=[found], previous_response_id=first["id"], store=True)
        listed = (await server.get(f"{RESPONSES}/{chained['id']}/input_items")).json["data"]
        kept = await server.post("/v1/conversations", {"items": [USER, call, found]})
        assert kept.status == 200, kept.body
        continued = await respond(server, input=[], conversation=kept.json["id"])
    counts = {one["usage"]["input_tokens"] for one in (sent, chained, continued)}
    assert len(counts) == 1
    [item] = [item for item in listed if item["type"] == "tool_search_output"]
    assert OFFICIAL.validate_python(item).tools[0].name == "get_weather"
    check_response(chained)


async def test_a_search_that_is_cut_searches_for_nothing() -> None:
    text = written("tool_search", {"query": "weather"})
    async with serving(speaking(text)) as server:
        final = await respond(server, max_output_tokens=len(text) - 30)
    [item] = final["output"]
    assert (item["status"], item["arguments"]) == ("incomplete", {})


async def test_the_client_describes_the_search() -> None:
    described = {**SEARCH, "description": "d" * 200, "parameters": {"type": "object", "properties": {}}}
    async with serving(speaking("Done.")) as server:
        plain = await respond(server, tools=[SEARCH])
        own = await respond(server, tools=[described])
    assert own["usage"]["input_tokens"] > plain["usage"]["input_tokens"]


@pytest.mark.parametrize("search", [{"type": "tool_search"}, {"type": "tool_search", "execution": "server"}])
async def test_where_the_server_would_search_every_tool_is_shown(search: Json) -> None:
    """The search could find them in the same request; the header says that the model cannot call it.

    The Agents SDK knows the call of a deferred function by a namespace of its name.
    """
    items = [
        {**CALL, "call_id": None, "execution": "server"},
        output(LATER, call_id=None, execution="server"),
    ]
    async with serving(speaking(written("get_weather", {}))) as server:
        body = {"model": "test-model", "input": "hi", "tools": [search, LATER]}
        answer = await server.post(RESPONSES, body)
        shown = await respond(server, tools=[WEATHER])
        replayed = await respond(server, tools=[search, LATER], input=[USER, *items])
    assert answer.header("x-plumbline-unavailable-tools") == "tool_search"
    [call] = answer.json["output"]
    assert (call["type"], call["name"], call["namespace"]) == ("function_call", "get_weather", "get_weather")
    assert answer.json["usage"]["input_tokens"] == shown["usage"]["input_tokens"]
    assert replayed["usage"]["input_tokens"] == shown["usage"]["input_tokens"]


@pytest.mark.parametrize("execution", ["server", "client"])
def test_tools_of_an_mcp_server_wait_for_no_search(execution: str) -> None:
    """They are listed when the server answers; only a search by the server, which shows all tools, may defer them."""
    remote = {"type": "mcp", "server_label": "a", "server_url": "https://mcp.example/", "defer_loading": True}
    tools = msgspec.convert([{"type": "tool_search", "execution": execution}, remote], list[Tool])
    if execution == "server":
        assert [server.label for server in read_servers(tools)] == ["a"]
    else:
        with pytest.raises(ApiError) as refused:
            read_servers(tools)
        assert refused.value.param == "tools[1].defer_loading"


MANY = [{**LATER, "name": f"f{number}"} for number in range(1024)]


@pytest.mark.parametrize(
    ("changes", "param"),
    [
        ({"tools": [LATER]}, "tools[0].defer_loading"),
        ({"tools": [SEARCH, FILES, LATER, WEATHER]}, "tools[3].name"),
        ({"tools": [{**SEARCH, "execution": "elsewhere"}]}, "tools[0]"),
        ({"tools": [{**SEARCH, "parameters": {"type": 1}}]}, "tools[0].parameters"),
        ({"input": [USER, CALL, output({"type": "web_search"})]}, "input[2].tools[0].type"),
        ({"input": [USER, CALL, output({"type": "shell"})]}, "input[2].tools[0].type"),
        ({"input": [USER, CALL, output({"type": "namespace", "name": "a"})]}, "input[2].tools[0].tools"),
        ({"input": [USER, CALL, output(*MANY)], "tools": [SEARCH]}, "input"),
        ({"input": [USER, CALL]}, "input"),
        ({"input": [USER, output()]}, "input"),
        ({"input": [USER, {**CALL, "call_id": None}]}, "input[1].call_id"),
    ],
)
async def test_what_cannot_be_loaded_is_refused_by_name(changes: Json, param: str) -> None:
    async with serving(speaking("Done.")) as server:
        body = {"model": "test-model", "input": "hi", "tools": [SEARCH, LATER], **changes}
        answer = await server.post(RESPONSES, body)
    assert (answer.status, answer.error["param"]) == (400, param), answer.body


async def test_a_conversation_keeps_no_tools_that_cannot_be_loaded(tmp_path: Path) -> None:
    """An MCP server may have credentials, which nothing here stores."""
    secret = {"type": "mcp", "server_label": "a", "authorization": "s3cret"}
    async with serving(speaking("Done."), store=str(tmp_path / "s.db")) as server:
        answer = await server.post("/v1/conversations", {"items": [USER, CALL, output(secret)]})
    assert (answer.status, answer.error["param"]) == (400, "items[2].tools[0].type")


NAMES = st.sampled_from(["a", "b", "c"])
DECLARED = st.lists(st.tuples(NAMES, st.booleans()), max_size=3, unique_by=lambda one: one[0])
LOADED = st.lists(st.lists(NAMES, max_size=3, unique=True), max_size=3)


@given(declared=DECLARED, loaded=LOADED, by_client=st.booleans())
def test_a_tool_is_shown_once_if_it_is_not_deferred_or_was_loaded(
    declared: list[tuple[str, bool]], loaded: list[list[str]], by_client: bool
) -> None:
    search = {"type": "tool_search", "execution": "client" if by_client else "server"}
    functions = [{"type": "function", "name": name, "defer_loading": later} for name, later in declared]
    tools = msgspec.convert([search, *functions], list[Tool])
    entries = [
        (
            f"input[{number}]",
            msgspec.convert(output(*({**LATER, "name": one} for one in names)), ToolSearchOutputItemParam),
        )
        for number, names in enumerate(loaded)
    ]
    found = [member.shown_name for member in shown_tools(tools, entries)]
    at_once = {name for name, later in declared if not later or not by_client}
    assert len(found) == len(set(found))
    assert set(found) - {"tool_search"} == at_once | {name for names in loaded for name in names}
    assert ("tool_search" in found) == by_client
