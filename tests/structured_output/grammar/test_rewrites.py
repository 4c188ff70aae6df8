"""Laws of rewritten keywords, by an independent validator.

1. What is rewritten means the same: a document is valid by the client's schema if and only if it is by the engine's.
2. What is relaxed is wider: every document that is valid stays so, and the place that is not enforced is named.
3. A regex with look-aheads at its start matches where all its parts do.
"""

from __future__ import annotations

import re
from typing import Any

import jsonschema_rs
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from support.laws import EXPLORED

from plumbline.answer.structured_output.grammar.ecma_regex import assertions
from plumbline.answer.structured_output.grammar.errors import ConstraintError
from plumbline.answer.structured_output.grammar.json_schema import checked

NAMES = st.sampled_from(["a", "b", "ab", "c"])
SIMPLE = st.sampled_from(
    [
        True,
        False,
        {},
        {"type": "integer"},
        {"type": "string"},
        {"const": "a"},
        {"enum": ["a", 1, None]},
        {"type": "null"},
    ]
)
OBJECTS = st.fixed_dictionaries(
    {},
    optional={
        "type": st.sampled_from(["object", ["object", "null"]]),
        "properties": st.dictionaries(NAMES, SIMPLE, max_size=3),
        "required": st.lists(NAMES, max_size=2, unique=True),
        "additionalProperties": SIMPLE,
        "patternProperties": st.dictionaries(st.sampled_from(["^a$", "^(a|b)$", "b"]), SIMPLE, max_size=1),
        "propertyNames": st.one_of(
            SIMPLE,
            st.sampled_from([{"pattern": "^a"}, {"maxLength": 1}, {"enum": ["a", "b"]}, {"minLength": 2}]),
        ),
        "dependentRequired": st.dictionaries(NAMES, st.lists(NAMES, max_size=2, unique=True), max_size=2),
        "dependentSchemas": st.dictionaries(
            NAMES, st.builds(lambda name: {"required": [name]}, NAMES), max_size=1
        ),
        "dependencies": st.dictionaries(NAMES, st.lists(NAMES, max_size=2, unique=True), max_size=1),
        "unevaluatedProperties": SIMPLE,
        "minProperties": st.integers(0, 2),
        "not": st.one_of(SIMPLE, st.builds(lambda name: {"required": [name]}, NAMES)),
        "if": st.one_of(SIMPLE, st.builds(lambda name: {"properties": {name: {"const": "a"}}}, NAMES)),
        "then": SIMPLE,
        "else": st.builds(lambda name: {"required": [name]}, NAMES),
    },
)
ARRAYS = st.fixed_dictionaries(
    {},
    optional={
        "type": st.just("array"),
        "prefixItems": st.lists(SIMPLE, min_size=1, max_size=2),
        "items": SIMPLE,
        "unevaluatedItems": SIMPLE,
        "uniqueItems": st.booleans(),
        "maxItems": st.integers(0, 2),
        "contains": SIMPLE,
        "minContains": st.integers(0, 2),
    },
)
SCALARS = st.fixed_dictionaries(
    {},
    optional={
        "type": st.sampled_from(["string", "integer", ["string", "null", "integer"]]),
        "enum": st.just(["a", 1, None]),
        "not": SIMPLE,
        "oneOf": st.lists(SIMPLE, min_size=1, max_size=2),
        "if": SIMPLE,
        "then": SIMPLE,
    },
)
VALUES = st.recursive(
    st.sampled_from([None, True, 0, 1, "a", "ab", "b", ""]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=3),
    max_leaves=4,
)


@settings(max_examples=EXPLORED or 400, deadline=None)
@given(st.one_of(OBJECTS, ARRAYS, SCALARS), st.lists(VALUES, min_size=4, max_size=8), st.booleans())
def test_a_rewritten_schema_means_the_same(schema: dict[str, Any], values: list[Any], relaxed: bool) -> None:
    notes: list[str] = []
    found: Any = None
    reason = ""
    try:
        found = checked(schema, relaxed=relaxed, notes=notes)
    except ConstraintError as error:
        reason = str(error)
    if found is None:
        assert not relaxed or "false" in reason
        return
    assert relaxed or not notes
    dialect = "http://json-schema.org/draft-07/schema#" if "dependencies" in schema else None
    theirs = jsonschema_rs.validator_for(
        {**schema, "$schema": dialect} if dialect and not _NEWER & schema.keys() else schema
    )
    assume("dependencies" not in schema or not _NEWER & schema.keys())
    ours = jsonschema_rs.Draft202012Validator(
        {name: one for name, one in found.items() if name != "x-guidance"}
    )
    for value in values:
        if notes:
            assert ours.is_valid(value) or not theirs.is_valid(value), (found, value)
        else:
            assert ours.is_valid(value) == theirs.is_valid(value), (found, value)


_NEWER = frozenset(("dependentRequired", "dependentSchemas", "unevaluatedProperties"))


@pytest.mark.parametrize(
    "pattern",
    [
        r"^(?!\.)(?!.*\.\.)[a.]*$",
        r"^(?!\s*$).*$",
        r"^(?!^[-+.]*$)[+-]?0*\d*\.?\d*$",
        r"^(?=.*[a-z])(?=.*\d)[a-z\d]{2,}$",
        r"^(?!$)a*$",
        r"^(?!.*--)[a-]*$",
        r"^(?![ab])[abc]*$",
    ],
)
@given(text=st.text(alphabet="a.b-+1c z0", max_size=8))
def test_parts_of_a_regex_match_together_where_it_matches(pattern: str, text: str) -> None:
    parts = assertions(pattern)
    assert len(parts) > 1
    assert all(re.search(part, text) for part in parts) == (re.search(pattern, text) is not None)
