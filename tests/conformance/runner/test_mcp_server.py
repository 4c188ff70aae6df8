"""Test the MCP server that the judge runs for judged servers.

- The official SDK lists its tools and calls them.
- Each request has one answer; what it cannot read is refused, and nothing ends it.
- A connection that a client keeps has one answer for each request, also after a refused one.
- An address that cannot be used ends the run before anything is sent.
"""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import Iterator
from typing import Any

import httpx2
import pytest
from mcp.client.session import ClientSession
from mcp.client.streamable_http import streamable_http_client

from plumbline_conformance.checks.tools import MCP_PATH, MCP_TOOLS
from plumbline_conformance.cli import main
from plumbline_conformance.runner.mcp_server import mcp_server
from plumbline_conformance.suite.scenario import Target


def free_address() -> str:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{probe.getsockname()[1]}"


@pytest.fixture
def url() -> Iterator[str]:
    """The URL of a running server."""
    address = free_address()
    with mcp_server(Target(base_url="http://127.0.0.1:1/v1", model="m", mcp=address)):
        yield f"http://{address}{MCP_PATH}"


def asked(url: str, **message: Any) -> Any:
    return httpx2.post(url, json={"jsonrpc": "2.0", "id": 7, **message}, timeout=10).json()


def test_the_official_client_lists_and_calls_its_tools(url: str) -> None:
    async def use() -> None:
        async with (
            streamable_http_client(url) as (read, write, *_),
            ClientSession(read, write) as session,
        ):
            await session.initialize()
            listed = (await session.list_tools()).tools
            time = await session.call_tool("get_time", {"city": "Rome"})
            failed = await session.call_tool("fail", {"reason": "rain"})
        assert [tool.name for tool in listed] == [tool["name"] for tool in MCP_TOOLS]
        assert json.loads(time.model_dump_json())["content"][0]["text"] == "It is noon in Rome."
        assert json.loads(failed.model_dump_json(by_alias=True))["isError"] is True

    asyncio.run(asyncio.wait_for(use(), 30))


@pytest.mark.parametrize(
    ("body", "status"),
    [(b"", 400), (b"[]", 400), (b"{", 400), (b'{"method": "notifications/initialized"}', 202)],
)
def test_a_message_without_an_answer_has_a_status_only(url: str, body: bytes, status: int) -> None:
    answer = httpx2.post(url, content=body, timeout=10)

    assert (answer.status_code, answer.content) == (status, b"")


def test_other_paths_and_methods_are_refused(url: str) -> None:
    assert httpx2.post(f"{url}/other", json={}, timeout=10).status_code == 404
    assert httpx2.get(url, timeout=10).status_code == 405
    assert httpx2.delete(url, timeout=10).status_code == 405
    assert asked(url, method="resources/list")["error"]["code"] == -32601


def test_a_refused_request_leaves_the_connection_usable(url: str) -> None:
    message = {"jsonrpc": "2.0", "id": 7, "method": "ping"}
    with httpx2.Client(timeout=10, limits=httpx2.Limits(max_connections=1)) as client:
        assert client.post(f"{url}/other", json=message).status_code == 404
        assert client.post(url, json=message).json() == {"jsonrpc": "2.0", "id": 7, "result": {}}


@pytest.mark.parametrize("length", ["abc", "-1", "\xb2", str(1 << 40)])
def test_a_length_that_cannot_be_read_is_refused(url: str, length: str) -> None:
    address = httpx2.URL(url)
    head = f"POST {MCP_PATH} HTTP/1.1\r\nhost: a\r\ncontent-length: {length}\r\n\r\n"
    with socket.create_connection((address.host, address.port or 80), timeout=10) as connection:
        connection.sendall(head.encode("latin-1"))
        with connection.makefile("rb") as answer:
            assert answer.read().startswith(b"HTTP/1.1 400 ")


def test_an_address_may_be_of_ipv6() -> None:
    try:
        with socket.create_server(("::1", 0), family=socket.AF_INET6) as probe:
            address = f"[::1]:{probe.getsockname()[1]}"
    except OSError:
        pytest.skip("this machine has no IPv6")
    with mcp_server(Target(base_url="http://127.0.0.1:1/v1", model="m", mcp=address)):
        assert asked(f"http://{address}{MCP_PATH}", method="ping")["result"] == {}


def test_the_version_is_the_client_s_if_it_is_known(url: str) -> None:
    versions = [
        asked(url, method="initialize", params={"protocolVersion": wanted})["result"]["protocolVersion"]
        for wanted in ("2025-03-26", "1999-01-01")
    ]
    assert versions == ["2025-03-26", "2025-06-18"]


def test_without_an_address_nothing_runs() -> None:
    with mcp_server(Target(base_url="http://127.0.0.1:1/v1", model="m")):
        pass


@pytest.mark.parametrize("address", ["8765", "host", "host:0", "host:x", ":8765"])
def test_an_address_needs_a_host_and_a_port(address: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", "http://127.0.0.1:1/v1", "--mcp", address]) == 2
    assert "HOST:PORT" in capsys.readouterr().err


def test_an_address_that_is_in_use_is_named() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        target = Target(base_url="http://127.0.0.1:1/v1", model="m", mcp=address)
        with pytest.raises(OSError, match=f"{address} .--mcp.: Address already in use"), mcp_server(target):
            raise AssertionError("it must not start")
