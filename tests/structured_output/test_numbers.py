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

from plumbline.answer.structured_output.grammar.errors import ConstraintError
from plumbline.answer.structured_output.grammar.numbers.ranges import Bound, _at_least, _at_most
from plumbline.base.exact_number import exact_number
from plumbline.engines.constraints.grammar import GrammarError

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
    st.sampled_from([2**31, 2**32, 10**12, 0.01, 0.07, 0.53, 0.0003, 1e-9, 1e-300, 0.5, 60, 1000, 86_400]),
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
        ({"minProperties": 0, "const": -(2**63)}, "#/const"),
        (
            {"$defs": {"x": {"type": "integer", "minimum": 10**30}}, "contains": {"$ref": "#/$defs/x"}},
            "#/contains",
        ),
        (
            {"properties": {"a": {"enum": [1, {"b": [2**53 + 1]}]}}, "maxProperties": 3},
            "#/properties/a/enum/1/b/0",
        ),
        ({"type": ["integer", "null"], "multipleOf": 2147483648}, "#/multipleOf"),
        ({"type": "integer", "multipleOf": 2147483648, "minimum": 1, "maximum": 5}, "#/multipleOf"),
        ({"multipleOf": 5, "minimum": 10**30, "type": "integer"}, "#/minimum"),
        ({"type": "array", "minItems": 10**10}, "#/minItems"),
        ({"minimum": float("inf")}, "not finite"),  # Schemas may come as text.
        ({"const": float("nan")}, "not finite"),
        ({"title": "\ud800"}, "surrogate"),
    ],
)
def test_a_refusal_names_the_place(schema: Any, place: str) -> None:
    _, reason = grammar_or_reason(schema, in_lark=False)
    assert place in reason


