"""Check schemas against OpenAI's strict subset of JSON Schema (SO-03)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

__all__ = ["strict_violation"]

_SUBSCHEMAS = ("items", "additionalProperties", "not", "contains")
_LISTS = ("anyOf", "allOf", "oneOf", "prefixItems")
_MAPS = ("properties", "$defs", "definitions", "patternProperties")


def strict_violation(schema: Any) -> str | None:
    """Return the first violation of the strict subset, worded as by the OpenAI API; None if the schema complies.

    The root is an object, and every object has `additionalProperties: false` and requires all its properties. Other
    restrictions of OpenAI's subset do not apply: the grammar decides what can be enforced.
    """
    if not isinstance(schema, Mapping):
        return "the schema must be an object"
    if schema.get("type") != "object":
        return f"schema must be a JSON Schema of 'type: \"object\"', got 'type: {_shown(schema.get('type'))}'"
    left: list[tuple[tuple[str, ...], Any]] = [((), schema)]
    while left:
        context, value = left.pop()
        if not isinstance(value, Mapping):
            continue
        violation = _of_object(context, value)
        if violation is not None:
            return violation
        children = [((*context, name), value[name]) for name in _SUBSCHEMAS if name in value]
        for name in _LISTS:
            items = value.get(name)
            if isinstance(items, list):
                children += [((*context, name, str(index)), item) for index, item in enumerate(items)]
        for name in _MAPS:
            members = value.get(name)
            if isinstance(members, Mapping):
                children += [((*context, name, key), item) for key, item in members.items()]
        left += reversed(children)
    return None


def _of_object(context: tuple[str, ...], schema: Mapping[str, Any]) -> str | None:
    kind = schema.get("type")
    if kind != "object" and not (isinstance(kind, list) and "object" in kind) and "properties" not in schema:
        return None
    where = f"In context={context!r}"
    if schema.get("additionalProperties") is not False:
        return f"{where}, 'additionalProperties' is required to be supplied and to be false"
    properties = schema.get("properties", {})
    required = schema.get("required", [])
    if not isinstance(properties, Mapping) or not isinstance(required, list):
        return f"{where}, 'properties' must be an object and 'required' an array"
    missing = next((name for name in properties if name not in required), None)
    if missing is not None:
        return (
            f"{where}, 'required' is required to be supplied and to be an array including every key in properties. "
            f"Missing '{missing}'"
        )
    return None


def _shown(kind: Any) -> str:
    return "None" if kind is None else f'"{kind}"'
