"""Laws of hostile constraints: each is refused or enforced, and the next grammar compiles."""

from __future__ import annotations

import time
from typing import Any

import pytest

from plumbline.answer.structured_output.grammar import json_schema
from plumbline.answer.structured_output.grammar.errors import ConstraintError
from plumbline.base.exact_number import exact_number
from plumbline.engines.constraints.grammar import GrammarError

from .walk import accepts, builder, grammar_of, matcher, sampled


def nested(depth: int) -> Any:
    schema: Any = {"type": "string"}
    for _ in range(depth):
        schema = {"type": "object", "properties": {"a": schema}}
    return schema


def branches(count: int) -> Any:
    """Every branch doubles what has to be merged."""
    kinds = ({"type": "integer"}, {"type": "string"})
    return {"allOf": [{"anyOf": [{"properties": {f"p{n}": kind}} for kind in kinds]} for n in range(count)]}


def doubling(word: str) -> Any:
    """Forty definitions, each of which uses the next one twice."""
    definitions: dict[str, Any] = {
        f"d{n}": {word: [{"$ref": f"#/$defs/d{n + 1}"}, {"$ref": f"#/$defs/d{n + 1}"}]} for n in range(40)
    }
    return {"$defs": {**definitions, "d40": {"type": "integer"}}, "$ref": "#/$defs/d0"}


SCHEMAS = {
    "deep": nested(5000),
    "wide": {"type": "object", "properties": {f"p{n}": {} for n in range(3000)}},
    "large": {"enum": ["x" * 300_000]},
    "merging": branches(30),
    "doubling by anyOf": doubling("anyOf"),
    "doubling by allOf": doubling("allOf"),
    "itself": {"$ref": "#"},
    "itself in allOf": {"allOf": [{"$ref": "#"}]},
    "endless": {"type": "object", "properties": {"a": {"$ref": "#"}}, "required": ["a"]},
    "long strings": {"type": "string", "maxLength": 10**12},
    "long lists": {"type": "array", "items": {"type": "object"}, "minItems": 10**6},
    "repeating pattern": {"type": "string", "pattern": "(a{1,1000}){1,1000}"},
    "huge repetition": {"type": "string", "pattern": "a{100000000}"},
    "backtracking": {"type": "string", "pattern": "((a*)*)*b"},
    "exponential": {"type": "string", "pattern": "(a|b)*a(a|b){200}"},
    "a way out": {"x-guidance": {"lenient": True}, "not": {}},
    "no schema": {"type": 5, "properties": []},
    "no pattern": {"type": "string", "pattern": "("},
    "another dialect": {"$schema": "http://127.0.0.1:1/schema", "type": "integer"},
}
GRAMMARS = {
    "ambiguous": 'start: e\ne: e e e | e e | "a" | "aa" | ""',
    "a chain of rules": "\n".join(f'r{n}: "a" r{n + 1}' for n in range(9_000)) + '\nstart: r0\nr9000: "b"',
    "a longer chain": "\n".join(f'r{n}: "a" r{n + 1}' for n in range(30_000)) + '\nstart: r0\nr30000: "b"',
    "left and right": 'start: start start | "a"',
    "repeating": 'start: ("a"{1,1000}){1,1000}',
    "brackets": "start: " + "(" * 20_000 + '"a"' + ")" * 20_000,
    "tokens": "start: <[999999]>",
    "options": '%llguidance {"no_such": 1}\nstart: "a"',
    "json": "{" * 5000,
}
PATTERNS = [
    "(" * 3000,
    "(?:" * 500 + "a" + "){1,9}" * 500,
    "a{1,99999999}",
    "[" * 1000,
    "(a|b)*a(a|b){200}",
    "\\p{L}{1,500}",
]


@pytest.mark.parametrize("name", SCHEMAS)
def test_a_hostile_schema_is_refused_or_enforced(name: str) -> None:
    grammar = grammar_of(SCHEMAS[name])
    if grammar is not None:
        sampled(grammar, 1, limit=5, most=20)
    good = grammar_of({"type": "boolean"})
    assert good is not None
    assert accepts(good, "true")


@pytest.mark.parametrize(
    "name",
    [
        "deep",
        "wide",
        "large",
        "itself",
        "huge repetition",
        "a way out",
        "no schema",
        "no pattern",
    ],
)
def test_these_are_refused(name: str) -> None:
    assert grammar_of(SCHEMAS[name]) is None


