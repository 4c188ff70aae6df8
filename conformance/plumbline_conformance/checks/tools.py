"""Define the tools and questions of scenarios, for both APIs."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterator
from typing import Any

from plumbline_conformance.suite.scenario import Target
from plumbline_conformance.transcript.answer_fold import objects_in

__all__ = [
    "DEFERRED",
    "FLIP",
    "LOCAL_SHELL",
    "MARKUP",
    "MCP_LABEL",
    "MCP_PATH",
    "MCP_SECRET",
    "MCP_TOOLS",
    "NESTED",
    "NOTE",
    "PARALLEL",
    "PARALLEL_RESULTS",
    "PATCH",
    "PLACES",
    "RESULTS",
    "SEARCH",
    "SET_TYPED",
    "SHELL",
    "TYPED",
    "TYPES",
    "flat",
    "flipping",
    "function",
    "left_in_text",
    "long_named",
    "mcp",
    "mcp_result",
    "noting",
    "schema",
    "weather",
    "words",
]

PLACES = "Use get_weather with city Paris. Use get_time with zone Rome."
"""A question that should lead to two calls."""
FLIP = "Use set_flags with 30 flags, all of them true."
"""A question that should lead to a long call."""
NOTE = (
    "Use write_note with text one two three four five six seven eight nine ten eleven twelve "
    "thirteen fourteen fifteen sixteen seventeen eighteen nineteen twenty."
)
"""A question that should lead to a call with a long string."""
SHELL: dict[str, Any] = {"type": "shell", "environment": {"type": "local"}}
LOCAL_SHELL: dict[str, Any] = {"type": "local_shell"}
PATCH: dict[str, Any] = {"type": "apply_patch"}
SEARCH: dict[str, Any] = {"type": "tool_search", "execution": "client"}
MARKUP = ("<tool_call", "</tool_call", "[TOOL_CALLS]", "<|python_tag|>", "<function=", "<|tool_call")
"""The markup of calls that servers fail to take out of the text."""
_BEGUN = re.compile("(?:" + "|".join(map(re.escape, MARKUP)) + r")>?\s*(?=[\[{])")
_NAMED = re.compile(r"<function=([^>]+)>.*?</function>", re.DOTALL)


NESTED: dict[str, Any] = {
    "type": "object",
    "properties": {
        "greeting": {"type": "string", "enum": ["Grüß dich, 世界 🌊"]},
        "place": {
            "type": "object",
            "properties": {
                "name": {"type": "string", "enum": ["Zürich", "São Paulo"]},
                "position": {
                    "type": "object",
                    "properties": {"north": {"type": "boolean"}, "east": {"type": "boolean"}},
                    "required": ["north", "east"],
                    "additionalProperties": False,
                },
            },
            "required": ["name", "position"],
            "additionalProperties": False,
        },
        "tags": {
            "type": "array",
            "items": {"type": "string", "enum": ["α", "β"]},
            "minItems": 2,
            "maxItems": 2,
        },
    },
    "required": ["greeting", "place", "tags"],
    "additionalProperties": False,
}
"""Objects in objects and an array, with text of two to four bytes a character, which tokens may cut."""
TYPED: dict[str, Any] = {
    "type": "object",
    "properties": {
        "count": {"type": "integer", "enum": [3, 4]},
        "ratio": {"type": "number", "enum": [0.5, 1.5]},
        "on": {"type": "boolean"},
        "place": NESTED["properties"]["place"],
        "tags": NESTED["properties"]["tags"],
    },
    "required": ["count", "ratio", "on", "place", "tags"],
    "additionalProperties": False,
}
"""The parameters of a tool: a value of each type."""
RESULTS = {
    "short": "21 °C",
    "long": "21 °C, with clouds from the west, rain in the evening and a strong wind from the sea",
}
"""Results of a tool, by the name of the request that sends it."""
TYPES: dict[str, Any] = {
    "type": "object",
    "properties": {
        name: {"type": found.get("type")} for name, found in TYPED["properties"].items() if "type" in found
    },
}
"""The types of these parameters alone; values beyond them are the model's choice if a tool is not strict."""
SET_TYPED = "Use set_values with count 3, ratio 0.5, on true, place Zürich and tags α and β."


def schema(name: str) -> dict[str, Any]:
    """Return the schema of an object with one required string."""
    return {
        "type": "object",
        "properties": {name: {"type": "string"}},
        "required": [name],
        "additionalProperties": False,
    }


