"""Find references that no finite document satisfies, such as an object that requires another of its own kind.

The grammar of such a schema never ends: a model under it writes `{"next": {"next": …` up to its token limit. A schema
ends if one of the types that it allows does: a text or a number always, an object if its required members do, a list
if it may be empty or its first elements do. References are assumed to be endless until what they point to ends.

Only what is certain counts: a schema that is endless for another reason, such as conditions that exclude each other, is
left to the grammar engine.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import unquote

from plumbline.answer.structured_output.grammar.references.resolve import pointed, subschemas

__all__ = ["without_endless"]

_ENDING = frozenset(("string", "number", "integer", "boolean", "null"))


def without_endless(schema: Mapping[str, Any]) -> Any:
    """Replace endless references by `false`, which nothing satisfies; `false` if the schema itself is endless.

    A schema without such references is returned itself. Its references are JSON pointers.

    Example:
        >>> without_endless({"type": "object", "properties": {"a": {"$ref": "#"}}, "required": ["a"]})
        False
    """
    places = dict(_places(schema, "#"))
    targets = {target for place in places.values() if (target := _target(place)) is not None}
    if not targets:
        return schema
    endless = _endless({target: places[target] for target in (*targets, "#") if target in places})
    if not endless:
        return schema
    return False if "#" in endless else _replaced(schema, endless)


def _places(schema: Any, where: str) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield the schemas in a schema by their JSON pointers; schemas that are booleans have no references."""
    left: list[tuple[str, Any]] = [(where, schema)]
    while left:
        at, found = left.pop()
        if isinstance(found, Mapping):
            yield at, found
            left += [(f"{at}/{step}", inner) for step, inner in subschemas(found)]


def _endless(targets: Mapping[str, Mapping[str, Any]]) -> frozenset[str]:
    """Return the targets that are endless. Each is tried again when a reference turns out to end that it waited for."""
    waiting: dict[str, list[str]] = defaultdict(list)
    endless, left = set(targets), list(targets)
    while left:
        target = left.pop()
        if target not in endless:
            continue
        reference = _first_endless(targets[target], endless)
        if reference is None:
            endless.discard(target)
            left += waiting.pop(target, [])
        elif reference:
            waiting[reference].append(target)
    return frozenset(endless)


def _first_endless(schema: Any, endless: set[str]) -> str | None:
    """Return a reference that keeps a schema from ending; None if it ends, empty if nothing satisfies it."""
    if not isinstance(schema, Mapping):
        return "" if schema is False else None
    if "enum" in schema or "const" in schema:
        return None
    reference = _target(schema)
    if reference in endless:
        return reference
    for part in _listed(schema, "allOf"):
        if (blocked := _first_endless(part, endless)) is not None:
            return blocked
    for key in ("anyOf", "oneOf"):
        found = [_first_endless(part, endless) for part in _listed(schema, key)]
        if found and None not in found:
            return next(filter(None, found), "")
    return _of_types(schema, endless)


def _of_types(schema: Mapping[str, Any], endless: set[str]) -> str | None:
    """Return what keeps each of the types of a schema from ending."""
    kinds = schema.get("type")
    kinds = [kinds] if isinstance(kinds, str) else kinds
    if not isinstance(kinds, list) or not _ENDING.isdisjoint(kinds):
        return None
    found = [_of_object(schema, endless) if kind == "object" else _of_list(schema, endless) for kind in kinds]
    return None if None in found else next(filter(None, found), "")


def _of_object(schema: Mapping[str, Any], endless: set[str]) -> str | None:
    properties = schema.get("properties")
    required = schema.get("required")
    if isinstance(properties, Mapping) and isinstance(required, list):
        for name in required:
            if (found := _first_endless(properties.get(name, True), endless)) is not None:
                return found
    return None


def _of_list(schema: Mapping[str, Any], endless: set[str]) -> str | None:
    least, first = schema.get("minItems", 0), _listed(schema, "prefixItems")
    items = schema.get("items", True)
    if isinstance(items, list):  # Draft 7.
        first, items = items, schema.get("additionalItems", True)
    for part in first[: max(0, int(least))] if isinstance(least, int | float) and least < 1e6 else ():
        if (found := _first_endless(part, endless)) is not None:
            return found
    return _first_endless(items, endless) if least > len(first) else None


def _target(schema: Mapping[str, Any]) -> str | None:
    """Return the JSON pointer of a reference; None if the schema has none."""
    reference = schema.get("$ref")
    return unquote(reference) if isinstance(reference, str) else None


def _listed(schema: Mapping[str, Any], key: str) -> list[Any]:
    found = schema.get(key)
    return found if isinstance(found, list) else []


def _replaced(schema: Any, endless: frozenset[str]) -> Any:
    """Return a schema with `false` in the place of each endless reference."""
    if not isinstance(schema, Mapping):
        return schema
    if _target(schema) in endless:
        return False
    inside = {step: _replaced(inner, endless) for step, inner in subschemas(schema)}
    found: dict[str, Any] = dict(schema)
    for step, inner in inside.items():
        key, _, rest = step.partition("/")
        if not rest:
            found[key] = inner
        elif isinstance(found[key], list):
            found[key] = [*found[key][: int(rest)], inner, *found[key][int(rest) + 1 :]]
        else:
            name = next(name for name in found[key] if pointed(name) == rest)
            found[key] = {**found[key], name: inner}
    return found
