"""Derive the faults of one JSON value: drop, change, empty, repeat and reverse every member."""

from __future__ import annotations

from collections.abc import Iterator
from copy import deepcopy
from functools import cache
from typing import Any

from plumbline_conformance.suite.contract import document

__all__ = ["faults_of"]

Path = tuple[str | int, ...]


def faults_of(value: Any) -> Iterator[tuple[str, Any]]:
    """Yield a name and a changed copy for every fault of every member; of lists only the first element is changed.

    Names are such as `drop choices.0.message` and `other finish_reason=length`.
    """
    for path, member in _members(value):
        for name, changed in _changes(path, member):
            copy = deepcopy(value)
            if changed is _DROPPED:
                del _at(copy, path[:-1])[path[-1]]
            else:
                _at(copy, path[:-1])[path[-1]] = changed
            shown, _, choice = name.partition("=")
            yield f"{shown} {'.'.join(map(str, path))}{'=' if choice else ''}{choice}", copy


_DROPPED = object()


def _members(value: Any, path: Path = ()) -> Iterator[tuple[Path, Any]]:
    """Yield every member of an object and of what is within it."""
    if isinstance(value, dict):
        for key, member in value.items():
            yield (*path, key), member
            yield from _members(member, (*path, key))
    if isinstance(value, list) and value:
        yield (*path, 0), value[0]
        yield from _members(value[0], (*path, 0))


def _changes(path: Path, member: Any) -> Iterator[tuple[str, Any]]:
    """Yield the faults of one member: values of its own type, and one of another type."""
    if isinstance(path[-1], str):
        yield "drop", _DROPPED
    match member:
        case bool():
            yield "negate", not member
            yield "retype", "true"
        case int() | float():
            yield "add", member + 1
            yield "negative", -1 - abs(member)
            yield "retype", str(member)
        case str():
            yield "append", f"{member}x"
            yield "retype", 7
            if member:
                yield "empty", ""
            for choice in _choices(str(path[-1])):
                if member in _choices(str(path[-1])) and choice != member:
                    yield f"other={choice}", choice
        case list():
            yield "retype", {}
            if member:
                yield "empty", []
                yield "repeat", [*member, member[-1]]
            if member != member[::-1]:
                yield "reverse", member[::-1]
        case dict():
            yield "retype", []
            if member:
                yield "empty", {}
        case None:
            yield "fill", "x"


@cache
def _choices(name: str) -> tuple[str, ...]:
    """Return the values that some schema lists for a member of this name."""
    found: dict[str, None] = {}
    for node in _nodes(document()["components"]["schemas"]):
        member = node.get("properties", {}).get(name) if isinstance(node.get("properties"), dict) else None
        for one in _nodes(member):
            found.update(dict.fromkeys(value for value in one.get("enum", ()) if isinstance(value, str)))
    return tuple(found) if name in ENUMERATED else ()


ENUMERATED = ("finish_reason", "status", "role", "reason", "tool_choice", "truncation")
"""Members whose other values are faults, too. Other enumerations, such as of types, are covered by `append`."""


def _nodes(value: Any) -> Iterator[dict[str, Any]]:
    if isinstance(value, dict):
        yield value
        for member in value.values():
            yield from _nodes(member)
    elif isinstance(value, list):
        for member in value:
            yield from _nodes(member)


def _at(value: Any, path: Path) -> Any:
    for part in path:
        value = value[part]
    return value
