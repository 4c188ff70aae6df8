"""Find references that no finite document satisfies, such as an object that requires another of its own kind.

The grammar of such a schema never ends: a model under it writes `{"next": {"next": …` up to its token limit. A schema
ends if one of the types that it allows does: a text or a number always, an object if its required members do, a list
if it may be empty or its first elements do. References are assumed to be endless until what they point to ends.

Only what is certain counts: a schema that is endless for another reason, such as conditions that exclude each other, is
left to the grammar engine.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from typing import Any
from urllib.parse import unquote

from plumbline.answer.structured_output.grammar.references.resolve import LISTS, MAPS, SCHEMAS, subschemas

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
    targets = dict.fromkeys(target for place in places.values() if (target := _target(place)) is not None)
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
    search = _Search(targets)
    waiting: dict[str, list[str]] = defaultdict(list)
    left = list(targets)
    while left:
        target = left.pop()
        if target not in search.endless:
            continue
        references = search.waits_for(targets[target])
        if references is None:
            search.endless.discard(target)
            left += waiting.pop(target, [])
        for reference in references or ():
            waiting[reference].append(target)
    return frozenset(search.endless)


class _Search:
    """Find out which schemas end, while ever more references turn out to end.

    Attributes:
        endless: the references that are not known to end.
    """

    def __init__(self, references: Iterable[str]) -> None:
        self.endless = set(references)
        self._ending: set[int] = set()
        """The `id` of each schema that was found to end, so that it is not searched again."""

    def waits_for(self, schema: Any) -> frozenset[str] | None:
        """Return references of which one must end before the schema does; None if it ends."""
        if not isinstance(schema, Mapping):
            return frozenset() if schema is False else None
        if id(schema) in self._ending:
            return None
        found = self._of_schema(schema)
        if found is None:
            self._ending.add(id(schema))
        return found

    def _of_schema(self, schema: Mapping[str, Any]) -> frozenset[str] | None:
        if "enum" in schema or "const" in schema:
            return None
        reference = _target(schema)
        if reference is not None and reference in self.endless:
            return frozenset((reference,))
        if (found := self._of_all(_listed(schema, "allOf"))) is not None:
            return found
        for key in ("anyOf", "oneOf"):
            branches = _listed(schema, key)
            if branches and (found := self._of_any(map(self.waits_for, branches))) is not None:
                return found
        return self._of_types(schema)

    def _of_all(self, parts: Iterable[Any]) -> frozenset[str] | None:
        return next((found for part in parts if (found := self.waits_for(part)) is not None), None)

    def _of_any(self, branches: Iterable[frozenset[str] | None]) -> frozenset[str] | None:
        found: set[str] = set()
        for branch in branches:
            if branch is None:
                return None
            found |= branch
        return frozenset(found)

    def _of_types(self, schema: Mapping[str, Any]) -> frozenset[str] | None:
        kinds = schema.get("type")
        kinds = [kinds] if isinstance(kinds, str) else kinds
        if not isinstance(kinds, list) or not _ENDING.isdisjoint(kinds):
            return None
        return self._of_any(
            self._of_object(schema) if kind == "object" else self._of_list(schema) for kind in kinds
        )

    def _of_object(self, schema: Mapping[str, Any]) -> frozenset[str] | None:
        properties, required = schema.get("properties"), schema.get("required")
        if not isinstance(properties, Mapping) or not isinstance(required, list):
            return None
        return self._of_all(properties.get(name, True) for name in required)

    def _of_list(self, schema: Mapping[str, Any]) -> frozenset[str] | None:
        least, first = schema.get("minItems", 0), _listed(schema, "prefixItems")
        items = schema.get("items", True)
        if isinstance(items, list):  # Draft 7.
            first, items = items, schema.get("additionalItems", True)
        whole = max(0, int(least)) if isinstance(least, int | float) and least < 1e6 else 0
        if (found := self._of_all(first[:whole])) is not None:
            return found
        return self.waits_for(items) if least > len(first) else None


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
    found: dict[str, Any] = dict(schema)
    for key, value in schema.items():
        if isinstance(value, list):
            if key in LISTS or key == "items":
                found[key] = [_replaced(inner, endless) for inner in value]
        elif key in SCHEMAS:
            found[key] = _replaced(value, endless)
        elif key in MAPS and isinstance(value, Mapping):
            found[key] = {name: _replaced(inner, endless) for name, inner in value.items()}
    return found
