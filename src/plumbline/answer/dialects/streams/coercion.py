"""Convert text to JSON by a schema, for dialects with untyped arguments (`<parameter=count>3</parameter>`).

The types that the parameter's schema allows decide, wherever `$ref`, `allOf`, `anyOf` and `oneOf` have it:

| the schema allows | the text becomes |
|---|---|
| only strings | a string |
| no strings | the JSON that the text is, or the Python list, set or dict, if its type is allowed; else a string |
| no strings, and the text is in quotes | what is in the quotes, by the row above |
| strings of a list | the one that the text is, without quotes or white space around it if that is none of them |
| strings and other types | the JSON that the text is, if its type is allowed; else a string |
| unknown types | the JSON that the text is; else a string |

Some clients send type names of Python; each counts as the type of JSON Schema (`float` as `number`). A type with any
other name is unknown. `nullable: true` of OpenAPI 3.0 allows null beside a `type`.

An empty text is null where null is allowed and strings are not. Where neither is, it is no value (`tag_reader`).

So "02134" stays a string everywhere, and `7` is a number where one is allowed or nothing is known.
"""

from __future__ import annotations

import json
import re
from collections import deque
from collections.abc import Collection, Iterable, Mapping
from typing import Any

from plumbline.answer.dialects.streams.cursor import Cursor, MalformedError
from plumbline.answer.dialects.streams.json_text import quoted
from plumbline.answer.dialects.streams.python_stream import python_value

__all__ = [
    "LOOK_AHEAD",
    "TYPE_ALIASES",
    "admitted",
    "allowed_types",
    "coerce",
    "is_text",
    "listed_texts",
    "part_schema",
    "referred",
    "resolved",
]

LOOK_AHEAD = 64
"""The number of characters at the beginning of a text that `is_text` looks at."""
_NUMBER_BEGUN = re.compile(r"-?[0-9]*(?:\.[0-9]*)?(?:[eE][+-]?[0-9]*)?\s*")
"""Matches every beginning of a number, and some texts that begin no number, such as `.`."""
_SHORT_INTEGER = re.compile(r"-?(?:0|[1-9][0-9]{0,17})")
_PYTHON_WORDS = {"True": "true", "False": "false", "None": "null"}
_WORD_TYPES = {"true": "boolean", "false": "boolean", "null": "null"}
_MAX_DEPTH = 16
_MOST_BRANCHES = 64
_MOST_PARTS = 512
"""Parts of a composed schema that are searched for a property."""
TYPE_ALIASES = {
    "str": "string",
    "text": "string",
    "int": "integer",
    "long": "integer",
    "float": "number",
    "double": "number",
    "bool": "boolean",
    "dict": "object",
    "map": "object",
    "list": "array",
    "tuple": "array",
    "set": "array",
    "none": "null",
}
"""Types of programming languages, in small letters, and the types of JSON Schema that they stand for."""
_NUMBERS = frozenset(("integer", "number"))
_TYPES = frozenset(("array", "boolean", "integer", "null", "number", "object", "string"))


def allowed_types(
    schema: Any, root: Mapping[str, Any], depth: int = 0, seen: dict[int, frozenset[str]] | None = None
) -> frozenset[str]:
    """Return the JSON types that a schema allows, `integer` and `number` separately; empty if they are unknown.

    Args:
        schema: the schema.
        root: the schema that references refer to.
        depth: how many references and branches led to this schema.
        seen: results for schemas on the way, by `id`, because many branches may refer to the same schema.
    """
    if not isinstance(schema, Mapping) or depth > _MAX_DEPTH:
        return frozenset()
    if isinstance(schema.get("type"), str) and "$ref" not in schema:
        return _declared_types(schema)
    seen = {} if seen is None else seen
    if id(schema) not in seen:
        seen[id(schema)] = frozenset()  # Ends the recursion of a schema that refers to itself.
        seen[id(schema)] = _types(schema, root, depth, seen)
    return seen[id(schema)]


def _types(
    schema: Mapping[str, Any], root: Mapping[str, Any], depth: int, seen: dict[int, frozenset[str]]
) -> frozenset[str]:
    reference = schema.get("$ref")
    if isinstance(reference, str):
        return allowed_types(referred(reference, root), root, depth + 1, seen)
    if isinstance(schema.get("type"), str | list):
        return _declared_types(schema)
    if "const" in schema:
        return frozenset((_type_of(schema["const"]),))
    if isinstance(schema.get("enum"), list):
        return frozenset(_type_of(value) for value in schema["enum"])
    for key in ("anyOf", "oneOf", "allOf"):
        branches = schema.get(key)
        if isinstance(branches, list):
            found = [allowed_types(branch, root, depth + 1, seen) for branch in branches]
            if key == "allOf":
                known = [types for types in found if types]
                return frozenset.intersection(*known) or known[0] if known else frozenset()
            return frozenset() if not all(found) else frozenset().union(*found)
    if "properties" in schema:
        return frozenset(("object",))
    return frozenset(("array",)) if "items" in schema else frozenset()


