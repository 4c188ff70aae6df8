"""Derive a few values of a schema in which each branch, optional member and enumerated value occurs at least once.

Texts are those that a place needs: a URL of an image where an image is sent, JSON where arguments are sent.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Any

from plumbline_conformance.suite.contract import document

__all__ = ["TAGS", "kind_of", "resolved", "samples"]

Json = dict[str, Any]
DEPTH = 5
"""Members within members that vary; below, only what is required is sent."""
TAGS = ("type", "role", "object")


def samples(
    node: Json, texts: Mapping[str, Any], left_out: Collection[str] = (), depth: int = 0
) -> list[Any]:
    """Return values of a schema; the first one of an object has no optional member.

    Args:
        node: the schema, or a reference to one of the contract.
        texts: by the name of a member, the value that it needs.
        left_out: names of optional members that are not sent.
        depth: how many objects contain the value.

    >>> samples({"type": "object", "required": ["a"], "properties": {"a": {"enum": [1, 2]}, "b": {}}}, {})
    [{'a': 1}, {'a': 1, 'b': 'a'}, {'a': 2, 'b': 'a'}]
    """
    node = resolved(node)
    if "enum" in node or "const" in node:
        return list(node.get("enum", (node.get("const"),)))
    branches = [branch for key in ("anyOf", "oneOf") for branch in node.get(key, ())]
    if branches:
        return [found for branch in branches for found in samples(branch, texts, left_out, depth)]
    kinds = node.get("type", "object" if "properties" in node else "string")
    kind = next((one for one in (kinds if isinstance(kinds, list) else [kinds]) if one != "null"), "null")
    match kind:
        case "object":
            return list(_objects(node, texts, left_out, depth))
        case "array":
            return list(_arrays(resolved(node.get("items", {})), texts, left_out, depth))
        case "integer" | "number":
            return [node.get("minimum", 1)]
        case "boolean":
            return [True]
        case "null":
            return []
    return ["a"]


def _arrays(
    items: Json, texts: Mapping[str, Any], left_out: Collection[str], depth: int
) -> Iterator[list[Any]]:
    """Yield the plainest element alone, and then an array of all samples of each branch of the elements."""
    branches = [branch for key in ("anyOf", "oneOf") for branch in items.get(key, ())] or [items]
    for place, branch in enumerate(branches):
        found = samples(branch, texts, left_out, depth)
        if place == 0 and len(found) > 1:
            yield found[:1]
        if found:
            yield found


def _objects(node: Json, texts: Mapping[str, Any], left_out: Collection[str], depth: int) -> Iterator[Json]:
    """Yield the required members alone, and rows in which each optional member takes each of its values."""
    needed = set(node.get("required", ()))
    members = _members(node, texts, left_out, depth)
    yield {name: found[0] for name, found in members.items() if name in needed}
    varied = {name for name, found in members.items() if name not in needed or len(found) > 1}
    if node.get("x-hosted"):
        varied &= needed
    if depth < DEPTH and varied:
        shown = {name: found for name, found in members.items() if name in needed | varied}
        for place in range(max(len(members[name]) for name in varied)):
            yield {name: found[place % len(found)] for name, found in shown.items()}


def _members(
    node: Json, texts: Mapping[str, Any], left_out: Collection[str], depth: int
) -> dict[str, list[Any]]:
    """Return the values of each member that is sent."""
    needed = node.get("required", ())
    found = {}
    for name, member in node.get("properties", {}).items():
        if name not in needed and ("x-extension" in member or name in left_out):
            continue
        own = name in texts and _takes(member, texts[name])
        found[name] = [texts[name]] if own else samples(member, texts, left_out, depth + 1)
    return {name: values for name, values in found.items() if values}


def _takes(node: Json, value: Any) -> bool:
    """Return whether a schema has values of the type of this one."""
    node = resolved(node)
    branches = [branch for key in ("anyOf", "oneOf") for branch in node.get(key, ())]
    if branches:
        return any(_takes(branch, value) for branch in branches)
    kind = "string" if isinstance(value, str) else "array" if isinstance(value, list) else "object"
    return kind in node.get("type", kind)


def resolved(node: Json) -> Json:
    """Return a schema of the contract, or the one that it refers to."""
    while "$ref" in node:
        node = document()["components"]["schemas"][node["$ref"].rpartition("/")[2]]
    return node


def kind_of(node: Json) -> str:
    """Return the constant by which an object names its kind, such as the value of `type`; empty without one."""
    members = node.get("properties", {})
    for name in TAGS:
        found = resolved(members.get(name, {}))
        if "const" in found or len(found.get("enum", ())) == 1:
            return str(found.get("const", *found.get("enum", ())))
    return ""
