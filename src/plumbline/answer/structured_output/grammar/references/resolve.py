"""Resolve the references of a JSON Schema within its document, and write each as a JSON pointer.

The grammar engine and the parsers of calls follow JSON pointers only. The standard knows more: identifiers (`$id`, and
`id` in draft 4) that change what references are relative to (RFC 3986, section 5), anchors, and dynamic references.
Identifiers that nothing refers to have no effect and are left out.

Only places where the standard allows schemas are searched: the same keywords in an `enum` or as property names are
data. A reference may also point to a place that no keyword has, such as OpenAPI's `#/components/schemas/Pet`; the
schema there is moved to `$defs`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from plumbline.answer.structured_output.grammar.errors import ConstraintError
from plumbline.answer.structured_output.grammar.references.uris import (
    MAX_REFERENCE,
    joined_uri,
    split_reference,
)

__all__ = ["LISTS", "MAPS", "SCHEMAS", "pointed", "subschemas", "with_pointers"]

SCHEMAS = frozenset(
    (
        *(
            "oneOf",
            "items",
            "additionalItems",
            "additionalProperties",
            "contains",
            "not",
            "if",
            "then",
            "else",
        ),
        *("propertyNames", "unevaluatedItems", "unevaluatedProperties", "contentSchema"),
    )
)
"""Keywords whose argument is a schema; `items` may also be a list of schemas."""
LISTS = frozenset(("allOf", "anyOf", "oneOf", "prefixItems"))
"""Keywords whose argument is a list of schemas."""
MAPS = frozenset(
    ("properties", "patternProperties", "$defs", "definitions", "dependentSchemas", "dependencies")
)
"""Keywords whose argument is an object of schemas."""

_IDENTIFIERS = ("$id", "id", "$anchor", "$dynamicAnchor", "$recursiveAnchor")
_RESOLVED = frozenset((*_IDENTIFIERS, "$dynamicRef", "$recursiveRef"))
_REFERENCES = ("$ref", "$dynamicRef", "$recursiveRef")
_REWRITTEN = frozenset(
    (
        *("if", "then", "else", "not", "contains", "propertyNames", "dependentSchemas", "dependencies"),
        *("items", "additionalItems", "unevaluatedItems", "unevaluatedProperties", "contentSchema"),
    )
)
"""Steps of pointers that `keywords` may move or leave out, so that references need a place of their own."""
_DATA = frozenset(("enum", "const", "default", "examples", "example"))
_MOST_SCHEMAS = 20_000
_TO_DEFINITIONS = re.compile(r"#?/?((?:\$defs|definitions)/[^/]+)")
_MAX_DEPTH = 64


def with_pointers(schema: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the schema with every reference as a JSON pointer into it and without identifiers.

    A schema that is so already is returned itself. The time is linear in the size of the schema.

    Raises:
        ConstraintError: a reference leads to no schema of this document, or which one is known only while a document is
            validated; or the schema is nested too deeply.
    """
    return _Document(schema).resolved() if _needs_resolving(schema) else schema