def function(name: str, parameters: dict[str, Any]) -> dict[str, Any]:
    """Return a tool of chat completions."""
    definition = {"name": name, "description": f"The tool {name}.", "parameters": parameters}
    return {"type": "function", "function": definition}


def flat(tool: dict[str, Any]) -> dict[str, Any]:
    """Return the tool in the format of the Responses API."""
    more = {"strict": False} if tool["type"] == "function" else {}
    return {"type": tool["type"], **tool[tool["type"]], **more}


MCP_LABEL = "judge"
"""How requests name the MCP server of the judge."""
MCP_PATH = "/mcp"
MCP_SECRET = "credential-of-the-judge-for-mcp"
"""What requests send for the MCP server, and no answer may contain."""
MCP_TOOLS: list[dict[str, Any]] = [
    {"name": "get_time", "description": "Get the time in a city.", "inputSchema": schema("city")},
    {"name": "fail", "description": "Fail for a reason.", "inputSchema": schema("reason")},
]


def mcp(target: Target, tool: str, **fields: Any) -> dict[str, Any]:
    """Return the MCP server of the judge as a tool of a request, with one of its tools.

    If the target has no such server, a placeholder is its address: `explain` shows requests without sending them.
    """
    return {
        "type": "mcp",
        "server_label": MCP_LABEL,
        "server_url": f"http://{target.mcp or 'HOST:PORT'}{MCP_PATH}",
        "authorization": MCP_SECRET,
        "allowed_tools": [tool],
        "require_approval": "never",
        **fields,
    }


def mcp_result(name: str, arguments: dict[str, Any]) -> tuple[str, bool]:
    """Return the text of a call of the judge's MCP server, and whether the call failed."""
    if name == "get_time" and isinstance(arguments.get("city"), str):
        return f"It is noon in {arguments['city']}.", False
    return "The tool failed, as it should.", True


weather = function("get_weather", schema("city"))
time = function("get_time", schema("zone"))
long_named = {**weather, "function": {**weather["function"], "name": "get_weather".ljust(64, "_")}}
"""A tool whose name is as long as the document allows."""
PARALLEL: list[dict[str, Any]] = [
    {
        "id": f"call_{n}",
        "type": "function",
        "function": {"name": "get_weather", "arguments": '{"city": "Rome"}'},
    }
    for n in (1, 2)
]
"""Two calls of one message."""
PARALLEL_RESULTS = [{"role": "tool", "tool_call_id": call["id"], "content": "21 °C"} for call in PARALLEL]
ping = function("ping", {"type": "object", "properties": {}})
DEFERRED: dict[str, Any] = {**flat(weather), "defer_loading": True}
"""A function that a search loads."""
words = {
    "type": "custom",
    "custom": {
        "name": "write",
        "description": "Writes a year.",
        "format": {"type": "grammar", "grammar": {"syntax": "regex", "definition": "[0-9]{4}"}},
    },
}


def left_in_text(text: str, names: Collection[str]) -> Iterator[str]:
    """Yield whole calls of these tools that a text has in the markup of a model.

    Half of a call, or one of an unknown tool, may be what the model wrote instead of a call.
    """
    yield from (found[0] for found in _NAMED.finditer(text) if found[1] in names)
    for begun in _BEGUN.finditer(text):
        try:
            value, end = json.JSONDecoder().raw_decode(text, begun.end())
        except (ValueError, RecursionError):
            continue
        if any(one.get("name") in names for one in objects_in(value if isinstance(value, list) else [value])):
            yield text[begun.start() : end]


def noting() -> dict[str, Any]:
    """Return the fields of a request that forces a call whose argument is a free string.

    Inside a string, a model cannot write white space instead of content.
    """
    tool = function("write_note", schema("text"))
    tool["function"]["strict"] = True
    return {"tools": [tool], "tool_choice": {"type": "function", "function": {"name": "write_note"}}}


def flipping() -> dict[str, Any]:
    """Return the fields of a request that forces a long call with a free choice for each list item.

    A server may send a call without free choices in one piece.
    """
    flags = {"type": "array", "items": {"type": "boolean"}, "minItems": 30, "maxItems": 30}
    parameters = {
        "type": "object",
        "properties": {"flags": flags},
        "required": ["flags"],
        "additionalProperties": False,
    }
    tool = function("set_flags", parameters)
    tool["function"]["strict"] = True
    return {"tools": [tool], "tool_choice": {"type": "function", "function": {"name": "set_flags"}}}
