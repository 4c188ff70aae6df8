"""`not`, `if`, `oneOf`, `uniqueItems` and `contains` are enforced exactly where they can be written without a negation.

Law: a document of a small universe goes through the grammar if and only if it is valid.
"""

from __future__ import annotations

from itertools import product
from typing import Any

import jsonschema_rs
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from support.laws import EXPLORED

from .walk import accepts, as_json_text, grammar_and_notes, grammar_notes_and_reason, grammar_of

laws = settings(max_examples=EXPLORED or 20)
_ABSENT = object()
MEMBERS: dict[str, tuple[Any, list[Any]]] = {
    "m": ({"enum": ["a", "b", "c"]}, [_ABSENT, "a", "b", "c"]),
    "n": ({"type": "integer", "minimum": 0}, [_ABSENT, 0, 3, 4]),
    "s": ({"type": ["string", "null"]}, [_ABSENT, None, "", "xy"]),
    "f": ({"type": "boolean"}, [_ABSENT, True, False]),
}
SCHEMA = {
    "type": "object",
    "properties": {name: schema for name, (schema, _) in MEMBERS.items()},
    "additionalProperties": False,
}
DOCUMENTS = [
    {name: value for name, value in zip(MEMBERS, values, strict=True) if value is not _ABSENT}
    for values in product(*(values for _, values in MEMBERS.values()))
]
leaves = st.sampled_from(
    [
        {"properties": {"m": {"const": "a"}}, "required": ["m"]},
        {"properties": {"m": {"enum": ["a", "b"]}}},
        {"properties": {"n": {"const": 3}}},
        {"properties": {"n": {"minimum": 3}}, "required": ["n"]},
        {"properties": {"n": {"exclusiveMaximum": 4}}},
        {"properties": {"s": {"const": "xy"}}},
        {"properties": {"s": {"const": None}}, "required": ["s"]},
        {"properties": {"s": {"type": "string", "minLength": 1}}},
        {"properties": {"f": {"const": True}}, "required": ["f"]},
        {"required": ["m"]},
        {"required": ["n", "s"]},
        {"type": "object"},
        {},
    ]
)
conditions = st.recursive(
    leaves,
    lambda inner: (
        st.builds(lambda some: {"anyOf": some}, st.lists(inner, min_size=1, max_size=2))
        | st.builds(lambda some: {"allOf": some}, st.lists(inner, min_size=1, max_size=2))
        | st.builds(lambda one: {"not": one}, inner)
    ),
    max_leaves=3,
)
negated = (
    st.builds(lambda one: {"not": one}, conditions)
    | st.builds(lambda one, then, other: {"if": one, "then": then, "else": other}, conditions, leaves, leaves)
    | st.builds(lambda one, then: {"if": one, "then": then}, conditions, leaves)
    | st.builds(lambda some: {"oneOf": some}, st.lists(conditions, min_size=1, max_size=3))
    | st.builds(
        lambda some, required: {"allOf": some, "required": required},
        st.lists(
            st.builds(lambda one, then: {"if": one, "then": then}, leaves, leaves), min_size=2, max_size=4
        ),
        st.sampled_from([[], ["m"]]),
    )
)


@laws
@given(negated)
@example({"oneOf": [{"required": ["m"]}, {"required": ["n"]}, {"required": ["s"]}]})
@example(
    {
        "allOf": [
            {"if": {"properties": {"m": {"const": "a"}}}, "then": {"required": ["n"]}},
            {
                "if": {"properties": {"m": {"enum": ["a", "b"]}}, "required": ["m"]},
                "else": {"required": ["s"]},
            },
            {"if": {"properties": {"f": {"const": True}}}, "then": {"required": ["m"]}},
        ]
    }
)
@example({"not": {"anyOf": [{"required": ["m", "n"]}, {"required": ["m", "s"]}]}})
def test_what_excludes_documents_excludes_these_and_no_others(keywords: dict[str, Any]) -> None:
    schema = SCHEMA | keywords
    grammar = grammar_of(schema)
    validator = jsonschema_rs.validator_for(schema)
    if grammar is None:  # Nothing may be left, and the engine has limits.
        grammar, notes = grammar_and_notes(schema, relaxed=True)
        assert notes or not any(map(validator.is_valid, DOCUMENTS))
        return
    wrong = [
        document
        for document in DOCUMENTS
        if accepts(grammar, as_json_text(document)) != validator.is_valid(document)
    ]
    assert not wrong


