"""The members of all request schemas of the contract, by what a client can make of them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from importlib.resources import files
from typing import Any

__all__ = ["is_large", "members", "scalars", "unbounded"]

DOCUMENT = json.loads(files("plumbline_conformance._generated").joinpath("openapi.json").read_text("utf-8"))
SCHEMAS = DOCUMENT["components"]["schemas"]
SMALL = 4_096
"""Strings and lists that may be longer than this need a row of their own."""

Json = dict[str, Any]


def roots() -> dict[str, str]:
    """Return the name of the request schema of every path that takes a body."""
    return {
        path: operation["requestBody"]["content"]["application/json"]["schema"]["$ref"].rpartition("/")[2]
        for path, operations in DOCUMENT["paths"].items()
        for operation in operations.values()
        if isinstance(operation, dict) and "requestBody" in operation
    }


def members() -> dict[str, list[Json]]:
    """Return the alternatives of every member of every schema that a request can reach, by `Schema.member`."""
    found: dict[str, list[Json]] = {}
    for root in roots().values():
        _visit(root, found)
    return found


def _visit(name: str, found: dict[str, list[Json]]) -> None:
    schema = SCHEMAS[name]
    if name in found or any(key.startswith(f"{name}.") for key in found):
        return
    if "properties" not in schema:
        found[name] = list(_alternatives(schema))
    for key, value in schema.get("properties", {}).items():
        found[f"{name}.{key}"] = list(_alternatives(value))
    for reference in _references(schema):
        _visit(reference, found)


def _references(node: Any) -> Iterator[str]:
    if isinstance(node, dict):
        if isinstance(node.get("$ref"), str):
            yield node["$ref"].rpartition("/")[2]
        for value in node.values():
            yield from _references(value)
    elif isinstance(node, list):
        for value in node:
            yield from _references(value)


def _alternatives(schema: Json) -> Iterator[Json]:
    """Yield what a member may be, without null and without other schemas, which are visited by themselves."""
    if "anyOf" in schema:
        for alternative in schema["anyOf"]:
            yield from _alternatives(alternative)
    elif isinstance(schema.get("type"), list):
        for kind in schema["type"]:
            yield from _alternatives({**schema, "type": kind})
    elif schema.get("type") not in ("null", None) and "enum" not in schema and "const" not in schema:
        yield schema
        if schema["type"] == "array":
            yield from _alternatives(schema["items"])


def unbounded(schema: Json) -> bool:
    """Return whether a string, list or map has no maximum."""
    match schema["type"]:
        case "string":
            return "maxLength" not in schema and "pattern" not in schema
        case "array":
            return "maxItems" not in schema
        case "object":
            return "properties" not in schema and "maxProperties" not in schema
        case _:
            return False


def is_large(schema: Json) -> bool:
    """Return whether a value can cost something: a list, a map, or a string that is not short."""
    return schema["type"] in ("array", "object") or schema.get("maxLength", 0) >= SMALL


def scalars(path: str) -> Iterator[tuple[str, Any]]:
    """Yield extreme values for the members of a request that are booleans, numbers, enums or short strings.

    These cannot be large, so their rows follow from their type: the largest and the smallest value that the contract
    allows.
    """
    for key, value in SCHEMAS[roots()[path]]["properties"].items():
        for schema in _alternatives(value):
            match schema["type"]:
                case "boolean":
                    yield key, True
                case "integer" | "number":
                    yield key, schema.get("maximum", 2**62)
                    yield key, schema.get("minimum", schema.get("exclusiveMinimum", 0))
                case "string" if "maxLength" in schema and not is_large(schema):
                    yield key, "x" * schema["maxLength"]
