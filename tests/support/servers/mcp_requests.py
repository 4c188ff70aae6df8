"""Send requests with MCP tools to a server beside an MCP server of the official SDK."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from openai.types.responses import ResponseOutputItem, ResponseStreamEvent
from pydantic import TypeAdapter

from support.judges import check_response, fold_response
from support.servers.asgi import Server, serving
from support.servers.mcp_server import McpHost, running_mcp_server
from support.speaking import speaking

Json = dict[str, Any]
RESPONSES = "/v1/responses"
OFFICIAL: TypeAdapter[Any] = TypeAdapter(ResponseOutputItem)
OFFICIAL_EVENT: TypeAdapter[Any] = TypeAdapter(ResponseStreamEvent)
USER = {"role": "user", "content": "hi"}
SECRET = "credential-of-the-client"


def call(name: str, arguments: Any) -> str:
    """Return a call as the model writes it."""
    return f'<tool_call>\n{{"name": "{name}", "arguments": {json.dumps(arguments)}}}\n</tool_call>'


ADD = call("box__add", {"a": 1, "b": 2})


@asynccontextmanager
async def running(
    *texts: str, prompts: list[str] | None = None, **settings: Any
) -> AsyncIterator[tuple[Server, McpHost]]:
    """Run an MCP server, and a server that may call it with a model that says these texts in turn."""
    async with running_mcp_server() as host:
        settings = {"allow_mcp": (host.host,), **settings}
        async with serving(speaking(*texts, grammars=True, prompts=prompts), **settings) as server:
            yield server, host


async def respond(server: Server, stream: bool = False, **fields: Any) -> Json:
    answer = await server.post(
        RESPONSES, {"model": "test-model", "input": [USER], "stream": stream, **fields}
    )
    assert answer.status == 200, answer.body
    if stream:
        events = [event.json for event in answer.events if event.data != "[DONE]"]
        for event in events:
            assert OFFICIAL_EVENT.validate_python(event).type == event["type"]
        final = fold_response(events)
    else:
        final = answer.json
        check_response(final)
    for item in final["output"]:
        assert OFFICIAL.validate_python(item).type == item["type"]
    return final


async def refused(server: Server, **fields: Any) -> Json:
    answer = await server.post(RESPONSES, {"model": "test-model", "input": "hi", **fields})
    assert answer.status == 400, answer.body
    return answer.error


def kinds(response: Json) -> list[str]:
    return [item["type"] for item in response["output"]]


def calls_of(response: Json) -> list[Json]:
    return [item for item in response["output"] if item["type"] == "mcp_call"]
