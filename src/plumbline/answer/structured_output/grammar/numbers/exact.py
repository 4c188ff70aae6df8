"""Write the numbers of a JSON Schema so that the grammar engine enforces them exactly, or refuse them.

llguidance keeps numbers as doubles and bounds of integers in 64 bits. Beyond what these hold it would allow invalid
documents (`{"const": 9007199254740993}` allowed 9007199254740992), and near -2^63 it recurses without end, which ends
the process.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from fractions import Fraction
from typing import Any

from plumbline.answer.structured_output.grammar.errors import ConstraintError
from plumbline.answer.structured_output.grammar.numbers.bounds import (
    BOUNDS,
    bounds_of,
    stricter,
    write_bounds,
)
from plumbline.answer.structured_output.grammar.numbers.literals import (
    EXACT,
    MAX_DEPTH,
    MOST_INTEGER,
    exact_value,
    fraction,
    is_number,
    refused,
)
from plumbline.base.exact_number import ExactNumber

__all__ = [
    "UNREACHABLE",
    "exact_numbers",
    "is_inexact",
    "lark_with_exact_numbers",
]

UNREACHABLE = 2**31 - 1
"""A length or a number of items that no answer reaches. Generators of schemas write it for "no limit"."""

_MOST_MULTIPLE = 1_000_000
"""Remainders that llguidance counts; each is a state of an automaton of some hundred bytes."""
_LISTED = 100
"""Multiples on each side of zero, or of a bound beyond it, that are allowed where remainders cannot be counted."""
_MOST_LISTS = 100
"""Such lists in a schema."""
_NEIGHBOURS = 8
"""Doubles on each side of a multiple that are tried."""
_MOST_MULTIPLES = 2**32
"""llguidance multiplies two of them in 32 bits where schemas are combined."""

_COUNTS = {
    **dict.fromkeys(("minLength", "minItems", "minProperties"), "least"),
    **dict.fromkeys(("maxLength", "maxItems", "maxProperties"), "most"),
}
_NAMED = frozenset({"properties", "patternProperties", "$defs", "definitions", "dependentSchemas"})
_COMBINING = frozenset({"allOf", "anyOf", "oneOf", "$ref"})
_NUMBERS = frozenset((*BOUNDS, *_COUNTS, "multipleOf"))
_WITH_NUMBERS = frozenset((*BOUNDS, "const", "enum"))


def exact_numbers(schema: Any, *, notes: list[str] | None = None) -> Any:
    """Return the schema with numbers that the grammar engine enforces exactly.

    Args:
        schema: the schema.
        notes: gets the places of multiples that are left out because they cannot be enforced; None refuses them.

    Raises:
        ConstraintError: a number cannot be enforced; the text names the keyword and its place.
    """
    walk = _Walk(notes)
    found = walk.schema(schema, "#", 0)
    walk.check_multiples()
    return found


def is_inexact(schema: Mapping[str, Any]) -> bool:
    """Return whether the values or the bounds of a schema would not be enforced exactly, or only by a smaller range."""
    if _WITH_NUMBERS.isdisjoint(schema):
        return False
    try:
        for name in ("const", "enum"):
            if name in schema:
                exact_value(schema[name], name, 0)
        bounds = [schema[name] for name in BOUNDS if is_number(schema.get(name))]
        if all(isinstance(bound, int) and abs(bound) <= EXACT for bound in bounds):
            return False
        write_bounds(dict(schema), "")
        most = stricter(schema, "", "Maximum")
    except ConstraintError:
        return True
    kinds = schema.get("type")
    integers = "integer" in (kinds if isinstance(kinds, list) else [kinds])
    return integers and most is not None and MOST_INTEGER < most.value <= 2**64


def lark_with_exact_numbers(grammar: str) -> str:
    """Return a Lark grammar with the numbers of its schemas (`%json {…}`) written as `exact_numbers` does.

    Raises:
        ConstraintError: a number cannot be enforced.
    """
    found: list[str] = []
    position = 0
    for token in _LARK_TOKEN.finditer(grammar):
        if token["schema"] is None or token.start() < position:
            continue
        try:
            schema, end = _JSON.raw_decode(grammar, token.end())
        except (ValueError, RecursionError):
            continue  # llguidance says what is wrong.
        found += [grammar[position : token.end()], json.dumps(exact_numbers(schema))]
        position = end
    return "".join([*found, grammar[position:]])


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(text)
    return value


_LARK_TOKEN = re.compile(
    r'"(?:\\.|[^"\\\n])*"|//[^\n]*|/(?:\\.|[^/\\\n])+/|#[^\n]*|(?P<schema>%json\s*(?=[{\[tf]))'
)
_JSON = json.JSONDecoder(parse_float=_finite, parse_constant=_finite)


class _Walk:
    def __init__(self, notes: list[str] | None) -> None:
        self._notes = notes
        self._multiples: set[Fraction] = set()
        self._lists = 0
        self._combines = False

    def schema(self, schema: Any, where: str, depth: int) -> Any:
        """Return the translated schema; whatever may be one is taken for one."""
        if depth > MAX_DEPTH:
            raise ConstraintError(f"The schema is nested more than {MAX_DEPTH} deep.")
        if isinstance(schema, list):
            return [self.schema(item, f"{where}/{index}", depth + 1) for index, item in enumerate(schema)]
        if not isinstance(schema, Mapping):
            # In an annotation, whose numbers have no effect; JSON has none beyond doubles' range for the engine.
            is_endless = isinstance(schema, float) and not math.isfinite(schema)
            return math.copysign(1e308, schema) if is_endless else schema
        self._combines = self._combines or not _COMBINING.isdisjoint(schema)
        found: dict[str, Any] = {}
        for name, value in schema.items():
            at = f"{where}/{name}"
            if name in ("const", "enum"):
                found[name] = exact_value(value, at, depth)
            elif name in _NUMBERS and is_number(value):
                found[name] = value
            elif name in _NAMED and isinstance(value, Mapping):
                found[name] = {
                    key: self.schema(part, f"{at}/{key}", depth + 1) for key, part in value.items()
                }
            else:
                found[name] = self.schema(value, at, depth + 1)
        _write_counts(found, where)
        write_bounds(found, where)
        if is_number(found.get("multipleOf")):
            self._write_multiple(found, schema, where)
        return found

    def _write_multiple(self, found: dict[str, Any], schema: Mapping[str, Any], where: str) -> None:
        try:
            exact, found["multipleOf"] = _multiple(found["multipleOf"], f"{where}/multipleOf")
            self._multiples.add(exact)
        except ConstraintError:
            listed = _listed_multiples(schema) if self._lists < _MOST_LISTS else []
            if not listed and self._notes is None:
                raise
            del found["multipleOf"]
            if listed:
                found["enum"] = listed
                self._lists += 1
            elif self._notes is not None:
                self._notes.append(f"{where}/multipleOf")

    def check_multiples(self) -> None:
        """Check that multiples which may be combined have a common one that llguidance can hold."""
        if not self._combines or len(self._multiples) < 2:
            return
        most = max(self._multiples)
        scale = common = 1
        # Step by step: the common multiple of thousands of numbers has as many digits.
        for each in self._multiples:
            scale = math.lcm(scale, each.denominator)
            if scale * most >= _MOST_MULTIPLES:
                raise _without_common_multiple()
        for each in self._multiples:
            common = math.lcm(common, int(each * scale))
            if common * int(most * scale) >= _MOST_MULTIPLES:
                raise _without_common_multiple()


def _without_common_multiple() -> ConstraintError:
    return ConstraintError("The values of 'multipleOf' have no common multiple that can be enforced.")


# Lengths and numbers of items


def _write_counts(schema: dict[str, Any], where: str) -> None:
    if _COUNTS.keys().isdisjoint(schema):
        return
    for name, side in _COUNTS.items():
        value = schema.get(name)
        if not is_number(value):
            continue
        exact = fraction(value, f"{where}/{name}")
        if exact < 0 or exact.denominator > 1:
            if isinstance(value, ExactNumber):
                raise refused(f"{where}/{name}", value, "it is no number of parts")
            continue
        if exact < UNREACHABLE:
            schema[name] = int(exact)
        elif side == "most":
            del schema[name]
        else:
            raise refused(f"{where}/{name}", value, "no answer is so long")


# Multiples


def _multiple(value: float, where: str) -> tuple[Fraction, float]:
    """Return `multipleOf` exactly, and the double from which llguidance reads it.

    llguidance multiplies a double by ten until no fraction is left. From 0.07 it gets 7.000000000000001; from a double
    next to it 7, which is what counts. One in ten numbers with two decimals, such as 0.53, has no such neighbour.
    """
    wanted = fraction(value, where)
    if wanted > _MOST_MULTIPLE:
        raise refused(where, value, f"multiples are of at most {_MOST_MULTIPLE}")
    below = above = float(wanted)
    for _ in range(_NEIGHBOURS):
        for one in (below, above):
            if _read_multiple(one) == wanted:
                return wanted, int(one) if one.is_integer() else one
        below, above = math.nextafter(below, 0), math.nextafter(above, math.inf)
    raise refused(where, value, "its digits are not kept by a double-precision number")


def _listed_multiples(schema: Mapping[str, Any]) -> list[int]:
    """Return the integers that a schema of numbers allows next to zero; none if it may have other values.

    Not every valid number is among them, as beyond the bounds that the engine can hold, but all of them are valid.
    """
    kinds = schema.get("type")
    numeric = {"integer", "number"}.issuperset(kinds if isinstance(kinds, list) else [kinds])
    step = fraction(schema["multipleOf"], "#")
    if not numeric or step.denominator > 1 or not schema.keys().isdisjoint(("const", "enum", *_COMBINING)):
        return []
    low, high = -EXACT // int(step) + 1, EXACT // int(step)
    least, most = bounds_of(schema)
    if least is not None:
        low = max(
            low, math.floor(least.value / step) + 1 if least.is_exclusive else math.ceil(least.value / step)
        )
    if most is not None:
        high = min(
            high, math.ceil(most.value / step) - 1 if most.is_exclusive else math.floor(most.value / step)
        )
    nearest = min(max(low, 0), high)
    low, high = max(low, nearest - _LISTED), min(high, nearest + _LISTED)
    return [number * int(step) for number in range(low, high + 1)]


def _read_multiple(value: float) -> Fraction | None:
    """Return the multiple that llguidance reads from a double; None for one that has too many digits."""
    places = 0
    while value % 1 and places < 10:
        value *= 10.0
        places += 1
    return Fraction(value) / 10**places if places < 10 and 0 < value <= _MOST_MULTIPLE else None