TAGS: dict[str, list[Any]] = {"a": ["a"], "b": ["b"], "c": ["c", "d"], "1": [1], "true": [True]}
"""Values of the member that tells branches apart, by the name of a branch."""


def tag(values: list[Any], spelled: str) -> dict[str, Any]:
    """A schema of these values, as pydantic 1 and 2, zod and .NET write one."""
    if spelled == "both" and len(values) == 1:
        return {"const": values[0], "enum": values, "title": "Kind"}
    return {"const": values[0]} if spelled == "const" and len(values) == 1 else {"enum": values}


@laws
@given(
    st.lists(st.sampled_from([*TAGS]), min_size=2, max_size=4, unique=True),
    st.sampled_from(["const", "enum", "both"]),
    st.booleans(),
    st.booleans(),
    st.booleans(),
)
def test_a_union_that_a_required_member_tells_apart_is_enforced(
    names: list[str], spelled: str, referred: bool, named: bool, typed: bool
) -> None:
    """However generators write it: with a discriminator or without, its branches as references or in place."""
    branches = {
        name: {
            **({"type": "object"} if typed else {}),
            "properties": {"kind": tag(TAGS[name], spelled), f"of_{name}": {"type": "integer"}},
            "required": ["kind", f"of_{name}"],
        }
        for name in names
    }
    union: dict[str, Any] = {
        "oneOf": [{"$ref": f"#/$defs/{name}"} if referred else branches[name] for name in names]
    }
    if named:
        union["discriminator"] = {"propertyName": "kind"}
    if not typed:
        union["type"] = "object"
    schema = {"$defs": branches, "type": "object", "properties": {"one": union}, "required": ["one"]}
    grammar, validator = grammar_of(schema), jsonschema_rs.validator_for(schema)
    assert grammar is not None
    for value, name in [(value, name) for values in TAGS.values() for value in values for name in TAGS]:
        for document in ({"kind": value, f"of_{name}": 1}, {"kind": value}, value):
            assert accepts(grammar, as_json_text({"one": document})) == validator.is_valid({"one": document})


VALUES: list[Any] = [
    None,
    True,
    False,
    -1,
    0,
    1,
    1.5,
    "",
    "a",
    "bb",
    "z",
    [],
    ["a"],
    ["a", "a"],
    ["bb", "a"],
    {},
]
kinds = st.sampled_from(["string", "integer", "number", "null", "boolean", "array"])
values = st.lists(st.sampled_from([None, True, 0, 1, 1.5, "a", "bb", "z"]), min_size=1, max_size=3)
keywords = st.fixed_dictionaries(
    {},
    optional={
        "type": kinds | st.lists(kinds, min_size=1, max_size=3, unique=True),
        "enum": values,
        "const": st.sampled_from([None, False, 1, "a"]),
        "minimum": st.sampled_from([0, 1.5]),
        "minLength": st.sampled_from([1, 2]),
    },
)
excluding = st.recursive(
    keywords,
    lambda inner: st.builds(lambda own, other: {**own, "not": other}, keywords, inner),
    max_leaves=3,
)
arrays = st.builds(
    lambda items, own: {"type": "array", "items": items, "uniqueItems": True, **own},
    excluding,
    st.fixed_dictionaries({}, optional={"minItems": st.just(1), "maxItems": st.just(2)}),
)


@laws
@given(excluding | arrays)
@example({"type": ["integer", "null"], "not": {"const": None}})
@example({"type": "integer", "not": {"not": {"type": "number"}}})
@example({"enum": ["a", "bb"], "not": {"not": {"enum": ["a", "z"]}}})
@example({"enum": [1, "a", "bb"], "not": {"type": "string", "enum": [1, "a"]}})
@example({"type": "array", "items": {"enum": ["a", "bb"], "minLength": 2}, "uniqueItems": True})
def test_a_keyword_beside_others_narrows_what_they_allow(schema: dict[str, Any]) -> None:
    grammar, validator = grammar_of(schema), jsonschema_rs.validator_for(schema)
    if grammar is None:  # Refused by name.
        return
    wrong = [value for value in VALUES if accepts(grammar, as_json_text(value)) != validator.is_valid(value)]
    assert not wrong


