"""The grammar of a call accepts the calls that its format writes, and no others."""

from __future__ import annotations

import json
from typing import Any

import pytest
from support.lark import Language

from plumbline.answer.dialects.registry import TOOL_DIALECTS
from plumbline.answer.dialects.spec.call_format import CallFormat, WrittenCall
from plumbline.answer.structured_output.grammar.builder import GrammarBuilder

SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "city": {"type": "string"},
        "unit": {"type": "string", "enum": ["C", "F"]},
        "days": {"type": "integer"},
        "flag": {"type": "boolean"},
        "maybe": {"type": ["string", "null"]},
        "tags": {"type": "array", "items": {"type": "string"}, "minItems": 1, "maxItems": 3},
        "opts": {
            "type": "object",
            "properties": {"x": {"$ref": "#/$defs/number"}, "s": {"type": "string"}},
            "required": ["x"],
            "additionalProperties": False,
        },
        "fixed": {"const": 7},
        "any": {},
    },
    "required": ["city", "days"],
    "additionalProperties": False,
    "$defs": {"number": {"type": "number"}},
}
GOOD: list[dict[str, Any]] = [
    {"city": "Paris", "days": 3},
    {"city": "", "days": -7},
    {"city": 'a "b" é🎉 <c> \\ d', "unit": "F", "days": 0, "flag": True},
    {"city": "x", "days": 1, "flag": False, "maybe": None, "tags": ["a", "b, c"]},
    {"city": "x", "days": 1, "maybe": "text", "tags": ["a"], "opts": {"x": 1.5, "s": "y"}},
    {"city": "x", "days": 1, "opts": {"x": 2}, "fixed": 7},
    {"city": "x", "days": 1, "any": "text"},
]
BAD: list[dict[str, Any]] = [
    {},
    {"city": "Paris"},
    {"days": 3},
    {"city": "Paris", "days": "three"},
    {"city": "Paris", "days": 1.5},
    {"city": "Paris", "days": None},
    {"city": "Paris", "unit": "K", "days": 3},
    {"city": "Paris", "days": 3, "flag": "yes"},
    {"city": "Paris", "days": 3, "tags": []},
    {"city": "Paris", "days": 3, "tags": "a"},
    {"city": "Paris", "days": 3, "tags": ["a", "b", "c", "d"]},
    {"city": "Paris", "days": 3, "opts": {"s": "y"}},
    {"city": "Paris", "days": 3, "opts": {"x": "y"}},
    {"city": "Paris", "days": 3, "fixed": 8},
    {"city": "Paris", "days": 3, "unknown": 1},
]
CALL_FORMATS = {
    section.call_format: f"{dialect.name} {number}"
    for dialect in dict.fromkeys(TOOL_DIALECTS.values())
    if not dialect.messages
    for number, section in enumerate(dialect.sections)
}
"""Each once, with the last section that has it: of 150 sections 95 share the format of another."""


def _grammar(call_format: CallFormat, name: str, schema: dict[str, Any]) -> Language:
    builder = GrammarBuilder({}, frozenset())
    return Language(builder.build(call_format.grammar(builder, name, schema)))


def _call(call_format: CallFormat, name: str, arguments: dict[str, Any], number: int = 0) -> str:
    return call_format.write(WrittenCall(name, json.dumps(arguments, ensure_ascii=False), number))


@pytest.mark.parametrize("call_format", CALL_FORMATS, ids=CALL_FORMATS.values())
def test_the_grammar_accepts_what_the_format_writes_and_nothing_else(call_format: CallFormat) -> None:
    grammar = _grammar(call_format, "get_weather", SCHEMA)
    for number, arguments in enumerate(GOOD):
        text = _call(call_format, "get_weather", arguments, number)
        assert grammar.has(text), text
        assert not grammar.has(text[:-1]), text
        assert not grammar.has(_call(call_format, "get_weathers", arguments)), text
        assert not grammar.has(_call(call_format, "get", arguments)), text
    for arguments in BAD:
        text = _call(call_format, "get_weather", arguments)
        assert not grammar.has(text), text


@pytest.mark.parametrize("call_format", CALL_FORMATS, ids=CALL_FORMATS.values())
def test_a_tool_without_parameters_has_one_call(call_format: CallFormat) -> None:
    for schema in (
        {"type": "object", "properties": {}, "additionalProperties": False},
        {"type": "object", "additionalProperties": False},
    ):
        grammar = _grammar(call_format, "ping", schema)
        assert grammar.has(_call(call_format, "ping", {}))
        assert not grammar.has(_call(call_format, "ping", {"city": "Paris"}))


@pytest.mark.parametrize("call_format", CALL_FORMATS, ids=CALL_FORMATS.values())
def test_optional_parameters_may_be_left_out_in_every_way(call_format: CallFormat) -> None:
    keys = ("a", "b", "c", "d")
    schema = {
        "type": "object",
        "properties": {key: {"type": "integer"} for key in keys},
        "additionalProperties": False,
    }
    for required in ([], ["b"], ["a", "d"], list(keys)):
        grammar = _grammar(call_format, "f", {**schema, "required": required})
        for chosen in range(16):
            arguments = {key: 1 for number, key in enumerate(keys) if chosen >> number & 1}
            fits = all(key in arguments for key in required)
            assert grammar.has(_call(call_format, "f", arguments)) == fits, (arguments, required)
