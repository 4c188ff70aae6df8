"""Laws of references: each way to name a schema of the document leads to the same grammar, and identifiers are inert.

1. A schema whose references are written with identifiers, anchors or relative URIs equals the one with pointers.
2. Identifiers that nothing refers to change nothing, wherever they stand.
3. URIs resolve as RFC 3986, section 5.4, lists.
4. The time is linear: long chains, cycles and many identifiers end quickly, with the schema or one reason.
"""

from __future__ import annotations

import copy
from itertools import product
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.about import about

from plumbline.answer.structured_output.grammar.errors import ConstraintError
from plumbline.answer.structured_output.grammar.json_schema import checked
from plumbline.answer.structured_output.grammar.references import with_pointers
from plumbline.answer.structured_output.grammar.references.uris import joined_uri

TARGET = {"type": "integer", "minimum": 3}
POINTED = {"type": "object", "properties": {"v": {"$ref": "#/$defs/t"}}, "$defs": {"t": TARGET}}
BASES = [None, "https://example.org/root.json", "urn:example:root", "root.json", "https://example.org/a/"]
NAMED: list[tuple[dict[str, Any], str]] = [
    ({"$id": "item.json"}, "item.json"),
    ({"$id": "item.json"}, "./item.json#"),
    ({"$id": "item.json", "$anchor": "x"}, "item.json#x"),
    ({"$id": "/schemas/item"}, "/schemas/item"),
    ({"$id": "https://example.org/other#"}, "https://example.org/other"),
    (
        {"$id": "urn:uuid:deadbeef-1234-00ff-ff00-4321feebdaed"},
        "urn:uuid:deadbeef-1234-00ff-ff00-4321feebdaed",
    ),
    ({"$anchor": "x"}, "#x"),
    ({"$dynamicAnchor": "x"}, "#x"),
]


def test_each_way_to_name_a_schema_is_a_pointer() -> None:
    for base, (identifier, reference), keyword in product(BASES, NAMED, ("$ref", "$dynamicRef")):
        schema: dict[str, Any] = copy.deepcopy(POINTED)
        schema["$defs"]["t"] |= identifier
        schema["properties"]["v"] = {keyword: reference}
        if base is not None:
            schema["$id"] = base
            if base.startswith("urn:") and not reference.startswith(("#", "https:", "urn:")):
                continue  # A URN has no folders.
        before = copy.deepcopy(schema)
        with about(schema):
            assert checked(schema) == checked(POINTED)
            assert schema == before


def _places(schema: Any) -> list[dict[str, Any]]:
    found = [schema] if isinstance(schema, dict) else []
    for part in found[:]:
        for name in ("properties", "$defs"):
            found += [one for each in part.get(name, {}).values() for one in _places(each)]
        for name in ("anyOf", "allOf"):
            found += [one for each in part.get(name, ()) for one in _places(each)]
        found += _places(part.get("items"))
    return found


_PLAIN = st.recursive(
    st.sampled_from([{"type": "integer"}, {"type": "string", "enum": ["$id", "a"]}, {"$ref": "#/$defs/t"}]),
    lambda inner: st.one_of(
        st.builds(lambda one: {"type": "array", "items": one}, inner),
        st.builds(lambda one: {"type": "object", "properties": {"$id": one, "a": one}}, inner),
        st.lists(inner, min_size=1, max_size=2).map(lambda several: {"anyOf": several}),
    ),
    max_leaves=5,
)
_IDENTIFIER = st.sampled_from(
    [
        {"$id": "#/properties/a"},
        {"$id": "https://example.org/x"},
        {"id": "/properties/a"},
        {"id": "item"},
        {"$anchor": "here"},
        {"$dynamicAnchor": "meta"},
        {"$id": "a/b.json", "$anchor": "c"},
    ]
)


@given(_PLAIN, st.data())
def test_identifiers_that_nothing_refers_to_are_inert(plain: dict[str, Any], data: st.DataObject) -> None:
    schema = {"$defs": {"t": {"type": "boolean"}}, "allOf": [plain]}
    expected = checked(schema)
    changed = copy.deepcopy(schema)
    # The same identifier twice is no error as long as nothing refers to it.
    for place in _places(changed):
        if data.draw(st.booleans()):
            place |= data.draw(_IDENTIFIER)
    assert checked(changed) == expected


