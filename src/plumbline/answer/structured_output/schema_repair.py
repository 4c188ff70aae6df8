"""Read JSON Schemas whose keywords have values that the standard forbids but whose meaning is plain.

Generators and clients write them: C# and Java write `"required": null`, PHP writes `[]` for an empty object, Google's
clients write `"type": "STRING"`, drafts 3 and 4 had other forms. A valid schema is never changed.

| written | read as |
|---|---|
| null, except as `const` and in lists of values | the keyword is left out |
| a type in other capitals or of another language (`STRING`, `int`) | the type of JSON Schema; `any` is left out |
| a type or required name twice | once |
| a dependency that is null, or one name | left out, a list of this name |
| `required: true` of a property (draft 3), `required: "a"` | a name in the `required` list |
| `[]` in the place of an object (PHP) | `{}` |
| an empty list of schemas | the keyword is left out |
| a number or boolean as a text (`"20"`, `"false"`) | the number, the boolean |
| a count below zero as a minimum | the keyword is left out |
| an annotation of a wrong type (`"title": 5`) | the keyword is left out |
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from plumbline.answer.dialects.streams.coercion import TYPE_ALIASES
from plumbline.answer.structured_output.schema_check import (
    COUNTS,
    LISTS,
    MAPS,
    SCHEMAS,
    TOO_MANY,
    TYPES,
    schema_violation,
)
from plumbline.base.exact_number import exact_number

__all__ = ["repaired"]

_MAX_DEPTH = 100
"""Levels of a schema that are repaired; deeper ones stay as they are."""
_NUMBERS = COUNTS | {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"}
_BOUNDS = frozenset(("exclusiveMinimum", "exclusiveMaximum"))
_LOWER_COUNTS = frozenset(("minLength", "minItems", "minProperties", "minContains"))
_ANNOTATIONS = frozenset(
    (
        *("title", "description", "$comment", "examples", "deprecated", "readOnly", "writeOnly"),
        *("contentEncoding", "contentMediaType"),
    )
)
_NUMBER = re.compile(r"-?(?:0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]+)?")
_WORDS = {"true": True, "false": False}


def repaired(schema: Any) -> tuple[Any, str | None]:
    """Return a schema as it is meant, and what is still wrong with it; None if nothing is.

    Example:
        >>> repaired({"type": "OBJECT", "properties": {"a": {"type": "int", "title": None}}, "required": None})
        ({'type': 'object', 'properties': {'a': {'type': 'integer'}}}, None)
    """
    violation = schema_violation(schema)
    if violation is None or violation is TOO_MANY:
        return schema, violation
    found = _schema(schema, 0)
    return found, schema_violation(found)


def _schema(schema: Any, depth: int) -> Any:
    if schema == [] and isinstance(schema, list):
        return {}
    if not isinstance(schema, Mapping) or depth > _MAX_DEPTH:
        return schema
    found: dict[str, Any] = {}
    for name, value in schema.items():
        if value is None and name != "const" and (name in _KEYWORDS or name.startswith("$")):
            continue
        read = _argument(name, value, depth)
        if read is not _LEFT_OUT:
            found[name] = read
    return _with_required_members(found, schema)


_LEFT_OUT = object()


def _argument(name: str, value: Any, depth: int) -> Any:
    """Return the argument of a keyword, or `_LEFT_OUT`."""
    if name in MAPS:
        if isinstance(value, Mapping):
            return {key: _member(item, depth) for key, item in value.items()}
        return {} if value == [] else value
    if name in LISTS or (name == "items" and isinstance(value, list)):
        if not isinstance(value, list):
            return value
        return [_schema(item, depth + 1) for item in value] if value else _LEFT_OUT
    if name in SCHEMAS or name == "items":
        return _WORDS.get(value.lower(), value) if isinstance(value, str) else _schema(value, depth + 1)
    return _plain_argument(name, value)


def _member(schema: Any, depth: int) -> Any:
    """Return a member of an object of schemas; a null says nothing about its value."""
    return {} if schema is None else _schema(schema, depth + 1)


def _dependencies(value: Any) -> Any:
    """Return members with the names or the schema that each depends on; null is neither, and a text is one name."""
    if not isinstance(value, Mapping):
        return _LEFT_OUT if value == [] else value
    found: dict[str, Any] = {}
    for key, one in value.items():
        if isinstance(one, str):
            found[key] = [one]
        elif isinstance(one, Mapping):
            found[key] = _schema(one, 0)
        elif one is not None:
            found[key] = _names(one) if isinstance(one, list) and one else one
    return found if found or not value else _LEFT_OUT


def _plain_argument(name: str, value: Any) -> Any:
    """Return the argument of a keyword without schemas inside, or `_LEFT_OUT`."""
    if name == "type":
        return _types(value)
    if name == "required":
        return _names(value)
    if name in ("dependencies", "dependentRequired"):
        return _dependencies(value)
    if name in _ANNOTATIONS:
        return _LEFT_OUT if schema_violation({name: value}) else value
    if name in _NUMBERS and isinstance(value, str):
        value = _number(value) if name not in _BOUNDS else _WORDS.get(value.lower(), _number(value))
    elif name == "uniqueItems" and isinstance(value, str):
        value = _WORDS.get(value.lower(), value)
    if name in _LOWER_COUNTS and isinstance(value, int | float) and value < 0:
        return _LEFT_OUT
    return value


def _types(value: Any) -> Any:
    kinds = value if isinstance(value, list) else [value]
    if not all(isinstance(kind, str) for kind in kinds):
        return value
    found = list(dict.fromkeys(_type(kind) for kind in kinds))
    if not found or "any" in found:
        return _LEFT_OUT
    return found if isinstance(value, list) else found[0]


def _type(kind: str) -> str:
    small = kind.lower()
    return TYPE_ALIASES.get(small, small if small in TYPES or small == "any" else kind)


def _names(value: Any) -> Any:
    if isinstance(value, bool) or value == {}:
        return _LEFT_OUT  # Draft 3: the schema around it gets the name.
    if isinstance(value, str):
        return [value] if value.lower() not in _WORDS else _LEFT_OUT
    if isinstance(value, list):
        names = [name for name in value if name is not None]
        return list(dict.fromkeys(names)) if all(isinstance(name, str) for name in names) else value
    return value


def _number(text: str) -> Any:
    found = _NUMBER.fullmatch(text.strip())
    if found is None:
        return text
    return exact_number(found[0]) if found[1] or found[2] else int(found[0]) if len(found[0]) < 4000 else text


def _with_required_members(found: dict[str, Any], schema: Mapping[str, Any]) -> dict[str, Any]:
    """Add the names of the properties that are required in draft 3's way."""
    members = schema.get("properties")
    if not isinstance(members, Mapping):
        return found
    names = [
        name
        for name, one in members.items()
        if isinstance(one, Mapping) and (one.get("required") is True or one.get("required") == "true")
    ]
    listed = found.get("required", [])
    if names and isinstance(listed, list):
        found["required"] = list(dict.fromkeys([*listed, *names]))
    return found


_KEYWORDS = (
    MAPS
    | LISTS
    | SCHEMAS
    | _NUMBERS
    | _ANNOTATIONS
    | {"type", "required", "enum", "items", "format", "pattern"}
) | {"uniqueItems", "dependencies", "dependentRequired", "id", "nullable"}
