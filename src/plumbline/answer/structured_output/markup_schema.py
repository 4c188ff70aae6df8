"""Restrict parameter schemas to what a call format can enforce.

If arguments are JSON, every schema of `json_schema` is supported. Other call formats write values in markup: texts
between tags, numbers as JSON, objects and arrays in brackets or elements. The schemas returned here are enforced fully
by the format's grammar. Other keywords are refused if the tool is strict, and otherwise left out with a log line.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from plumbline.answer.dialects.spec.call_format import ArgumentSyntax, CallFormat
from plumbline.answer.dialects.streams.coercion import allowed_types, coerce, referred
from plumbline.answer.structured_output.grammar.errors import ConstraintError
from plumbline.answer.structured_output.grammar.raw_string import TEXT_KEYWORDS
from plumbline.answer.structured_output.parameter_names import MARKUP_NAME

__all__ = ["check_listed_texts", "markup_schema", "unsupported_reason"]

_MAX_REFERENCES = 16
_MAX_DEPTH = 32
_MAX_PARTS = 5_000
_NOTES = frozenset(("$comment", "default", "deprecated", "description", "examples", "title"))
_BOUNDS = frozenset(("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"))
_ARRAY = frozenset(("items", "minItems", "maxItems"))
_OBJECT = frozenset(("properties", "required", "additionalProperties"))
_ROOT = frozenset(
    ("$defs", "$id", "$schema", "additionalProperties", "definitions", "properties", "required", "type")
)
_BRANCHES = frozenset(("allOf", "anyOf", "oneOf", "not", "if"))
_NAMED = frozenset(("$defs", "definitions", "dependentSchemas", "patternProperties", "properties"))
_NULLABLE = frozenset(("string", "null"))


def markup_schema(call_format: CallFormat, schema: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return strict parameters for a call format, with references resolved.

    Raises:
        ConstraintError: the call format cannot enforce them.
    """
    syntax = call_format.argument_syntax
    if syntax is ArgumentSyntax.JSON:
        return schema
    properties = schema.get("properties")
    # These formats write each named member separately and cannot enforce other keywords of the object.
    _refuse(schema.keys() - _NOTES - _ROOT)
    if set(schema.get("required") or ()) - set(properties or ()):
        raise _unsupported("required")
    if not isinstance(properties, Mapping) or not properties:
        return schema
    _check_names(properties)
    members: dict[str, Any] = {}
    left = iter(range(_MAX_PARTS))
    for name, part in properties.items():
        match syntax:
            case ArgumentSyntax.TAGS | ArgumentSyntax.TYPED_TAGS:
                members[name] = _between_tags(call_format, part, schema)
            case ArgumentSyntax.PYTHON:
                members[name] = _python(part, schema)
            case _:
                members[name] = _nested_markup(call_format, part, schema, 0, left)
    return {**schema, "properties": members}


def unsupported_reason(call_format: CallFormat, schema: Mapping[str, Any]) -> str | None:
    """Return the reason why a call format cannot enforce these parameters; None if it can."""
    try:
        markup_schema(call_format, schema)
    except ConstraintError as error:
        return str(error).partition(";")[0]
    except RecursionError:
        return "they are recursive"
    return None


def check_listed_texts(call_format: CallFormat, schema: Mapping[str, Any]) -> None:
    """Check that listed texts (`enum`, `const`) can be written in a call format.

    Raises:
        ConstraintError: a text contains a marker that would end it.
    """
    kept_out = call_format.forbidden
    if not kept_out:
        return
    if call_format.argument_syntax in (
        ArgumentSyntax.TAGS,
        ArgumentSyntax.TYPED_TAGS,
    ):  # Nested values, and values that cannot be texts, are JSON.
        parts = [_resolved(part, schema) for part in (schema.get("properties") or {}).values()]
        texts = [
            part
            for part in parts
            if allowed_types(part, schema) & {"string"} or not allowed_types(part, schema)
        ]
    else:
        texts = list(_schemas(schema))
    for value in (value for part in texts for value in _listed(part)):
        found = next((text for text in kept_out if text in value), None)
        if found is not None:
            raise ConstraintError(
                f"{value[:40]!r} contains {found!r}, which ends a value in this model's call format."
            )


def _schemas(schema: Any) -> Iterator[Any]:
    """Yield a schema and its subschemas; keys under `properties` and the like are names, not keywords."""
    left = [schema]
    while left:
        value = left.pop()
        if isinstance(value, list):
            left += value
        elif isinstance(value, Mapping):
            yield value
            for key, member in value.items():
                if key not in ("enum", "const"):
                    left += member.values() if key in _NAMED and isinstance(member, Mapping) else [member]


def _listed(schema: Any) -> Iterator[str]:
    """Yield the texts in the values that a schema lists."""
    left = [schema[key] for key in ("enum", "const") if key in schema] if isinstance(schema, Mapping) else []
    while left:
        value = left.pop()
        if isinstance(value, str):
            yield value
        elif isinstance(value, list | Mapping):
            left += value if isinstance(value, list) else value.values()


def _between_tags(call_format: CallFormat, part: Any, root: Mapping[str, Any]) -> Any:
    """Return the schema of a parameter between tags: texts are unquoted, other values are JSON."""
    part = _resolved(part, root)
    types = allowed_types(part, root)
    if not isinstance(part, Mapping) or (types and "string" not in types):
        return part
    typed = call_format.argument_syntax is ArgumentSyntax.TYPED_TAGS
    keys = part.keys() - _NOTES - {"type"}
    if listed := sorted(keys & {"const", "enum"}):
        _check_listed(call_format, part, types, raw=not typed)
        keys -= {*listed}
    # If an attribute marks strings, other types are separate JSON values.
    if typed or types <= _NULLABLE:
        keys -= TEXT_KEYWORDS if types else frozenset()
    if typed and types:
        keys -= _BOUNDS | _ARRAY | _OBJECT
    _refuse(keys)
    return part


