"""JSON Schemas that can be promised: bounded, closed in themselves, and held to the letter.

The grammar engine refuses by itself what it does not implement. What it would hold too loosely is refused here, so that
every document it lets through is valid: nothing is weakened.

Documents are written compactly, or with one space after commas and colons, as models write them. White space anywhere
else is not needed by any reader, and a model that may write it sometimes writes nothing else until its tokens are used
up (SO-09).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any
from urllib.parse import unquote

import jsonschema_rs

from plumbline.structured_output.grammar.ecma_regex import FORMATS, LENGTHS, NOTED_FORMATS, translated
from plumbline.structured_output.grammar.errors import ConstraintError

__all__ = ["MAX_DEPTH", "MAX_MEMBERS", "MAX_SIZE", "MAX_TEXT", "checked"]

MAX_SIZE = 256 * 1024
"""Characters of a schema as JSON."""

MAX_DEPTH = 64
"""How deep objects and arrays of a schema may nest."""

MAX_MEMBERS = 500
"""Names in one object of a schema: the time to compile it grows with the square, and so does the work of a mask."""

MAX_TEXT = 16 * 1024
"""Characters of one text that is to be written as it stands: compiling it takes a time that grows with the square."""

_LAYOUT = {
    "item_separator": ", ?",
    "key_separator": ": ?",
    "whitespace_flexible": False,
    # Without \\u there is one way only to write a name or a value. A second one would be a way around `properties`:
    # {"a": 1, "\\u0061": "x"} has the member "a" twice, and readers take the last.
    "json_allowed_escapes": 'nrbtf\\"',
}


def checked(schema: Mapping[str, Any] | bool) -> dict[str, Any]:
    """The schema as the grammar engine gets it.

    Raises:
        FormError: it is no schema, too large, refers to another document, or cannot be held to the letter.
    """
    if schema is False:
        raise ConstraintError("The schema is false: nothing satisfies it.")
    if schema is True:
        return {"x-guidance": _LAYOUT}
    check_shape(schema)
    walk = _Walk()
    found = walk.schema(schema, "#")
    walk.check_references()
    return {**found, "x-guidance": _LAYOUT}


def check_shape(schema: Mapping[str, Any]) -> None:
    """A schema of a size that can be worked with, in which every keyword has a value that it may have.

    Raises:
        FormError: it is none; the text says where.
    """
    _check_size(schema)
    dialect = schema.get("$schema", _DIALECTS[0])
    if not isinstance(dialect, str) or dialect.rstrip("#") not in _DIALECTS:
        raise ConstraintError(
            f"'#/$schema' is {str(dialect)[:80]!r}, which is not a draft of JSON Schema from 4 to 2020-12."
        )
    try:
        jsonschema_rs.meta.validate(dict(schema))
    except jsonschema_rs.ValidationError as error:
        where = "/".join(("#", *map(str, error.instance_path)))
        raise ConstraintError(f"'{where}' is not valid JSON Schema: {error.message[:200]}") from None


def _check_size(schema: Any) -> None:
    """Bounds first, and without recursion: everything after this may recurse."""
    left: list[tuple[int, Any]] = [(0, schema)]
    while left:
        depth, value = left.pop()
        if depth > MAX_DEPTH:
            raise ConstraintError(f"The schema is nested more than {MAX_DEPTH} deep.")
        if isinstance(value, Mapping):
            if len(value) > MAX_MEMBERS:
                raise ConstraintError(f"The schema has an object of more than {MAX_MEMBERS} members.")
            left.extend(
                (depth + 1, item)
                for name, item in value.items()
                if not (isinstance(item, str) and name in ("$comment", "description", "title"))
            )
        elif isinstance(value, list):
            left.extend((depth + 1, item) for item in value)
        elif isinstance(value, str) and len(value) > MAX_TEXT:
            raise ConstraintError(f"The schema has a text of more than {MAX_TEXT} characters.")
    if len(json.dumps(schema, ensure_ascii=False)) > MAX_SIZE:
        raise ConstraintError(f"The schema has more than {MAX_SIZE} characters.")


class _Walk:
    """Goes through every subschema, checks it and translates its patterns.

    It keeps to the places where the standard puts schemas: the same words in an `enum` or as names of properties are
    data. A reference to any other place is refused, because what stands there has not been looked at.
    """

    def __init__(self) -> None:
        self._seen: set[str] = set()
        self._references: dict[str, str] = {}

    def schema(self, schema: Any, where: str) -> Any:
        """The subschema at this JSON pointer."""
        self._seen.add(where)
        if not isinstance(schema, Mapping):
            return schema
        found = dict(schema)
        for name, value in schema.items():
            at = f"{where}/{_pointed(name)}"
            if name in _SCHEMAS:
                found[name] = self._listed(value, at) if isinstance(value, list) else self.schema(value, at)
            elif name in _LISTS:
                found[name] = self._listed(value, at)
            elif name in _MAPS:
                found[name] = {key: self.schema(item, f"{at}/{_pointed(key)}") for key, item in value.items()}
            elif name in ("enum", "const"):
                _check_writable(value, at)
        self._own(found, where)
        return found

    def check_references(self) -> None:
        """Every reference leads to a schema that was looked at."""
        for where, reference in self._references.items():
            if unquote(reference).rstrip("/") not in self._seen:
                raise ConstraintError(
                    f"'{where}/$ref' leads to no schema of this document ({reference[:80]})."
                )

    def _listed(self, schemas: list[Any], where: str) -> list[Any]:
        return [self.schema(item, f"{where}/{index}") for index, item in enumerate(schemas)]

    def _own(self, schema: dict[str, Any], where: str) -> None:
        if where != "#" and any(name in schema for name in ("$id", "id", "$anchor")):
            raise ConstraintError(f"'{where}' gives itself a name; only JSON pointers ('#/…') are followed.")
        reference = schema.get("$ref")
        if isinstance(reference, str):
            if reference != "#" and not reference.startswith("#/"):
                raise ConstraintError(
                    f"'{where}/$ref' ({reference[:80]}) is not a JSON pointer into this document ('#/…')."
                )
            self._references[where] = reference
        for name in ("properties", "required"):
            _check_writable(list(schema.get(name, ())), f"{where}/{name}")
        _check_members(where, schema)
        if "pattern" in schema:
            schema["pattern"] = translated(schema["pattern"])
        if "patternProperties" in schema:
            schema["patternProperties"] = {
                translated(key): item for key, item in schema["patternProperties"].items()
            }
        if schema.get("uniqueItems") is False:
            del schema["uniqueItems"]  # It asks for nothing.
        if schema.get("format") in NOTED_FORMATS:
            del schema["format"]
        lengths = LENGTHS.get(str(schema.get("format")), ())
        if lengths:
            schema["allOf"] = [*schema.get("allOf", ()), *({"pattern": one} for one in lengths)]
        known = FORMATS.get(str(schema.get("format")))
        if known is not None:
            del schema["format"]
            if "pattern" in schema:
                schema["allOf"] = [*schema.get("allOf", ()), {"pattern": known}]
            else:
                schema["pattern"] = known


def _pointed(name: str) -> str:
    """A name as a part of a JSON pointer."""
    return name.replace("~", "~0").replace("/", "~1")


def _check_writable(value: Any, where: str) -> None:
    """Without escapes by number some control characters cannot be written at all."""
    if isinstance(value, str):
        if any(char in _UNWRITABLE for char in value):
            raise ConstraintError(
                f"'{where}' has a control character that can only be written as a \\u escape."
            )
    elif isinstance(value, Mapping):
        for name, item in value.items():
            _check_writable(name, where)
            _check_writable(item, where)
    elif isinstance(value, list):
        for item in value:
            _check_writable(item, where)


def _check_members(where: str, schema: Mapping[str, Any]) -> None:
    """Names that no property lists are not kept apart by the grammar, so only named members can be counted."""
    least = schema.get("minProperties", 0)
    if least > 1 and least > len(set(schema.get("required", ()))):
        raise ConstraintError(f"'{where}/minProperties' cannot be held; list the members as 'required'.")


_DIALECTS = (
    "https://json-schema.org/draft/2020-12/schema",
    "https://json-schema.org/draft/2019-09/schema",
    "http://json-schema.org/draft-07/schema",
    "http://json-schema.org/draft-06/schema",
    "http://json-schema.org/draft-04/schema",
)
_SCHEMAS = frozenset(
    {"items", "additionalItems", "additionalProperties", "contains", "not", "if", "then", "else"}
)
_SCHEMAS |= {"propertyNames", "unevaluatedItems", "unevaluatedProperties", "contentSchema"}
_LISTS = frozenset({"allOf", "anyOf", "oneOf", "prefixItems"})
_MAPS = frozenset({"properties", "patternProperties", "$defs", "definitions", "dependentSchemas"})
_UNWRITABLE = (frozenset(map(chr, range(0x20))) - frozenset("\n\r\b\t\f")) | {"\x7f"}
