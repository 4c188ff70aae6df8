"""Responses with the tools of MCP servers, against a server of the official SDK (TOOL-21).

- Tools are listed once, calls are made and their results read by the model, whole and streamed alike.
- A context gives the model the same messages, wherever its items are kept.
- A call that fails, and a server that is dead, end in items with an error.
"""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
from support.judges import fold_response, without_names
from support.models import TOKENIZER
from support.servers.asgi import serving
from support.servers.live import live
from support.servers.mcp_requests import (
    ADD,
    OFFICIAL,
    RESPONSES,
    USER,
    Json,
    call,
    calls_of,
    kinds,
    refused,
    respond,
    running,
)
from support.servers.mcp_server import running_mcp_server
from support.speaking import speaking
from websockets.asyncio.client import connect

from plumbline.port.engine import EngineFullError, GenerateRequest, TokenChunk
from plumbline.server.settings import Settings

# The rounds


async def test_a_tool_is_listed_and_called_and_its_result_is_read_whole_and_streamed_alike() -> None:
    prompts: list[str] = []
    texts = (f"<think>hm</think>Let me see. {ADD}", "It is 3.")
    async with running(*texts, prompts=prompts) as (server, host):
        whole = await respond(server, tools=[host.tool()])
        streamed = await respond(server, stream=True, tools=[host.tool()])
        left = await server.tasks_left()
    listed, _, said, made, answered = whole["output"]
    assert kinds(whole) == ["mcp_list_tools", "reasoning", "message", "mcp_call", "message"]
    assert [tool["name"] for tool in listed["tools"]] == ["add", "fail", "long", "slow", "secrets"]
    assert listed["tools"][0]["annotations"] == {"readOnlyHint": True}
    assert (listed["id"][:5], made["id"][:4]) == ("mcpl_", "mcp_")
    assert (said["content"][0]["text"], answered["content"][0]["text"]) == ("Let me see.", "It is 3.")
    assert {name: made[name] for name in ("server_label", "name", "status", "output", "error")} == {
        "server_label": "box", "name": "add", "status": "completed", "output": "3", "error": None,
    }  # fmt: skip
    assert json.loads(made["arguments"]) == {"a": 1, "b": 2}
    assert host.calls == [("add", {"a": 1, "b": 2})] * 2
    assert without_names(whole) == without_names(streamed)
    assert "Add two numbers." in prompts[0]
    assert prompts[1].startswith(prompts[0]), "the prefix cache has the first round"
    assert "Let me see." in prompts[1]
    assert "<|im_start|>tool\n3<|im_end|>" in prompts[1]
    assert not left


@pytest.mark.parametrize("literal", ["1e999", "-1e999"])
async def test_a_number_that_is_no_double_is_not_sent_as_another_value(literal: str) -> None:
    text = call("box__add", {"a": 1, "b": 0}).replace("0}", f"{literal}}}")
    async with running(text, "Done.") as (server, host):
        whole = await respond(server, tools=[host.tool()])
    (made,) = calls_of(whole)
    assert (made["arguments"], made["status"], host.calls) == (f'{{"a": 1, "b": {literal}}}', "failed", [])
    assert "not finite" in made["error"]["message"]


async def test_the_usage_is_the_sum_of_all_rounds() -> None:
    prompts: list[str] = []
    async with running(ADD, "Done.", prompts=prompts) as (server, host):
        whole = await respond(server, tools=[host.tool()])
    counted = [len(TOKENIZER.encode_rendered(prompt)) for prompt in prompts]
    assert whole["usage"]["input_tokens"] == sum(counted)
    assert whole["usage"]["output_tokens"] > len(TOKENIZER.encode_rendered(ADD))


@pytest.mark.parametrize("stream", [False, True])
async def test_calls_of_one_answer_are_made_in_their_order(stream: bool) -> None:
    two = f"{ADD}\n{call('box__add', {'a': 3, 'b': 4})}"
    async with running(two, call("box__add", {"a": 5, "b": 6}), "Done.") as (server, host):
        final = await respond(server, stream, tools=[host.tool()])
    assert kinds(final) == ["mcp_list_tools", "mcp_call", "mcp_call", "mcp_call", "message"]
    assert [item["output"] for item in calls_of(final)] == ["3", "7", "11"]


