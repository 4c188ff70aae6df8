"""The tools and questions that scenarios use, in the forms of both APIs."""

from __future__ import annotations

from typing import Any

__all__ = ["FLIP", "PLACES", "flat", "flipping", "function", "schema", "weather", "words"]

PLACES = "Use get_weather with city Paris. Use get_time with zone Rome."
"""A question that asks for two calls."""
FLIP = "Use set_flags with 30 flags, all of them true."
"""A question that asks for a long call."""


def schema(name: str) -> dict[str, Any]:
    """An object with one required string."""
    return {
        "type": "object",
        "properties": {name: {"type": "string"}},
        "required": [name],
        "additionalProperties": False,
    }


def function(name: str, parameters: dict[str, Any]) -> dict[str, Any]:
    """A tool of chat completions."""
    held = {"name": name, "description": f"The tool {name}.", "parameters": parameters}
    return {"type": "function", "function": held}


def flat(tool: dict[str, Any]) -> dict[str, Any]:
    """The same tool, as the Responses API has it."""
    more = {"strict": False} if tool["type"] == "function" else {}
    return {"type": tool["type"], **tool[tool["type"]], **more}


weather = function("get_weather", schema("city"))
time = function("get_time", schema("zone"))
ping = function("ping", {"type": "object", "properties": {}})
words = {
    "type": "custom",
    "custom": {
        "name": "write",
        "description": "Writes a year.",
        "format": {"type": "grammar", "grammar": {"syntax": "regex", "definition": "[0-9]{4}"}},
    },
}


def flipping() -> dict[str, Any]:
    """The fields of a request whose call has to be long, and is free at each place of its list.

    What leaves no choice may honestly be written at once.
    """
    flags = {"type": "array", "items": {"type": "boolean"}, "minItems": 30, "maxItems": 30}
    held = {
        "type": "object",
        "properties": {"flags": flags},
        "required": ["flags"],
        "additionalProperties": False,
    }
    tool = function("set_flags", held)
    tool["function"]["strict"] = True
    return {"tools": [tool], "tool_choice": {"type": "function", "function": {"name": "set_flags"}}}
