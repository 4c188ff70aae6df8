"""Rewrite keywords of JSON Schema that the grammar engine lacks to keywords that it has.

Most rewrites are exact. What no grammar can express is refused, or left out and noted if the client did not ask for
`strict`: then an answer may violate it, and the response names the keyword and its place.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from functools import partial
from typing import Any

from plumbline.answer.structured_output.grammar.combined import (
    NOTES,
    TYPES,
    add,
    both,
    dependents,
    joined,
    listed_names,
    name_pattern,
    only_named,
    referred,
    with_dependents,
    without_types,
)
from plumbline.answer.structured_output.grammar.ecma_regex import (
    ENGINE_FORMATS,
    FORMATS,
    LENGTHS,
    assertions,
    to_rust_regex,
)
from plumbline.answer.structured_output.grammar.errors import TOO_COMPLEX, ConstraintError
from plumbline.answer.structured_output.grammar.finite_regex import listed_texts
from plumbline.answer.structured_output.grammar.negation import (
    alternatives,
    are_objects_apart,
    different_items,
    have_types_of_their_own,
    join_conditions,
    negation,
    one_of_few,
)
from plumbline.answer.structured_output.grammar.numbers.literals import canonical_text
from plumbline.answer.structured_output.grammar.references import pointed
from plumbline.base.exact_number import dumps

__all__ = ["Keywords"]

_STRING_FORMATS = ENGINE_FORMATS | FORMATS.keys()
_CONTENT = frozenset(("contentEncoding", "contentMediaType", "contentSchema"))
_OF_TEXTS = frozenset(("minLength", "maxLength", "format"))
_APPLICATORS = frozenset(
    ("$ref", "allOf", "anyOf", "oneOf", "if", "then", "else", "not", "dependentSchemas", "dependentRequired")
)
_MOST_BRANCHES = 4
"""Dependencies of one schema: each doubles its alternatives."""
_MOST_COPIED = 4 * 1024 * 1024
"""Characters that rewrites of one document may repeat."""


class Keywords:
    """Rewrite the keywords of each schema of one document.

    Args:
        root: the document, for references.
        relaxed: leave out what cannot be enforced instead of refusing it.
        notes: collects the JSON pointers of the keywords that are not enforced.
        given_up: keywords that the engine has refused in a relaxed schema; see `json_schema.checked`.
    """

    def __init__(
        self, root: Mapping[str, Any], *, relaxed: bool, notes: list[str], given_up: Collection[str] = ()
    ) -> None:
        self._root = root
        self._referred = partial(referred, root)
        self._given_up = given_up
        self._relaxed = relaxed
        self._notes = notes
        self._copied = 0
        self._renamed: dict[str, str] = {}
        """Where the client has keywords that were renamed."""

    def rewritten(self, schema: dict[str, Any], where: str) -> dict[str, Any] | bool:
        """Return an equivalent schema for the engine; its subschemas are not rewritten yet.

        Raises:
            ConstraintError: a keyword cannot be enforced, and the schema may not be relaxed.
        """
        if _REWRITTEN.isdisjoint(schema):
            return schema
        for name in ("default", "examples"):
            schema.pop(name, None)  # Their numbers may be ones that the engine cannot read.
        for name, rewrite in _REWRITES.items():
            if name in schema and rewrite(self, schema, where) is False:
                return False
        return schema

    def note(self, where: str) -> None:
        """Note that a keyword is not enforced, which the standard allows."""
        for written, renamed in self._renamed.items():
            if where.startswith(written):
                where = renamed + where[len(written) :]
        self._notes.append(where)

    def leave_out(self, schema: dict[str, Any], names: Collection[str], where: str, reason: str) -> None:
        """Leave out keywords, and note it.

        Raises:
            ConstraintError: the schema may not be relaxed.
        """
        present = [name for name in schema if name in names]
        if not self._relaxed:
            raise ConstraintError(
                f"'{where}/{present[0]}' cannot be enforced{reason}; leave it out, or send it without 'strict'."
            )
        for name in present:
            del schema[name]
            self.note(f"{where}/{name}")

    # Texts

    def _format(self, schema: dict[str, Any], where: str) -> None:
        """Enforce the formats that are defined exactly; others are annotations (Validation, section 7.2.3)."""
        name = str(schema["format"])
        kinds = schema.get("type", "string")
        if name not in _STRING_FORMATS or (kinds != "string" and "string" not in kinds):
            del schema["format"]
            self.note(f"{where}/format")
            return
        if name in FORMATS:
            del schema["format"]
            add(schema, {"pattern": FORMATS[name]})
        for pattern in LENGTHS.get(name, ()):
            add(schema, {"pattern": pattern})

    def _pattern(self, schema: dict[str, Any], where: str) -> None:
        try:
            found = assertions(schema["pattern"])
            for pattern in found:
                to_rust_regex(pattern)
        except ConstraintError:
            if not self._relaxed:
                raise
            found = []
        is_given_up = "pattern" in self._given_up and (len(found) > 1 or not _OF_TEXTS.isdisjoint(schema))
        if not found or is_given_up:
            self.leave_out(schema, ("pattern",), where, "")
            return
        schema["pattern"] = found[0]
        for pattern in found[1:]:
            add(schema, {"pattern": pattern})

    def _enum(self, schema: dict[str, Any], where: str) -> None:
        """Leave out an empty list of values, by which serializers say that there is none."""
        if not schema["enum"] and self._relaxed:
            self.leave_out(schema, ("enum",), where, "")

    def _content(self, schema: dict[str, Any], where: str) -> None:
        for name in sorted(_CONTENT & schema.keys()):
            del schema[name]
            self.note(f"{where}/{name}")

    # Types and values

    def _nullable(self, schema: dict[str, Any], where: str) -> None:
        """Translate OpenAPI 3.0's `nullable`, which has an effect beside a `type` only."""
        if schema["nullable"] is True and "type" in schema and "const" not in schema:
            schema["type"] = joined(schema["type"], "null")
        del schema["nullable"]

    def _not(self, schema: dict[str, Any], where: str) -> bool | None:
        other = self._negation(schema["not"], schema)
        if other is None:
            self.leave_out(schema, ("not",), where, "")
            return None
        del schema["not"]
        if isinstance(other, bool):  # Generators write `{"not": {}}` for a value that cannot be.
            return None if other else False
        if other.keys() <= {"type", "enum"} and _narrows(other, schema):
            schema.update(other)  # Types and listed values are those that are left of the schema's.
        elif "not" in other:  # It is rewritten in a schema of its own.
            schema["allOf"] = [*schema.get("allOf", ()), other]
        else:
            add(schema, other)
        return None

    def _unless_refused(self, found: Any) -> Any:
        """Return what a keyword is rewritten to; None if the engine has refused such schemas as too large."""
        return None if "not" in self._given_up else found

    def _negation(self, condition: Any, schema: Mapping[str, Any]) -> Any:
        """Return the negation of a condition beside a schema; None if there is none, or the engine has refused it."""
        found = negation(condition, schema, self._referred)
        simple = isinstance(found, bool) or (found is not None and found.keys() <= {"type", "enum"})
        return found if simple else self._unless_refused(found)

    def _all_of(self, schema: dict[str, Any], where: str) -> None:
        if "not" not in self._given_up:
            join_conditions(schema, self._referred)

    def _if(self, schema: dict[str, Any], where: str) -> None:
        parts = {name: schema[name] for name in ("if", "then", "else") if name in schema}
        condition = parts.get("if", True)
        opposite = self._negation(condition, schema) if "if" in parts and len(parts) > 1 else False
        if opposite is None:
            self.leave_out(schema, ("if", "then", "else"), where, "")
            return
        for name in parts:
            del schema[name]
        if "if" in parts and len(parts) > 1:
            branches = [both(condition, parts.get("then", True)), both(opposite, parts.get("else", True))]
            possible = [branch for branch in branches if branch is not False]
            add(schema, possible[0] if len(possible) == 1 else {"anyOf": possible or [False]})

    def _one_of(self, schema: dict[str, Any], where: str) -> None:
        """Write `oneOf` as `anyOf`, of branches that exclude each other; the engine knows some that do."""
        branches: list[Any] = schema["oneOf"]
        if not (
            have_types_of_their_own(branches, self._referred)
            or are_objects_apart(branches, schema, self._referred)
        ):
            others = self._unless_refused(alternatives(branches, schema, self._referred))
            if others is None:
                return
            self._copy(branches, len(branches))
            branches = others or [False]
        elif "anyOf" not in schema:
            self._renamed[f"{where}/anyOf/"] = f"{where}/oneOf/"
        del schema["oneOf"]
        add(schema, {"anyOf": branches})

    def _ref(self, schema: dict[str, Any], where: str) -> None:
        """Drop a type beside a reference to a schema of that type, which the engine refuses in circles."""
        if schema.keys() - NOTES == {"$ref", "type"}:
            target = self._root if schema["$ref"] == "#" else self._referred({"$ref": schema["$ref"]})
            if isinstance(target, Mapping) and target.get("type") == schema["type"]:
                del schema["type"]

    # Arrays

    def _items(self, schema: dict[str, Any], where: str) -> None:
        """Translate the lists of drafts before 2020-12."""
        if isinstance(schema["items"], list):
            listed = schema.pop("items")
            rest = schema.pop("additionalItems", None)
            if listed:
                schema["prefixItems"] = listed
                self._renamed[f"{where}/prefixItems/"] = f"{where}/items/"
            if rest is not None:
                schema["items"] = rest

    def _additional_items(self, schema: dict[str, Any], where: str) -> None:
        del schema["additionalItems"]  # It has no effect without a list of items.

    def _unique(self, schema: dict[str, Any], where: str) -> None:
        if schema["uniqueItems"] is False or schema.get("maxItems", 2) <= 1:
            del schema["uniqueItems"]
        elif (arrays := self._unless_refused(different_items(schema, self._referred))) is not None:
            for name in ("uniqueItems", "items", "minItems", "maxItems"):
                schema.pop(name, None)
            found = {"type": without_types(schema.get("type"), "array"), "enum": arrays}
            add(schema, {"anyOf": [{name: value} for name, value in found.items() if value] or [False]})
        else:
            self.leave_out(schema, ("uniqueItems",), where, "")

    def _contains(self, schema: dict[str, Any], where: str) -> None:
        if "contains" not in schema:
            for name in {"minContains", "maxContains"} & schema.keys():
                del schema[name]
        elif schema.get("minContains") == 0 and {"maxContains", "unevaluatedItems"}.isdisjoint(schema):
            del schema["contains"], schema["minContains"]
        elif (found := self._unless_refused(one_of_few(schema))) is not None:
            one = schema.pop("contains")
            schema.pop("minContains", None)
            self._copy(one, len(found))
            add(schema, {"anyOf": found or [False]})
        else:
            self.leave_out(schema, ("contains", "minContains", "maxContains"), where, "")

    # Objects

    def _dependencies(self, schema: dict[str, Any], where: str) -> None:
        """Translate the keyword of drafts before 2019-09."""
        with_dependents(schema, schema.pop("dependencies"))

    def _dependent(self, schema: dict[str, Any], where: str) -> None:
        required, schemas = schema.get("dependentRequired", {}), schema.get("dependentSchemas", {})
        if len(required) + len(schemas) > _MOST_BRANCHES:
            self.leave_out(schema, ("dependentRequired", "dependentSchemas"), where, " beyond four names")
            return
        for name in ("dependentRequired", "dependentSchemas"):
            schema.pop(name, None)
        for one in dependents(required, schemas):
            add(schema, one)

    def _property_names(self, schema: dict[str, Any], where: str) -> None:
        names = self._referred(schema["propertyNames"])
        keys = names.keys() - NOTES if isinstance(names, Mapping) else set()
        if names is True or (
            isinstance(names, Mapping) and keys <= {"type"} and "string" in names.get("type", "string")
        ):
            del schema["propertyNames"]
            return
        rest = schema.get("additionalProperties", True)
        if names is False or (isinstance(names, Mapping) and "string" not in names.get("type", "string")):
            del schema["propertyNames"]
            add(schema, {"maxProperties": 0})
            return
        listed = listed_names(names, keys)
        if listed is not None and "patternProperties" not in schema:
            self._copy(rest, len(listed))
            del schema["propertyNames"]
            schema["properties"] = only_named(schema.get("properties", {}), listed, rest)
            schema["additionalProperties"] = False
            return
        pattern = name_pattern(names, keys)
        if pattern is not None and not {"patternProperties", "properties"} & schema.keys():
            del schema["propertyNames"]
            schema["patternProperties"] = {pattern: rest}
            schema["additionalProperties"] = False
            return
        self.leave_out(schema, ("propertyNames",), where, "")

    def _pattern_properties(self, schema: dict[str, Any], where: str) -> None:
        schema["patternProperties"] = patterns = dict(schema["patternProperties"])
        for pattern, one in [*patterns.items()]:
            names = listed_texts(pattern, len(schema.get("properties", ())))
            if names is not None and set(names) <= schema.get("properties", {}).keys():
                # The engine would allow a comma before a further name, of which there is none.
                del patterns[pattern]
                known = schema["properties"]
                self._copy(one, len(names))
                schema["properties"] = {**known, **{name: both(known[name], one) for name in names}}
                continue
            try:
                to_rust_regex(pattern)
            except ConstraintError:
                if not self._relaxed:
                    raise
                del patterns[pattern]
                # The names that it matches are allowed, but the engine cannot recognise them.
                for name in ("additionalProperties", "unevaluatedProperties"):
                    if name in schema:
                        del schema[name]
                        self.note(f"{where}/{name}")
                self.note(f"{where}/patternProperties/{pointed(pattern)}")
        if not patterns:
            del schema["patternProperties"]

    def _unevaluated_properties(self, schema: dict[str, Any], where: str) -> None:
        rest = schema["unevaluatedProperties"]
        if rest is True or rest == {} or "additionalProperties" in schema:
            del schema["unevaluatedProperties"]  # Nothing is left to evaluate.
        elif _APPLICATORS & schema.keys():
            self.leave_out(schema, ("unevaluatedProperties",), where, " beside other schemas")
        else:
            schema["additionalProperties"] = schema.pop("unevaluatedProperties")

    def _unevaluated_items(self, schema: dict[str, Any], where: str) -> None:
        rest = schema["unevaluatedItems"]
        if rest is True or rest == {} or "items" in schema:
            del schema["unevaluatedItems"]
        elif (_APPLICATORS | {"contains"}) & schema.keys():
            self.leave_out(schema, ("unevaluatedItems",), where, " beside other schemas")
        else:
            schema["items"] = schema.pop("unevaluatedItems")

    def _min_properties(self, schema: dict[str, Any], where: str) -> None:
        """Keep what the grammar counts: required members, and whether there is one."""
        least = schema["minProperties"]
        if least > 1 and least > len(set(schema.get("required", ()))):
            self.leave_out(schema, ("minProperties",), where, " above the number of 'required' names")

    def _copy(self, schema: Any, count: int) -> None:
        """Count what a rewrite repeats; copies may be repeated again.

        Raises:
            ConstraintError: it is too much.
        """
        if count > 1 and schema not in (True, False):
            self._copied += count * len(dumps(schema))
            if self._copied > _MOST_COPIED:
                raise ConstraintError(TOO_COMPLEX)