@pytest.mark.parametrize("stream", [False, True])
async def test_a_call_of_the_client_ends_the_answer_after_calls_of_the_server(stream: bool) -> None:
    function = {"type": "function", "name": "f", "parameters": {"type": "object", "properties": {}}}
    prompts: list[str] = []
    async with running(f"{ADD}\n{call('f', {})}", "Done.", prompts=prompts) as (server, host):
        final = await respond(server, stream, tools=[function, host.tool()])
        output = {"type": "function_call_output", "call_id": final["output"][-1]["call_id"], "output": "yes"}
        again = await respond(
            server, stream, tools=[function, host.tool()], input=[USER, *final["output"], output]
        )
    assert kinds(final) == ["mcp_list_tools", "mcp_call", "function_call"]
    assert kinds(again) == ["message"]
    assert prompts[1].index("tool\n3<") < prompts[1].index("tool\nyes<")


async def test_a_limit_of_tokens_is_for_all_rounds_together() -> None:
    used = len(TOKENIZER.encode_rendered(ADD)) + 1
    async with running(ADD, "A long answer.", ADD) as (server, host):
        cut = await respond(server, tools=[host.tool()], max_output_tokens=used + 5)
        exact = await respond(server, tools=[host.tool()], max_output_tokens=used)
    assert cut["status"] == exact["status"] == "incomplete"
    assert (cut["usage"]["output_tokens"], exact["usage"]["output_tokens"]) == (used + 5, used)
    assert kinds(cut) == ["mcp_list_tools", "mcp_call", "message"]
    assert kinds(exact) == ["mcp_list_tools", "mcp_call"]


@pytest.mark.parametrize("stream", [False, True])
async def test_a_call_that_is_cut_is_not_made(stream: bool) -> None:
    async with running(ADD) as (server, host):
        final = await respond(server, stream, tools=[host.tool()], max_output_tokens=len(ADD) - 25)
    [made] = calls_of(final)
    assert (final["status"], made["status"], made["output"]) == ("incomplete", "incomplete", None)
    assert not host.calls


@pytest.mark.parametrize("stream", [False, True])
async def test_max_tool_calls_bounds_the_calls_of_the_server(stream: bool) -> None:
    """TOOL-17: further calls are left out, and the model goes on without these tools."""
    prompts: list[str] = []
    async with running(f"{ADD}\n{ADD}\n{ADD}", "Done.", prompts=prompts) as (server, host):
        final = await respond(server, stream, tools=[host.tool()], max_tool_calls=2)
    assert kinds(final) == ["mcp_list_tools", "mcp_call", "mcp_call", "message"]
    assert len(host.calls) == 2
    assert final["max_tool_calls"] == 2
    assert "Add two numbers." in prompts[1], "the prompt stays the same, for the prefix cache"


# Failures


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("text", "kind", "words"),
    [
        (call("box__fail", {"reason": "no luck"}), "mcp_tool_execution_error", "no luck"),
        (call("box__add", {"a": "x", "b": 2}), "mcp_tool_execution_error", "integer"),
        (call("box__long", {"size": 1_100_000}), "mcp_protocol_error", "1048576 characters"),
        (call("box__long", {"size": 5_000_000}), "http_error", "more than 4194304 bytes"),
    ],
)
async def test_a_call_that_fails_is_an_item_with_an_error_that_the_model_reads(
    stream: bool, text: str, kind: str, words: str
) -> None:
    prompts: list[str] = []
    async with running(text, "Sorry.", prompts=prompts) as (server, host):
        final = await respond(server, stream, tools=[host.tool()])
    [made] = calls_of(final)
    assert (final["status"], made["status"], made["output"]) == ("completed", "failed", None)
    assert made["error"]["type"] == kind
    assert words in json.dumps(made["error"])
    assert words in prompts[1]
    assert kinds(final)[-1] == "message"


def _closed_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port: int = listener.getsockname()[1]
    return port


