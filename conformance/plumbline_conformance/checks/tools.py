"""The tools and questions that scenarios use, in the forms of both APIs."""

from __future__ import annotations

from typing import Any

__all__ = ["PLACES", "flat", "function", "schema", "weather", "words"]

PLACES = "Use get_weather with city Paris. Use get_time with zone Rome."
"""A question that asks for two calls."""


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
