"""Text becomes JSON by the schema, and no schema of a client breaks the parsing."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.laws import EXPLORED
from support.parsing.dialects import DIALECTS, Dialect, cut, fold

from plumbline.answer.dialects.spec.call_format import ArgumentSyntax, WrittenCall
from plumbline.answer.dialects.spec.dialect import Utterance
from plumbline.answer.dialects.streams.coercion import (
    admitted,
    allowed_types,
    coerce,
    is_text,
    part_schema,
    resolved,
)
from plumbline.answer.dialects.streams.json_text import quoted
from plumbline.answer.dialects.streams.tag_values import JsonWriter, StringWriter, unwrapped
from plumbline.answer.events import TextDelta

_WORDS = [
    "type", "properties", "items", "$ref", "anyOf", "oneOf", "allOf", "enum", "const", "additionalProperties",
    "string", "integer", "object", "array", "null", "#/a", "#", "#/properties/city", "city", "a",
]  # fmt: skip
_json = st.recursive(
    st.none() | st.booleans() | st.integers(-2, 2) | st.sampled_from(_WORDS),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(_WORDS), inner, max_size=4),
    max_leaves=12,
)
_schemas = st.dictionaries(st.sampled_from(_WORDS), _json, max_size=4)


@pytest.mark.parametrize(
    ("text", "types", "meant"),
    [
        ("02134", ["string"], '"02134"'),
        ("7", ["string"], '"7"'),
        ("7", ["integer"], "7"),
        ("7", ["number"], "7"),
        ("7.0", ["integer"], "7.0"),
        ("7.5", ["integer"], '"7.5"'),
        ("1e999", ["integer"], '"1e999"'),
        ("seven", ["integer"], '"seven"'),
        (" True ", ["boolean"], "true"),
        ("false", ["string", "boolean"], "false"),
        ("42", ["string", "integer"], "42"),
        ("4.5", ["string", "number"], "4.5"),
        ("4.5", ["string", "integer"], '"4.5"'),
        ("02134", ["string", "integer"], '"02134"'),
        ('"42"', ["string", "integer"], '"\\"42\\""'),
        ("null", ["string", "null"], "null"),
        ('{"a": 1}', ["string", "object"], '{"a": 1}'),
        ("[1", ["array"], '"[1"'),
        ("NaN", ["number"], '"NaN"'),
        ("7", [], "7"),
        ("seven", [], '"seven"'),
        ('"seven"', [], '"seven"'),
        ("['x', 1]", ["array"], '["x", 1]'),
        ("('x', None)", ["array", "null"], '["x", null]'),
        ("{'a': [True]}", ["object"], '{"a": [true]}'),
        ("{'a', 2}", ["array"], '["a", 2]'),
        ("{'a', 2}", ["object"], "\"{'a', 2}\""),
        ("{'a': 2}", ["array"], "\"{'a': 2}\""),
        ("{}", ["array"], '"{}"'),
        ("", ["integer", "null"], "null"),
        ("\n", ["null"], "null"),
        ("", ["string", "null"], '""'),
        ("", ["integer"], '""'),
        ("", [], '""'),
        ("['x', 1]", ["array", "string"], "\"['x', 1]\""),
        ("['x', 1]", [], "\"['x', 1]\""),
        ("['x', 1]", ["object"], "\"['x', 1]\""),
        ("['x', 1] and", ["array"], "\"['x', 1] and\""),
        ("['x'", ["array"], "\"['x'\""),
        ("[f(1)]", ["array"], '"[f(1)]"'),
        ('"42"', ["integer"], "42"),
        ('"9007199254740993"', ["number"], "9007199254740993"),
        ('"True"', ["boolean"], "true"),
        ('"[1]"', ["array", "null"], "[1]"),
        ('"x"', ["integer"], '"\\"x\\""'),
    ],
)
def test_a_text_means_what_the_schema_allows(text: str, types: list[str], meant: str) -> None:
    assert coerce(text, frozenset(types)) == meant


@pytest.mark.parametrize(
    ("declared", "text", "meant"),
    [
        ("float", "3.14", "3.14"),
        ("Int", "7", "7"),
        ("bool", "True", "true"),
        ("dict", '{"a": 1}', '{"a": 1}'),
        ("list", "[1]", "[1]"),
        ("str", "7", '"7"'),
        ("any", "3.14", "3.14"),
        (["any", "string"], "3.14", "3.14"),
        (["float", "null"], "3.14", "3.14"),
        ("MyClass", "3.14", "3.14"),
    ],
)
def test_type_names_of_other_languages_are_understood(declared: Any, text: str, meant: str) -> None:
    assert coerce(text, allowed_types({"type": declared}, {})) == meant


@given(_schemas.filter(lambda schema: "const" not in schema and "$ref" not in schema), st.booleans())
def test_nullable_allows_null_as_a_union_does(schema: dict[str, Any], nested: bool) -> None:
    """OpenAPI 3.0's keyword counts beside a known `type` only."""
    own = allowed_types(schema, {}) if isinstance(schema.get("type"), str | list) else frozenset()
    nullable = {**schema, "nullable": True}
    found = allowed_types({"anyOf": [nullable]} if nested else nullable, {})
    assert found == (own | {"null"} if own else allowed_types(schema, {}))