@pytest.mark.parametrize("stream", [False, True])
async def test_a_dead_server_ends_in_an_item_with_an_error_and_not_in_a_dead_response(stream: bool) -> None:
    port = _closed_port()
    async with running("Hello.", allow_mcp=(f"127.0.0.1:{port}",)) as (server, host):
        dead = host.tool(server_url=f"http://127.0.0.1:{port}/mcp")
        final = await respond(server, stream, tools=[dead], tool_choice="required")
    listed, said = final["output"]
    assert listed["tools"] == []
    assert listed["error"] == "The MCP server 'box' cannot be reached."
    assert said["content"][0]["text"] == "Hello."


async def test_a_server_that_dies_after_its_list_ends_in_a_failed_call() -> None:
    model = speaking("Yes.", ADD, "It is gone.", grammars=True)
    async with AsyncExitStack() as alive:
        host = await alive.enter_async_context(running_mcp_server())
        async with serving(model, allow_mcp=(host.host,)) as server:
            first = await respond(server, tools=[host.tool()])
            await alive.aclose()
            final = await respond(server, tools=[host.tool()], input=[first["output"][0], USER])
    [made] = calls_of(final)
    assert kinds(final) == ["mcp_call", "message"]
    assert made["status"] == "failed"
    assert (made["error"]["type"], made["error"]["code"]) == ("http_error", 502)


async def test_a_path_without_an_mcp_server_ends_in_a_failed_call() -> None:
    async with running("Yes.", ADD, "It is gone.") as (server, host):
        first = await respond(server, tools=[host.tool()])
        wrong = host.tool(server_url=f"http://{host.host}/nowhere")
        final = await respond(server, tools=[wrong], input=[first["output"][0], USER])
    [made] = calls_of(final)
    assert made["status"] == "failed"
    assert (made["error"]["type"], made["error"]["code"]) == ("http_error", 404)


async def test_a_client_that_leaves_stops_a_call() -> None:
    async with running(call("box__slow", {}), "Done.") as (server, host):
        host.delay = 30.0
        body = {"model": "test-model", "input": "hi", "tools": [host.tool()], "stream": True}
        exchange = server.open("POST", RESPONSES, body)
        async for write in exchange.writes():
            if b"mcp_call_arguments.done" in write:
                break
        while not host.calls:
            await asyncio.sleep(0.01)
        exchange.leave()
        await exchange.finished()
        async with asyncio.timeout(10):
            while any("_Session" in str(task) for task in asyncio.all_tasks()):
                await asyncio.sleep(0.01)
    assert host.calls == [("slow", {})]


# Contexts


async def test_a_context_gives_the_model_the_same_messages_wherever_its_items_are_kept(
    tmp_path: Path,
) -> None:
    """ST-04, ST-09, ST-15: sent back, chained, in a conversation, and compacted. No tools are listed again."""
    prompts: list[str] = []
    texts = (f"<think>hm</think>Let me see. {ADD}", "It is 3.", "Again.", "Again.", "Again.", "Again.")
    async with running(*texts, prompts=prompts, store=str(tmp_path / "s.db"), compaction="lossless") as (
        server,
        host,
    ):
        first = await respond(server, tools=[host.tool()], store=True)
        more = {"role": "user", "content": "Sure?"}
        sent = await respond(server, tools=[host.tool()], input=[USER, *first["output"], more], store=False)
        chained = await respond(
            server, tools=[host.tool()], input=[more], previous_response_id=first["id"], store=True
        )
        kept = await server.post("/v1/conversations", {"items": [USER, *first["output"]]})
        assert kept.status == 200, kept.body
        conversed = await respond(
            server, tools=[host.tool()], input=[more], conversation=kept.json["id"], store=True
        )
        compacted = await server.post(
            f"{RESPONSES}/compact", {"model": "test-model", "input": [USER, *first["output"], more]}
        )
        assert compacted.status == 200, compacted.body
        opened = await respond(
            server, tools=[host.tool()], input=[*compacted.json["output"], more], store=False
        )
        counted = await server.post(
            f"{RESPONSES}/input_tokens",
            {"model": "test-model", "tools": [host.tool()], "input": [USER, *first["output"], more]},
        )
        items = (await server.get(f"{RESPONSES}/{chained['id']}/input_items")).json["data"]
        listed = (await server.get(f"/v1/conversations/{kept.json['id']}/items")).json["data"]
    last = prompts[2]
    assert [kinds(one) for one in (sent, chained, conversed, opened)] == [["message"]] * 4
    assert prompts[3] == prompts[4] == last
    assert prompts[5].startswith(last[: last.index("Sure?")])
    assert last.startswith(prompts[1] + "It is 3.")
    assert counted.json["input_tokens"] == sent["usage"]["input_tokens"]
    assert [item["type"] for item in items] == ["message"]
    assert {"mcp_list_tools", "mcp_call"} <= {item["type"] for item in listed}
    for item in listed:
        if item["type"].startswith("mcp_"):
            assert OFFICIAL.validate_python(item).type == item["type"]