def _python(part: Any, root: Mapping[str, Any]) -> Any:
    """Return the schema of a Python literal, which is JSON except for `True`, `False` and `None`."""
    part = _resolved(part, root)
    types = allowed_types(part, root)
    if isinstance(part, Mapping) and (not types or types & {"boolean", "null"}):
        _refuse(part.keys() & _BRANCHES)
    return part


def _nested_markup(
    call_format: CallFormat, part: Any, root: Mapping[str, Any], depth: int, left: Iterator[int]
) -> Any:
    """Return the schema of a value with objects and arrays in markup too, and with every reference resolved."""
    if depth > _MAX_DEPTH:
        raise RecursionError
    if next(left, None) is None:
        raise ConstraintError("The parameters have too many references for this model's call format.")
    part = _resolved(part, root)
    if not isinstance(part, Mapping):
        return part
    types = allowed_types(part, root)
    keys = part.keys() - _NOTES - {"type"}
    found = dict(part)
    raw = call_format.argument_syntax is ArgumentSyntax.ELEMENTS
    if listed := sorted(keys & {"const", "enum"}):
        _check_listed(call_format, part, types, raw=raw)
        _refuse(keys - {*listed})
        return part
    if "string" in types and (not raw or types <= _NULLABLE):
        keys -= TEXT_KEYWORDS
    if types & {"integer", "number"}:
        keys -= _BOUNDS
    if "array" in types:
        keys -= _ARRAY
        if "items" in part:
            found["items"] = _nested_markup(call_format, part["items"], root, depth + 1, left)
    if "object" in types:
        keys -= _OBJECT
        properties = part.get("properties") or {}
        if set(part.get("required") or ()) - set(properties):
            raise _unsupported("required")
        _check_names(properties)
        found["properties"] = {
            name: _nested_markup(call_format, one, root, depth + 1, left) for name, one in properties.items()
        }
    _refuse(keys)
    return found


def _resolved(part: Any, root: Mapping[str, Any], seen: dict[int, Any] | None = None) -> Any:
    """Resolve a schema that is only a reference, and merge one that is a string or null.

    Args:
        part: the schema.
        root: the document of references.
        seen: results by the identity of the schema, because one may be referred to many times on every level.
    """
    seen = {} if seen is None else seen
    if id(part) not in seen:
        seen[id(part)] = part  # For recursive schemas.
        seen[id(part)] = _without_references(part, root, seen)
    return seen[id(part)]


def _without_references(part: Any, root: Mapping[str, Any], seen: dict[int, Any]) -> Any:
    for _ in range(_MAX_REFERENCES):
        if not isinstance(part, Mapping) or "$ref" not in part or part.keys() - _NOTES - {"$ref"}:
            break
        part = referred(str(part["$ref"]), root)
    branches = part.get("anyOf") if isinstance(part, Mapping) else None
    if not isinstance(branches, list) or len(branches) != 2 or part.keys() - _NOTES - {"anyOf"}:
        return part
    text = _text_or_null([_resolved(branch, root, seen) for branch in branches], root)
    return part if text is None else text


def _text_or_null(branches: list[Any], root: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return one schema for a text and a null; None if these are not the two branches."""
    inner = [one for one in branches if isinstance(one, Mapping)]
    texts = [one for one in inner if allowed_types(one, root) == {"string"}]
    nulls = [one for one in inner if one.keys() - _NOTES == {"type"} and one["type"] == "null"]
    if len(texts) != 1 or not nulls:
        return None
    found = {**texts[0], "type": ["string", "null"]}
    if "const" in found:
        found["enum"] = [found.pop("const")]
    if isinstance(found.get("enum"), list):
        found["enum"] = [*found["enum"], None]
    return found


def _check_names(names: Iterable[str]) -> None:
    """Check that names can be written in markup.

    Raises:
        ConstraintError: a name cannot be written in markup.
    """
    for name in names:
        if not MARKUP_NAME.fullmatch(name):
            raise ConstraintError(
                f"The name {name[:40]!r} is not supported in this model's call format; use letters, digits and '_', or "
                "leave out 'strict'."
            )


def _check_listed(
    call_format: CallFormat, part: Mapping[str, Any], types: frozenset[str], *, raw: bool
) -> None:
    """Check that listed values have the types and are parsed back from their markup.

    Raises:
        ConstraintError: a value has another type, or its markup is parsed as another value.
    """
    values = part["enum"] if "enum" in part else [part["const"]]
    if not isinstance(values, list) or ("enum" in part and "const" in part):
        raise _unsupported("const")
    kept_out = call_format.forbidden
    for value in values:
        if isinstance(value, str) and any(text in value for text in kept_out):
            raise _unsupported("enum" if "enum" in part else "const")
        kind = "null" if value is None else "string" if isinstance(value, str) else ""
        fits = kind in types or not types
        if not kind or not fits or (raw and isinstance(value, str) and coerce(value, types)[:1] != '"'):
            raise _unsupported("enum" if "enum" in part else "const")


def _refuse(keywords: frozenset[str] | set[str]) -> None:
    if keywords:
        raise _unsupported(min(keywords))


def _unsupported(keyword: str) -> ConstraintError:
    return ConstraintError(
        f"'{keyword}' cannot be enforced in this model's call format; leave it out, or leave out 'strict'."
    )