_values = st.one_of(
    st.text('nul Ntrefasbo1-.e{}[]"\n\t x', max_size=12),
    st.text(max_size=80),
    st.sampled_from(
        ["null", "None", " null\n", "nullify", "true", "Trueish", "12", "12 Main St", "-", "1" * 70 + "x"]
    ),
    _json.map(json.dumps),
)
_types = st.sets(st.sampled_from(["string", "null", "integer", "number", "boolean", "array", "object"]))


@settings(max_examples=EXPLORED or 60)
@given(text=_values, more=st.text(max_size=6), types=_types.map(frozenset))
def test_what_is_certain_to_be_a_string_is_one_whatever_follows(
    text: str, more: str, types: frozenset[str]
) -> None:
    if is_text(text, types):
        assert is_text(text + more, types)
        assert coerce(text + more, types) == quoted(text + more)


@settings(max_examples=EXPLORED or 60)
@given(
    text=_values,
    types=_types.map(frozenset),
    wrapped=st.booleans(),
    sizes=st.lists(st.integers(1, 9), min_size=1),
)
def test_a_value_in_any_pieces_is_what_it_is_whole(
    text: str, types: frozenset[str], wrapped: bool, sizes: list[int]
) -> None:
    types |= (
        {"string"} if types else set()
    )  # A value without types has a writer only where it may be a string.
    told: list[str] = []
    out = StringWriter(told.append, types, wrapped=wrapped)
    for piece in cut(text, sizes):
        out.write(piece)
    out.close()
    meant = unwrapped(text) if wrapped else text
    assert json.loads("".join(told)) == json.loads(coerce(meant, types))


_nested = st.lists(_json, max_size=3) | st.dictionaries(st.text(max_size=3), _json, max_size=3)


@settings(max_examples=EXPLORED or 60)
@given(
    value=_nested,
    types=st.sets(st.sampled_from(["null", "integer", "array", "object"])).map(frozenset),
    indent=st.sampled_from([None, 4]),
    around=st.sampled_from(["", "\n", " \n\t", "\u00a0"]),
    sizes=st.lists(st.integers(1, 9), min_size=1),
)
def test_json_passed_on_is_the_json_that_the_text_means(
    value: Any, types: frozenset[str], indent: int | None, around: str, sizes: list[int]
) -> None:
    text = around + json.dumps(value, indent=indent) + around
    told: list[str] = []
    out = JsonWriter(told.append, types)
    for piece in cut(text, sizes):
        out.write(piece)
    out.close("")
    assert out.begun == (not types or ("array" if isinstance(value, list) else "object") in types)
    assert "".join(told) == coerce(text, types) if out.begun else out.text == text


@given(
    text=st.text(max_size=12) | st.from_regex(r"-?[0-9]{1,4}(\.[0-9])?(e[0-9]{1,4})?", fullmatch=True),
    schema=_schemas,
)
def test_whatever_the_schema_a_text_becomes_json(text: str, schema: dict[str, Any]) -> None:
    json.loads(coerce(text, allowed_types(schema, schema)))
    for name in ("city", None):
        member = part_schema(schema, schema, name)
        json.loads(coerce(text, allowed_types(member, schema)))
        resolved(member, schema)
        admitted(member, None)


@given(schema=_schemas)
def test_no_schema_breaks_the_parsing_of_a_call(schema: dict[str, Any]) -> None:
    call = WrittenCall("f", '{"city": "a", "n": 1, "rows": [[true], {"x": null}]}')
    for dialect in DIALECTS:
        if dialect.tool is None:
            continue
        text = dialect.write(Utterance((call,), "hm" if dialect.reasoning is not None else None))
        parser = dialect.parser(tools={"f": schema})
        parser.push(TextDelta(text))
        parser.finish("stop")
        assert parser.num_calls == 1, dialect


PARAMETERS = {"code": {"type": "string"}, "count": {"type": "integer"}, "note": {"type": ["string", "null"]}}
_wrappings = st.lists(
    st.sampled_from(["oneOf", "anyOf", "allOf", "$ref", "branches"]), min_size=1, max_size=3
)
_values = st.sampled_from(["42", "true", "[1]", "null", '{"a": 1}', "1e5", "plain", '"quoted"'])


