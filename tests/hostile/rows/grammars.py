"""Rows of what is compiled: schemas, expressions and grammars."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from .table import CHAT, COMPLETIONS, MESSAGES, RESPONSES, add, deep, doubling, function, wide

__all__: list[str] = []

# What is compiled


def base_of(depth: int) -> dict[str, object]:
    """Return schemas in each other, each with an identifier that is relative to the one around it."""
    found: dict[str, object] = {"$ref": "x"}
    for number in range(depth):
        found = {"$id": "a/" * 100 + f"{number}/", "items": found}
    return found


def places_of(depth: int) -> dict[str, object]:
    """Return references to every place of a chain that no keyword has: each holds all that is below it."""
    inner: dict[str, object] = {"type": "string"}
    for _ in range(depth):
        inner = {"x": inner, "pad": "y" * 2_000}
    return {"root": inner, "anyOf": [{"$ref": "#/root" + "/x" * n} for n in range(depth)]}


def repeated(depth: int) -> dict[str, object]:
    """Return objects in each other whose names are listed: each name gets the schema of the members."""
    found: dict[str, object] = {"type": "integer"}
    for _ in range(depth):
        names = {"enum": [f"n{n}" for n in range(40)]}
        found = {"type": "object", "propertyNames": names, "additionalProperties": found}
    return found


SCHEMAS: dict[str, Callable[[], Any]] = {
    "deep": lambda: deep(150),
    "wide": lambda: wide(4_000),
    "large": lambda: {"enum": ["x" * 300_000]},
    "many values": lambda: {"enum": [f"value {n}" for n in range(50_000)]},
    "merging": lambda: {"allOf": [{"anyOf": [{"properties": {f"p{n}": {"type": kind}}} for kind in ("integer", "null")]}
                                  for n in range(30)]},
    "doubling": lambda: doubling("anyOf"),
    "recursive": lambda: {"type": "object", "properties": {"a": {"$ref": "#"}}, "required": ["a"]},
    "itself": lambda: {"$ref": "#"},
    "long strings": lambda: {"type": "string", "maxLength": 10**12},
    "long lists": lambda: {"type": "array", "items": {"type": "object"}, "minItems": 10**6},
    "quantifiers": lambda: {"type": "string", "pattern": "(a{1,1000}){1,1000}"},
    "patterns": lambda: {"type": "object", "patternProperties": {f"^p{n}(a*)*$": {} for n in range(1_000)}},
    "a long pattern": lambda: {"type": "string", "pattern": "(a|b)" * 200_000},
    "endless recursion": lambda: {"const": -9223372036854775807},
    "endless recursion in a value": lambda: {"properties": {"a": {"enum": [{"b": [-(2**63)]}]}}},
    "endless recursion of bounds": lambda: {"type": "integer", "minimum": -1e19, "maximum": -(2**63) + 1},
    "a long number": lambda: {"const": 10**4_000},
    "remainders": lambda: {"type": "integer", "multipleOf": 2_147_483_648},
    "remainders of a prime": lambda: {"type": "integer", "multipleOf": 999_983},
    "combined remainders": lambda: {"allOf": [{"multipleOf": 65_536}, {"multipleOf": 65_537}]},
    "unique items": lambda: {"type": "array", "uniqueItems": True, "maxItems": 10**9},
    "contains": lambda: {"type": "array", "contains": {"const": 1}, "minContains": 10**9},
    "properties of patterns": lambda: {"patternProperties": {f"^(a|b)*a(a|b){{{n}}}$": {} for n in range(1, 12)}},
    "circles of references": lambda: {
        "$defs": {f"d{n}": {"anyOf": [{"$ref": f"#/$defs/d{(n * m + 1) % 60}"} for m in range(1, 60)]}
                  for n in range(60)},
        "$ref": "#/$defs/d0",
    },
    "identifiers": lambda: {"$defs": {f"d{n}": {"$id": f"{n}/" * 300, "$anchor": f"a{n}"} for n in range(400)}},
    "bases": lambda: base_of(60),
    "references to identifiers": lambda: {
        "$id": "http://a/" + "b/" * 2_000,
        "anyOf": [{"$ref": "../" * (n % 1_000) + f"x{n}"} for n in range(3_000)],
    },
    "places without a keyword": lambda: places_of(48),
    "names that repeat schemas": lambda: repeated(12),
    "look-aheads": lambda: {"type": "string", "pattern": "^" + "(?=.*a)" * 2_000 + ".*$"},
    "texts of a pattern": lambda: {
        "properties": {f"p{n}": {} for n in range(500)},
        "patternProperties": {"^" + "(a|b|c|d){8}" * n + "$": {} for n in range(1, 100)},
    },
    "numbers without an end": lambda: {"enum": [10**4_000 + n for n in range(60)]},
    "bounds without an end": lambda: {
        "type": "object",
        "properties": {f"p{n}": {"type": "integer", "minimum": 10**900 + n} for n in range(200)},
    },
    "numbers everywhere": lambda: {
        "type": "object",
        "properties": {f"p{n}": {"const": 2**60 + 2 * n + 1} for n in range(500)},
    },
    "conditions on a member": lambda: {
        "type": "object",
        "properties": {"m": {"enum": list(range(14_000))}},
        "allOf": [{"if": {"properties": {"m": {"const": n}}}, "then": {"minProperties": 1}} for n in range(1_800)],
    },
    "a text that is excluded": lambda: {"properties": {"a": {"type": "string", "not": {"const": "x" * 100_000}}}},
    "long alternatives": lambda: {"anyOf": [{"const": f"{n}" * 20} for n in range(9_000)]},
}  # fmt: skip
for name, schema in SCHEMAS.items():
    add(
        f"schema: {name}",
        CHAT,
        lambda schema=schema: {
            "response_format": {"type": "json_schema", "json_schema": {"name": "s", "schema": schema()}}
        },
        "JSONSchemaFormat.*",
    )
    add(
        f"JSON object by a schema: {name}",
        CHAT,
        lambda schema=schema: {"response_format": {"type": "json_object", "schema": schema()}},
        "ResponseFormatJsonObject.schema",
    )
for name in ("deep", "wide", "doubling"):
    schema = SCHEMAS[name]
    add(
        f"text format: {name}",
        RESPONSES,
        lambda schema=schema: {"text": {"format": {"type": "json_schema", "name": "s", "schema": schema()}}},
        "TextResponseFormatJsonSchema.*",
    )
REGEXES = {
    "of a megabyte": lambda: "(a|b)" * 200_000,
    "of 64 KB": lambda: "(a|b)" * 13_000,
    "nested quantifiers": lambda: "((a{1,50}){1,50}){1,50}",
    "exponential": lambda: "(a|b)*a(a|b){200}",
    "of brackets": lambda: "(" * 60_000,
    "of classes": lambda: "\\p{L}{1,500}" * 1_000,
}
for name, regex in REGEXES.items():
    add(f"regex {name}", CHAT, lambda regex=regex: {"structured_outputs": {"regex": regex()}}, "*.regex")
add("guided regex", COMPLETIONS, lambda: {"guided_regex": "(a|b)" * 13_000}, "*.guided_regex")
add("regex of SGLang", CHAT, lambda: {"regex": "(a|b)" * 13_000}, "*.regex")


def dense(rules: int, alternatives: int, before: str) -> str:
    """Return a grammar in which each rule begins with many others."""
    lines = [f'start: {before} r0 "!"']
    for n in range(rules):
        parts = [f"r{(n * m + 1) % rules} r{(n + m * 3) % rules}" for m in range(1, alternatives)]
        lines.append(f"r{n}: " + " | ".join([*parts, '"a"']))
    return "\n".join(lines)


GRAMMARS: dict[str, Callable[[], Any]] = {
    "of brackets": lambda: "start: " + "(" * 100_000 + '"a"' + ")" * 100_000,
    "of many rules": lambda: (
        "\n".join(f'r{n}: "a" r{n + 1}' for n in range(12_000)) + '\nstart: r0\nr12000: "b"'
    ),
    "ambiguous": lambda: 'start: e\ne: e e e | e e | "a" | "aa" | ""',
    "left and right": lambda: 'start: start start | "a"',
    "repeating": lambda: 'start: ("a"{1,1000}){1,1000}',
    "with endless recursion": lambda: 'start: %json {"const": -9223372036854775807}',
    "with remainders": lambda: 'start: %json {"type": "integer", "multipleOf": 999983}',
    "of dense rules": lambda: dense(200, 40, '"a"'),
    "of dense rules behind a text": lambda: dense(60, 60, f'"{"a" * 40}"'),
}
for name, grammar in GRAMMARS.items():
    add(
        f"grammar {name}",
        CHAT,
        lambda grammar=grammar: {"structured_outputs": {"grammar": grammar()}},
        "*.grammar",
    )
add(
    "guided grammar", COMPLETIONS, lambda: {"guided_grammar": GRAMMARS["of many rules"]()}, "*.guided_grammar"
)
add(
    "choice of many texts",
    CHAT,
    lambda: {"structured_outputs": {"choice": [f"text {n}" for n in range(100_000)]}},
    "*.choice",
)
for form in ("regex", "lark"):
    add(
        f"tool with a {form} grammar",
        CHAT,
        lambda form=form: {
            "tools": [{"type": "custom", "custom": {"name": "f", "format": {"type": "grammar", "grammar": {
                "syntax": form,
                "definition": "(a|b)*a(a|b){40}" if form == "regex" else 'start: e\ne: e e e | e e | "a"',
            }}}}],
            "tool_choice": "required",
        },
        "*.definition",
    )  # fmt: skip
for name in ("endless recursion", "remainders of a prime"):
    add(
        f"tool: {name}",
        CHAT,
        lambda name=name: {
            "tools": [function(parameters={"properties": {"a": SCHEMAS[name]()}}, strict=True)]
        },
    )
    add(
        f"messages: tool: {name}",
        MESSAGES,
        lambda name=name: {
            "tools": [
                {"name": "f", "input_schema": {"type": "object", "properties": {"a": SCHEMAS[name]()}}}
            ],
            "tool_choice": {"type": "any"},
        },
    )
DOUBLED = {
    "$defs": {
        **{f"d{n}": {"allOf": [{"$ref": f"#/$defs/d{n + 1}"}] * 2} for n in range(40)},
        "d40": {"type": "object"},
    },
    "properties": {"a": {"not": {"required": ["a"], "$ref": "#/$defs/d0"}}},
}
add(
    "repaired calls: parameters that take long to check",
    CHAT,
    lambda: {
        "tools": [function(parameters=DOUBLED)],
        "tool_choice": "required",
        "x_repair_calls": True,
        "max_completion_tokens": 100,
    },
    "*.x_repair_calls",
)
GBNF = 'root ::= ("a" | "b"){1,1000}{1,1000}\n' + "\n".join(f'r{n} ::= "a" r{n + 1}' for n in range(10_000))
for path in (CHAT, COMPLETIONS):
    add(f"GBNF: {path}", path, lambda: {"grammar": GBNF}, "*.grammar")
    add(f"EBNF: {path}", path, lambda: {"ebnf": "root ::= " + "(" * 100_000}, "*.ebnf")
    add(f"JSON schema: {path}", path, lambda: {"json_schema": json.dumps(wide(15_000))}, "*.json_schema")
    add(f"structural tag: {path}", path, lambda: {
        "structural_tag": {"structures": [{"begin": "<a>", "schema": wide(10), "end": "</a>"}] * 2_000, "triggers": []},
    }, "*.structural_tag")  # fmt: skip
    add(f"structural tags: {path}", path, lambda: {"structural_tag": {
        "structures": [{"begin": f"<{n}>" + "x" * 2_000, "schema": deep(30), "end": "e" * 2_000} for n in range(128)],
        "triggers": ["<"],
    }}, "*.structural_tag")  # fmt: skip
    add(f"guided JSON: {path}", path, lambda: {"guided_json": json.dumps(deep(150))}, "*.guided_json",
        "StructuredOutputs.json")  # fmt: skip
    add(f"guided choice: {path}", path, lambda: {"guided_choice": [f"c{n}" + "x" * 1_000 for n in range(4_096)]},
        "*.guided_choice", "*.choice")  # fmt: skip
add("responses: JSON schema", RESPONSES, lambda: {"json_schema": wide(4_000)}, "*.json_schema")
add("responses: grammar", RESPONSES, lambda: {"grammar": GBNF}, "*.grammar")
