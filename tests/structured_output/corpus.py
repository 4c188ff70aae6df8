"""List every keyword of JSON Schema 2020-12, with valid and invalid documents.

A case is (keyword, schema, valid documents, invalid documents). Whether a schema is enforced or refused is not written
here: it is found out, and `docs/reference/structured-output.md` has the list. Members of valid documents are in the
order of the schema's `properties`, which is the order that grammars keep to.
"""

from __future__ import annotations

from typing import Any

__all__ = ["CASES", "Case"]

Case = tuple[str, Any, list[Any], list[Any]]

OBJECT: dict[str, Any] = {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "string"}}}
CLOSED = {**OBJECT, "additionalProperties": False}
TREE = {
    "$defs": {
        "n": {
            "type": "object",
            "properties": {
                "v": {"type": "integer"},
                "next": {"anyOf": [{"$ref": "#/$defs/n"}, {"type": "null"}]},
            },
            "required": ["v", "next"],
            "additionalProperties": False,
        }
    },
    "$ref": "#/$defs/n",
}

CASES: list[Case] = [
    ("true", True, [1, "a", None, {"a": [1]}], []),
    ("type", {"type": "null"}, [None], [0, False, "", "null", [], {}]),
    ("type", {"type": "boolean"}, [True, False], [0, 1, "true", None]),
    ("type", {"type": "integer"}, [0, -1, 12345678901234567890], [1.5, "1", True, None]),
    ("type", {"type": "number"}, [0, -1.5, 1e-7, 3], ["1", True, None, []]),
    ("type", {"type": "string"}, ["", "a", "é€😀", 'a"b\\c\n'], [1, None, ["a"]]),
    ("type", {"type": "array"}, [[], [1, "a", [None]]], [{}, "[]", 1]),
    ("type", {"type": "object"}, [{}, {"a": 1, "b": {"c": []}}], [[], "{}", 1]),
    ("type", {"type": ["integer", "null"]}, [1, None], ["a", 1.5, True]),
    (
        "enum",
        {"enum": [1, "a", None, [1], {"a": 1.5}]},
        [1, "a", None, [1], {"a": 1.5}],
        [2, "b", True, [], {"a": 2}],
    ),
    (
        "enum",
        {"type": "string", "enum": ["a", 'é\n"', "</think>"]},
        ["a", 'é\n"', "</think>"],
        ["b", "é", ""],
    ),
    ("enum", {"type": "integer", "enum": [1, "a", 2]}, [1, 2], ["a", 3]),
    ("enum", {"enum": []}, [], [1]),
    ("const", {"const": {"a": [1, 2]}}, [{"a": [1, 2]}], [{"a": [2, 1]}, {"a": [1, 2], "b": 1}, []]),
    ("const", {"const": "a\u0001"}, ["a\u0001"], ["a"]),
    ("minimum", {"type": "integer", "minimum": -3}, [-3, 0, 100], [-4, -100]),
    ("minimum", {"type": "number", "minimum": 0.5}, [0.5, 0.75, 10], [0.49, 0, -1]),
    ("maximum", {"type": "integer", "maximum": 12}, [12, 0, -5], [13, 100]),
    ("maximum", {"type": "number", "maximum": -0.5}, [-0.5, -10.25], [-0.4, 0, 1]),
    ("exclusiveMinimum", {"type": "integer", "exclusiveMinimum": 0}, [1, 10], [0, -1]),
    (
        "exclusiveMaximum",
        {"type": "number", "exclusiveMinimum": -1, "exclusiveMaximum": 1},
        [0, 0.5, -0.99],
        [1, -1, 1.5],
    ),
    ("multipleOf", {"type": "integer", "multipleOf": 3}, [0, 3, -9, 300], [1, 4, -10]),
    ("multipleOf", {"type": "number", "multipleOf": 0.5}, [0.5, 2.5, -1.5], [0.1, 1.3, 0.25]),
    ("minLength", {"type": "string", "minLength": 2}, ["ab", "éé", "😀😀"], ["", "a", "😀"]),
    ("maxLength", {"type": "string", "maxLength": 2}, ["", "ab", "😀😀"], ["abc", "😀😀😀"]),
    ("pattern", {"type": "string", "pattern": "^a+b$"}, ["ab", "aaab"], ["b", "xab", "abx", "ab\n"]),
    ("pattern", {"type": "string", "pattern": "b"}, ["b", "abc"], ["", "ac"]),
    (
        "pattern",
        {"type": "string", "pattern": "^\\d{2}\\w\\s$"},
        ["12a ", "00_\n"],
        ["٣٣a ", "12é ", "12a\u0085", "1a "],
    ),
    ("pattern", {"type": "string", "pattern": "^.{2}$"}, ["ab", "é😀"], ["a", "abc", "a\n"]),
    ("pattern", {"type": "string", "pattern": "^[[&&~~x-z]$"}, ["[", "&", "~", "y"], ["a", "]"]),
    ("pattern", {"type": "string", "pattern": "^(?:a|b/c)\\/$"}, ["a/", "b/c/"], ["a", "b/"]),
    ("pattern", {"type": "string", "pattern": "^(?=a)"}, ["a"], ["b"]),
    ("pattern", {"type": "string", "pattern": "\\bfoo\\b"}, ["foo"], ["food"]),
    ("pattern", {"type": "string", "pattern": "^(a)\\1$"}, ["aa"], ["a"]),
    (
        "format: date",
        {"type": "string", "format": "date"},
        ["2024-02-29", "1999-12-31"],
        ["2023-02-29", "2024-13-01", "2024-04-31", "24-01-01", ""],
    ),
    (
        "format: time",
        {"type": "string", "format": "time"},
        ["12:00:00Z", "23:59:59.5+01:00"],
        ["24:00:00Z", "12:60:00Z", "12:00:00", "12:00:60Z"],
    ),
    (
        "format: date-time",
        {"type": "string", "format": "date-time"},
        ["2024-02-29T12:00:00Z"],
        ["2024-02-30T12:00:00Z", "2024-02-29 12:00:00Z", "2024-02-29"],
    ),
    (
        "format: duration",
        {"type": "string", "format": "duration"},
        ["P1D", "PT5M", "P1Y2M3DT4H5M6S"],
        ["", "P", "1D", "PT"],
    ),
    (
        "format: email",
        {"type": "string", "format": "email"},
        ["a@example.org", "a" * 64 + "@b.org", "a@" + "b" * 63 + ".org"],
        [
            "a",
            "@b",
            "a@",
            "a" * 65 + "@b.org",
            "a@" + "b" * 64 + ".org",
            "a@" + ("b" * 60 + ".") * 4 + "b" * 20,
        ],
    ),
    (
        "format: hostname",
        {"type": "string", "format": "hostname"},
        ["example.org", "a-b", "b" * 63 + ".org"],
        ["", "-a", "a_b", "a..b", "b" * 64 + ".org", ("b" * 60 + ".") * 4 + "b" * 20],
    ),
    (
        "format: ipv4",
        {"type": "string", "format": "ipv4"},
        ["127.0.0.1", "255.255.255.255"],
        ["256.0.0.1", "1.2.3", "1.2.3.4.5"],
    ),
    ("format: ipv6", {"type": "string", "format": "ipv6"}, ["::1", "2001:db8::1"], ["1", ":::", "12345::"]),
    (
        "format: uuid",
        {"type": "string", "format": "uuid"},
        ["123e4567-e89b-12d3-a456-426614174000"],
        ["123e4567", "g23e4567-e89b-12d3-a456-426614174000"],
    ),
    (
        "format: uri",
        {"type": "string", "format": "uri"},
        ["https://example.org/a?b=c#d"],
        ["no uri", "", "//a"],
    ),
    *(
        (f"format: {name}", {"type": "string", "format": name, "minLength": 1}, ["a", "/x y", "é\n"], ["", 1])
        for name in ("binary", "password", "path", "file-path", "directory-path")
    ),
    *(
        (f"format: {name}", {"type": "string", "format": name}, [], [])
        for name in (
            "byte",
            "idn-email",
            "idn-hostname",
            "uri-reference",
            "iri",
            "iri-reference",
            "uri-template",
            "json-pointer",
            "relative-json-pointer",
            "regex",
        )
    ),
    ("items", {"type": "array", "items": {"type": "integer"}}, [[], [1], [1, 2, 3]], [["a"], [1, None], 1]),
    ("items", {"type": "array", "items": False}, [[]], [[1]]),
    (
        "prefixItems",
        {"type": "array", "prefixItems": [{"type": "integer"}, {"type": "string"}], "items": False},
        [[], [1], [1, "a"]],
        [["a"], [1, 2], [1, "a", 1]],
    ),
    ("minItems", {"type": "array", "items": {"type": "null"}, "minItems": 2}, [[None, None]], [[], [None]]),
    ("maxItems", {"type": "array", "maxItems": 2}, [[], [1, "a"]], [[1, 2, 3]]),
    ("uniqueItems", {"type": "array", "uniqueItems": True}, [[1, 2]], [[1, 1]]),
    ("uniqueItems of listed items", {"items": {"enum": [1, "a"]}, "uniqueItems": True}, [[1, "a"]], [[1, 1]]),
    ("uniqueItems: false", {"type": "array", "uniqueItems": False}, [[1, 1]], [1]),
    ("contains", {"type": "array", "contains": {"type": "integer"}}, [["a", 1]], [["a"]]),
    (
        "contains with maxItems up to 8",
        {"type": "array", "contains": {"type": "null"}, "maxItems": 2},
        [["a", None], [None]],
        [["a"], []],
    ),
    ("minContains", {"type": "array", "contains": {}, "minContains": 2}, [[1, 1]], [[1]]),
    ("maxContains", {"type": "array", "contains": {}, "maxContains": 1}, [[1]], [[1, 1]]),
    ("unevaluatedItems", {"type": "array", "unevaluatedItems": False}, [[]], [[1]]),
    (
        "properties",
        OBJECT,
        [{}, {"a": 1}, {"a": 1, "b": "x"}, {"a": 1, "c": None}],
        [{"a": "x"}, {"b": 1}, []],
    ),
    (
        "properties",
        {"type": "object", "properties": {'a "q"': {"type": "integer"}, "é/~": {"type": "null"}}},
        [{'a "q"': 1, "é/~": None}],
        [{'a "q"': "x"}],
    ),
    ("properties", {"type": "object", "properties": {"a": False}}, [{}, {"b": 1}], [{"a": 1}]),
    ("additionalProperties", CLOSED, [{}, {"a": 1}, {"a": 1, "b": "x"}], [{"c": 1}, {"a": 1, "c": 1}]),
    (
        "additionalProperties",
        {"type": "object", "additionalProperties": {"type": "integer"}},
        [{}, {"x": 1, "y": 2}],
        [{"x": "a"}],
    ),
    ("required", {**CLOSED, "required": ["a"]}, [{"a": 1}, {"a": 1, "b": "x"}], [{}, {"b": "x"}]),
    ("required", {"type": "object", "required": ["z"]}, [{"z": 1}], [{}, {"a": 1}]),
    ("minProperties", {"type": "object", "minProperties": 1}, [{"a": 1}], [{}]),
    ("minProperties", {"type": "object", "minProperties": 2}, [{"a": 1, "b": 1}], [{"a": 1}]),
    (
        "minProperties",
        {**CLOSED, "required": ["a", "b"], "minProperties": 2},
        [{"a": 1, "b": "x"}],
        [{"a": 1}],
    ),
    ("maxProperties", {"type": "object", "maxProperties": 1}, [{}, {"a": 1}], [{"a": 1, "b": 2}]),
    (
        "patternProperties",
        {"type": "object", "patternProperties": {"^x": {"type": "integer"}}, "additionalProperties": False},
        [{}, {"x": 1, "xy": 2}],
        [{"x": "a"}, {"y": 1}],
    ),
    (
        "patternProperties",
        {"type": "object", "patternProperties": {"^x": {"minimum": 5}, "y$": {"maximum": 7}}},
        [{"x": 5}],
        [{"x": 4}, {"xy": 8}],
    ),
    ("propertyNames", {"type": "object", "propertyNames": {"pattern": "^a"}}, [{"a": 1}], [{"b": 1}]),
    (
        "dependentRequired",
        {"type": "object", "dependentRequired": {"a": ["b"]}},
        [{"a": 1, "b": 1}],
        [{"a": 1}],
    ),
    (
        "dependentSchemas",
        {"type": "object", "dependentSchemas": {"a": {"required": ["b"]}}},
        [{"a": 1, "b": 1}],
        [{"a": 1}],
    ),
    ("unevaluatedProperties", {"type": "object", "unevaluatedProperties": False}, [{}], [{"a": 1}]),
    (
        "allOf",
        {"allOf": [{**OBJECT, "required": ["a"]}, {"required": ["b"]}]},
        [{"a": 1, "b": "x"}],
        [{"a": 1}, {"b": "x"}, {"a": "x", "b": "x"}],
    ),
    ("allOf", {"allOf": [{"type": "integer", "minimum": 2}, {"maximum": 5}]}, [2, 5], [1, 6, "a"]),
    (
        "anyOf",
        {"anyOf": [{"type": "integer"}, {"type": "string", "maxLength": 2}]},
        [1, "ab"],
        ["abc", None, 1.5],
    ),
    (
        "anyOf",
        {
            "anyOf": [
                {"type": "object", "properties": {"k": {"const": 1}}, "required": ["k"]},
                {
                    "type": "object",
                    "properties": {"k": {"const": 2}, "m": {"type": "null"}},
                    "required": ["k", "m"],
                },
            ]
        },
        [{"k": 1}, {"k": 2, "m": None}],
        [{"k": 2}, {"k": 3}, {}],
    ),
    ("oneOf, apart", {"oneOf": [{"type": "integer"}, {"type": "string"}]}, [1, "a"], [None, 1.5]),
    (
        "oneOf, by a const",
        {
            "oneOf": [
                {"type": "object", "properties": {"k": {"const": "a"}}, "required": ["k"]},
                {"type": "object", "properties": {"k": {"const": "b"}}, "required": ["k"]},
            ]
        },
        [{"k": "a"}, {"k": "b"}],
        [{"k": "c"}, {}],
    ),
    (
        "oneOf, overlapping",
        {"oneOf": [{"type": "integer", "minimum": 0}, {"type": "integer", "maximum": 5}]},
        [-1, 6],
        [3],
    ),
    ("not", {"not": {"type": "integer"}}, ["a"], [1]),
    ("if, then, else", {"if": {"type": "integer"}, "then": {"minimum": 3}}, [3, "a"], [2]),
    ("$ref", {"$defs": {"a": {"type": "integer"}}, "$ref": "#/$defs/a"}, [1], ["a"]),
    (
        "$ref",
        TREE,
        [{"v": 1, "next": None}, {"v": 1, "next": {"v": 2, "next": None}}],
        [{"v": 1}, {"v": 1, "next": {"v": 2}}, {"v": 1, "next": 3}],
    ),
    (
        "$ref",
        {"properties": {"a/b": {"type": "integer"}, "c": {"$ref": "#/properties/a~1b"}}, "type": "object"},
        [{"a/b": 1, "c": 2}],
        [{"c": "x"}],
    ),
    (
        "$ref",
        {"definitions": {"a": {"type": "integer"}}, "$ref": "#/definitions/a", "maximum": 3},
        [3],
        [4, "a"],
    ),
    ("$ref, elsewhere", {"$ref": "https://example.org/schema"}, [], []),
    ("$ref, to no schema", {"enum": [{"type": "integer"}], "$ref": "#/enum/0"}, [], [1, "a"]),
    ("$ref, only itself", {"$ref": "#"}, [], []),
    ("$anchor", {"$defs": {"a": {"$anchor": "x", "type": "integer"}}, "$ref": "#x"}, [1], ["a"]),
    (
        "$dynamicRef",
        {"$dynamicAnchor": "x", "type": "object", "properties": {"a": {"$dynamicRef": "#x"}}},
        [{}],
        [1],
    ),
    (
        "annotations",
        {
            "title": "t",
            "description": "d",
            "default": 1,
            "examples": [1],
            "deprecated": True,
            "readOnly": True,
            "$comment": "c",
            "type": "integer",
        },
        [1],
        ["a"],
    ),
    (
        "contentEncoding",
        {"type": "string", "contentEncoding": "base64", "contentMediaType": "text/plain"},
        ["YQ=="],
        [1],
    ),
    (
        "nested",
        {"type": "array", "items": {**CLOSED, "required": ["a", "b"]}, "minItems": 1, "maxItems": 2},
        [[{"a": 1, "b": "x"}]],
        [[], [{}], [{"a": 1}]],
    ),
    (
        "without a type",
        {"minimum": 5, "minLength": 3, "minItems": 1, "required": ["a"]},
        [5, "abc", [0], {"a": 0}, None],
        [4, "ab", [], {}],
    ),
    (
        "$schema: draft-07",
        {
            "$schema": "http://json-schema.org/draft-07/schema#",
            "type": "array",
            "items": [{"type": "integer"}],
            "additionalItems": False,
        },
        [[], [1]],
        [["a"], [1, 2]],
    ),
    ("$schema: unknown", {"$schema": "https://example.org/dialect", "type": "integer"}, [], []),
]
