"""Laws of schemas as generators write them.

1. A valid schema is never changed.
2. A value in one of the listed wrong forms, anywhere in a schema, means the same as the right form.
3. A wrong value without a plain meaning is refused by its place.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from plumbline.answer.dialects.streams.coercion import TYPE_ALIASES
from plumbline.answer.structured_output.schema_check import TYPES
from plumbline.answer.structured_output.schema_repair import repaired

from .walk import accepts, grammar_of

_leaves: st.SearchStrategy[Any] = st.one_of(
    st.just({}),
    st.fixed_dictionaries({"type": st.sampled_from(TYPES)}),
    st.fixed_dictionaries({"const": st.sampled_from((None, 1, "x"))}),
    st.fixed_dictionaries({"enum": st.just([None, "STRING", 1.5])}),
    st.fixed_dictionaries(
        {"type": st.just("string"), "minLength": st.integers(0, 3), "title": st.just("null")}
    ),
)
valid = st.recursive(
    _leaves,
    lambda inner: st.one_of(
        st.dictionaries(st.sampled_from(("type", "required", "a")), inner, min_size=1).map(
            lambda members: {"type": "object", "properties": members, "required": [*members][:1]}
        ),
        inner.map(lambda one: {"type": "array", "items": one, "maxItems": 4}),
        st.lists(inner, min_size=1, max_size=2).map(lambda several: {"anyOf": several}),
        inner.map(lambda one: {"$defs": {"D": one}, "$ref": "#/$defs/D"}),
    ),
    max_leaves=6,
)

DAMAGE: tuple[tuple[str, Callable[[dict[str, Any]], dict[str, Any]]], ...] = (
    (
        "null",
        lambda schema: {
            **dict.fromkeys(("title", "required", "enum", "$ref", "items", "dependencies"), None),
            **schema,
        },
    ),
    ("capitals", lambda schema: _typed(schema, str.upper)),
    ("a name of another language", lambda schema: _typed(schema, lambda kind: _LANGUAGE.get(kind, kind))),
    ("a type twice", lambda schema: _typed(schema, lambda kind: [kind, kind], lambda kind: [kind])),
    ("any type", lambda schema: {"type": "any", **schema}),
    ("a name twice", lambda schema: _changed(schema, "required", lambda names: [*names, *names, None])),
    ("a name alone", lambda schema: _changed(schema, "required", lambda names: names[0])),
    ("draft 3", lambda schema: {"required": False, **schema}),
    ("a dependency on null", lambda schema: {"dependencies": {"b": None}, **schema}),
    ("PHP", lambda schema: {"$defs": [], "properties": [], **schema}),
    ("no schemas", lambda schema: {"allOf": [], "anyOf": [], "oneOf": [], **schema}),
    (
        "numbers as text",
        lambda schema: _changed(_changed(schema, "minLength", str), "maxItems", "{}.0".format),
    ),
    ("below zero", lambda schema: {"minItems": -1, **schema}),
    (
        "annotations",
        lambda schema: {"description": ["a"], "examples": {"a": 1}, "deprecated": "no", **schema},
    ),
)
_LANGUAGE: dict[str, str] = {
    "string": "str",
    "integer": "Long",
    "number": "double",
    "boolean": "Bool",
    "object": "dict",
    "array": "List",
}


def _changed(schema: dict[str, Any], name: str, change: Callable[[Any], Any]) -> dict[str, Any]:
    return {**schema, name: change(schema[name])} if name in schema else schema


def _typed(schema: dict[str, Any], change: Callable[[str], Any], *_: Any) -> dict[str, Any]:
    return _changed(schema, "type", change)


def everywhere(schema: Any, damage: Callable[[dict[str, Any]], dict[str, Any]]) -> Any:
    """Damage every schema inside a schema of `valid`."""
    found = dict(schema)
    for name in ("properties", "$defs"):
        if name in found:
            found[name] = {key: everywhere(one, damage) for key, one in found[name].items()}
    if "items" in found:
        found["items"] = everywhere(found["items"], damage)
    if "anyOf" in found:
        found["anyOf"] = [everywhere(one, damage) for one in found["anyOf"]]
    return damage(found)


def meaning(schema: Any) -> Any:
    """The schema without empty objects of schemas, and with types as lists."""
    if isinstance(schema, list):
        return [meaning(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    return {
        name: [value] if name == "type" and isinstance(value, str) else meaning(value)
        for name, value in schema.items()
        if not (name in ("properties", "$defs") and value == {})
    }


@given(valid)
def test_a_valid_schema_is_never_changed(schema: Any) -> None:
    assert repaired(schema) == (schema, None)
    assert repaired(schema)[0] is schema


@given(valid, st.sampled_from(DAMAGE))
def test_a_listed_form_means_the_same_as_the_right_one(
    schema: Any, damage: tuple[str, Callable[[dict[str, Any]], dict[str, Any]]]
) -> None:
    found, violation = repaired(everywhere(schema, damage[1]))
    assert violation is None
    assert meaning(found) == meaning(schema)


def test_names_of_other_languages_are_types() -> None:
    for alias, kind in TYPE_ALIASES.items():
        assert repaired({"items": {"type": [alias.title(), "null"]}})[0] == {
            "items": {"type": list(dict.fromkeys((kind, "null")))}
        }


def test_draft_3_requires_members_where_they_are() -> None:
    schema = {
        "properties": {"a": {"type": "string", "required": True}, "b": {"required": False}},
        "required": ["c"],
    }
    assert repaired(schema) == (
        {"properties": {"a": {"type": "string"}, "b": {}}, "required": ["c", "a"]},
        None,
    )


@pytest.mark.parametrize(
    "schema",
    [
        {"properties": {"a": "string"}},
        {"properties": {"a": {"type": "nonsense"}}},
        {"properties": {"a": {"minimum": "many"}}},
        {"properties": {"a": {"maxLength": -1}}},
        {"properties": {"a": {"enum": {"x": 1}}}},
        {"properties": {"a": {"pattern": 5}}},
        {"properties": "a"},
    ],
)
def test_a_value_without_a_plain_meaning_is_refused_by_its_place(schema: Any) -> None:
    violation = repaired(schema)[1]
    assert violation is not None
    assert "properties" in violation


def test_forms_of_all_drafts_mix_whichever_is_named() -> None:
    for named in ("draft-04", "draft-07", "draft/2020-12"):
        grammar = grammar_of(
            {
                "$schema": f"https://json-schema.org/{named}/schema",
                "type": "object",
                "properties": {
                    "a": {"type": "integer", "minimum": 0, "exclusiveMinimum": True},
                    "b": {"type": "integer", "exclusiveMinimum": 0},
                    "c": {"type": "array", "items": [{"const": 1}, True], "additionalItems": False},
                },
                "required": [],
            }
        )
        assert grammar is not None
        assert accepts(grammar, '{"a":1,"b":1,"c":[1,2]}')
        assert not any(
            accepts(grammar, text) for text in ('{"a":0}', '{"b":0}', '{"c":[1,2,3]}', '{"c":[2]}')
        )
