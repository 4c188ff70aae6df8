"""Laws of the preparation of JSON Schemas for the grammar engine.

- Bounds are exact: the largest schema passes, one step more is refused.
- The client's schema is not changed, and keywords inside data stay data.
- References have to point to a place where a schema stands.
- Regexes and formats are translated at every depth.
"""

from __future__ import annotations

import copy
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from plumbline.answer.structured_output.grammar.errors import ConstraintError
from plumbline.answer.structured_output.grammar.json_schema import (
    MAX_DEPTH,
    MAX_MEMBERS,
    MAX_SIZE,
    MAX_TEXT,
    checked,
)

leaves = st.sampled_from(
    [
        {"type": "string", "pattern": r"^\d+$"},
        {"type": "integer"},
        {"enum": ["pattern", {"pattern": "x"}]},
        {},
    ]
)
schemas = st.recursive(
    leaves,
    lambda inner: (
        st.builds(lambda one: {"type": "array", "items": one}, inner)
        | st.dictionaries(st.sampled_from(["a", "pattern", "$ref", "b/c~d"]), inner, max_size=3).map(
            lambda properties: {"type": "object", "properties": properties}
        )
        | st.lists(inner, min_size=1, max_size=2).map(lambda several: {"anyOf": several})
    ),
    max_leaves=6,
)


def nested(depth: int) -> dict[str, Any]:
    """A schema whose JSON is nested `depth` levels below the root."""
    schema: dict[str, Any] = {}
    for _ in range(depth):
        schema = {"items": schema}
    return schema


def patterns(schema: Any) -> list[str]:
    """The regexes at places where the standard has keywords."""
    if not isinstance(schema, dict):
        return []
    found = [schema["pattern"]] if isinstance(schema.get("pattern"), str) else []
    children = [schema.get("items"), *schema.get("anyOf", ()), *schema.get("properties", {}).values()]
    return found + [pattern for child in children for pattern in patterns(child)]


@given(schemas)
def test_the_schema_of_the_client_is_not_changed(schema: dict[str, Any]) -> None:
    before = copy.deepcopy(schema)
    checked(schema)

    assert schema == before


@given(schemas)
def test_regexes_are_translated_at_every_depth_and_data_stays_data(schema: dict[str, Any]) -> None:
    found = checked(schema)

    assert patterns(found) == ["^[0-9]+$"] * len(patterns(schema))
    assert str(schema).count("{'pattern': 'x'}") == str(found).count("{'pattern': 'x'}")


@pytest.mark.parametrize(
    ("largest", "too_large"),
    [
        (nested(MAX_DEPTH), nested(MAX_DEPTH + 1)),
        (
            {"properties": {str(number): {} for number in range(MAX_MEMBERS)}},
            {"properties": {str(number): {} for number in range(MAX_MEMBERS + 1)}},
        ),
        ({"const": "x" * MAX_TEXT}, {"const": "x" * (MAX_TEXT + 1)}),
        (
            {"description": "x" * (MAX_SIZE - len('{"description": ""}'))},
            {"description": "x" * (MAX_SIZE - len('{"description": ""}') + 1)},
        ),
    ],
    ids=["depth", "members", "text", "size"],
)
def test_bounds_are_exact(largest: dict[str, Any], too_large: dict[str, Any]) -> None:
    checked(largest)
    with pytest.raises(ConstraintError, match="more than"):
        checked(too_large)


@pytest.mark.parametrize("pointer", ["#", "#/properties/a", "#/$defs/b~1c", "#/anyOf/0"])
def test_a_reference_to_a_schema_is_followed(pointer: str) -> None:
    checked(
        {
            "properties": {"a": {"type": "null"}, "b": {"$ref": pointer}},
            "$defs": {"b/c": {"type": "null"}},
            "anyOf": [{"type": "object"}],
        }
    )


@pytest.mark.parametrize(
    "pointer", ["#/enum/0", "#/properties", "#/properties/none", "http://x/y", "#anchor"]
)
def test_a_reference_to_anything_else_is_refused(pointer: str) -> None:
    with pytest.raises(ConstraintError):
        checked({"enum": [{"a": 1}], "properties": {"b": {"$ref": pointer}}})


def test_true_allows_every_document_and_false_is_refused() -> None:
    assert checked(True).keys() == {"x-guidance"}  # type: ignore[union-attr]
    with pytest.raises(ConstraintError):
        checked(False)