def subschemas(schema: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield the schemas directly inside a schema, each with the rest of its JSON pointer."""
    for name, value in schema.items():
        if name in LISTS or (name == "items" and isinstance(value, list)):
            if isinstance(value, list):
                yield from ((f"{name}/{index}", item) for index, item in enumerate(value))
        elif name in SCHEMAS:
            yield name, value
        elif name in MAPS and isinstance(value, Mapping):
            yield from ((f"{name}/{pointed(key)}", item) for key, item in value.items())


def pointed(name: str) -> str:
    """Escape a name for a JSON pointer."""
    return name.replace("~", "~0").replace("/", "~1")


def _needs_resolving(schema: Mapping[str, Any]) -> bool:
    left: list[Any] = [schema]
    while left:
        value = left.pop()
        if not isinstance(value, Mapping):
            continue
        if not _RESOLVED.isdisjoint(value) and any(
            isinstance(value.get(name), str | bool) for name in _RESOLVED
        ):
            return True
        reference = value.get("$ref", "#")
        if isinstance(reference, str) and reference != "#" and not _is_usual(reference, schema):
            return True
        left.extend(item for _, item in subschemas(value))
    return False


def _is_usual(reference: str, root: Mapping[str, Any]) -> bool:
    """Return whether `_Document` would leave a reference as it is; that it leads somewhere is checked later."""
    if _USUAL.match(reference) is None:
        return False
    steps = reference.split("/")
    known = root.get(steps[1])
    key = steps[2].replace("~1", "/").replace("~0", "~")
    return (key in known if isinstance(known, Mapping) else "Of" in steps[1]) and _REWRITTEN.isdisjoint(steps)


_USUAL = re.compile(r"#/(?:\$defs|definitions|properties|anyOf|allOf|oneOf)/[^%]*\Z")


class _Place(NamedTuple):
    """A schema of the document.

    Attributes:
        schema: the schema; a dict is this document's own copy.
        pointer: where the client has it.
        written: where it is after the places that no keyword has are moved.
        base: the URI that its references are relative to.
        resource: the pointer of the schema that has this base.
    """

    schema: Any
    pointer: str
    written: str
    base: str
    resource: str


class _Reference(NamedTuple):
    place: _Place
    keyword: str
    value: str


class _Document:
    def __init__(self, schema: Mapping[str, Any]) -> None:
        self._root: dict[str, Any] = _copied(schema, 0)
        draft = str(schema.get("$schema", ""))
        self._draft_4 = "draft-04" in draft
        self._old = any(name in draft for name in ("draft-04", "draft-06", "draft-07"))
        self._places: dict[str, _Place] = {}
        self._resources: dict[str, str] = {"": "#"}
        self._anchors: dict[tuple[str, str], str] = {}
        self._dynamic: dict[str, list[tuple[str, str]]] = {}
        self._recursive: list[str] = []
        self._weak: dict[str, str] = {}
        """Draft 4's `id` in documents that do not say their draft, as Newtonsoft's generator writes them."""
        self._twice: set[str] = set()
        self._references: list[_Reference] = []
        self._moved: dict[str, Any] = {}
        self._number = 0

    def resolved(self) -> Mapping[str, Any]:
        self._search(_Place(self._root, "#", "#", "", "#"))
        done = 0
        targets: list[str] = []
        while done < len(self._references):  # Moving a schema finds more references.
            targets.append(self._target(self._references[done]))
            done += 1
        for reference, target in zip(self._references, targets, strict=True):
            _write(reference, target)
        for place in self._places.values():
            if isinstance(place.schema, dict):
                for name in _IDENTIFIERS:
                    if isinstance(place.schema.get(name), str | bool):
                        del place.schema[name]
        if self._moved:
            self._root["$defs"] = {**self._own_definitions(), **self._moved}
        return self._root

    def _own_definitions(self) -> Mapping[str, Any]:
        found = self._root.get("$defs", {})
        if not isinstance(found, Mapping):
            raise ConstraintError("'#/$defs' must be an object of schemas.")
        return found

    def _search(self, start: _Place) -> None:
        """Find the schemas, identifiers and references from this schema on."""
        left = [start]
        while left:
            place = left.pop()
            if isinstance(place.schema, dict):
                place = self._identified(place)
                for keyword in _REFERENCES:
                    value = place.schema.get(keyword)
                    if isinstance(value, str):
                        self._references.append(_Reference(place, keyword, value))
                left.extend(
                    place._replace(
                        schema=item, pointer=f"{place.pointer}/{step}", written=f"{place.written}/{step}"
                    )
                    for step, item in subschemas(place.schema)
                    if isinstance(item, Mapping | bool)
                )
            self._places[place.pointer] = place
            if len(self._places) > _MOST_SCHEMAS:
                raise ConstraintError(f"The schema contains more than {_MOST_SCHEMAS} schemas.")

    def _identified(self, place: _Place) -> _Place:
        """Note the identifiers of a schema; return it with its own base, if they give it one."""
        schema = place.schema
        name = schema.get("id" if self._draft_4 else "$id")
        if isinstance(name, str) and not (self._old and "$ref" in schema):
            uri, fragment = split_reference(name, place.pointer)
            if uri:
                base = joined_uri(place.base, uri, place.pointer)
                if self._resources.setdefault(base, place.pointer) != place.pointer:
                    self._twice.add(base)
                place = place._replace(base=base, resource=place.pointer)
            if fragment and not fragment.startswith("/"):
                self._anchors.setdefault((place.base, fragment), place.pointer)
        elif isinstance(schema.get("id"), str) and "$schema" not in self._root:
            self._weak.setdefault(schema["id"][:MAX_REFERENCE], place.pointer)
        for keyword in ("$anchor", "$dynamicAnchor"):
            anchor = schema.get(keyword)
            if isinstance(anchor, str):
                if self._anchors.setdefault((place.base, anchor), place.pointer) != place.pointer:
                    self._twice.add(f"{place.base}#{anchor}")
                named = self._dynamic.setdefault(anchor, [])
                if keyword == "$dynamicAnchor" and (place.base, place.pointer) not in named:
                    named.append((place.base, place.pointer))
        if schema.get("$recursiveAnchor") is True:
            self._recursive.append(place.pointer)
        return place

    def _target(self, reference: _Reference) -> str:
        """Return the pointer, as written, of the schema that a reference leads to.

        Raises:
            ConstraintError: it leads to no schema of this document.
        """
        place, keyword, value = reference
        if keyword == "$recursiveRef":
            return self._places[self._outermost_recursive(reference)].written
        uri, fragment = split_reference(value, f"{place.pointer}/{keyword}")
        base = joined_uri(place.base, uri, place.pointer) if uri else place.base
        resource = self._resources.get(base) if uri else place.resource
        found: str | None = None
        if (uri and base in self._twice) or f"{base}#{fragment}" in self._twice:
            raise _refused(reference, "is not clear: several schemas have this identifier")
        if resource is not None:
            found = self._within(resource, base, fragment)
        if found is None and not uri and resource != "#":
            # Below an identifier, pointers are relative to it. Tools that write identifiers often forget that.
            found = self._within("#", self._places["#"].base, fragment)
        if found is None:
            found = self._weak.get(value) or self._nearby(reference, uri or f"#{fragment}")
        if found is None:
            raise _refused(reference, "does not point to a schema in this document")
        if keyword == "$dynamicRef":
            found = self._outermost(reference, found, fragment)
        return self._places[found].written

    def _nearby(self, reference: _Reference, name: str) -> str | None:
        """Return the place that a reference means which is wrong by the standard in one of two frequent ways.

        `/$defs/Name` lacks its `#`, and a schema that was put into another one refers to its own `$defs` from the root.
        """
        found = _TO_DEFINITIONS.fullmatch(name)
        if found is None:
            return None
        steps = reference.place.pointer.split("/")
        around = ["/".join(steps[:count]) for count in range(len(steps), 0, -1)]
        return next(
            (f"{place}/{found[1]}" for place in around if f"{place}/{found[1]}" in self._places), None
        )

    def _within(self, resource: str, base: str, fragment: str) -> str | None:
        """Return the pointer of the place that a fragment names in a resource; None if there is no schema."""
        if fragment and not fragment.startswith("/"):
            return self._anchors.get((base, fragment))
        pointer = resource + fragment
        if pointer not in self._places and pointer.endswith("/"):
            pointer = pointer.rstrip("/")
        if pointer not in self._places:
            self._move(pointer)
        elif not _REWRITTEN.isdisjoint(pointer.split("/")):
            self._add(pointer, self._places[pointer])
        return pointer if pointer in self._places else None

    def _move(self, pointer: str) -> None:
        """Take what is at a pointer for a schema, if it may be one, and move it to `$defs`."""
        steps = pointer.split("/")
        known = next(
            (count for count in range(len(steps) - 1, 0, -1) if "/".join(steps[:count]) in self._places), None
        )
        if known is None or steps[known] in _DATA:
            return
        if len(steps) == known + 1 and steps[known] in MAPS | LISTS:
            return  # An object or a list of schemas is none.
        above = self._places["/".join(steps[:known])]
        value: Any = above.schema
        for step in steps[known:]:
            key = step.replace("~1", "/").replace("~0", "~")
            if isinstance(value, list) and key.isdecimal() and len(key) < 8 and int(key) < len(value):
                value = value[int(key)]
            else:
                value = value.get(key) if isinstance(value, Mapping) else None
        if isinstance(value, Mapping | bool) and value is not self._root:
            self._search(self._add(pointer, above._replace(schema=value)))

    def _add(self, pointer: str, place: _Place) -> _Place:
        """Also write a schema to `$defs`."""
        if place.pointer == pointer and place.written.removeprefix("#/$defs/") in self._moved:
            return place
        known = self._own_definitions()
        while (name := f"moved_{self._number}") in known:  # The client's own name.
            self._number += 1
        self._number += 1
        self._moved[name] = place.schema
        self._places[pointer] = found = place._replace(pointer=pointer, written=f"#/$defs/{name}")
        return found

    def _outermost(self, reference: _Reference, found: str, anchor: str) -> str:
        """Return where a dynamic reference leads that names the schema `found`.

        It is the first schema with this dynamic anchor on the way from the root, so the root's own if it has one.
        """
        named = self._dynamic.get(anchor, [])
        if found not in (pointer for _, pointer in named) or len(named) == 1:
            return found
        root = self._places["#"].base
        own = next((pointer for base, pointer in named if base == root), None)
        if own is None:
            raise _refused(reference, "leads to different schemas, depending on the way to it")
        return own

    def _outermost_recursive(self, reference: _Reference) -> str:
        resource = reference.place.resource
        if resource not in self._recursive or self._recursive == [resource]:
            return resource
        if "#" in self._recursive:
            return "#"
        raise _refused(reference, "leads to different schemas, depending on the way to it")


def _write(reference: _Reference, target: str) -> None:
    """Write a reference as a JSON pointer."""
    schema: dict[str, Any] = reference.place.schema
    written = target.replace("%", "%25")  # What follows pointers decodes them.
    if reference.keyword == "$ref" or "$ref" not in schema:
        schema.pop(reference.keyword, None)
        schema["$ref"] = written
    else:
        schema.pop(reference.keyword, None)
        if not isinstance(schema.get("allOf", []), list):
            raise ConstraintError(f"'{reference.place.pointer[:200]}/allOf' must be a list of schemas.")
        schema["allOf"] = [*schema.get("allOf", ()), {"$ref": written}]


def _refused(reference: _Reference, reason: str) -> ConstraintError:
    where = f"{reference.place.pointer}/{reference.keyword}"
    return ConstraintError(f"'{where[:200]}' ({reference.value[:80]}) {reason}.")


def _copied(value: Any, depth: int) -> Any:
    if depth > _MAX_DEPTH:
        raise ConstraintError(f"The schema is nested more than {_MAX_DEPTH} deep.")
    if isinstance(value, Mapping):
        return {name: _copied(item, depth + 1) for name, item in value.items()}
    return [_copied(item, depth + 1) for item in value] if isinstance(value, list) else value