def _declared_types(schema: Mapping[str, Any]) -> frozenset[str]:
    """Return the types of `type`, with null beside them where OpenAPI 3.0's `nullable` allows it."""
    kinds = schema["type"]
    found = _named((kinds,) if isinstance(kinds, str) else (kind for kind in kinds if isinstance(kind, str)))
    return found | {"null"} if found and schema.get("nullable") is True and "const" not in schema else found


def _named(kinds: Iterable[str]) -> frozenset[str]:
    """Return the types of these names; empty if one of them is unknown."""
    found = frozenset(TYPE_ALIASES.get(kind.lower(), kind) for kind in kinds)
    return found if found <= _TYPES else frozenset()


def listed_texts(schema: Any, root: Mapping[str, Any], depth: int = 0) -> frozenset[str]:
    """Return the strings that a schema lists, by `enum`, `const` or branches; empty if it allows others.

    >>> sorted(listed_texts({"anyOf": [{"const": "on"}, {"enum": ["off", 3]}, {"type": "null"}]}, {}))
    ['off', 'on']
    """
    found = _listed(schema, root, depth)
    return found or frozenset()


def _listed(schema: Any, root: Mapping[str, Any], depth: int) -> frozenset[str] | None:
    """Return the strings that a schema lists; None if it allows others."""
    if not isinstance(schema, Mapping) or depth > _MAX_DEPTH:
        return None
    if "const" in schema or isinstance(schema.get("enum"), list):
        values = [schema["const"]] if "const" in schema else schema["enum"]
        return frozenset(value for value in values if isinstance(value, str))
    if isinstance(schema.get("$ref"), str):
        return _listed(referred(schema["$ref"], root), root, depth + 1)
    for key in ("anyOf", "oneOf"):
        if isinstance(branches := schema.get(key), list) and branches:
            found = [_listed(branch, root, depth + 1) for branch in branches[:_MOST_BRANCHES]]
            known = [texts for texts in found if texts is not None]
            return frozenset().union(*known) if len(known) == len(branches) else None
    types = allowed_types(schema, root)
    return frozenset() if types and "string" not in types else None


def coerce(text: str, types: frozenset[str], listed: frozenset[str] = frozenset()) -> str:
    """Convert a text to JSON where these types are allowed, and of strings only the listed ones, if there are any."""
    if listed and text not in listed and (meant := _unquoted(text)) in listed:
        return quoted(meant)
    return quoted(text) if types == {"string"} else _converted(text, types)


def _converted(text: str, types: frozenset[str]) -> str:
    """Convert a text to JSON where not only strings are allowed."""
    bare = _bare(text, types)
    kind = _WORD_TYPES.get(bare) or ("integer" if _SHORT_INTEGER.fullmatch(bare) else None)
    value: Any = None
    if kind is None:  # Words and short integers are known without decoding.
        try:
            value = _DECODER.decode(bare)
        except (ValueError, RecursionError):
            literal = _python_literal(bare, types)
            return quoted(text) if literal is None else literal
        kind = _type_of(value)
    if not types:
        return quoted(text) if kind == "string" and bare[:1] != '"' else bare
    if kind == "string":
        inner = '"' if "string" in types else coerce(value, types)
        return quoted(text) if inner[0] == '"' else inner
    return bare if _fits(kind, value, types) else quoted(text)


def _fits(kind: str, value: Any, types: frozenset[str]) -> bool:
    """Return whether a value of this type is allowed; `value` is the number, if it is one with a fraction."""
    if kind in types or (kind == "integer" and "number" in types):
        return True
    # `3.0` is an integer; a number that overflows a float is not.
    return kind == "number" and "integer" in types and value - value == 0 and value == int(value)


def _unquoted(text: str) -> str:
    """Return a text without white space around it, and without quotes around that."""
    bare = text.strip()
    return bare[1:-1] if len(bare) > 1 and bare[0] == bare[-1] and bare[0] in "\"'" else bare


def _bare(text: str, types: frozenset[str]) -> str:
    """Strip a text, and convert a word of Python to JSON's, or nothing to null where it can only be null."""
    bare = text.strip()
    if not bare and "null" in types and "string" not in types:
        return "null"  # MiniMax-M3's template writes null so.
    if "string" not in types and _WORD_TYPES.get(bare.lower()) in types:
        return bare.lower()
    return _PYTHON_WORDS.get(bare, bare)