@pytest.mark.parametrize(
    "form", [*[("lark", g) for g in GRAMMARS.values()], *[("regex", p) for p in PATTERNS]]
)
def test_a_hostile_grammar_or_regex_is_refused_or_enforced(form: tuple[str, str]) -> None:
    kind, text = form
    built = builder()
    reason = None
    try:
        matcher(built.build(getattr(built, kind)(text)))
    except (ConstraintError, GrammarError) as error:
        reason = str(error)
    assert reason is None or 5 < len(reason) < 500
    good = grammar_of({"type": "boolean"})
    assert good is not None
    assert accepts(good, "true")


LARGE = {"const": 2**53 + 1}
ENDLESS = exact_number("1e400")


def arrays(depth: int) -> Any:
    schema: Any = LARGE
    for _ in range(depth):
        schema = {"type": "array", "items": schema}
    return schema


def lattice(depth: int) -> Any:
    """Both definitions of a level use both of the next one, so that there are 2^depth ways."""
    definitions: dict[str, Any] = {
        f"{side}{n}": {"anyOf": [{"$ref": f"#/$defs/{other}{n + 1}"} for other in "ab"]}
        for n in range(depth)
        for side in "ab"
    }
    definitions |= {f"{side}{depth}": {"type": "string"} for side in "ab"}
    return {
        "$defs": definitions,
        "type": "object",
        "properties": {"x": {"$ref": "#/$defs/a0"}, "y": LARGE},
    }


def chain(length: int) -> Any:
    definitions: dict[str, Any] = {f"c{n}": {"$ref": f"#/$defs/c{n + 1}"} for n in range(length)}
    definitions[f"c{length}"] = LARGE
    return {"$defs": definitions, "type": "array", "items": {"$ref": "#/$defs/c0"}}


def copies(depth: int) -> Any:
    """Each level repeats the next one for a hundred names."""
    schema: Any = {}
    for _ in range(depth):
        names = {"enum": [f"n{n}" for n in range(100)]}
        schema = {"propertyNames": names, "additionalProperties": schema}
    return schema


COSTLY: dict[str, tuple[Any, bool]] = {
    "arrays": (arrays(25), True),
    "a lattice of references": (lattice(40), True),
    "a chain of references": (chain(250), True),
    "copies": (copies(50), False),
    "copies of a large schema": (
        {
            "propertyNames": {"enum": [f"n{n}" for n in range(200)]},
            "additionalProperties": {"enum": ["x" * 100 + str(n) for n in range(1500)]},
        },
        False,
    ),
    "a long name": ({"properties": {"x" * 200_000: {"anyOf": [{}] * 4000}}}, False),
    "long names above many": (
        {"properties": {"x" * 16_000: {"anyOf": [{"type": "string"}] * 4000}}},
        False,
    ),
    "bounds of thousands of digits": (
        {"type": "integer", "minimum": int("1" * 4000), "maximum": int("2" * 4000)},
        False,
    ),
    "an endless number of items": ({"type": "array", "items": LARGE, "maxItems": ENDLESS}, True),
    "definitions that are none": (
        {"properties": {"p": {"$ref": "#/c/a"}}, "$defs": True, "c": {"a": {}}},
        False,
    ),
    "definitions of another draft": (
        {"definitions": {"a": {}}, "$defs": [1], "$ref": "#/definitions/a"},
        False,
    ),
    "a number for a list": ({"allOf": 5, "$ref": "#/c/a", "$dynamicRef": "#/c/a", "c": {"a": {}}}, False),
}


@pytest.mark.parametrize("name", COSTLY)
def test_the_cost_of_a_schema_is_bounded_and_its_failure_is_named(name: str) -> None:
    schema, is_accepted = COSTLY[name]
    start = time.process_time()
    built = builder()
    if is_accepted:
        grammar = built.build(built.json(schema))
        assert len(grammar) < 100_000
        matcher(grammar)
    else:
        with pytest.raises(ConstraintError):
            built.json(schema)
    assert time.process_time() - start < 5


@pytest.mark.parametrize("kind", [OverflowError, TypeError, AttributeError, KeyError, RecursionError])
def test_an_unforeseen_failure_is_an_error_of_the_schema(
    kind: type[Exception], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: object, **__: object) -> None:
        raise kind

    monkeypatch.setattr(json_schema, "with_pointers", fails)
    with pytest.raises(ConstraintError, match="too complex"):
        builder().json({"type": "string"})


def test_two_schemas_with_large_numbers_keep_their_definitions() -> None:
    built = builder()
    schemas = [
        {"$defs": {"n": {"const": 2**53 + n}}, "type": "array", "items": {"$ref": "#/$defs/n"}}
        for n in (1, 3)
    ]
    grammar = built.build(built.choice(map(built.json, schemas)))
    assert [accepts(grammar, f"[{2**53 + n}]") for n in (1, 3, 5)] == [True, True, False]
