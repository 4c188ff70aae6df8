"""What MCP servers may do: calls wait for approval, hosts are named by the operator, credentials stay secret (TOOL-21).

- A call that needs approval waits for it, and one that is declined is not made.
- The model sees the tools that the request allows, under names that are its own.
- Only hosts that are allowed are called, and credentials are neither stored, nor logged, nor sent back.
"""

from __future__ import annotations

import json
import logging
import socket
from pathlib import Path
from typing import Any

import pytest
from support.servers.asgi import serving
from support.servers.mcp_requests import (
    ADD,
    RESPONSES,
    SECRET,
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

from plumbline.server.settings import OptionError, Settings

# Approval


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("chained", [False, True])
async def test_a_call_waits_for_approval_and_is_then_made(
    stream: bool, chained: bool, tmp_path: Path
) -> None:
    prompts: list[str] = []
    async with running(
        f"Let me see. {ADD}", "It is 3.", "Bye.", prompts=prompts, store=str(tmp_path / "s.db")
    ) as (
        server,
        host,
    ):
        tools = [host.tool(require_approval="always")]
        first = await respond(server, stream, tools=tools, store=True)
        asked = first["output"][-1]
        assert kinds(first) == ["mcp_list_tools", "message", "mcp_approval_request"]
        assert not host.calls
        approval = {"type": "mcp_approval_response", "approval_request_id": asked["id"], "approve": True}

        def continued(before: Json, *items: Json) -> Json:
            if chained:
                return {"previous_response_id": before["id"], "input": list(items), "store": True}
            return {"input": [USER, *first["output"], *items], "store": False}

        second = await respond(server, stream, tools=tools, **continued(first, approval))
        if chained:
            listed = (await server.get(f"{RESPONSES}/{second['id']}/input_items")).json["data"]
            assert [(item["id"][:5], item["approve"]) for item in listed] == [("mcpa_", True)]
        made = second["output"][0]
        rest = [] if chained else [approval, *second["output"]]
        third = await respond(server, stream, tools=tools, **continued(second, *rest, USER))
    assert (asked["name"], asked["server_label"], json.loads(asked["arguments"])) == (
        "add",
        "box",
        {"a": 1, "b": 2},
    )
    assert kinds(second) == ["mcp_call", "message"]
    assert (made["approval_request_id"], made["output"]) == (asked["id"], "3")
    assert kinds(third) == ["message"], "what was made is not made again"
    assert len(host.calls) == 1
    assert prompts[2].startswith(prompts[1] + "It is 3.")


async def test_a_call_that_is_declined_is_not_made_and_the_model_is_told() -> None:
    prompts: list[str] = []
    async with running(ADD, "As you wish.", prompts=prompts) as (server, host):
        tools = [host.tool(require_approval=None)]
        first = await respond(server, tools=tools)
        approval = {
            "type": "mcp_approval_response",
            "approval_request_id": first["output"][-1]["id"],
            "approve": False,
            "reason": "I can add.",
        }
        second = await respond(server, tools=tools, input=[USER, *first["output"], approval])
    assert kinds(first) == ["mcp_list_tools", "mcp_approval_request"]
    assert kinds(second) == ["message"]
    assert "I can add." in prompts[1]
    assert "box__add" in prompts[1][prompts[1].index("hi<|im_end|>") :]
    assert not host.calls


@pytest.mark.parametrize(
    ("policy", "asks"),
    [
        ("always", True),
        ("never", False),
        ({"never": {"tool_names": ["add"]}}, False),
        ({"always": {"tool_names": ["add"]}}, True),
        ({"always": {"tool_names": ["add"]}, "never": {"read_only": True}}, True),
    ],
)
async def test_a_policy_chooses_the_calls_that_need_approval(policy: Any, asks: bool) -> None:
    async with running(ADD, "Done.") as (server, host):
        final = await respond(server, tools=[host.tool(require_approval=policy)])
    assert ("mcp_approval_request" in kinds(final)) == asks
    assert bool(host.calls) != asks


async def test_an_approval_needs_its_request_once_and_its_server() -> None:
    request = {
        "type": "mcp_approval_request", "id": "mcpr_1", "server_label": "box", "name": "add", "arguments": "{}",
    }  # fmt: skip
    answer = {"type": "mcp_approval_response", "approval_request_id": "mcpr_1", "approve": True}
    async with running("Hello.") as (server, host):
        unknown = await refused(server, input=[USER, answer], tools=[host.tool()])
        twice = await refused(server, input=[USER, request, answer, answer], tools=[host.tool()])
        without = await refused(server, input=[USER, request, answer])
        ignored = await respond(server, input=[USER, request], tools=[])
    assert unknown["param"] == "input[1].approval_request_id"
    assert twice["param"] == "input[3].approval_request_id"
    assert without["param"] == "tools"
    assert kinds(ignored) == ["message"]


# Tools


async def test_the_model_sees_the_tools_that_the_request_allows() -> None:
    prompts: list[str] = []
    async with running("Hello.", prompts=prompts) as (server, host):
        for allowed in (["add"], {"tool_names": ["add", "fail"], "read_only": True}, {"read_only": True}):
            tool = host.tool(allowed_tools=allowed, server_description="A box of sums.")
            final = await respond(server, tools=[tool])
            assert [one["name"] for one in final["output"][0]["tools"]] == ["add"]
    assert all("A box of sums." in prompt and "box__fail" not in prompt for prompt in prompts)


async def test_two_servers_may_have_tools_of_the_same_name() -> None:
    async with running(call("two__add", {"a": 1, "b": 1}), "Done.") as (server, host):
        async with running_mcp_server() as other:
            two = {**other.tool(), "server_label": "two"}
            answer = await refused(server, tools=[host.tool(), two])
            assert answer["param"] == "tools[1].server_url"
        one = host.tool(allowed_tools=["add"])
        final = await respond(server, tools=[one, {**one, "server_label": "two"}])
    assert kinds(final) == ["mcp_list_tools", "mcp_list_tools", "mcp_call", "message"]
    assert calls_of(final)[0]["server_label"] == "two"


async def test_a_function_with_the_name_of_a_tool_is_not_replaced() -> None:
    function = {"type": "function", "name": "box__add", "parameters": {"type": "object", "properties": {}}}
    async with running(call("box__add", {})) as (server, host):
        final = await respond(server, tools=[function, host.tool()])
    assert kinds(final) == ["mcp_list_tools", "function_call"]
    assert "box__add" in final["output"][0]["error"]
    assert not host.calls


@pytest.mark.parametrize(
    "choice",
    [
        "required",
        {"type": "mcp", "server_label": "box"},
        {"type": "mcp", "server_label": "box", "name": "add"},
        {"type": "allowed_tools", "mode": "required", "tools": [{"type": "mcp", "server_label": "box"}]},
    ],
)
async def test_a_choice_forces_the_first_round_only(choice: Any) -> None:
    """TOOL-06: a forced call would be followed by forced calls for ever."""
    async with running(ADD, "Done.") as (server, host):
        final = await respond(server, tools=[host.tool()], tool_choice=choice)
        wrong = await refused(
            server, tools=[host.tool()], tool_choice={"type": "mcp", "server_label": "other"}
        )
    assert kinds(final) == ["mcp_list_tools", "mcp_call", "message"]
    assert wrong["param"] == "tool_choice"


async def test_without_a_choice_no_server_is_called() -> None:
    async with running(ADD) as (server, host):
        final = await respond(server, tools=[host.tool()], tool_choice="none")
    assert kinds(final) == ["message"]
    assert not host.methods


# Access


@pytest.mark.parametrize("hosts", [("http://a",), ("a", "b c")])
def test_an_option_that_names_no_host_is_refused(hosts: tuple[str, ...]) -> None:
    with pytest.raises(OptionError, match="--allow-mcp must be HOST"):
        Settings(allow_mcp=hosts)


def test_the_option_needs_the_client(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("plumbline.server.settings.settings.find_spec", lambda name: None)
    with pytest.raises(OptionError, match="pip install mcp"):
        Settings(allow_mcp=("mcp.example.com",))
    Settings()


async def test_no_host_is_called_that_is_not_allowed() -> None:
    async with running("Hello.", allow_mcp=()) as (server, host):
        off = await refused(server, tools=[host.tool()])
        assert not host.methods
    assert off["param"] == "tools[0].server_url"
    assert f"--allow-mcp {host.host}" in off["message"]


async def test_a_private_address_behind_an_allowed_name_is_not_called(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with running_mcp_server() as host:
        name = f"mcp.example:{host.port}"
        private = [(socket.AF_INET, socket.SOCK_STREAM, 0, "", ("127.0.0.1", host.port))]
        monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: private)
        tool = host.tool(server_url=f"http://{name}/mcp")
        for allowed, works in (((name,), False), ((name, "127.0.0.1"), True)):
            async with serving(speaking("Hello."), allow_mcp=allowed) as server:
                final = await respond(server, tools=[tool])
            error = final["output"][0]["error"]
            assert ("address that this server does not connect to" in error) != works
            assert ("status 421" in error) == works, "the server of the SDK does not know the name"


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"server_url": None}, None),
        ({"server_url": "ftp://127.0.0.1/"}, "server_url"),
        ({"server_url": "http://user:word@127.0.0.1/"}, "server_url"),
        ({"server_url": "http://127.0.0.1:99999/"}, "server_url"),
        ({"server_url": "nothing"}, "server_url"),
        ({"connector_id": "connector_gmail"}, "connector_id"),
        ({"tunnel_id": "tunnel_" + "a" * 32}, "tunnel_id"),
        ({"server_label": ""}, "server_label"),
        ({"defer_loading": True}, "defer_loading"),
        ({"allowed_callers": ["programmatic"]}, "allowed_callers"),
        ({"headers": {"Host": "other.example"}}, "headers"),
        ({"headers": {"mcp-session-id": "1"}}, "headers"),
        ({"headers": {"a b": "1"}}, "headers"),
        ({"headers": {"a": "1\r\nb: 2"}}, "headers"),
        ({"headers": {"a": "1", "A": "2"}}, "headers"),
        ({"authorization": "a\nb"}, "authorization"),
        ({"authorization": "a", "headers": {"Authorization": "b"}}, "authorization"),
    ],
)
async def test_what_cannot_be_honoured_is_refused_by_name(change: Json, field: str | None) -> None:
    async with running("Hello.") as (server, host):
        error = await refused(server, tools=[host.tool(**change)])
        assert not host.methods
    if field is not None:
        assert error["param"] == f"tools[0].{field}"


