"""Check JSON Schemas and prepare them for the grammar engine.

The grammar engine refuses keywords that it does not implement. Schemas that it would enforce only in part are refused
here, so that every document that a grammar allows is valid.

The grammar allows compact documents, or one space after commas and colons, as models write them. Other white space is
not allowed, because some models write white space until their token limit (SO-09).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any
from urllib.parse import unquote

import jsonschema_rs

from plumbline.structured_output.grammar.ecma_regex import FORMATS, LENGTHS, NOTED_FORMATS, to_rust_regex
from plumbline.structured_output.grammar.errors import ConstraintError
from plumbline.structured_output.grammar.numbers import exact_numbers
from plumbline.workers.panics import panics

__all__ = ["MAX_DEPTH", "MAX_MEMBERS", "MAX_SIZE", "MAX_TEXT", "checked"]

MAX_SIZE = 256 * 1024
"""Characters of a schema as JSON."""

MAX_DEPTH = 64
"""Nesting depth of a schema."""

MAX_MEMBERS = 500
"""Members of one object of a schema: compile time and mask time grow with the square of their number."""

MAX_TEXT = 16 * 1024
"""Characters of one literal text: compile time grows with the square of its length."""

_LAYOUT = {
    "item_separator": ", ?",
    "key_separator": ": ?",
    "whitespace_flexible": False,
    # Without \\u escapes a name has only one spelling. A second one would bypass `properties`:
    # {"a": 1, "\\u0061": "x"} has the member "a" twice, and JSON parsers take the last.
    "json_allowed_escapes": 'nrbtf\\"',
}


def checked(schema: Mapping[str, Any] | bool) -> dict[str, Any]:
    """Return the schema for the grammar engine.

    Raises:
        ConstraintError: the schema is invalid or too large, refers to another document, or cannot be enforced fully.
    """
    if schema is False:
        raise ConstraintError("The schema is false: nothing satisfies it.")
    if schema is True:
        return {"x-guidance": _LAYOUT}
    check_shape(schema)
    walk = _Walk()
    found = walk.schema(schema, "#")
    walk.check_references()
    return {**exact_numbers(found), "x-guidance": _LAYOUT}


def check_shape(schema: Mapping[str, Any]) -> None:
    """Check the size of a schema and the values of its keywords.

    Raises:
        ConstraintError: the schema is too large or invalid; the text names the place.
    """
    _check_size(schema)
    dialect = schema.get("$schema", _DIALECTS[0])
    if not isinstance(dialect, str) or dialect.rstrip("#") not in _DIALECTS:
        raise ConstraintError(
            f"'#/$schema' is {str(dialect)[:80]!r}, which is not a draft of JSON Schema from 4 to 2020-12."
        )
    try:
        with panics(ConstraintError, "The schema cannot be checked"):
            jsonschema_rs.meta.validate(dict(schema))
    except jsonschema_rs.ValidationError as error:
        where = "/".join(("#", *map(str, error.instance_path)))
        raise ConstraintError(f"'{where}' is not valid JSON Schema: {error.message[:200]}") from None


def _check_size(schema: Any) -> None:
    """Check the size without recursion; later steps recurse."""
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
    try:
        text = json.dumps(schema, ensure_ascii=False, allow_nan=False)
        text.encode()
    except UnicodeEncodeError:
        raise ConstraintError("The schema has half of a surrogate pair, which is no character.") from None
    except ValueError:
        raise ConstraintError("The schema has a number that is not finite.") from None
    if len(text) > MAX_SIZE:
        raise ConstraintError(f"The schema has more than {MAX_SIZE} characters.")


class _Walk:
    """Check every subschema and translate its regexes.

    Only places where the standard allows schemas are visited: the same keywords in an `enum` or as property names are
    data. A reference to any other place is refused, because the schema there has not been checked.
    """

    def __init__(self) -> None:
        self._seen: set[str] = set()
        self._references: dict[str, str] = {}

    def schema(self, schema: Any, where: str) -> Any:
        """Return the translated subschema at this JSON pointer."""
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
        self._check_keywords(found, where)
        return found

    def check_references(self) -> None:
        """Check that every reference points to a visited schema."""
        for where, reference in self._references.items():
            if unquote(reference).rstrip("/") not in self._seen:
                raise ConstraintError(
                    f"'{where}/$ref' does not point to a schema in this document ({reference[:80]})."
                )

    def _listed(self, schemas: list[Any], where: str) -> list[Any]:
        return [self.schema(item, f"{where}/{index}") for index, item in enumerate(schemas)]

    def _check_keywords(self, schema: dict[str, Any], where: str) -> None:
        if where != "#" and any(name in schema for name in ("$id", "id", "$anchor")):
            raise ConstraintError(
                f"'{where}' has an identifier; only references by JSON pointer ('#/…') are supported."
            )
        reference = schema.get("$ref")
        if isinstance(reference, str):
            if reference != "#" and not reference.startswith("#/"):
                raise ConstraintError(
                    f"'{where}/$ref' ({reference[:80]}) is not a JSON pointer into this document ('#/…')."
                )
            self._references[where] = reference
        for name in ("properties", "required"):
            _check_writable(list(schema.get(name, ())), f"{where}/{name}")
        _check_min_properties(where, schema)
        if "pattern" in schema:
            schema["pattern"] = to_rust_regex(schema["pattern"])
        if "patternProperties" in schema:
            schema["patternProperties"] = {
                to_rust_regex(key): item for key, item in schema["patternProperties"].items()
            }
        if schema.get("uniqueItems") is False:
            del schema["uniqueItems"]  # It constrains nothing.
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
    """Escape a name for a JSON pointer."""
    return name.replace("~", "~0").replace("/", "~1")


def _check_writable(value: Any, where: str) -> None:
    """Refuse control characters that JSON can only write as \\u escapes."""
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


def _check_min_properties(where: str, schema: Mapping[str, Any]) -> None:
    """Refuse `minProperties` beyond the required members: the grammar does not count additional ones."""
    least = schema.get("minProperties", 0)
    if least > 1 and least > len(set(schema.get("required", ()))):
        raise ConstraintError(f"'{where}/minProperties' cannot be enforced; list the members as 'required'.")


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
