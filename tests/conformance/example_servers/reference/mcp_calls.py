"""Call the tools of MCP servers, and write their items (TOOL-17, TOOL-21)."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any
from urllib.error import URLError
from urllib.request import Request, urlopen

from example_servers.reference.model_output import pieces

__all__ = ["Step", "shown", "steps"]

Json = dict[str, Any]
Step = tuple[Json, list[tuple[str, Json]], Json]
"""An item as it is added, the events of its life with their fields, and the item at its end."""
_SECRET = ("authorization", "headers")


def shown(tool: Json) -> Json:
    """Return a tool as a response shows it, without credentials."""
    return {name: value for name, value in tool.items() if name not in _SECRET}


def steps(name: str, body: Json, context: list[Json], question: str) -> Iterator[Step]:
    """Yield the items of the tools that this server calls.

    Args:
        name: the id of the response.
        body: the request.
        context: all items before the answer.
        question: the last message of the user; empty if that is not the last item.
    """
    for server in [tool for tool in body.get("tools") or [] if tool["type"] == "mcp"]:
        label = server["server_label"]
        lists = [item for item in context if item["type"] == "mcp_list_tools"]
        if all(item["server_label"] != label for item in lists):
            yield (listed := _listed(f"mcpl_{name}", server))
            lists.append(listed[2])
        known = [tool["name"] for item in lists if item["server_label"] == label for tool in item["tools"]]
        wanted = [tool for tool in known for _ in range(question.count(f"Use {label}__{tool}"))]
        asked = {item["id"]: item for item in context if item["type"] == "mcp_approval_request"}
        for place, tool in enumerate(wanted[: body.get("max_tool_calls")]):
            arguments = json.dumps({"fail": {"reason": "rain"}}.get(tool, {"city": "Paris"}))
            if server.get("require_approval") == "always":
                yield _approval(f"mcpr_{name}_{place}", label, tool, arguments)
            else:
                yield _called(f"mcp_{name}_{place}", server, tool, arguments)
        for place, item in enumerate(context):
            if item["type"] == "mcp_approval_response" and item["approve"]:
                made = asked[item["approval_request_id"]]
                found = _called(f"mcp_{name}_{place}", server, made["name"], made["arguments"], made["id"])
                yield found


def _approval(name: str, label: str, tool: str, arguments: str) -> Step:
    item = {
        "type": "mcp_approval_request",
        "id": name,
        "server_label": label,
        "name": tool,
        "arguments": arguments,
    }
    return item, [], item


def _listed(name: str, server: Json) -> Step:
    begun = {"type": "mcp_list_tools", "id": name, "server_label": server["server_label"], "tools": []}
    try:
        found = _asked(server, "tools/list", {})["tools"]
    except URLError as error:
        return begun, _life("list_tools", "failed"), {**begun, "error": str(error)}
    tools = [
        {"name": tool["name"], "description": tool["description"], "input_schema": tool["inputSchema"]}
        for tool in found
        if tool["name"] in server["allowed_tools"]
    ]
    return begun, _life("list_tools", "completed"), {**begun, "tools": tools}


def _called(name: str, server: Json, tool: str, arguments: str, approved: str | None = None) -> Step:
    item = {"type": "mcp_call", "id": name, "server_label": server["server_label"], "name": tool}
    begun = {**item, "arguments": "", "output": None, "error": None, "status": "in_progress"}
    result = _asked(server, "tools/call", {"name": tool, "arguments": json.loads(arguments)})
    written = [("mcp_call_arguments.delta", {"delta": piece}) for piece in pieces(arguments)]
    written.append(("mcp_call_arguments.done", {"arguments": arguments}))
    ended: Json = {"status": "completed", "output": result["content"][0]["text"]}
    if result["isError"]:
        error = {"type": "mcp_tool_execution_error", "content": result["content"]}
        ended = {"status": "failed", "error": error}
    begin, end = _life("call", str(ended["status"]))
    item = {**begun, "arguments": arguments, "approval_request_id": approved, **ended}
    return begun, [begin, *written, end], item


def _life(kind: str, end: str) -> list[tuple[str, Json]]:
    return [(f"mcp_{kind}.in_progress", {}), (f"mcp_{kind}.{end}", {})]


def _asked(server: Json, method: str, params: Json) -> Any:
    """Ask the MCP server, and return its result."""
    message = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}
    headers = {"content-type": "application/json", "accept": "application/json, text/event-stream"}
    asked = Request(server["server_url"], json.dumps(message).encode(), headers)
    with urlopen(asked, timeout=30) as answer:
        return json.load(answer)["result"]
