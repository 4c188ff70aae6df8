"""Define the tools and questions of scenarios, for both APIs."""

from __future__ import annotations

from typing import Any

__all__ = [
    "DEFERRED",
    "FLIP",
    "LOCAL_SHELL",
    "MARKUP",
    "NOTE",
    "PATCH",
    "PLACES",
    "SEARCH",
    "SHELL",
    "flat",
    "flipping",
    "function",
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


weather = function("get_weather", schema("city"))
time = function("get_time", schema("zone"))
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
