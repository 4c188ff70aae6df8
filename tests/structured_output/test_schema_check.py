"""A tool's parameters are a JSON Schema: our linear check against the meta-schema of Draft 2020-12."""

from __future__ import annotations

from typing import Any

import jsonschema_rs
from hypothesis import given
from hypothesis import strategies as st

from plumbline.answer.structured_output.schema_check import MAX_SCHEMAS, TYPES, schema_violation

META = jsonschema_rs.Draft202012Validator({"$ref": "https://json-schema.org/draft/2020-12/schema"})

_names = st.sampled_from(
    (
        *(
            "type",
            "items",
            "properties",
            "required",
            "enum",
            "anyOf",
            "prefixItems",
            "$defs",
            "not",
            "minLength",
        ),
        *(
            "multipleOf",
            "minimum",
            "uniqueItems",
            "description",
            "additionalProperties",
            "dependentRequired",
            "own",
        ),
    )
)
_leaves = st.one_of(
    st.none(), st.booleans(), st.integers(-2, 3), st.sampled_from((0.0, 1.5, 2.0)),
    st.sampled_from((*TYPES, "nonsense", "a")), st.lists(st.sampled_from((*TYPES, "b")), max_size=3),
)  # fmt: skip
schemas = st.recursive(
    _leaves,
    lambda inner: st.one_of(
        st.dictionaries(_names, inner, max_size=4),
        st.lists(inner, max_size=3),
        st.dictionaries(st.just("a"), inner),
    ),
    max_leaves=12,
)


def _uses_older_draft(value: Any) -> bool:
    if isinstance(value, dict):
        return isinstance(value.get("items"), list) or any(map(_uses_older_draft, value.values()))
    return isinstance(value, list) and any(map(_uses_older_draft, value))


@given(schemas.filter(lambda value: not _uses_older_draft(value)))
def test_the_check_agrees_with_the_meta_schema(schema: Any) -> None:
    assert (schema_violation(schema) is None) == META.is_valid(schema)


def test_forms_of_older_drafts_are_accepted() -> None:
    assert schema_violation({"items": [{"type": "string"}], "exclusiveMinimum": True}) is None
    assert schema_violation({"items": [{"type": 7}]}) is not None


def test_a_refusal_names_the_place_and_lists_the_types() -> None:
    violation = schema_violation({"properties": {"a": {"type": "nonsense"}}})
    assert violation is not None
    assert "'properties.a.type' is 'nonsense'" in violation
    assert "array, boolean, integer, null, number, object, string" in violation


def test_the_number_of_schemas_is_bounded() -> None:
    members: dict[str, Any] = {str(number): {} for number in range(MAX_SCHEMAS)}
    assert schema_violation({"properties": members}) == f"it contains more than {MAX_SCHEMAS} schemas"
    del members["0"]
    assert schema_violation({"properties": members}) is None


def test_nesting_costs_no_stack() -> None:
    schema: dict[str, Any] = {"type": "nonsense"}
    for _ in range(MAX_SCHEMAS - 1):
        schema = {"not": schema}
    assert "'nonsense'" in (schema_violation(schema) or "")
    while schema:  # Python frees nested objects recursively.
        schema = schema.pop("not", {})