def composed(wrappings: list[str]) -> dict[str, Any]:
    """Return the schema of the parameters, as composed schemas of generators write it."""
    flat = {"type": "object", "properties": PARAMETERS}
    definitions: dict[str, Any] = {}
    schema: dict[str, Any] = flat
    for number, wrapping in enumerate(wrappings):
        match wrapping:
            case "$ref":
                definitions[f"P{number}"] = schema
                schema = {"$ref": f"#/$defs/P{number}"}
            case "branches":  # A union whose members share nothing.
                schema = {"oneOf": [{"type": "object", "properties": {"other": {"type": "null"}}}, schema]}
            case _:
                schema = {"type": "object", wrapping: [schema]}
    return {**schema, "$defs": definitions}


@given(wrappings=_wrappings, values=st.dictionaries(st.sampled_from([*PARAMETERS]), _values, min_size=1))
def test_composed_schemas_give_arguments_the_types_of_flat_ones(
    wrappings: list[str], values: dict[str, str]
) -> None:
    """In every dialect, wherever the schema has the property."""
    call = WrittenCall("f", json.dumps(values))
    for dialect in DIALECTS:
        if dialect.tool is None:
            continue
        text = dialect.write(Utterance((call,), "hm" if dialect.reasoning is not None else None))
        read = []
        for schema in ({"type": "object", "properties": PARAMETERS}, composed(wrappings)):
            parser = dialect.parser(tools={"f": schema})
            read.append([*parser.push(TextDelta(text)), *parser.finish("stop")])
        assert read[0] == read[1], dialect


def _syntax(dialect: Dialect) -> ArgumentSyntax:
    """How the family writes arguments."""
    tool = dialect.tool
    return ArgumentSyntax.JSON if tool is None else tool.sections[0].call_format.argument_syntax


_IN_TAGS = [one for one in DIALECTS if _syntax(one) in (ArgumentSyntax.TAGS, ArgumentSyntax.TYPED_TAGS)]
_TAGGED = [*_IN_TAGS, *(one for one in DIALECTS if _syntax(one) is ArgumentSyntax.ELEMENTS)]
_LISTS: dict[str, Any] = {
    "enum": {"enum": ["on", "off", "7"]},
    "branches": {"anyOf": [{"type": "string", "const": "on"}, {"enum": ["off", "7"]}, {"type": "null"}]},
    "reference": {"$ref": "#/$defs/state"},
}


@pytest.mark.parametrize("dialect", _TAGGED, ids=str)
@settings(max_examples=EXPLORED or 25)
@given(
    text=st.sampled_from(["on", "off", "7"]),
    around=st.sampled_from(["{}", '"{}"', "'{}'", " {} ", ' "{}"']),
    where=st.sampled_from(sorted(_LISTS)),
    sizes=st.lists(st.integers(1, 9), min_size=1),
)
def test_a_listed_string_is_meant_whatever_is_around_it(
    dialect: Dialect, text: str, around: str, where: str, sizes: list[int]
) -> None:
    assert dialect.tool is not None
    parameters = {
        "type": "object",
        "properties": {"state": _LISTS[where], "note": {"type": "string"}},
        "$defs": {"state": _LISTS["enum"]},
    }
    written = {"state": around.format(text), "note": around.format(text)}
    thought = "hm" if dialect.reasoning is not None else None
    output = dialect.write(Utterance((WrittenCall("set", json.dumps(written)),), thought))
    parser = dialect.parser(tools={"set": parameters})
    events = [event for piece in cut(output, sizes) for event in parser.push(TextDelta(piece))]
    [call] = fold([*events, *parser.finish("stop")]).calls
    assert json.loads(call.arguments) == {**written, "state": text}


_elements = st.from_regex(r"<[a-z]{1,3}>[a-z0-9 ]{0,5}</[a-z]{1,3}>", fullmatch=True)
_unended = st.sampled_from(
    ['{"k": "v", "dangling"', "{'k': [1], dangling", '{"k": {"dangling"', '{"k": "v",']
)


@pytest.mark.parametrize("dialect", _IN_TAGS, ids=str)
@settings(max_examples=EXPLORED or 25)
@given(
    value=_elements | _unended,
    kind=st.sampled_from(["object", "array", "integer"]),
    sizes=st.lists(st.integers(1, 9), min_size=1),
)
def test_a_value_that_does_not_fit_its_type_ends_where_its_tag_does(
    dialect: Dialect, value: str, kind: str, sizes: list[int]
) -> None:
    """An object that breaks off is closed; anything else that is not of the type is a text."""
    properties = {"value": {"type": kind}, "note": {"type": "string"}}
    thought = "hm" if dialect.reasoning is not None else None
    call = WrittenCall("set", json.dumps({"value": value, "note": "x"}))
    parser = dialect.parser(tools={"set": {"type": "object", "properties": properties}})
    output = dialect.write(Utterance((call,), thought))
    events = [event for piece in cut(output, sizes) for event in parser.push(TextDelta(piece))]
    found = fold([*events, *parser.finish("stop")])
    [read] = found.calls
    arguments = json.loads(read.arguments)
    assert (found.content, read.complete, arguments["note"]) == ("", True, "x")
    assert arguments["value"] == value or (kind == "object" and isinstance(arguments["value"], dict))
