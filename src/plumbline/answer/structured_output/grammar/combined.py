"""Combine and reduce JSON Schemas, for the rewrites of `keywords`."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Any

from plumbline.answer.structured_output.grammar.ecma_regex import TEXT_FORMATS, assertions
from plumbline.answer.structured_output.grammar.numbers.exact import UNREACHABLE
from plumbline.answer.structured_output.grammar.numbers.literals import canonical_text
from plumbline.answer.structured_output.grammar.references import MAPS

__all__ = [
    "ANY",
    "NOTES",
    "TYPES",
    "add",
    "both",
    "dependents",
    "joined",
    "listed_names",
    "name_pattern",
    "only_named",
    "referred",
    "types_of",
    "with_dependents",
    "without_types",
    "without_values",
]

NOTES = frozenset(
    ("$comment", "default", "deprecated", "description", "examples", "readOnly", "title", "writeOnly")
)
"""Keywords that constrain nothing."""
_TYPE_NAMES = {bool: "boolean", type(None): "null", str: "string", list: "array", dict: "object"}
TYPES = ("array", "boolean", "null", "number", "object", "string")


def add(schema: dict[str, Any], other: Any) -> None:
    """Add a schema that must also hold."""
    if isinstance(other, Mapping) and len(other) == 1:
        ((name, value),) = other.items()
        if name not in schema and name != "properties":
            schema[name] = value
            return
    schema["allOf"] = [*schema.get("allOf", ()), other]


def both(one: Any, other: Any) -> Any:
    if one is False or other is False:
        return False
    return other if one is True else one if other is True else {"allOf": [one, other]}


def dependents(required: Mapping[str, list[str]], schemas: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield for each member that it is absent, or that others are also there, or a schema holds."""
    for name, names in required.items():
        if names:
            others = {"required": list(dict.fromkeys([name, *names]))}
            yield {"anyOf": [{"properties": {name: False}}, others]}
    for name, one in schemas.items():
        yield {"anyOf": [{"properties": {name: False}}, {"allOf": [{"required": [name]}, one]}]}


def with_dependents(schema: dict[str, Any], dependencies: Mapping[str, Any]) -> None:
    """Add the dependencies of drafts before 2019-09 to those of later drafts."""
    for name, value in dependencies.items():
        key = "dependentRequired" if isinstance(value, list) else "dependentSchemas"
        known = schema.get(key, {})
        if name in known:
            is_list = isinstance(value, list)
            value = [*dict.fromkeys([*known[name], *value])] if is_list else both(known[name], value)
        schema[key] = {**known, name: value}


def referred(root: Mapping[str, Any], schema: Any) -> Any:
    """Return the target of a schema that is a reference to `$defs` and nothing else."""
    for _ in range(8):
        if not isinstance(schema, Mapping) or schema.keys() - NOTES != {"$ref"}:
            return schema
        steps = str(schema["$ref"]).split("/")
        if len(steps) != 3 or steps[1] not in MAPS:
            return schema
        schema = root.get(steps[1], {}).get(steps[2].replace("~1", "/").replace("~0", "~"))
    return schema


def only_named(known: Mapping[str, Any], listed: Collection[str], rest: Any) -> dict[str, Any]:
    """Return the properties of an object that may have these names only; `rest` is the schema of those without one."""
    return {
        **{name: one if name in set(listed) else False for name, one in known.items()},
        **{name: rest for name in listed if name not in known},
    }


def types_of(schema: Any) -> set[str]:
    """Return the types that a schema allows, as far as it says so itself; an integer is a number."""
    kinds = schema.get("type") if isinstance(schema, Mapping) else None
    if kinds is None and isinstance(schema, Mapping):
        values = schema["enum"] if "enum" in schema else [schema["const"]] if "const" in schema else []
        return {_TYPE_NAMES.get(type(value), "number") for value in values}
    listed = {kinds} if isinstance(kinds, str) else set(kinds or ())
    return {"number" if kind == "integer" else kind for kind in listed}


def joined(kinds: Any, kind: str) -> Any:
    listed = kinds if isinstance(kinds, list) else [kinds]
    return kinds if kind in listed else [*listed, kind]


def without_types(kinds: Any, excluded: Any) -> list[str] | None:
    """Return the types that are left; None if they have no names, as fractions have not."""
    out = {excluded} if isinstance(excluded, str) else set(excluded)
    listed = list(TYPES) if kinds is None else kinds if isinstance(kinds, list) else [kinds]
    if "integer" in out and "number" not in out and "number" in listed:
        return None
    if "number" in out:
        out.add("integer")
    return [kind for kind in listed if kind not in out]


def without_values(values: list[Any], listed: Mapping[str, Any]) -> list[Any]:
    """Return the values that a schema of `enum` or `const` does not list."""
    excluded = set(map(canonical_text, listed["enum"] if "enum" in listed else [listed["const"]]))
    return [value for value in values if canonical_text(value) not in excluded]


_MOST_NAMES = 200
"""Names that are listed one by one."""


def listed_names(names: Any, keys: Collection[str]) -> list[str] | None:
    if not isinstance(names, Mapping) or set(keys) - {"type"} not in ({"enum"}, {"const"}):
        return None
    values = names["enum"] if "enum" in names else [names["const"]]
    return [value for value in values if isinstance(value, str)] if len(values) <= _MOST_NAMES else None


ANY = r"(?:.|\n|\r|\u2028|\u2029)"


def name_pattern(names: Any, keys: Collection[str]) -> str | None:
    """Return one regex for names; None if several conditions would have to hold."""
    if not isinstance(names, Mapping):
        return None
    conditions = set(keys) - {"type"}
    if conditions == {"pattern"}:
        found = assertions(names["pattern"])
        return found[0] if len(found) == 1 else None
    if conditions == {"format"}:
        return TEXT_FORMATS.get(str(names["format"]))
    if conditions and conditions <= {"minLength", "maxLength"}:
        least, most = names.get("minLength", 0), names.get("maxLength", UNREACHABLE)
        if least >= UNREACHABLE:
            return None
        least, most = int(least), int(most) if most < UNREACHABLE else ""
        return f"^{ANY}{{{least},{most}}}$"
    return None