async def test_a_conversation_keeps_the_list_and_the_calls_of_its_answers(tmp_path: Path) -> None:
    """ST-09."""
    prompts: list[str] = []
    async with running(ADD, "It is 3.", "Again.", prompts=prompts, store=str(tmp_path / "s.db")) as (
        server,
        host,
    ):
        made = (await server.post("/v1/conversations", {})).json
        first = await respond(server, tools=[host.tool()], conversation=made["id"], store=True)
        second = await respond(server, tools=[host.tool()], conversation=made["id"], store=True)
        items = (await server.get(f"/v1/conversations/{made['id']}/items?order=asc")).json["data"]
    assert kinds(first) == ["mcp_list_tools", "mcp_call", "message"]
    assert kinds(second) == ["message"]
    assert prompts[2].startswith(prompts[1] + "It is 3.")
    assert [item["type"] for item in items] == ["message", *kinds(first), "message", "message"]


async def test_a_stored_stream_is_the_same_again(tmp_path: Path) -> None:
    """RS-20."""
    async with running(ADD, "It is 3.", store=str(tmp_path / "s.db")) as (server, host):
        body = {"model": "test-model", "input": "hi", "tools": [host.tool()], "stream": True, "store": True}
        answer = await server.post(RESPONSES, body)
        events = [event.json for event in answer.events if event.data != "[DONE]"]
        found = await server.get(f"{RESPONSES}/{events[-1]['response']['id']}?stream=true")
    assert [event.json for event in found.events if event.data != "[DONE]"] == events
    assert len(host.calls) == 1


async def test_a_response_in_the_background_calls_tools(tmp_path: Path) -> None:
    """ST-10: also after its client has left."""
    async with running(call("box__slow", {}), "Done.", store=str(tmp_path / "s.db")) as (server, host):
        host.delay = 0.2
        body = {"model": "test-model", "input": "hi", "tools": [host.tool()], "background": True}
        queued = (await server.post(RESPONSES, body)).json
        path = f"{RESPONSES}/{queued['id']}"
        followed = await server.get(f"{path}?stream=true")
        found = (await server.get(path)).json
    assert queued["status"] == "queued"
    assert kinds(found) == ["mcp_list_tools", "mcp_call", "message"]
    assert found["output"][1]["output"] == "done"
    assert followed.events[-2].json["response"] == found


async def test_a_response_in_the_background_is_cancelled_during_a_call(tmp_path: Path) -> None:
    """ST-11."""
    async with running(call("box__slow", {}), "Done.", store=str(tmp_path / "s.db")) as (server, host):
        host.delay = 30.0
        body = {"model": "test-model", "input": "hi", "tools": [host.tool()], "background": True}
        queued = (await server.post(RESPONSES, body)).json
        while not host.calls:
            await asyncio.sleep(0.01)
        cancelled = (await server.post(f"{RESPONSES}/{queued['id']}/cancel")).json
        async with asyncio.timeout(10):
            while any("_Session" in str(task) for task in asyncio.all_tasks()):
                await asyncio.sleep(0.01)
    assert cancelled["status"] == "cancelled"
    assert [(item["type"], item.get("status")) for item in cancelled["output"]][1:] == [
        ("mcp_call", "incomplete")
    ]


