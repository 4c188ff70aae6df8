"""Laws of strict arguments in every dialect: fully enforced or refused, and parsed back correctly."""

from __future__ import annotations

import json
from typing import Any

import jsonschema_rs
import pytest
from support.laws import EXPLORED
from support.parsing.folding import fold

from plumbline.answer.dialects.parsers.render import render_calls
from plumbline.answer.dialects.registry import TOOL_DIALECTS
from plumbline.answer.dialects.spec.call_format import CallFormat, WrittenCall
from plumbline.answer.dialects.spec.dialect import ToolDialect
from plumbline.answer.events import TextDelta
from plumbline.answer.structured_output.grammar.errors import ConstraintError
from plumbline.answer.structured_output.tool_calls import calls
from plumbline.answer.turn import Tool
from plumbline.engines.constraints.grammar import GrammarError

from .walk import accepts, builder, frame, model_dialect


def _distinct() -> list[ToolDialect]:
    """Return one dialect for each way to write a call; the others differ in markers only."""
    found: dict[tuple[CallFormat, bool, bool], ToolDialect] = {}
    for dialect in dict.fromkeys(TOOL_DIALECTS.values()):
        section = dialect.sections[0]
        # harmony ends a call by an end of sequence, which is no text.
        if not dialect.messages:
            found.setdefault((section.call_format, section.array, bool(section.open)), dialect)
    return list(found.values())


DIALECTS = _distinct()


def _some(schema: Any) -> list[ToolDialect]:
    """Return the half of the dialects to try a schema with, or all in `nox -s properties`; neighbours are alike."""
    return DIALECTS if EXPLORED else DIALECTS[sum(json.dumps(schema).encode()) % 2 :: 2]


def _allowed(dialect: ToolDialect, schema: dict[str, Any], arguments: list[Any]) -> list[bool] | None:
    """Return which of these arguments a strict tool's grammar allows; None if the schema is refused."""
    found = builder()
    try:
        tool = Tool(name="f", parameters=schema, strict=True)
        grammar = found.build(calls(found, dialect, [tool], parallel=False))
        return [accepts(grammar, _written(dialect, value)) for value in arguments]
    except (ConstraintError, GrammarError):
        return None


def _written(dialect: ToolDialect, arguments: Any) -> str:
    return render_calls([WrittenCall("f", json.dumps(arguments, ensure_ascii=False))], dialect.sections[0])


def _read(dialect: ToolDialect, schema: dict[str, Any], text: str) -> list[tuple[str, Any, str]]:
    parser = model_dialect(dialect).parser({"f": schema}, frame())
    events = [*parser.push(TextDelta(text)), *parser.finish("stop")]
    return [(part[0], json.loads(part[2]), part[3]) for part in fold(events)]


def _one(schema: dict[str, Any]) -> dict[str, Any]:
    """Return parameters with one required member of this schema, and a definition to refer to."""
    return {
        "type": "object",
        "properties": {"u": schema},
        "required": ["u"],
        "additionalProperties": False,
        "$defs": {
            "Unit": {"type": "string", "enum": ["c", "f"]},
            "Long": {"type": "string", "minLength": 5},
        },
    }


@pytest.mark.parametrize(
    ("schema", "good", "bad"),
    [
        ({"$ref": "#/$defs/Unit"}, "c", "banana"),
        ({"$ref": "#/$defs/Long"}, "banana", "c"),
        ({"anyOf": [{"type": "string", "enum": ["c", "f"]}, {"type": "null"}]}, "c", "banana"),
        ({"type": "string", "enum": ["c", "f"]}, "c", "banana"),
        ({"type": "string", "not": {"const": "x"}}, "y", "x"),
        ({"type": "array", "items": {"$ref": "#/$defs/Unit"}}, ["c"], ["banana"]),
        ({"anyOf": [{"type": "string"}, {"type": "object", "required": ["a"]}]}, "y", {}),
    ],
)
def test_strict_arguments_are_enforced_or_refused(schema: dict[str, Any], good: Any, bad: Any) -> None:
    """TOOL-01: in no dialect is a strict schema quietly weakened."""
    for dialect in DIALECTS:
        allowed = _allowed(dialect, _one(schema), [{"u": good}, {"u": bad}])
        assert allowed in ([True, False], None), dialect.name


def _closed(properties: dict[str, Any], **more: Any) -> dict[str, Any]:
    shape = {"type": "object", "properties": properties, "required": [*properties]}
    return {**shape, "additionalProperties": False, **more}


