"""Laws of numbers in schemas: each is enforced exactly or refused, whatever its size, and none ends the compiler.

1. What a grammar allows is valid.
2. What is valid is allowed, as far as it can be written (`writable`).
3. A refusal names the keyword and its place, or comes from the grammar engine; a crash of that is none.
4. Schemas in Lark grammars are held to the same.
"""

from __future__ import annotations

import json
import re
from decimal import Decimal
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from support.laws import EXPLORED

from plumbline.engines.constraints.grammar import GrammarError
from plumbline.structured_output.grammar.errors import ConstraintError

from .walk import accepts, builder, matcher

EDGES = [0, 1, 10, 99, 2**31, 2**32, 2**53, 10**15, 10**18, 2**63, 2**64, 10**19, 10**24, 10**40]
INTEGERS = st.one_of(
    st.builds(
        lambda edge, off, sign: sign * (edge + off),
        st.sampled_from(EDGES),
        st.integers(-2, 2),
        st.sampled_from([1, -1]),
    ),
    st.integers(-1000, 1000),
)
FLOATS = st.one_of(
    st.sampled_from([-0.0, 0.5, 0.1, 1e308, -1e308, 1e-310, 5e-324, 1e19, -1e19, 1e22, 0.07, 1.5, 2.0]),
    st.builds(lambda digits, places: digits / 10**places, st.integers(-10_000, 10_000), st.integers(0, 6)),
)
NUMBERS = st.one_of(INTEGERS, FLOATS)
MULTIPLES = st.one_of(
    st.sampled_from([2**31, 2**32, 10**12, 0.01, 0.07, 1e-9, 1e-300, 0.5, 60, 1000, 86_400]),
    st.integers(1, 200),
)
BOUNDED = st.fixed_dictionaries(
    {},
    optional={
        "type": st.sampled_from(["integer", "number", ["integer", "null"], ["integer", "number"]]),
        "minimum": NUMBERS,
        "maximum": NUMBERS,
        "exclusiveMinimum": NUMBERS,
        "exclusiveMaximum": NUMBERS,
        "multipleOf": MULTIPLES,
    },
)
LISTED = st.one_of(
    st.builds(lambda value: {"const": value}, NUMBERS),
    st.builds(lambda values: {"enum": values}, st.lists(NUMBERS, min_size=1, max_size=3, unique=True)),
    st.builds(
        lambda kind, value: {"type": kind, "const": value}, st.sampled_from(["integer", "number"]), NUMBERS
    ),
)
SCHEMAS = st.one_of(
    BOUNDED,
    LISTED,
    st.builds(lambda parts: {"allOf": parts}, st.lists(st.one_of(BOUNDED, LISTED), min_size=2, max_size=2)),
    st.builds(lambda part: {"anyOf": [part, {"type": "null"}]}, BOUNDED),
)
_NUMBER_KEYWORDS = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf")


def is_valid(schema: Any, value: Any) -> bool:
    """Return whether a schema of these tests allows a number, by exact arithmetic."""
    number = Decimal(repr(value)) if isinstance(value, float) else Decimal(value)
    exact = {name: Decimal(repr(schema[name])) for name in _NUMBER_KEYWORDS if name in schema}
    kinds = schema.get("type", "number")
    kinds = kinds if isinstance(kinds, list) else [kinds]
    listed = [*schema.get("enum", ()), *([schema["const"]] if "const" in schema else ())]
    return (
        ("number" in kinds or ("integer" in kinds and number == number.to_integral_value()))
        and number >= exact.get("minimum", number)
        and number <= exact.get("maximum", number)
        and ("exclusiveMinimum" not in exact or number > exact["exclusiveMinimum"])
        and ("exclusiveMaximum" not in exact or number < exact["exclusiveMaximum"])
        and ("multipleOf" not in exact or Fraction(number) % Fraction(exact["multipleOf"]) == 0)
        and (not listed or any(number == Decimal(repr(each)) for each in listed))
        and all(is_valid(part, value) for part in schema.get("allOf", ()))
        and ("anyOf" not in schema or any(is_valid(part, value) for part in schema["anyOf"]))
    )


def written(value: Any) -> str:
    """Return a number as digits; the grammars of bounded numbers have no exponents."""
    number = Decimal(repr(value)) if isinstance(value, float) else Decimal(value)
    return f"{number.normalize():f}" if number else "0"


def writable(value: Any) -> bool:
    """Return whether grammars of bounded numbers allow a number: it is within 10^18, and has few digits."""
    return abs(value) <= 10**18 and len(written(value)) < 40


def has_odd_multiple(schema: Any) -> bool:
    """Return whether a schema has a multiple like 0.25, of which llguidance takes 0.50 and not 0.5, or a large one.

    A large one with bounds exceeds what llguidance does for a token; the first tokens show that to the trial, or not.
    """
    parts = [schema, *schema.get("allOf", ()), *schema.get("anyOf", ())]
    return any(part.get("multipleOf", 1) % 1 or part.get("multipleOf", 1) > 500 for part in parts)


