"""Build hypothesis strategies for values of the contract's schemas.

Only keywords that the contract uses are supported; any other is an error, so that no keyword is silently ignored.
"""

from __future__ import annotations

import re
from functools import cache
from typing import Any

from hypothesis import strategies as st

from plumbline_conformance.suite.contract import document

__all__ = ["SPECIAL", "anything", "odd_schemas", "of_schema", "texts"]

Strategy = st.SearchStrategy[Any]
_DEPTH = 4
_NOTES = {
    "default",
    "deprecated",
    "description",
    "discriminator",
    "examples",
    "format",
    "title",
    "x-extension",
    "x-hosted",
    "x-tag-optional",
}
_WORDS = {
    "$ref",
    "additionalProperties",
    "anyOf",
    "const",
    "enum",
    "exclusiveMinimum",
    "items",
    "maxItems",
    "maxLength",
    "maxProperties",
    "maximum",
    "minItems",
    "minLength",
    "minimum",
    "oneOf",
    "pattern",
    "properties",
    "propertyNames",
    "required",
    "type",
}
SPECIAL = (
    "<|im_start|>system\n",
    "<|im_end|>",
    "<|endoftext|>",
    "</s>",
    "[INST]",
    "<think>",
    "</think>",
    "<tool_call>",
    '<tool_call>{"name": "f", "arguments": {}}</tool_call>',
    "{{ messages }}",
    "{% raw %}",
    "\u0000",
    "\u202e",
    "\ufeff",
    "\u2028",
    "\U0010ffff",
    "👩‍👩‍👧‍👦",
    "e\u0301" * 8,
    "﷽",
    "data: [DONE]\n\n",
    "\r\n",
)
"""Texts that have broken servers: control tokens, invisible characters, text that looks like framing."""


@cache
def texts(low: int = 0, high: int | None = None) -> Strategy:
    """Generate strings, often ones that break servers, without lone surrogates, which are invalid in requests."""
    limit = 40 if high is None else min(high, max(40, low))
    plain = st.text(st.characters(exclude_categories=["Cs"]), min_size=low, max_size=max(low, limit))
    special = st.lists(st.sampled_from(SPECIAL) | plain, max_size=4).map("".join)
    fitting = special.filter(lambda text: low <= len(text) <= (len(text) if high is None else high))
    return st.sampled_from(["Hi", "Grüße", "x"]).filter(lambda text: len(text) >= low) | plain | fitting


anything: Strategy = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | texts(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts(high=12), inner, max_size=3),
    max_leaves=6,
)
"""Any JSON."""

odd_schemas: Strategy = st.recursive(
    st.sampled_from(
        [
            {},
            {"type": "object"},
            {"type": "object", "properties": {}, "required": ["missing"]},
            {"type": ["string", "null"]},
            {"type": "string", "pattern": "(a+)+$"},
            {"type": "string", "pattern": "("},
            {"enum": []},
            {"const": None},
            {"$ref": "#"},
            {"$ref": "#/$defs/none"},
            {"$defs": {"a": {"$ref": "#/$defs/a"}}, "$ref": "#/$defs/a"},
            {"type": "no such type"},
            {"minimum": 3, "maximum": 1},
            {"type": "array", "minItems": 1_000_000_000},
            {"type": "string", "minLength": -1},
        ]
    ),
    lambda inner: st.one_of(
        st.fixed_dictionaries({"type": st.just("array"), "items": inner}),
        st.fixed_dictionaries({"anyOf": st.lists(inner, max_size=3)}),
        st.fixed_dictionaries({"not": inner}),
        st.builds(
            lambda members: {"type": "object", "properties": members, "required": list(members)},
            st.dictionaries(texts(high=12), inner, max_size=3),
        ),
    ),
    max_leaves=5,
)
"""JSON Schemas that are difficult or impossible to compile into a grammar."""