@pytest.mark.parametrize(
    ("schema", "value"),
    [
        (_closed({"a": {"type": "integer"}}, allOf=[{"properties": {"a": {"const": 1}}}]), {"a": 2}),
        (_closed({"a": {"type": "integer"}}, anyOf=[{"properties": {"a": {"const": 1}}}]), {"a": 2}),
        (_closed({"a": {"type": "integer"}}, **{"not": {"properties": {"a": {"const": 2}}}}), {"a": 2}),
        (_closed({"a": {"type": "integer"}}, enum=[{"a": 1}]), {"a": 2}),
        (_closed({"a": {"type": "integer"}}, const={"a": 1}), {"a": 2}),
        (_closed({"a": {"type": "integer"}}, patternProperties={"a": {"minimum": 5}}), {"a": 2}),
        (_closed({"a": {"type": "integer"}}, dependentSchemas={"a": False}), {"a": 2}),
        (_closed({"a": {"type": "integer"}}, minProperties=2), {"a": 2}),
        ({**_closed({"a": {"type": "integer"}}), "required": ["a", "b"]}, {"a": 2}),
        (_closed({}, required=["b"]), {}),
    ],
)
def test_keywords_of_the_whole_arguments_are_enforced_or_refused(schema: dict[str, Any], value: Any) -> None:
    assert not jsonschema_rs.is_valid(schema, value)
    for dialect in DIALECTS:
        assert _allowed(dialect, schema, [value]) in ([False], None), dialect.name


@pytest.mark.parametrize(
    "value",
    [
        *({key: "x"} for key in (" a", "a b", "a>b", 'a"b', "a\nb", "a</parameter>", "a:b", "a=b")),
        *({key: "x"} for key in ("a.b", "é", "a-b", "$a", "@a", "a_1")),
        *({"a": text} for text in ("x</parameter>y", "x</arg_value>y", "x</param>y", "<![CDATA[x")),
        *({"a": text} for text in ("<escape>", '<|"|>x')),
    ],
)
def test_names_and_values_that_markup_changes_are_refused(value: dict[str, str]) -> None:
    """Allowed calls are parsed back correctly."""
    schema = _closed({key: {"type": "string", "enum": [text]} for key, text in value.items()})
    for dialect in _some(schema):
        allowed = _allowed(dialect, schema, [value])
        assert allowed in ([True], None), dialect.name
        if allowed:
            assert _read(dialect, schema, _written(dialect, value)) == [("call", value, "whole")], (
                dialect.name
            )


NESTED = {
    "type": "object",
    "properties": {"pattern": {"type": "string", "pattern": "^x"}},
    "required": ["pattern"],
    "additionalProperties": False,
}


@pytest.mark.parametrize(
    ("schema", "good", "bad"),
    [
        ({"type": "string", "minLength": 2}, ["ab", "é🎉", "a\nb"], ["", "x"]),
        ({"type": "string", "maxLength": 3}, ["", "abc"], ["abcd"]),
        ({"type": "string", "minLength": 2, "maxLength": 2, "pattern": "^[a-c]"}, ["ax"], ["a", "xa", "axa"]),
        ({"type": "string", "pattern": "b+"}, ["abc", "bb"], ["ac", ""]),
        ({"type": "string", "pattern": "^a/b$|^c"}, ["a/b", "cd"], ["a/bc", "bc"]),
        ({"type": "string", "format": "date"}, ["2024-02-29"], ["2023-02-29", "2024-02-29x"]),
        ({"type": "string", "format": "uuid"}, ["12345678-1234-1234-1234-123456789abc"], ["1234"]),
        ({"$ref": "#/$defs/Long"}, ["banana"], ["c"]),
        ({"type": "string", "enum": ["c", "f"]}, ["c"], ["banana"]),
        ({"anyOf": [{"type": "string", "minLength": 3}, {"type": "null"}]}, ["abc", None], ["ab"]),
        ({"anyOf": [{"$ref": "#/$defs/Unit"}, {"type": "null"}]}, ["c", None], ["banana"]),
        ({"type": ["string", "null"], "minLength": 5}, ["abcde", None], ["abcd"]),
        ({"type": "integer", "minimum": 3, "maximum": 10}, [3, 10], [2, 11]),
        ({"type": "number", "exclusiveMinimum": 0}, [0.5, 3], [0, -1]),
        ({"type": "integer", "multipleOf": 5}, [0, 15], [3]),
        (
            {"type": "array", "items": {"type": "integer", "maximum": 3}, "minItems": 1, "maxItems": 2},
            [[1], [2, 3]],
            [[], [4], [1, 1, 1]],
        ),
        (
            {"type": "array", "items": {"type": "string", "maxLength": 2}, "maxItems": 3},
            [[], ["ab"]],
            [["abc"]],
        ),
        (NESTED, [{"pattern": "xy"}], [{"pattern": "yx"}]),
    ],
)
def test_lengths_regexes_and_bounds_are_enforced_in_every_dialect(
    schema: dict[str, Any], good: list[Any], bad: list[Any]
) -> None:
    """TOOL-01: also where a value stands between tags and not in quotes."""
    expected = [True] * len(good) + [False] * len(bad)
    for dialect in _some(schema):
        assert _allowed(dialect, _one(schema), [{"u": value} for value in good + bad]) == expected, (
            dialect.name
        )
        for value in good:
            read = _read(dialect, _one(schema), _written(dialect, {"u": value}))
            assert [part[1] for part in read] == [{"u": value}], (dialect.name, value)