async def test_another_list_replaces_that_of_the_context_where_it_failed() -> None:
    failed = {"type": "mcp_list_tools", "id": "mcpl_1", "server_label": "box", "tools": [], "error": "dead"}
    async with running("Hello.") as (server, host):
        final = await respond(server, tools=[host.tool()], input=[failed, USER])
    assert kinds(final) == ["mcp_list_tools", "message"]


@pytest.mark.parametrize(
    ("tools", "param"),
    [
        ([{"name": "add", "input_schema": {"type": "nonsense"}}], "input[0].tools[0].input_schema"),
        ([{"name": "f", "input_schema": {}}, {"name": "add", "input_schema": {}}], "tools"),
    ],
)
async def test_a_list_that_no_server_sent_is_checked(tools: list[Json], param: str) -> None:
    listed = {"type": "mcp_list_tools", "id": "mcpl_1", "server_label": "box", "tools": tools}
    function = {"type": "function", "name": "box__add", "parameters": {"type": "object", "properties": {}}}
    async with running("Hello.") as (server, host):
        error = await refused(server, tools=[host.tool(), function], input=[listed, USER])
        without = await respond(server, tools=[function], input=[listed, USER])
        left_out = await respond(
            server, tools=[host.tool(allowed_tools=["f"]), function], input=[listed, USER]
        )
    assert error["param"] == param
    assert kinds(without) == kinds(left_out) == ["message"]


async def test_a_turn_of_a_websocket_calls_tools_and_the_next_one_has_their_list() -> None:
    """WS-05: also where nothing is stored."""
    texts = (ADD, "It is 3.", "Again.")
    async with running_mcp_server() as host:
        settings = Settings(allow_mcp=(host.host,))
        with live(lambda: speaking(*texts, grammars=True), settings) as server:
            url = f"ws://127.0.0.1:{server.port}/v1/responses"
            async with connect(url) as socket:

                async def turn(**fields: Any) -> Json:
                    body = {"type": "response.create", "model": "test-model", "tools": [host.tool()]}
                    await socket.send(json.dumps({**body, "input": [USER], "store": False, **fields}))
                    events = [json.loads(await socket.recv())]
                    while events[-1]["type"] not in ("response.completed", "error"):
                        events.append(json.loads(await socket.recv()))
                    return fold_response(events)

                first = await turn()
                second = await turn(previous_response_id=first["id"])
    assert kinds(first) == ["mcp_list_tools", "mcp_call", "message"]
    assert kinds(second) == ["message"]


async def test_a_context_that_is_compacted_before_the_answer_keeps_the_tools() -> None:
    """ST-15."""
    prompts: list[str] = []
    managed = {"context_management": [{"type": "compaction", "compact_threshold": 1000}]}
    async with running(ADD, "It is 3.", "Again.", prompts=prompts, compaction="lossless") as (server, host):
        tools = [host.tool(allowed_tools=["add"])]
        first = await respond(server, tools=tools)
        more = {"role": "user", "content": "Sure? " * 200}
        items = [USER, *first["output"], more]
        second = await respond(server, tools=tools, input=items, **managed)  # type: ignore[arg-type]
    assert kinds(second) == ["compaction", "message"]
    assert "box__add" in prompts[2]
    assert "<|im_start|>tool\n3<|im_end|>" in prompts[2]


async def test_a_round_waits_for_an_engine_that_is_full(monkeypatch: pytest.MonkeyPatch) -> None:
    """The calls before it have been made: they must not be lost."""
    monkeypatch.setattr("plumbline.server.responses.rounds._PAUSE", 0.0)
    model = speaking(ADD, "It is 3.", grammars=True)
    generate, refusals = model.engine.generate, iter([False, True, True, False])

    async def full_at_times(request: GenerateRequest) -> AsyncGenerator[TokenChunk, None]:
        if next(refusals):
            raise EngineFullError("full")
        async for chunk in generate(request):
            yield chunk

    monkeypatch.setattr(model.engine, "generate", full_at_times)
    async with running_mcp_server() as host, serving(model, allow_mcp=(host.host,)) as server:
        final = await respond(server, tools=[host.tool()])
    assert kinds(final) == ["mcp_list_tools", "mcp_call", "message"]
    assert len(host.calls) == 1
