"""Check JSON Schemas and prepare them for the grammar engine.

The grammar engine refuses keywords that it does not implement. Schemas that it would enforce only in part are refused
here, so that every document that a grammar allows is valid.

The grammar allows compact documents, or one space after commas and colons, as models write them. Other white space is
not allowed, because some models write white space until their token limit (SO-09).
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Collection, Mapping
from typing import Any
from urllib.parse import quote, unquote

from plumbline.answer.structured_output.grammar.ecma_regex import to_rust_regex
from plumbline.answer.structured_output.grammar.errors import TOO_COMPLEX, ConstraintError, named_failures
from plumbline.answer.structured_output.grammar.keywords import Keywords
from plumbline.answer.structured_output.grammar.numbers.composed import JsonComposer, has_inexact_numbers
from plumbline.answer.structured_output.grammar.numbers.exact import exact_numbers
from plumbline.answer.structured_output.grammar.references import (
    LISTS,
    MAPS,
    SCHEMAS,
    pointed,
    with_pointers,
    without_endless,
)
from plumbline.answer.structured_output.schema_repair import repaired
from plumbline.base.exact_number import ExactNumber

__all__ = ["MAX_DEPTH", "MAX_MEMBERS", "MAX_SIZE", "MAX_TEXT", "checked"]

MAX_SIZE = 256 * 1024
"""Characters of a schema as JSON."""

MAX_DEPTH = 64
"""Nesting depth of a schema."""

MAX_MEMBERS = 500
"""Members of one object of a schema: compile time and mask time grow with the square of their number."""

MAX_TEXT = 16 * 1024
"""Characters of one literal text: compile time grows with the square of its length."""

_MOST_SCHEMAS = 20_000
"""Schemas inside a schema, also after keywords are rewritten: `propertyNames` may repeat one for each name."""

_MOST_WRITTEN = 4 * 1024 * 1024
"""Characters of a schema after keywords are rewritten."""

_MOST_PLACES = 32 * 1024 * 1024
"""Characters of the pointers to all places of a schema together; long names above many places make it large."""

_LAYOUT = {
    "item_separator": ", ?",
    "key_separator": ": ?",
    "whitespace_flexible": False,
    # Without \\u escapes a name has only one spelling. A second one would bypass `properties`:
    # {"a": 1, "\\u0061": "x"} has the member "a" twice, and JSON parsers take the last.
    "json_allowed_escapes": 'nrbtf\\"',
}


Composing = tuple[Callable[[str, str], str], Callable[[str, str], object]]
"""Returns the name of a rule with a kind and a body, and gives a rule a name."""


@named_failures()
def checked(
    schema: Mapping[str, Any] | bool,
    *,
    relaxed: bool = False,
    given_up: Collection[str] = (),
    notes: list[str] | None = None,
    compose: Composing | None = None,
) -> dict[str, Any] | str:
    """Return the schema for the grammar engine, or the expression of a grammar that is composed of several.

    Args:
        schema: the schema.
        relaxed: leave out keywords that cannot be enforced instead of refusing them.
        given_up: keywords of a relaxed schema that the engine has refused: `oneOf` is enforced as `anyOf`,
            `patternProperties` is left out, and a `pattern` beside other conditions on the text.
        notes: gets the JSON pointers of keywords that are not enforced: those that are left out, and formats.
        compose: adds rules, and names them, for schemas with numbers that the engine does not keep.

    Raises:
        ConstraintError: the schema is invalid or too large, refers to another document, or cannot be enforced fully.
    """
    if schema is False:
        raise ConstraintError("The schema is false: nothing satisfies it.")
    if schema is True:
        return {"x-guidance": _LAYOUT}
    found_notes: list[str] = []
    schema = check_shape(schema, found_notes)
    walk = _Walk(schema, relaxed=relaxed, given_up=given_up, notes=found_notes)
    found = walk.schema(schema, "#")
    walk.check_references()
    if found is False:
        raise ConstraintError("The schema is false: nothing satisfies it.")
    # The engine would read older drafts by their rules; they are translated.
    found = {name: value for name, value in found.items() if name != "$schema"}
    layout = {**_LAYOUT, **({"coerce_one_of": True} if "oneOf" in given_up else {})}
    composed = (
        None if compose is None or not has_inexact_numbers(found) else _composed(found, layout, compose)
    )
    result = composed or {
        **exact_numbers(found, notes=found_notes if relaxed else None),
        "x-guidance": layout,
    }
    if notes is not None:
        notes += dict.fromkeys(found_notes)
    return result


def _composed(schema: Mapping[str, Any], layout: Mapping[str, Any], compose: Composing) -> str | None:
    """Return the expression of a schema with numbers that the engine does not keep; None if it cannot be composed."""
    try:
        return JsonComposer(schema, *compose, layout).grammar()
    except ConstraintError:
        return None  # What the engine does not keep is refused by its place.


@named_failures()
def check_shape(schema: Mapping[str, Any], notes: list[str] | None = None) -> Mapping[str, Any]:
    """Check the size of a schema and the values of its keywords.

    Args:
        schema: the schema.
        notes: gets the pointer of an unknown `$schema`, which is read as the newest draft.

    Returns:
        The schema with its references as JSON pointers, without identifiers, and with `false` for references to
        schemas that no finite document satisfies.

    Raises:
        ConstraintError: the schema is too large or invalid, a reference leads out of it, or no finite document
            satisfies it; the text names the place.
    """
    _check_size(schema)
    schema, violation = repaired(schema)
    if violation is not None:
        raise ConstraintError(f"The schema is not valid JSON Schema: {violation}.")
    resolved = with_pointers(schema)
    if resolved is not schema:
        _check_size(resolved)
    # Generators mix the forms of drafts, so all are read whichever draft is named.
    if notes is not None and not _is_known(resolved.get("$schema")):
        notes.append("#/$schema")
    ending = without_endless(resolved)
    if ending is False:
        raise ConstraintError("The schema requires itself without an end: no finite document satisfies it.")
    return ending  # type: ignore[no-any-return]


def _is_known(draft: Any) -> bool:
    """Return whether `$schema` names a draft of JSON Schema, or OpenAPI, whose own keywords constrain nothing."""
    text = str(draft).rstrip("#").partition("://")[2].removesuffix("/")
    return draft is None or text.startswith("spec.openapis.org/oas/3.") or text in _DRAFTS


def _check_size(schema: Any) -> None:
    """Check the size without recursion; later steps recurse."""
    left: list[tuple[int, int, Any]] = [(0, 0, schema)]
    places = 0
    while left:
        depth, above, value = left.pop()
        if depth > MAX_DEPTH:
            raise ConstraintError(f"The schema is nested more than {MAX_DEPTH} deep.")
        if isinstance(value, Mapping):
            if len(value) > MAX_MEMBERS:
                raise ConstraintError(f"The schema has an object of more than {MAX_MEMBERS} members.")
            longest = max(map(len, value), default=0)
            if longest > MAX_TEXT:
                raise ConstraintError(f"The schema has a name of more than {MAX_TEXT} characters.")
            above += longest + 1
            places += above * len(value)
            left.extend(
                (depth + 1, above, item)
                for name, item in value.items()
                if not (isinstance(item, str) and name in ("$comment", "description", "title"))
            )
        elif isinstance(value, list):
            left.extend((depth + 1, above, item) for item in value)
            places += above * len(value)
        elif isinstance(value, float):
            if not math.isfinite(value) and not isinstance(value, ExactNumber):
                raise ConstraintError("The schema has a number that is not finite.")
        elif isinstance(value, str) and len(value) > MAX_TEXT:
            raise ConstraintError(f"The schema has a text of more than {MAX_TEXT} characters.")
        if places > _MOST_PLACES:
            raise ConstraintError(TOO_COMPLEX)
    try:
        text = json.dumps(schema, ensure_ascii=False)
        text.encode()
    except UnicodeEncodeError:
        raise ConstraintError("The schema has half of a surrogate pair, which is no character.") from None
    if len(text) > MAX_SIZE:
        raise ConstraintError(f"The schema has more than {MAX_SIZE} characters.")


class _Walk:
    """Rewrite every subschema for the engine, and translate its regexes.

    Only places where the standard allows schemas are visited: the same keywords in an `enum` or as property names are
    data. A reference to any other place is refused, because the schema there has not been checked.
    """

    def __init__(
        self, root: Mapping[str, Any], *, relaxed: bool, given_up: Collection[str], notes: list[str]
    ) -> None:
        self._given_up, self._notes = given_up, notes
        self._keywords = Keywords(root, relaxed=relaxed, notes=notes, given_up=given_up)
        self._count = 0
        self._written = 0
        self._places = 0
        self._seen: set[str] = set()
        self._references: dict[str, str] = {}

    def schema(self, schema: Any, where: str) -> Any:
        """Return the translated subschema at this JSON pointer."""
        self._count += 1
        self._places += len(where)
        if self._count > _MOST_SCHEMAS:
            raise ConstraintError(f"The schema contains more than {_MOST_SCHEMAS} schemas.")
        if self._places > _MOST_PLACES:
            raise ConstraintError(TOO_COMPLEX)
        self._seen.add(where)
        if not isinstance(schema, Mapping):
            return schema
        _check_forms(schema, where)
        found = self._keywords.rewritten(dict(schema), where)
        if isinstance(found, bool):
            return found
        self._check_values(found, where)
        if "oneOf" in self._given_up and "oneOf" in found:
            self._notes.append(f"{where}/oneOf")
        if "patternProperties" in self._given_up and "patternProperties" in found:
            for name in {"patternProperties", "additionalProperties"} & found.keys():
                del found[name]
                self._notes.append(f"{where}/{name}")
        for name, value in found.items():
            at = f"{where}/{name}"
            if name in LISTS:
                found[name] = [self.schema(item, f"{at}/{index}") for index, item in enumerate(value)]
            elif name in SCHEMAS:
                found[name] = self.schema(value, at)
            elif name in MAPS:
                found[name] = {key: self.schema(item, f"{at}/{pointed(key)}") for key, item in value.items()}
        _translate(found)
        return found

    def check_references(self) -> None:
        """Check that every reference points to a visited schema."""
        for where, reference in self._references.items():
            pointer = unquote(reference)
            if pointer not in self._seen and pointer.rstrip("/") not in self._seen:
                raise ConstraintError(
                    f"'{where}/$ref' does not point to a schema in this document ({reference[:80]})."
                )

    def _check_values(self, schema: dict[str, Any], where: str) -> None:
        self._write(len(schema.get("description", "")) + len(schema.get("pattern", "")))
        reference = schema.get("$ref")
        if isinstance(reference, str):
            self._references[where] = reference
            schema["$ref"] = quote(unquote(reference), safe="#/~$!&'()*+,;=:@?-._")
        for name in ("enum", "const"):
            if name in schema:
                self._write(_check_writable(schema[name], f"{where}/{name}"))
        for name in ("properties", "required"):
            if name in schema:
                self._write(_check_writable(list(schema[name]), f"{where}/{name}"))

    def _write(self, count: int) -> None:
        """Count the text that a schema has after its keywords are rewritten, which may repeat parts of it."""
        self._written += count
        if self._written > _MOST_WRITTEN:
            raise ConstraintError(TOO_COMPLEX)


def _translate(schema: dict[str, Any]) -> None:
    """Translate the regexes of a schema."""
    if "pattern" in schema:
        schema["pattern"] = to_rust_regex(schema["pattern"])
    if "patternProperties" in schema:
        schema["patternProperties"] = {
            to_rust_regex(key): item for key, item in schema["patternProperties"].items()
        }


def _check_forms(schema: Mapping[str, Any], where: str) -> None:
    """Refuse keywords that are valid only because the draft of the schema does not know them, such as `"$defs": []`."""
    for name, value in schema.items():
        if name not in _FORMED:
            continue
        if name in LISTS:
            right = isinstance(value, list)
        elif name == "dependentRequired":
            right = isinstance(value, Mapping) and all(isinstance(one, list) for one in value.values())
        elif name in MAPS:
            right = isinstance(value, Mapping)
        else:
            right = isinstance(value, Mapping | bool) or (name == "items" and isinstance(value, list))
        if not right:
            raise ConstraintError(f"'{where[:200]}/{name}' has a value of a wrong type.")


_FORMED = (LISTS | MAPS | SCHEMAS | {"dependentRequired"}) - {"contentSchema"}


def _check_writable(value: Any, where: str) -> int:
    """Refuse control characters that JSON can only write as \\u escapes; return about how long the value is."""
    if isinstance(value, str):
        if not _UNWRITABLE.isdisjoint(value):
            raise ConstraintError(
                f"'{where}' has a control character that can only be written as a \\u escape."
            )
        return len(value)
    if isinstance(value, Mapping):
        return sum(
            _check_writable(name, where) + _check_writable(item, where) for name, item in value.items()
        )
    return sum(_check_writable(item, where) for item in value) if isinstance(value, list) else 8


_DRAFTS = frozenset(
    f"json-schema.org/{draft}" for draft in ("schema", "draft/2020-12/schema", "draft/2019-09/schema")
) | frozenset(f"json-schema.org/draft-0{number}/schema" for number in (3, 4, 6, 7))
_UNWRITABLE = (frozenset(map(chr, range(0x20))) - frozenset("\n\r\b\t\f")) | {"\x7f"}
