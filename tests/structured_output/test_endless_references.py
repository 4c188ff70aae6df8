"""Schemas that require themselves without an end.

The laws, for drawn schemas of objects, lists, texts, alternatives and references:

* A schema is refused exactly if no document of bounded depth satisfies it.
* What replaces endless references changes no document: the same ones are valid.
* An optional member that would not end is forbidden, and the rest of the schema goes through.
"""

from __future__ import annotations

from typing import Any

import jsonschema_rs
from hypothesis import example, given
from hypothesis import strategies as st

from plumbline.answer.structured_output.grammar.references import without_endless

from .walk import accepts, grammar_notes_and_reason

NAMES = ("a", "b", "c/d")
POINTERS = tuple(f"#/$defs/{name.replace('/', '~1')}" for name in NAMES)
references = st.sampled_from([*POINTERS, "#"]).map(lambda pointer: {"$ref": pointer})


def objects(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    members = st.dictionaries(st.sampled_from(["x", "y"]), inner, min_size=1, max_size=2)
    return st.builds(
        lambda properties, wanted: {
            "type": "object",
            "properties": properties,
            "required": [name for name in properties if name in wanted],
            "additionalProperties": False,
        },
        members,
        st.sets(st.sampled_from(["x", "y"])),
    )


def lists(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.builds(
        lambda items, least: {"type": "array", "items": items, "minItems": least}, inner, st.integers(0, 1)
    )


parts = st.recursive(
    references | st.just({"type": "string"}),
    lambda inner: (
        objects(inner) | lists(inner) | st.lists(inner, min_size=1, max_size=2).map(lambda of: {"anyOf": of})
    ),
    max_leaves=3,
)
schemas = st.builds(
    lambda root, definitions: {**root, "$defs": dict(zip(NAMES, definitions, strict=True))},
    parts,
    st.tuples(parts, parts, parts),
)


def document(schema: Any, root: Any, depth: int) -> list[Any]:
    """A document of the schema of at most this depth, in a list; an empty list if there is none."""
    if depth < 0 or schema is False:
        return []
    if "$ref" in schema:
        name = schema["$ref"].removeprefix("#/$defs/").replace("~1", "/")
        return document(root if name == "#" else root["$defs"][name], root, depth - 1)
    if "anyOf" in schema:
        return next((found for one in schema["anyOf"] if (found := document(one, root, depth))), [])
    if schema["type"] == "string":
        return ["s"]
    if schema["type"] == "array":
        found = document(schema["items"], root, depth) if schema["minItems"] else [None]
        return [[found[0]] if schema["minItems"] else []] if found else []
    members = {name: document(schema["properties"][name], root, depth) for name in schema["required"]}
    return [{name: found[0] for name, found in members.items()}] if all(members.values()) else []


ENDLESS = {"type": "object", "properties": {"x": {"$ref": POINTERS[1]}}, "required": ["x"]}
EITHER = {"anyOf": [{"$ref": POINTERS[1]}, {"$ref": POINTERS[2]}]}
OTHER = {"anyOf": [{"$ref": POINTERS[1]}, {"$ref": POINTERS[0]}]}


@given(schemas)
@example(
    {
        "anyOf": [{"$ref": POINTERS[0]}],
        "$defs": dict(zip(NAMES, (EITHER, ENDLESS, {"type": "string"}), strict=True)),
    }
)
@example(
    {
        "anyOf": [{"$ref": POINTERS[2]}],
        "$defs": dict(zip(NAMES, ({"type": "string"}, ENDLESS, OTHER), strict=True)),
    }
)
def test_a_schema_is_refused_exactly_if_no_document_ends(schema: dict[str, Any]) -> None:
    ending, found = without_endless(schema), document(schema, schema, 12)
    assert (ending is False) == (not found)
    if found:
        assert jsonschema_rs.validator_for(schema).is_valid(found[0])
        assert jsonschema_rs.validator_for(ending).is_valid(found[0])


def test_an_optional_member_that_would_not_end_is_forbidden() -> None:
    endless = {"type": "object", "properties": {"next": {"$ref": "#/$defs/n"}}, "required": ["next"]}
    members = {"a": {"type": "integer"}, "n": {"$ref": "#/$defs/n"}}
    schema = {"type": "object", "properties": members, "additionalProperties": False, "$defs": {"n": endless}}
    grammar, _, _ = grammar_notes_and_reason(schema)
    assert grammar is not None
    assert accepts(grammar, '{"a":1}')
    assert not accepts(grammar, '{"a":1,"n":{"next":{}}}')
    refused, _, reason = grammar_notes_and_reason({**schema, "required": ["n"]})
    assert refused is None
    assert "without an end" in reason
