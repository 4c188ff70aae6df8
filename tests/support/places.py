"""Put a value into every place that a request of the contract has."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from importlib.resources import files
from typing import Any

__all__ = ["MARK", "requests_with"]

Json = dict[str, Any]

MARK = "@@value@@"
_DOCUMENT = json.loads(files("plumbline_conformance._generated").joinpath("openapi.json").read_text("utf-8"))
_SCHEMAS = _DOCUMENT["components"]["schemas"]
_DEEPEST = 10


def requests_with(
    root: str, fixed: Mapping[str, Any], *, untyped: bool = False
) -> Iterator[tuple[str, Json]]:
    """Yield small requests, each with `MARK` in another place, and the name of the place.

    A schema that stands in several places is walked in the first of them.

    Args:
        root: the name of the request's schema.
        fixed: members that every request has, unless the value stands in them.
        untyped: only places that take any JSON.
    """
    for place, body in _with_mark({"$ref": f"/{root}"}, set(), untyped=untyped):
        if isinstance(body, dict):
            member = place.lstrip(".").partition(".")[0].partition("[")[0]
            yield place, {**body, **{name: value for name, value in fixed.items() if name != member}}


def _with_mark(schema: Json, seen: set[str], depth: int = 0, *, untyped: bool) -> Iterator[tuple[str, Any]]:
    reference = schema.get("$ref")
    if depth > _DEEPEST or reference in seen:
        return
    if reference is not None:
        seen.add(reference)
    for one in _alternatives(schema):
        if not untyped or "type" not in one:
            yield "", MARK
        if "properties" in one:
            least = _least(one, depth)
            for name, value in one["properties"].items():
                if "const" not in value and "enum" not in value:
                    for place, inner in _with_mark(value, seen, depth + 1, untyped=untyped):
                        yield f".{name}{place}", {**least, name: inner}
        elif one.get("type") == "object":
            yield ".*", {"name": MARK}
        elif "items" in one:
            for place, inner in _with_mark(one["items"], seen, depth + 1, untyped=untyped):
                yield f"[]{place}", [inner]


def _alternatives(schema: Json) -> list[Json]:
    while "$ref" in schema:
        schema = _SCHEMAS[schema["$ref"].rpartition("/")[2]]
    if "anyOf" in schema:
        return [one for each in schema["anyOf"] for one in _alternatives(each)]
    if "allOf" in schema:
        whole: Json = {"type": "object", "properties": {}, "required": []}
        for part in map(_alternatives, schema["allOf"]):
            whole["properties"] |= part[0].get("properties", {})
            whole["required"] += part[0].get("required", [])
        return [whole]
    kinds = schema.get("type")
    return [{**schema, "type": kind} for kind in kinds] if isinstance(kinds, list) else [schema]


def _least(schema: Json, depth: int = 0) -> Any:
    """Return a small value of a schema."""
    schema = _alternatives(schema)[0] if depth <= _DEEPEST else {"type": "string"}
    if "const" in schema or "enum" in schema:
        return schema["const"] if "const" in schema else schema["enum"][0]
    match schema.get("type"):
        case "object":
            members = schema.get("properties", {})
            return {
                name: _least(members[name], depth + 1)
                for name in schema.get("required", ())
                if name in members
            }
        case "array":
            return [_least(schema["items"], depth + 1)] * schema.get("minItems", 0)
        case "integer" | "number":
            return max(1, schema.get("minimum", 1))
        case "boolean":
            return False
        case "string":
            return "x" * max(1, schema.get("minLength", 1))
        case _:
            return None