def _narrows(other: Mapping[str, Any], schema: Mapping[str, Any]) -> bool:
    """Return whether types and values are among those that a schema lists itself."""
    own = {"type": list(TYPES), "enum": [], **schema}
    return all(
        {*map(canonical_text, _as_list(other[name]))} <= {*map(canonical_text, _as_list(own[name]))}
        for name in other
    )


def _as_list(values: Any) -> list[Any]:
    return values if isinstance(values, list) else [values]


_REWRITES: dict[str, Callable[[Keywords, dict[str, Any], str], bool | None]] = {
    "items": Keywords._items,
    "unevaluatedItems": Keywords._unevaluated_items,
    "unevaluatedProperties": Keywords._unevaluated_properties,
    "nullable": Keywords._nullable,
    "$ref": Keywords._ref,
    "oneOf": Keywords._one_of,
    "not": Keywords._not,
    "allOf": Keywords._all_of,
    **dict.fromkeys(("if", "then", "else"), Keywords._if),
    "dependencies": Keywords._dependencies,
    "propertyNames": Keywords._property_names,
    "patternProperties": Keywords._pattern_properties,
    **dict.fromkeys(("contains", "minContains", "maxContains"), Keywords._contains),
    "uniqueItems": Keywords._unique,
    "additionalItems": Keywords._additional_items,
    "minProperties": Keywords._min_properties,
    "dependentRequired": Keywords._dependent,
    "dependentSchemas": Keywords._dependent,
    **dict.fromkeys(_CONTENT, Keywords._content),
    "pattern": Keywords._pattern,
    "enum": Keywords._enum,
    "format": Keywords._format,
}
"""In this order: an earlier rewrite may add the keyword of a later one, and what is unevaluated depends on others."""


_REWRITTEN = frozenset((*_REWRITES, "default", "examples"))
