"""Laws of rewritten keywords: they allow exactly what the client's keywords allow, also where names meet."""

from __future__ import annotations

from typing import Any

import pytest

from plumbline.base.exact_number import exact_number

from .walk import accepts, builder

ENDLESS = exact_number("1e400")
NULLS = {name: {"type": "null"} for name in "abc"}
CASES: dict[str, tuple[dict[str, Any], list[str], list[str]]] = {
    "an exclusive bound at the last number": (
        {"type": "number", "exclusiveMaximum": 1e18},
        ["5", "999999999999999999", "-3.5"],
        ["1000000000000000000", "1000000000000000001"],
    ),
    "an exclusive bound at the first number": (
        {"type": "number", "exclusiveMinimum": -1e18},
        ["5", "-999999999999999999"],
        ["-1000000000000000000"],
    ),
    "a definition with the name of a moved one": (
        {
            "$defs": {"moved_0": {"type": "integer"}},
            "type": "object",
            "properties": {"p": {"$ref": "#/c/a"}, "q": {"$ref": "#/$defs/moved_0"}},
            "required": ["p", "q"],
            "c": {"a": {"type": "string"}},
        },
        ['{"p":"a","q":1}'],
        ['{"p":"a","q":"a"}', '{"p":1,"q":1}'],
    ),
    "dependencies of both drafts": (
        {
            "type": "object",
            "properties": NULLS,
            "dependentRequired": {"a": ["b"]},
            "dependencies": {"a": ["c"]},
            "additionalProperties": False,
        },
        ['{"b":null}', '{"a":null,"b":null,"c":null}'],
        ['{"a":null,"b":null}', '{"a":null,"c":null}'],
    ),
    "schemas of both drafts": (
        {
            "type": "object",
            "properties": NULLS,
            "dependentSchemas": {"a": {"required": ["b"]}},
            "dependencies": {"a": {"required": ["c"]}},
            "additionalProperties": False,
        },
        ['{"b":null}', '{"a":null,"b":null,"c":null}'],
        ['{"a":null,"b":null}', '{"a":null,"c":null}'],
    ),
    "numbers beyond doubles": (
        {"type": "string", "maxLength": ENDLESS, "examples": [ENDLESS], "x-note": [ENDLESS]},
        ['"a"'],
        ["1"],
    ),
    "lengths of names": (
        {
            "type": "object",
            "propertyNames": {"minLength": 2.0, "maxLength": ENDLESS},
            "additionalProperties": {"type": "null"},
        },
        ['{"aa":null}'],
        ['{"a":null}'],
    ),
    "names that are no strings": (
        {"type": "object", "propertyNames": {"type": ["object", "array"], "enum": [-1, "b"]}},
        ["{}"],
        ['{"b":1}'],
    ),
    "a boolean is no number inside a value": (
        {"enum": [[1], [True], {"a": 0}, [2]], "not": {"enum": [[True], {"a": False}, [2.0]]}},
        ["[1]", '{"a":0}'],
        ["[true]", "[2]"],
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_what_is_allowed_is_what_the_client_wrote(name: str) -> None:
    schema, valid, invalid = CASES[name]
    built = builder()
    grammar = built.build(built.json(schema))
    assert [text for text in valid if not accepts(grammar, text)] == []
    assert [text for text in invalid if accepts(grammar, text)] == []
