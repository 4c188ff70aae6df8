"""Check that a value is a JSON Schema, as the meta-schema of Draft 2020-12 does."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any, TypeAlias

from plumbline.base.exact_number import ExactNumber

__all__ = ["COUNTS", "LISTS", "MAPS", "MAX_SCHEMAS", "SCHEMAS", "TOO_MANY", "TYPES", "schema_violation"]

TYPES = ("array", "boolean", "integer", "null", "number", "object", "string")

MAX_SCHEMAS = 20_000
"""How many schemas one schema may contain, which keeps the check below a fifth of a second."""

TOO_MANY = f"it contains more than {MAX_SCHEMAS} schemas"
"""What is wrong with larger ones."""

_Path: TypeAlias = "tuple[str, ...]"

SCHEMAS = frozenset(
    (
        *(
            "not",
            "if",
            "then",
            "else",
            "contains",
            "propertyNames",
            "additionalProperties",
            "additionalItems",
        ),
        *("unevaluatedItems", "unevaluatedProperties", "contentSchema"),
    )
)
LISTS = frozenset(("allOf", "anyOf", "oneOf", "prefixItems"))
MAPS = frozenset(("properties", "patternProperties", "$defs", "definitions", "dependentSchemas"))
_TEXTS = frozenset(
    (
        *("$schema", "$id", "$ref", "$anchor", "$dynamicRef", "$dynamicAnchor", "$comment"),
        *("title", "description", "pattern", "format", "contentEncoding", "contentMediaType"),
    )
)
COUNTS = frozenset(
    (
        *("minLength", "maxLength", "minItems", "maxItems", "minProperties", "maxProperties"),
        *("minContains", "maxContains"),
    )
)
_FLAGS = frozenset(("uniqueItems", "deprecated", "readOnly", "writeOnly"))
_ALLOWED = ", ".join(TYPES)


def schema_violation(schema: Any) -> str | None:
    """Return what is wrong with the first keyword that has a wrong value; None if this is a JSON Schema.

    The time is linear in the size of the schema, and nesting costs no stack. Keywords that JSON Schema does not define
    may have any value. Two forms of older drafts are accepted, because generators still write them: `items` as a list
    of schemas (Draft 7) and boolean `exclusiveMinimum` and `exclusiveMaximum` (Draft 4).
    """
    left: list[tuple[_Path, Any]] = [((), schema)]
    num_seen = 0
    while left:
        num_seen += 1
        if num_seen > MAX_SCHEMAS:
            return TOO_MANY
        path, value = left.pop()
        if isinstance(value, bool):
            continue
        if not isinstance(value, Mapping):
            return f"{_place(path)} must be a schema: an object or a boolean"
        for name, argument in value.items():
            violation = _violation(name, argument)
            if violation is not None:
                return f"{_place((*path, name))} {violation}"
            left += [((*path[-4:], name, step), inner) for step, inner in _children(name, argument)]
    return None


def _children(name: str, argument: Any) -> Iterator[tuple[str, Any]]:
    """Yield the schemas inside a keyword, with their keys."""
    if name in SCHEMAS or (name == "items" and not isinstance(argument, list)):
        yield "", argument
    elif name in LISTS or name == "items":
        yield from ((str(index), item) for index, item in enumerate(argument))
    elif name in MAPS:
        yield from argument.items()
    elif name == "dependencies":
        yield from ((key, item) for key, item in argument.items() if not isinstance(item, list))


def _violation(name: str, argument: Any) -> str | None:
    """Return what is wrong with the argument of a keyword, apart from the schemas inside."""
    if name == "type":
        return _type_violation(argument)
    wanted = _wanted(name, argument)
    return None if wanted is None else f"must be {wanted}"


def _wanted(name: str, argument: Any) -> str | None:
    """Return what a valid argument is, if this argument is invalid; None if it is valid."""
    wanted, right = "", True
    if name in LISTS:
        wanted, right = (
            "an array of schemas with at least one entry",
            isinstance(argument, list) and argument != [],
        )
    elif name in MAPS or name == "dependencies":
        wanted, right = "an object of schemas", isinstance(argument, Mapping)
    elif name in _TEXTS:
        wanted, right = "a string", isinstance(argument, str)
    elif name in COUNTS:
        wanted, right = "an integer of at least 0", _is_count(argument)
    elif name in _FLAGS:
        wanted, right = "a boolean", isinstance(argument, bool)
    elif name in ("minimum", "maximum"):
        wanted, right = "a number", _is_number(argument)
    elif name in ("exclusiveMinimum", "exclusiveMaximum"):
        wanted, right = "a number", _is_number(argument) or isinstance(argument, bool)
    elif name == "multipleOf":
        wanted, right = "a number above 0", _is_number(argument) and (argument > 0 or _is_tiny(argument))
    elif name in ("enum", "examples"):
        wanted, right = "an array", isinstance(argument, list)
    elif name == "required":
        wanted, right = "an array of different strings", _are_names(argument)
    elif name == "dependentRequired":
        wanted = "an object of arrays of different strings"
        right = isinstance(argument, Mapping) and all(map(_are_names, argument.values()))
    return None if right else wanted


def _type_violation(argument: Any) -> str | None:
    kinds = argument if isinstance(argument, list) else [argument]
    for kind in kinds:
        if not isinstance(kind, str):
            return f"must be a string or an array of strings. Types are: {_ALLOWED}"
        if kind not in TYPES:
            return f"is {kind[:64]!r}, which is not a type. Types are: {_ALLOWED}"
    if not kinds or len(set(kinds)) < len(kinds):
        return "must have at least one type, without duplicates"
    return None


def _is_number(argument: Any) -> bool:
    return isinstance(argument, int | float) and not isinstance(argument, bool)


def _is_count(argument: Any) -> bool:
    return _is_number(argument) and argument >= 0 and (argument % 1 == 0 or math.isinf(argument))


def _is_tiny(argument: float) -> bool:
    """Return whether a number above zero is too small for a double, such as `1e-400`."""
    return isinstance(argument, ExactNumber) and not argument and not argument.text.startswith("-")


def _are_names(argument: Any) -> bool:
    return (
        isinstance(argument, list)
        and all(isinstance(name, str) for name in argument)
        and len(set(argument)) == len(argument)
    )


def _place(path: _Path) -> str:
    """Show where a keyword is: the last steps to it, each cut to a readable length."""
    steps = [step[:64] for step in path if step]
    return f"'{'.'.join(steps)}'" if steps else "it"