@given(
    st.integers(10**6 + 1, 2**44),
    st.integers(-150, 150),
    st.sampled_from(["minimum", "exclusiveMinimum", "maximum", "exclusiveMaximum"]),
    st.booleans(),
)
@settings(max_examples=EXPLORED or 25, deadline=None)
@example(2147483648, 0, "minimum", False)
def test_multiples_of_a_large_number_are_those_next_to_zero(
    step: int, bound: int, side: str, is_bounded: bool
) -> None:
    """Their remainders cannot be counted; what is allowed is valid, and the first one that is valid is allowed."""
    schema = {"type": "integer", "multipleOf": step, **({side: bound * step} if is_bounded else {})}
    numbers = [number * step for number in range(-160, 161) if is_valid(schema, number * step)]
    numbers = [number for number in numbers if abs(number) < 2**53]
    grammar, reason = grammar_or_reason(schema, in_lark=False)
    if grammar is None:
        assert not numbers, reason
        return
    nearest = min(numbers, key=abs)
    assert accepts(grammar, str(nearest))
    for value in (*numbers[:3], *numbers[-3:], nearest + 1, step // 2, 7):
        assert not accepts(grammar, str(value)) or is_valid(schema, value), value


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
    from plumbline.answer.structured_output.grammar.numbers.exact import lark_with_exact_numbers

    grammar = f"start: /a/\n{text}"
    if not re.search(r"%json\s*[{\[tf]", grammar):
        assert lark_with_exact_numbers(grammar) == grammar
    for quoted in ('"%json {\\"const\\": -9223372036854775808}"', "/%json {-9223372036854775808}/"):
        assert lark_with_exact_numbers(f"start: {quoted}") == f"start: {quoted}"


# Numbers that llguidance does not keep

LITERALS = st.one_of(
    st.sampled_from(
        [
            *(
                "9007199254740993",
                "-9223372036854775808",
                "18446744073709551615",
                "1e400",
                "-1E-400",
                "1" * 60,
            ),
            *(
                "9007199254740993.0",
                "0.1000000000000000055511151231257827",
                "123456789012345678.5",
                "0.1",
                "7",
            ),
        ]
    ),
    st.builds(lambda whole, part: f"{whole}.{part}", st.integers(-(2**70), 2**70), st.integers(1, 10**25)),
    st.integers(-(2**80), 2**80).map(str),
)


def value_of(literal: str) -> Any:
    return exact_number(literal) if set(literal) & set(".eE") else int(literal)


def canonical(literal: str) -> str:
    """An integer has one spelling."""
    exact = Fraction(literal)
    return str(exact.numerator) if exact.denominator == 1 and abs(exact) < 10**40 else literal


PLACES: list[tuple[str, Any, str]] = [
    ("alone", lambda one: one, "{}"),
    (
        "property",
        lambda one: {
            "type": "object",
            "properties": {"a": one},
            "required": ["a"],
            "additionalProperties": False,
        },
        '{{"a":{}}}',
    ),
    (
        "optional",
        lambda one: {"type": "object", "properties": {"b": {"type": "null"}, "a": one}},
        '{{"a":{}, "c":[1]}}',
    ),
    ("item", lambda one: {"type": "array", "items": one}, "[{0},{0}]"),
    (
        "reference",
        lambda one: {"$defs": {"d": one}, "anyOf": [{"$ref": "#/$defs/d"}, {"type": "string"}]},
        "{}",
    ),
]


@settings(max_examples=EXPLORED or 25, deadline=None)
@given(LITERALS, LITERALS, st.sampled_from(PLACES), st.sampled_from(["const", "enum", "nested"]))
def test_a_literal_of_any_size_is_the_one_that_is_allowed(
    literal: str, other: str, place: tuple[str, Any, str], keyword: str
) -> None:
    _, within, shape = place
    listed = {
        "const": {"const": value_of(literal)},
        "enum": {"enum": [value_of(literal), "x"]},
        "nested": {"const": {"k": [value_of(literal), None]}},
    }[keyword]
    texts = [
        f'{{"k":[{canonical(one)},null]}}' if keyword == "nested" else canonical(one)
        for one in (literal, other)
    ]
    grammar, reason = grammar_or_reason(within(listed), in_lark=False)
    assert grammar is not None, reason
    assert accepts(grammar, shape.format(texts[0]))
    assert accepts(grammar, shape.format(texts[1])) == (
        Fraction(literal) == Fraction(other) and texts[0] == texts[1]
    )


@settings(max_examples=EXPLORED or 25, deadline=None)
@given(st.integers(-(2**70), 2**70), st.integers(0, 2**66), st.sampled_from(PLACES), st.data())
def test_bounds_of_any_size_are_exact(
    least: int, width: int, place: tuple[str, Any, str], data: st.DataObject
) -> None:
    schema = {"type": "integer", "minimum": least, "maximum": least + width}
    if least + width <= 2**63 - 1 and least >= -(2**63) + 1024:
        return  # Within what llguidance has; the laws above are about these.
    grammar, reason = grammar_or_reason(place[1](schema), in_lark=False)
    assert grammar is not None, reason
    value = data.draw(
        st.one_of(st.integers(least - 5, least + 5), st.integers(least + width - 5, least + width + 5))
    )
    fits = accepts(grammar, place[2].format(value))
    if fits:
        assert least <= value <= least + width
    elif least <= value <= least + width:
        # Bounds below 64 bits that end within them are moved by up to 1,023, so that the engine can have them.
        assert value < 1024 - 2**63


@given(st.fractions(-(10**6), 10**6, max_denominator=1000), st.booleans(), st.booleans(), st.data())
def test_one_side_of_a_range_is_exact(
    value: Fraction, exclusive: bool, up: bool, data: st.DataObject
) -> None:
    bound = Fraction(round(value * 1000), 1000)
    near = bound + Fraction(data.draw(st.integers(-2000, 2000)), 1000)
    number = Decimal(near.numerator) / Decimal(near.denominator)
    text = f"{number:f}" + data.draw(st.sampled_from(["", "0", "000"])) * ("." in f"{number:f}")
    pattern = (_at_least if up else _at_most)(Bound(bound, exclusive))
    inside = near == bound and not exclusive if near == bound else (near > bound) == up
    assert (re.fullmatch(pattern, text) is not None) == inside