@pytest.mark.parametrize(
    ("reference", "expected"),
    [
        ("g:h", "g:h"), ("g", "http://a/b/c/g"), ("./g", "http://a/b/c/g"), ("g/", "http://a/b/c/g/"),
        ("/g", "http://a/g"), ("//g", "http://g"), ("?y", "http://a/b/c/d;p?y"), ("g?y", "http://a/b/c/g?y"),
        (";x", "http://a/b/c/;x"), ("g;x", "http://a/b/c/g;x"), (".", "http://a/b/c/"), ("./", "http://a/b/c/"),
        ("..", "http://a/b/"), ("../", "http://a/b/"), ("../g", "http://a/b/g"), ("../..", "http://a/"),
        ("../../g", "http://a/g"), ("../../../g", "http://a/g"), ("/./g", "http://a/g"), ("/../g", "http://a/g"),
        ("g.", "http://a/b/c/g."), ("..g", "http://a/b/c/..g"), ("./../g", "http://a/b/g"),
        ("./g/.", "http://a/b/c/g/"), ("g/./h", "http://a/b/c/g/h"), ("g/../h", "http://a/b/c/h"),
        ("", "http://a/b/c/d;p?q"),
    ],
)  # fmt: skip
def test_references_resolve_as_the_standard_lists(reference: str, expected: str) -> None:
    assert joined_uri("http://a/b/c/d;p?q", reference, "#") == expected


def test_a_dynamic_reference_leads_to_the_root_where_the_root_is_named() -> None:
    """A tree that is closed from outside: its children are closed as well (Core, appendix C)."""
    tree = {
        "$id": "tree",
        "$dynamicAnchor": "node",
        "type": "object",
        "properties": {"children": {"type": "array", "items": {"$dynamicRef": "#node"}}},
    }
    closed = {"$id": "strict-tree", "$dynamicAnchor": "node", "$ref": "tree", "$defs": {"tree": tree}}
    found = with_pointers(closed)
    assert found["$ref"] == "#/$defs/tree"
    assert found["$defs"]["tree"]["properties"]["children"]["items"] == {"$ref": "#"}


@pytest.mark.parametrize(
    "schema",
    [
        {"$ref": "https://example.org/schema"},
        {"$ref": "#nowhere"},
        {"$ref": "item.json"},
        {"enum": [{"$id": "x", "type": "integer"}], "$ref": "x"},
        {"const": {"$anchor": "x"}, "$ref": "#x"},
        {"$defs": {"a": {"$id": "x"}, "b": {"$id": "x"}}, "$ref": "x"},
        {"$ref": "x" * 5000, "$id": "y"},
        {
            "$defs": {
                "a": {"$id": "a", "$dynamicAnchor": "x", "type": "integer"},
                "b": {"$id": "b", "$dynamicAnchor": "x", "type": "string"},
            },
            "$dynamicRef": "a#x",
        },
    ],
)
def test_a_reference_that_leads_to_no_certain_schema_is_refused_by_name(schema: dict[str, Any]) -> None:
    with pytest.raises(ConstraintError, match=r"'#(/\$ref|/\$dynamicRef)?'"):
        checked(schema)


def test_schemas_at_places_without_a_keyword_are_found() -> None:
    """As in OpenAPI documents; the schema there refers on."""
    schema = {
        "$ref": "#/components/schemas/Pet",
        "components": {
            "schemas": {
                "Pet": {"type": "object", "properties": {"tag": {"$ref": "#/components/schemas/Tag"}}},
                "Tag": {"type": "string", "pattern": r"^\d$"},
            }
        },
    }
    found: Any = checked(schema)
    names = found["$defs"]
    pet = names[found["$ref"].removeprefix("#/$defs/")]
    assert names[pet["properties"]["tag"]["$ref"].removeprefix("#/$defs/")]["pattern"] == "^[0-9]$"


@pytest.mark.parametrize("reference", ["/$defs/t", "$defs/t", "#/$defs/t"])
@pytest.mark.parametrize("nested", [False, True])
def test_frequent_mistakes_of_generators_are_understood(reference: str, nested: bool) -> None:
    """A `#` is missing, or a schema with its own `$defs` was put into another one."""
    inner = {"type": "object", "properties": {"v": {"$ref": reference}}, "$defs": {"t": TARGET}}
    found: Any = checked({"type": "array", "items": inner} if nested else inner)
    where = "#/items/$defs/t" if nested else "#/$defs/t"
    assert (found["items"] if nested else found)["properties"]["v"] == {"$ref": where}


def test_many_identifiers_and_references_end_quickly() -> None:
    chain: dict[str, Any] = {f"s{n}": {"$id": f"s{n}", "$ref": f"s{n + 1}"} for n in range(400)}
    chain["s400"] = {"$id": "s400", "$ref": "s0"}
    with_pointers({"$defs": chain, "$ref": "s0"})
    deep: Any = {"$id": "end/" * 900}
    for number in range(60):
        deep = {"$id": f"{'a/' * 60}{number}/", "items": deep}
    with pytest.raises(ConstraintError):
        checked(deep)
    inner: Any = {"type": "string"}
    for _ in range(50):
        inner = {"x": inner, "pad": "y" * 4000}
    # Each path into an unknown keyword moves what is below it once more.
    paths = [f"#/root{'/x' * count}" for count in range(1, 50)]
    with pytest.raises(ConstraintError):
        checked({"root": inner, "anyOf": [{"$ref": path} for path in paths]})
