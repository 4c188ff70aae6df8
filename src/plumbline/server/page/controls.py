"""Read from the contract which parameters a request may have that a form can show: numbers, switches and choices."""

from __future__ import annotations

import json
from functools import cache
from importlib.resources import files
from typing import Any

from plumbline.server.page.files import PageFile

__all__ = ["contract", "controls"]

OPERATIONS = {
    "chat": "/v1/chat/completions",
    "completions": "/v1/completions",
    "responses": "/v1/responses",
    "messages": "/v1/messages",
}
_OWN = frozenset({"background", "input", "model", "previous_response_id", "prompt", "stream", "system"})
"""Members that the page sets itself."""


@cache
def contract() -> dict[str, Any]:
    """Return the contract as data."""
    text = files("plumbline_conformance._generated").joinpath("openapi.json").read_bytes()
    found: dict[str, Any] = json.loads(text)
    return found


@cache
def controls() -> PageFile:
    """Return the scalar parameters of the four operations as JSON: names, kinds, ranges, defaults, descriptions."""
    found = {name: _parameters(path) for name, path in OPERATIONS.items()}
    return PageFile.of(json.dumps(found, separators=(",", ":")).encode(), "application/json")


def _parameters(path: str) -> list[dict[str, Any]]:
    body = contract()["paths"][path]["post"]["requestBody"]["content"]["application/json"]["schema"]
    required = _resolved(body).get("required", [])
    found = []
    for name, schema in _resolved(body)["properties"].items():
        control = _control(schema)
        if control and name not in _OWN:
            found.append({"name": name, "required": name in required, **control})
    return found


def _control(schema: dict[str, Any]) -> dict[str, Any] | None:
    """Describe a parameter; None if it is not a scalar."""
    merged = {**schema}
    for choice in schema.get("anyOf", ()):
        merged = {**_resolved(choice), **merged} if _resolved(choice).get("type") != "null" else merged
    kinds = merged.get("type", [])
    kind = next((each for each in ([kinds] if isinstance(kinds, str) else kinds) if each != "null"), None)
    if kind not in ("boolean", "integer", "number", "string"):
        return None
    kept = ("enum", "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "default", "description")
    return {
        "kind": kind,
        "deprecated": merged.get("deprecated", False),
        **{key: merged[key] for key in kept if key in merged},
    }


def _resolved(schema: dict[str, Any]) -> dict[str, Any]:
    while "$ref" in schema:
        schema = contract()["components"]["schemas"][schema["$ref"].rpartition("/")[2]]
    return schema
