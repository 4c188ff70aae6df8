"""The client of MCP servers: which hosts and addresses it calls, how much it takes, and what it keeps to itself."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from plumbline.answer.remote_tools import RemoteServer
from plumbline.server.tools.mcp.hosts import AllowedHosts
from plumbline.server.tools.mcp.results import Redaction
from plumbline.server.tools.mcp.sessions import MAX_TOOLS, McpCaller, McpLimits
from plumbline.server.tools.port import RemoteFailureError

LIMITS = McpLimits(connect=2.0, listing=2.0, call=2.0, close=0.2)
SECRET = "credential-of-the-client"


@pytest.mark.parametrize(
    "text", ["", "http://a", "a b", "a/b", "u@a", "*", "*.a", "a:x", "a:99999", "[::1", "a,b"]
)
def test_what_is_no_host_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="HOST"):
        AllowedHosts([text])


@pytest.mark.parametrize(
    ("allowed", "url", "allows"),
    [
        ("mcp.example", "https://mcp.example/mcp", True),
        ("mcp.example", "http://MCP.example./", True),
        ("mcp.example", "https://mcp.example:8443/", False),
        ("mcp.example:8443", "https://mcp.example:8443/", True),
        ("mcp.example:8443", "https://mcp.example/", False),
        ("mcp.example", "https://other.example/", False),
        ("mcp.example", "https://mcp.example.evil.example/", False),
        ("127.0.0.1:8001", "http://127.0.0.1:8001/", True),
        ("::1", "http://[::1]/", True),
        ("[::1]:8001", "http://[0:0:0:0:0:0:0:1]:8001/", True),
        ("localhost:1", "http://127.0.0.1:1/", False),
    ],
)
def test_a_host_is_allowed_by_its_name_and_port(allowed: str, url: str, allows: bool) -> None:
    assert AllowedHosts([allowed]).allows(url) == allows
    assert not AllowedHosts().allows(url)


@pytest.mark.parametrize(
    ("allowed", "address", "connects"),
    [
        (["mcp.example"], "8.8.8.8", True),
        (["mcp.example"], "10.0.0.1", False),
        (["mcp.example", "10.0.0.1"], "10.0.0.1", True),
        (["mcp.example", "10.0.0.1"], "10.0.0.2", False),
        (["localhost"], "127.0.0.1", True),
        (["localhost"], "::1", True),
        (["localhost"], "127.0.0.2", False),
        (["mcp.example"], "169.254.169.254", False),
        (["mcp.example"], "::ffff:10.0.0.1", False),
    ],
)
def test_a_private_address_must_be_named_itself(allowed: list[str], address: str, connects: bool) -> None:
    assert AllowedHosts(allowed).connects(address, 8001) == connects


@example("nnnnnnnn", "\n", "")  # In JSON, the text has the secret one character earlier.
@given(st.text('nxyz"\\äß', min_size=8), st.text("ab\n\t"), st.text("ab\n\t"))
def test_a_credential_is_left_out_wherever_it_is(secret: str, before: str, after: str) -> None:
    server = RemoteServer(label="a", url="http://a/", headers={"x": secret}, field="tools[0]")
    redaction = Redaction(server)
    assert redaction.text(before + secret + after) == f"{before}[redacted]{after}"
    value = {"a": [before + secret + after, {secret: 1}]}
    assert redaction.value(value) == {"a": [f"{before}[redacted]{after}", {"[redacted]": 1}]}


def test_a_number_may_be_a_credential() -> None:
    server = RemoteServer(label="a", url="http://a/?key=1234567890", field="tools[0]")
    assert Redaction(server).value({"a": [1234567890, 12345, 1.5, None]}) == {
        "a": ["[redacted]", 12345, 1.5, None]
    }


def test_short_values_and_texts_without_credentials_are_kept() -> None:
    server = RemoteServer(label="a", url="http://a/?q=1", headers={"x": "true"}, field="tools[0]")
    assert Redaction(server).text("true 1 Bearer") == "true 1 Bearer"


Reply = Callable[[Any], tuple[dict[str, str], bytes]]


@asynccontextmanager
async def hostile(reply: Reply, pause: float = 0.0) -> AsyncIterator[tuple[RemoteServer, McpCaller]]:
    """A server that answers each JSON-RPC request as `reply` says, and a caller that may call it."""

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                length = next(
                    (
                        int(line[15:])
                        for line in head.lower().split(b"\r\n")
                        if line.startswith(b"content-length:")
                    ),
                    0,
                )
                body = json.loads(await reader.readexactly(length)) if length else {}
                await asyncio.sleep(pause)
                headers, content = reply(body)
                status = headers.pop("status", "200 OK")
                lines = [f"HTTP/1.1 {status}", f"content-length: {len(content)}"]
                lines += [f"{name}: {value}" for name, value in headers.items()]
                writer.write("\r\n".join(lines).encode() + b"\r\n\r\n" + content)
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    listening = await asyncio.start_server(handle, "127.0.0.1", 0)
    port = listening.sockets[0].getsockname()[1]
    url = f"http://127.0.0.1:{port}/mcp?token={SECRET}"
    server = RemoteServer(
        label="box", url=url, headers={"authorization": f"Bearer {SECRET}"}, field="tools[0]"
    )
    try:
        yield server, McpCaller(AllowedHosts([f"127.0.0.1:{port}"]), LIMITS)
    finally:
        listening.close()


NONSENSE = {"type": "object", "properties": {"a": {"type": "nonsense"}}}
JSON = {"content-type": "application/json"}


def answering(results: dict[str, Any]) -> Reply:
    """Answer each method with a result, and others with an error."""

    def reply(request: Any) -> tuple[dict[str, str], bytes]:
        method = request.get("method")
        if "id" not in request:
            return {"status": "202 Accepted"}, b""
        if method == "initialize":
            result = {
                "protocolVersion": request["params"]["protocolVersion"], "capabilities": {"tools": {}},
                "serverInfo": {"name": "hostile", "version": "1"},
            }  # fmt: skip
        elif method in results:
            result = results[method]
        else:
            error = {"code": -32601, "message": f"no {method}: {SECRET}"}
            return dict(JSON), json.dumps({"jsonrpc": "2.0", "id": request["id"], "error": error}).encode()
        return dict(JSON), json.dumps({"jsonrpc": "2.0", "id": request["id"], "result": result}).encode()

    return reply


def tools(count: int, **fields: Any) -> dict[str, Any]:
    return {"tools": [{"name": f"t{n}", "inputSchema": {"type": "object"}, **fields} for n in range(count)]}


async def failure(reply: Reply, pause: float = 0.0) -> Any:
    """The error of listing the tools of a server that answers so."""
    async with hostile(reply, pause) as (server, caller), caller.sessions() as sessions:
        with pytest.raises(RemoteFailureError) as raised:
            await sessions.tools(server)
    error = raised.value.error
    assert SECRET not in error.message
    assert "127.0.0.1" not in error.message
    return error


@pytest.mark.parametrize(
    ("reply", "words"),
    [
        (answering({}), "no tools/list: [redacted]"),
        (answering({"tools/list": {"tools": 5}}), "does not define"),
        (answering({"tools/list": tools(MAX_TOOLS + 1)}), "allowed_tools"),
        (answering({"tools/list": tools(400, description="d" * 3_000)}), "1048576 bytes"),
        (answering({"tools/list": tools(400, description="d" * 11_000)}), "more than 4194304 bytes"),
        (answering({"tools/list": {**tools(1), "nextCursor": "more"}}), "pages"),
        (answering({"tools/list": tools(1, inputSchema=NONSENSE)}), "input schema"),
        (lambda _: ({"status": "401 Unauthorized"}, SECRET.encode()), "status 401"),
        (lambda _: ({"status": "500 Oops", **JSON}, b'{"error": "%b"}' % SECRET.encode()), "status 500"),
        (lambda _: (dict(JSON), b"no json"), ""),
        (lambda _: (dict(JSON), b"[" * 100_000), ""),
        (lambda _: ({"content-type": "text/html"}, b"<html>"), ""),
        (lambda _: ({**JSON, "content-encoding": "gzip"}, b"\x1f\x8b"), "compresses"),
        (lambda _: ({"content-type": "text/event-stream"}, b"data: " + b"x" * 5_000_000), "4194304 bytes"),
        (lambda _: ({"status": "307 There", "location": "http://10.0.0.1/mcp"}, b""), "status 307"),
        (lambda _: ({"status": "307 There", "location": "/mcp"}, b""), "status 307"),
    ],
)
async def test_a_list_that_cannot_be_used_is_a_failure_without_credentials(reply: Reply, words: str) -> None:
    error = await failure(reply)
    assert words in error.message


async def test_a_server_that_is_silent_is_given_up() -> None:
    error = await failure(answering({"tools/list": tools(1)}), pause=30.0)
    assert (error.kind, error.code) == ("http", 504)
    assert "2 seconds" in error.message


async def test_results_are_text_and_files_are_left_out() -> None:
    content = [
        {"type": "text", "text": "one"},
        {"type": "image", "data": "AAAA", "mimeType": "image/png"},
        {"type": "resource", "resource": {"uri": "file:///a", "text": "two"}},
        {"type": "resource_link", "uri": "file:///b", "name": "b"},
    ]
    results = {"tools/list": tools(1), "tools/call": {"content": content}}
    async with hostile(answering(results)) as (server, caller), caller.sessions() as sessions:
        assert [tool.name for tool in await sessions.tools(server)] == ["t0"]
        result = await sessions.call(server, "t0", {})
    assert result.error is None
    assert result.output == "one\n[image image/png]\ntwo\n[resource_link file:///b b]"


async def test_a_result_without_content_is_its_structure() -> None:
    results = {"tools/call": {"content": [], "structuredContent": {"a": 1}}, "tools/list": tools(1)}
    async with hostile(answering(results)) as (server, caller), caller.sessions() as sessions:
        result = await sessions.call(server, "t0", {})
    assert json.loads(result.output or "") == {"a": 1}


async def test_a_structure_has_no_credentials() -> None:
    secret = 'say "friend" and enter'
    results = {"tools/call": {"content": [], "structuredContent": {"a": secret}}, "tools/list": tools(1)}
    async with hostile(answering(results)) as (server, caller), caller.sessions() as sessions:
        server = msgspec.structs.replace(server, headers={"x-key": secret})
        result = await sessions.call(server, "t0", {})
    assert json.loads(result.output or "") == {"a": "[redacted]"}


async def test_a_session_that_has_failed_is_opened_again() -> None:
    bad: list[bool] = [True]
    good = answering({"tools/list": tools(1)})

    def reply(request: Any) -> tuple[dict[str, str], bytes]:
        return ({"status": "503 Busy"}, b"") if bad[0] else good(request)

    async with hostile(reply) as (server, caller), caller.sessions() as sessions:
        with pytest.raises(RemoteFailureError):
            await sessions.tools(server)
        bad[0] = False
        assert [tool.name for tool in await sessions.tools(server)] == ["t0"]
