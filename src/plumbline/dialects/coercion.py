"""Text to JSON by schema: for dialects that write arguments without types (`<parameter=count>3</parameter>`).

What a text means is decided by the types that the parameter's schema allows:

| the schema allows | the text becomes |
|---|---|
| strings and nothing else | that string, character by character |
| no strings | the JSON that it is; a string if it is none of an allowed type |
| strings and other types | null, an object or an array if that is allowed and the text is one; else a string |
| nothing that is known | the JSON that it is; else a string |

So "02134" stays a string everywhere, and `7` is a number only where no string is allowed or nothing is known.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

__all__ = ["allowed_types", "coerce"]

_PYTHON_WORDS = {"True": "true", "False": "false", "None": "null"}
_MAX_DEPTH = 16


def allowed_types(schema: Any, root: Mapping[str, Any], depth: int = 0) -> frozenset[str]:
    """The JSON types that a schema allows; empty if it does not say. `integer` counts as a type of its own."""
    if not isinstance(schema, Mapping) or depth > _MAX_DEPTH:
        return frozenset()
    reference = schema.get("$ref")
    if isinstance(reference, str):
        return allowed_types(_resolved(reference, root), root, depth + 1)
    declared = schema.get("type")
    if isinstance(declared, str):
        return frozenset((declared,))
    if isinstance(declared, list):
        return frozenset(kind for kind in declared if isinstance(kind, str))
    if "const" in schema:
        return frozenset((_type_of(schema["const"]),))
    if isinstance(schema.get("enum"), list):
        return frozenset(_type_of(value) for value in schema["enum"])
    for key in ("anyOf", "oneOf", "allOf"):
        branches = schema.get(key)
        if isinstance(branches, list):
            found = [allowed_types(branch, root, depth + 1) for branch in branches]
            if key == "allOf":
                return next((types for types in found if types), frozenset())
            return frozenset() if not all(found) else frozenset().union(*found)
    if "properties" in schema:
        return frozenset(("object",))
    return frozenset(("array",)) if "items" in schema else frozenset()


def coerce(text: str, types: frozenset[str]) -> str:
    """The JSON text that `text` means where these types are allowed."""
    if types == {"string"}:
        return json.dumps(text, ensure_ascii=False)
    bare = _PYTHON_WORDS.get(text.strip(), text.strip())
    try:
        value = json.loads(bare, parse_constant=_refuse)
    except (ValueError, RecursionError):
        return json.dumps(text, ensure_ascii=False)
    kind = _type_of(value)
    if not types:
        return json.dumps(text, ensure_ascii=False) if kind == "string" and bare[:1] != '"' else bare
    fits = kind in types or (kind == "integer" and "number" in types)
    if kind == "number" and "integer" in types and "number" not in types and value == int(value):
        fits = True
    if "string" in types and kind not in ("null", "object", "array"):
        fits = False
    return bare if fits else json.dumps(text, ensure_ascii=False)


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is no value of JSON")


def _resolved(reference: str, root: Mapping[str, Any]) -> Any:
    if not reference.startswith("#"):
        return None
    value: Any = root
    for part in reference[1:].split("/")[1:]:
        key = part.replace("~1", "/").replace("~0", "~")
        value = value.get(key) if isinstance(value, Mapping) else None
    return value


def _type_of(value: Any) -> str:
    match value:
        case None:
            return "null"
        case bool():
            return "boolean"
        case int():
            return "integer"
        case float():
            return "number"
        case str():
            return "string"
        case list():
            return "array"
        case _:
            return "object"