def _python_literal(text: str, types: frozenset[str]) -> str | None:
    """Convert a Python list, tuple, set or dict to JSON; None for other texts, and for types that are not allowed."""
    if text[:1] not in ("[", "(", "{") or "string" in types:
        return None
    cursor, out = Cursor(), list[str]()
    cursor.feed(text)
    cursor.closed = True
    try:
        for _ in python_value(cursor, out.append):
            return None
    except MalformedError:
        return None
    literal = "".join(out)
    kind = "object" if literal[0] == "{" else "array"
    return literal if cursor.pos == len(text) and kind in types else None


def is_text(begun: str, types: frozenset[str]) -> bool:
    """Return whether a text that begins like this becomes a string, whatever follows.

    If this is true of a beginning, it is true of every longer one, so the result does not depend on how the text is
    cut. Only the first `LOOK_AHEAD` characters count.
    """
    if types == {"string"}:
        return True
    begun = begun[:LOOK_AHEAD].lstrip()
    if not begun or (types and "string" not in types):
        return False
    if begun[0] in "{[":
        return bool(types) and ("object" if begun[0] == "{" else "array") not in types
    words: tuple[str, ...] = ("null", "None", "true", "false", "True", "False")
    if types:
        words = (words[:2] if "null" in types else ()) + (words[2:] if "boolean" in types else ())
    elif begun[0] == '"':
        return False
    if (not types or types & _NUMBERS) and _NUMBER_BEGUN.fullmatch(begun):
        return False
    return not any(word.startswith(begun) or begun.rstrip() == word for word in words)


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is not a JSON value")


_DECODER = json.JSONDecoder(parse_constant=_refuse)
"""Made once, because `json.loads` with an option makes a decoder for every call."""


def resolved(
    schema: Any, root: Mapping[str, Any], kinds: Collection[str] = ("object", "array")
) -> Mapping[str, Any]:
    """Follow references and branches of a schema; empty if they lead nowhere.

    Of several branches, the first that allows one of `kinds` counts.

    Args:
        schema: the schema.
        root: the schema that references refer to.
        kinds: the types to look for; by default those with parts, objects and arrays.
    """
    for _ in range(_MAX_DEPTH):
        if not isinstance(schema, Mapping):
            return {}
        if isinstance(schema.get("$ref"), str):
            schema = referred(schema["$ref"], root)
            continue
        lists = [schema[key] for key in ("anyOf", "oneOf", "allOf") if isinstance(schema.get(key), list)]
        branches = [branch for several in lists for branch in several]
        wanted = [b for b in branches if not allowed_types(b, root).isdisjoint(kinds)]
        if not wanted or "properties" in schema or "items" in schema:
            return schema
        schema = wanted[0]
    return {}


def part_schema(schema: Any, root: Mapping[str, Any], name: str | None) -> Any:
    """Return the schema of a property, or of the items of an array if `name` is None; None if it is unknown."""
    if name is None:
        return resolved(schema, root, ("array",)).get("items")
    named, others = _declared(schema, root, name)
    # A property has one type in most schemas. Where branches declare it in several ways, all their types are allowed:
    # which branch the model means is known at the end of the call only.
    return _any_of(named or others)


def _any_of(schemas: list[Any]) -> Any:
    return schemas[0] if len(schemas) == 1 else {"anyOf": schemas} if schemas else None


def _declared(schema: Any, root: Mapping[str, Any], name: str) -> tuple[list[Any], list[Any]]:
    """Return the schemas of a property, and those of all other properties, in a schema and what it is composed of."""
    named, others, seen = list[Any](), list[Any](), set[int]()
    waiting = deque([schema])
    while waiting and len(seen) < _MOST_PARTS:
        part = waiting.popleft()
        if not isinstance(part, Mapping) or id(part) in seen:
            continue
        seen.add(id(part))
        properties = part.get("properties")
        if isinstance(properties, Mapping) and name in properties:
            named.append(properties[name])
        elif "additionalProperties" in part:
            others.append(part["additionalProperties"])
        if isinstance(part.get("$ref"), str):
            waiting.append(referred(part["$ref"], root))
        for key in ("allOf", "anyOf", "oneOf"):
            branches = part.get(key)
            waiting += branches if isinstance(branches, list) else ()
        waiting += (part[key] for key in ("then", "else") if key in part)
    return named, others


def admitted(schema: Any, value: Any) -> bool:
    """Return whether the `enum` or `const` of a schema, if it has one, allows a value."""
    if not isinstance(schema, Mapping):
        return schema is not False
    options = schema.get("enum") if "enum" in schema else [schema["const"]] if "const" in schema else None
    return not isinstance(options, list) or any(type(o) is type(value) and o == value for o in options)


def referred(reference: str, root: Mapping[str, Any]) -> Any:
    """Return the target of a local reference; None if it does not exist."""
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