def of_schema(schema: dict[str, Any], depth: int = _DEPTH) -> Strategy:
    """Generate values that are valid under a schema of the contract.

    Raises:
        NotImplementedError: the schema has an unsupported keyword.
    """
    unknown = set(schema) - _WORDS - _NOTES
    if unknown:
        raise NotImplementedError(f"schemas with {sorted(unknown)}")
    if "$ref" in schema:
        return _named(schema["$ref"].rsplit("/", 1)[1], depth)
    if "const" in schema:
        return st.just(schema["const"])
    if "enum" in schema:
        return st.sampled_from(schema["enum"])
    members = schema.get("anyOf") or schema.get("oneOf")
    if members:
        return st.one_of(*(of_schema(member, depth) for member in _affordable(members, depth)))
    kinds = schema.get("type")
    if kinds is None:
        return anything
    return st.one_of(
        *(_of_kind(kind, schema, depth) for kind in ([kinds] if isinstance(kinds, str) else kinds))
    )


@cache
def _named(name: str, depth: int) -> Strategy:
    schema = document()["components"]["schemas"][name]
    return st.deferred(lambda: of_schema(schema, depth - 1))


def _affordable(members: list[dict[str, Any]], depth: int) -> list[dict[str, Any]]:
    """Return the alternatives to use: at the depth limit, those without references, to end the recursion."""
    if depth > 0:
        return members
    return [member for member in members if "$ref" not in member] or members[:1]


def _of_kind(kind: str, schema: dict[str, Any], depth: int) -> Strategy:
    match kind:
        case "null":
            return st.none()
        case "boolean":
            return st.booleans()
        case "integer":
            return st.integers(schema.get("minimum", -(2**53)), schema.get("maximum", 2**53))
        case "number":
            return _numbers(schema)
        case "string":
            return _strings(schema)
        case "array":
            most = min(schema.get("maxItems", 3), 3) if depth > 0 else schema.get("minItems", 0)
            items = of_schema(schema.get("items", {}), depth)
            return st.lists(
                items, min_size=schema.get("minItems", 0), max_size=max(most, schema.get("minItems", 0))
            )
        case "object":
            return _objects(schema, depth)
    raise NotImplementedError(f"the type {kind}")


def _numbers(schema: dict[str, Any]) -> Strategy:
    low, above = schema.get("minimum"), schema.get("exclusiveMinimum")
    found = st.floats(
        min_value=above if low is None else low,
        max_value=schema.get("maximum"),
        exclude_min=above is not None,
        allow_nan=False,
        allow_infinity=False,
    )
    return found | st.just(schema["maximum"]) if "maximum" in schema else found


def _strings(schema: dict[str, Any]) -> Strategy:
    if "pattern" in schema:
        # `$` in Python also matches before a final line end, in JSON Schema it does not.
        pattern = schema["pattern"].removesuffix("$") + (r"\Z" if schema["pattern"].endswith("$") else "")
        return st.from_regex(re.compile(pattern, re.ASCII))
    return texts(schema.get("minLength", 0), schema.get("maxLength"))


def _objects(schema: dict[str, Any], depth: int) -> Strategy:
    members: dict[str, Any] = schema.get("properties", {})
    required = set(schema.get("required", ()))
    here = {name: _property(name, members.get(name, {}), depth) for name in sorted(required)}
    more = {name: _property(name, member, depth) for name, member in members.items() if name not in required}
    found = st.fixed_dictionaries(here, optional=more if depth > 0 else {})
    extra = schema.get("additionalProperties")
    if members or not isinstance(extra, dict):
        return found if members else st.dictionaries(texts(high=12), anything, max_size=2)
    names = texts(high=schema.get("propertyNames", {}).get("maxLength"))
    return st.dictionaries(names, of_schema(extra, depth), max_size=min(schema.get("maxProperties", 3), 3))


def _property(name: str, schema: dict[str, Any], depth: int) -> Strategy:
    if name in ("parameters", "schema") and schema.get("type") == "object" and "properties" not in schema:
        return odd_schemas
    return of_schema(schema, depth)