async def test_no_two_servers_have_one_label_and_their_number_is_bounded() -> None:
    async with running("Hello.") as (server, host):
        twice = await refused(server, tools=[host.tool(), host.tool()])
        many = await refused(server, tools=[host.tool(server_label=f"s{n}") for n in range(17)])
        missing = await refused(server, tools=[{"type": "mcp", "server_label": "box"}])
    assert twice["param"] == "tools[1].server_label"
    assert many["param"] == "tools"
    assert missing["param"] == "tools[0].server_url"


# Credentials


def _bytes_of(folder: Path) -> bytes:
    return b"".join(file.read_bytes() for file in folder.iterdir())


@pytest.mark.parametrize("stream", [False, True])
async def test_credentials_reach_the_server_and_nobody_else(
    stream: bool, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """They are neither echoed, stored nor logged, even if the MCP server sends them back."""
    caplog.set_level(logging.DEBUG)
    key, query = f"key-{SECRET}", f"query-{SECRET}"
    settings: Json = {
        "store": str(tmp_path / "s.db"),
        "enable_log_requests": True,
        "enable_log_outputs": True,
    }
    async with running(
        call("box__secrets", {}), call("box__fail", {"reason": SECRET}), "Done.", **settings
    ) as (
        server,
        host,
    ):
        tool = host.tool(
            authorization=SECRET, headers={"X-Key": key}, server_url=f"http://{host.host}/mcp?token={query}"
        )
        body = {"model": "test-model", "input": "hi", "tools": [tool], "stream": stream, "store": True}
        answer = await server.post(RESPONSES, body)
        assert answer.status == 200, answer.body
        shown = answer.events[-2].json["response"] if stream else answer.json
        stored = await server.get(f"{RESPONSES}/{shown['id']}")
        tool["server_url"] = f"http://user:{SECRET}@{host.host}/mcp"
        wrong = await server.post(RESPONSES, body)
    assert {header.get("authorization") for header in host.headers} == {f"Bearer {SECRET}"}
    assert {header.get("x-key") for header in host.headers} == {key}
    assert shown["output"][1]["output"].count("[redacted]") >= 2
    echoed = {name: tool[name] for name in ("type", "server_label", "require_approval")}
    assert shown["tools"] == [{**echoed, "server_url": f"http://{host.host}"}]
    for text in (stored.body, wrong.body, _bytes_of(tmp_path), caplog.text.encode()):
        # The model, which is scripted here, wrote the word itself as the reason.
        assert key.encode() not in text
        assert query.encode() not in text
        assert f"Bearer {SECRET}".encode() not in text