def near(schema: Any) -> list[Any]:
    """Return the numbers of a schema and their neighbours."""
    found: list[Any] = [0, 7, -3, 0.25]
    for part in [schema, *schema.get("allOf", ()), *schema.get("anyOf", ())]:
        for value in [*(part[name] for name in _NUMBER_KEYWORDS if name in part), *part.get("enum", ()),
                      *([part["const"]] if "const" in part else ())]:  # fmt: skip
            found += [value, value + 1, value - 1]
            if isinstance(value, float) and abs(value) < 1e15:
                found += [round(value), value / 2, 3 * value]
            elif isinstance(value, int):
                found += [value + 1000, value * 3, float(value) if abs(value) < 2**53 else value - 1000]
    return found


def grammar_or_reason(schema: Any, *, in_lark: bool) -> tuple[str | None, str]:
    built = builder()
    try:
        if in_lark:
            # The layout of %json is another one, which makes no difference to a number alone.
            grammar = built.build(built.lark(f"start: %json {json.dumps(schema)}"))
        else:
            grammar = built.build(built.json(schema))
        matcher(grammar)
    except (ConstraintError, GrammarError) as error:
        return None, str(error)
    return grammar, ""


@settings(max_examples=EXPLORED or 80, deadline=None)
@given(SCHEMAS, st.booleans())
@example({"const": -9223372036854775807}, True)
@example({"type": "integer", "minimum": -1e19}, True)
@example({"type": "integer", "multipleOf": 2147483648}, False)
@example({"allOf": [{"multipleOf": 65536}, {"multipleOf": 65537}]}, False)
@example({"type": "integer", "const": 9007199254740993}, False)
@example({"allOf": [{"exclusiveMinimum": 2**53}, {"type": "integer"}]}, False)
def test_a_grammar_allows_the_numbers_that_are_valid(schema: Any, in_lark: bool) -> None:
    grammar, reason = grammar_or_reason(schema, in_lark=in_lark)
    if grammar is None:
        assert "failed while" not in reason, reason
        assert len(reason) < 500
        return
    for value in near(schema):
        text = written(value)
        if accepts(grammar, text):
            assert is_valid(schema, value), (schema, text)
        elif is_valid(schema, value):
            assert not writable(value) or has_odd_multiple(schema), (schema, text)


@pytest.mark.parametrize(
    ("schema", "place"),
    [
        ({"const": -(2**63)}, "#/const"),
        ({"properties": {"a": {"enum": [1, {"b": [2**53 + 1]}]}}}, "#/properties/a/enum/1/b/0"),
        ({"type": "integer", "multipleOf": 2147483648}, "#/multipleOf"),
        ({"$defs": {"x": {"type": "integer", "minimum": 10**30}}, "$ref": "#/$defs/x"}, "#/$defs/x/minimum"),
        ({"type": "array", "minItems": 10**10}, "#/minItems"),
        ({"minimum": float("inf")}, "not finite"),  # Schemas may come as text.
        ({"const": float("nan")}, "not finite"),
        ({"title": "\ud800"}, "surrogate"),
    ],
)
def test_a_refusal_names_the_place(schema: Any, place: str) -> None:
    _, reason = grammar_or_reason(schema, in_lark=False)
    assert place in reason


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "integer", "minimum": -(2**63), "maximum": 2**63 - 1},
        {"type": "integer", "minimum": 0, "maximum": 2**64 - 1},
        {"type": "number", "minimum": -1.7976931348623157e308, "maximum": 1.7976931348623157e308},
        {"type": "string", "maxLength": 2**31 - 1},
        {"type": "array", "items": {"type": "integer"}, "maxItems": 2**53 - 1, "minItems": 1.0},
    ],
)
def test_what_generators_write_for_no_limit_is_taken(schema: Any) -> None:
    grammar, reason = grammar_or_reason(schema, in_lark=False)
    assert grammar is not None, reason
    example = {"string": '"a"', "array": "[1,2]"}.get(schema["type"], "12")
    assert accepts(grammar, example)


@given(st.text(alphabet='%json {}":/#\\n\n1-', max_size=60))
def test_other_text_of_a_lark_grammar_is_left_alone(text: str) -> None:
    """Strings, regexes and comments may have what looks like a schema."""
    from plumbline.structured_output.grammar.numbers import lark_with_exact_numbers

    grammar = f"start: /a/\n{text}"
    if not re.search(r"%json\s*[{\[tf]", grammar):
        assert lark_with_exact_numbers(grammar) == grammar
    for quoted in ('"%json {\\"const\\": -9223372036854775808}"', "/%json {-9223372036854775808}/"):
        assert lark_with_exact_numbers(f"start: {quoted}") == f"start: {quoted}"