@pytest.mark.parametrize("size", [1, 63, 64, 65, 82, 700, 5000])
def test_a_text_of_any_length_is_excluded_or_named(size: int) -> None:
    schema = {"type": "string", "not": {"const": "x" * size}}
    grammar, notes, reason = grammar_notes_and_reason(schema)
    if grammar is None:
        assert "#/not" in reason
        grammar, notes = grammar_and_notes(schema, relaxed=True)
        assert any("#/not" in note for note in notes)
        return
    assert not accepts(grammar, as_json_text("x" * size))
    assert accepts(grammar, as_json_text("x" * (size - 1)))
    assert accepts(grammar, as_json_text("x" * (size + 1)))


def test_an_absent_member_satisfies_a_condition_that_does_not_require_it() -> None:
    schema = SCHEMA | {
        "allOf": [
            {"if": {"properties": {"m": {"const": one}}, "required": []}, "then": {"required": ["n"]}}
            for one in ("a", "b")
        ]
    }
    grammar, validator = grammar_of(schema), jsonschema_rs.validator_for(schema)
    assert grammar is not None
    for document in DOCUMENTS:
        assert accepts(grammar, as_json_text(document)) == validator.is_valid(document)


@pytest.mark.parametrize(
    ("schema", "documents"),
    [
        (
            {"type": "string", "not": {"enum": ["", "ab", "abc", "]^-"]}},
            ["", "a", "ab", "abc", "abcd", "]^-", "]^"],
        ),
        ({"type": "integer", "not": {"enum": [0, 1, 5]}}, [-1, 0, 1, 2, 4, 5, 6]),
        ({"type": "number", "not": {"const": 2}}, [1.5, 2, 2.5]),
        ({"not": {"const": "x"}}, ["x", "y", 1, None, [], {}]),
        ({"not": {"enum": [None, True, 3, "a"]}}, [None, True, False, 3, 4, "a", "b", []]),
        (
            {"type": "array", "items": {"enum": ["a", "b", 1]}, "uniqueItems": True},
            [["a", "b"], ["a", "a"], ["b", "a", "a"], ["a", 1, "b"], []],
        ),
        (
            {"items": {"type": "boolean"}, "uniqueItems": True, "minItems": 1},
            [[], [True], [True, False], [True, True], "x"],
        ),
        ({"type": "array", "items": {"enum": [1, 2]}, "uniqueItems": True, "minItems": 3}, [[], [1, 2]]),
        (
            {"type": "array", "items": {"type": "integer"}, "contains": {"const": 7}, "maxItems": 3},
            [[], [7], [1, 7], [1, 2, 7], [1, 2, 3], [7, 7, 7, 7]],
        ),
        (
            {
                "oneOf": [
                    {"type": "integer", "minimum": 0},
                    {"type": "integer", "maximum": 5},
                    {"type": "string"},
                ]
            },
            [-1, 3, 6, "x", None],
        ),
    ],
)
def test_values_that_are_excluded_do_not_go_through(schema: dict[str, Any], documents: list[Any]) -> None:
    grammar, validator = grammar_of(schema), jsonschema_rs.validator_for(schema)
    for document in documents:
        for spaces in (False, True):
            text = as_json_text(document, spaces=spaces)
            assert (grammar is not None and accepts(grammar, text)) == validator.is_valid(document), text


@pytest.mark.parametrize("count", [5, 40])
@pytest.mark.parametrize(
    "one",
    [
        {"type": "array", "items": {"enum": list("abcde")}, "uniqueItems": True},
        {"type": "array", "items": {"enum": ["x" * 400 + end for end in "abcdef"]}, "uniqueItems": True},
        {"type": "array", "items": {"type": "string"}, "contains": {"enum": list("abcdef")}, "maxItems": 8},
        {"type": "object", "oneOf": [{"required": [f"n{number}"]} for number in range(16)]},
        {"type": "string", "not": {"enum": [f"{number:04}{'x' * 46}" for number in range(20)]}},
    ],
)
def test_schemas_whose_rewriting_is_large_compile_or_name_what_is_not_enforced(
    one: dict[str, Any], count: int
) -> None:
    schema = {"type": "object", "properties": {f"p{number}": one for number in range(count)}}
    grammar, notes, reason = grammar_notes_and_reason(schema, relaxed=True)
    assert grammar is not None, reason
    keyword = next(name for name in ("uniqueItems", "contains", "oneOf", "not") if name in one)
    assert not notes or len(notes) == count, notes
    assert all(note.endswith(f"/{keyword}") for note in notes)
