"""Write the numbers of a JSON Schema so that the grammar engine enforces them exactly, or refuse them.

llguidance keeps numbers as doubles and bounds of integers in 64 bits. Beyond what these hold it would allow invalid
documents (`{"const": 9007199254740993}` allowed 9007199254740992), and near -2^63 it recurses without end, which ends
the process.

A bound that lies beyond the numbers that can be written is moved to the last of these: then all that is allowed is
valid, but not every valid number is allowed.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from fractions import Fraction
from typing import Any, Literal, NamedTuple, TypeGuard

from plumbline.answer.structured_output.grammar.errors import ConstraintError
from plumbline.answer.structured_output.grammar.numbers.ranges import Bound
from plumbline.base.exact_number import ExactNumber

__all__ = [
    "UNREACHABLE",
    "bounds_of",
    "canonical_text",
    "exact_numbers",
    "is_inexact",
    "lark_with_exact_numbers",
    "number_text",
]

UNREACHABLE = 2**31 - 1
"""A length or a number of items that no answer reaches. Generators of schemas write it for "no limit"."""

_MOST_INTEGER = 2**63 - 1
"""llguidance reads it as the double 2^63, which it turns into this integer again."""
_LEAST_INTEGER = 1024 - 2**63
"""The double above -2^63, which llguidance cannot negate."""
_EXACT = 2**53
"""Up to here every integer is a double, and so is the next one."""
_MOST_NUMBER = 10**18
"""The largest power of ten within 64 bits, which hold the digits before the point of a bound."""
_MOST_PLACES = 22
"""Digits after the point: the parser of JSON in llguidance reads 99.00000000000001 as 99. It is exact as long as all
digits are an integer up to 2^53, and the power of ten is a double."""
_MOST_MULTIPLE = 1_000_000
"""Remainders that llguidance counts; each is a state of an automaton of some hundred bytes."""
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
_BOUNDS = ("minimum", "exclusiveMinimum", "maximum", "exclusiveMaximum")
_BOUND_NAMES = frozenset(_BOUNDS)
_NUMBERS = frozenset((*_BOUNDS, *_COUNTS, "multipleOf"))
_WITH_NUMBERS = frozenset((*_BOUNDS, "const", "enum"))
_MAX_DEPTH = 200


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
                _exact_value(schema[name], name, 0)
        bounds = [schema[name] for name in _BOUNDS if _is_number(schema.get(name))]
        if all(isinstance(bound, int) and abs(bound) <= _EXACT for bound in bounds):
            return False
        _write_bounds(dict(schema), "")
        most = _stricter(schema, "", "Maximum")
    except ConstraintError:
        return True
    kinds = schema.get("type")
    integers = "integer" in (kinds if isinstance(kinds, list) else [kinds])
    return integers and most is not None and _MOST_INTEGER < most.value <= 2**64


def bounds_of(schema: Mapping[str, Any]) -> tuple[Bound | None, Bound | None]:
    """Return the bounds of a schema as the client wrote them."""
    least, most = (_stricter(schema, "#", side) for side in ("Minimum", "Maximum"))
    return (
        None if least is None else Bound(least.value, least.is_exclusive),
        None if most is None else Bound(most.value, most.is_exclusive),
    )


def number_text(value: float) -> str:
    """Return the literal of a number: the client's where a double would change it, integers without a fraction."""
    if isinstance(value, int):
        return str(value)
    exact = _fraction(value, "#")
    if exact.denominator == 1 and abs(exact) < 10**40:
        return str(exact.numerator)
    return value.text if isinstance(value, ExactNumber) else repr(value)


def canonical_text(value: Any) -> str:
    """Return a text that only equal values of JSON have.

    >>> canonical_text([1, {"b": 2.0, "a": True}]) == canonical_text([1.0, {"a": True, "b": 2}])
    True
    >>> canonical_text([1]) == canonical_text([True])
    False
    """
    if isinstance(value, list):
        return f"[{','.join(map(canonical_text, value))}]"
    if isinstance(value, Mapping):
        members = (f"{json.dumps(name)}:{canonical_text(value[name])}" for name in sorted(value))
        return f"{{{','.join(members)}}}"
    if not _is_number(value):
        return json.dumps(value)
    exact = _fraction(value, "#")
    return f"{exact.numerator:x}/{exact.denominator:x}"  # Decimal digits would take quadratic time.


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
        self._combines = False

    def schema(self, schema: Any, where: str, depth: int) -> Any:
        """Return the translated schema; whatever may be one is taken for one."""
        if depth > _MAX_DEPTH:
            raise ConstraintError(f"The schema is nested more than {_MAX_DEPTH} deep.")
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
                found[name] = _exact_value(value, at, depth)
            elif name in _NUMBERS and _is_number(value):
                found[name] = value
            elif name in _NAMED and isinstance(value, Mapping):
                found[name] = {
                    key: self.schema(part, f"{at}/{key}", depth + 1) for key, part in value.items()
                }
            else:
                found[name] = self.schema(value, at, depth + 1)
        _write_counts(found, where)
        _write_bounds(found, where)
        if "multipleOf" in found and _is_number(multiple := found["multipleOf"]):
            try:
                exact, found["multipleOf"] = _multiple(multiple, f"{where}/multipleOf")
                self._multiples.add(exact)
            except ConstraintError:
                if self._notes is None:
                    raise
                del found["multipleOf"]
                self._notes.append(f"{where}/multipleOf")
        return found

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


def _is_number(value: Any) -> TypeGuard[int | float]:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _refused(where: str, value: Any, reason: str) -> ConstraintError:
    return ConstraintError(f"'{where}' is {str(value)[:40]}, which cannot be enforced: {reason}.")


# Values


def _exact_value(value: Any, where: str, depth: int) -> Any:
    """Return a value of `const` or `enum` with numbers that are written as they are."""
    if depth > _MAX_DEPTH:
        raise ConstraintError(f"The schema is nested more than {_MAX_DEPTH} deep.")
    if isinstance(value, list):
        return [_exact_value(item, f"{where}/{index}", depth + 1) for index, item in enumerate(value)]
    if isinstance(value, Mapping):
        return {name: _exact_value(item, f"{where}/{name}", depth + 1) for name, item in value.items()}
    if not _is_number(value):
        return value
    exact = _fraction(value, where)
    if exact.denominator > 1:
        _check_digits(exact, where, value)
        return value
    if exact != _MOST_INTEGER:
        _check_double(int(exact), where, value)
    return int(exact)


def _check_digits(value: Fraction, where: str, shown: Any) -> None:
    """Refuse a fraction that the parser does not read exactly."""
    places = next((n for n in range(_MOST_PLACES + 1) if 10**n % value.denominator == 0), None)
    if places is None or abs(value) * 10**places > _EXACT:
        raise _refused(
            where, shown, f"it has more than 15 digits, or more than {_MOST_PLACES} after the point"
        )


def _check_double(whole: int, where: str, shown: Any) -> None:
    """Refuse an integer that is no double within 64 bits, or that a double is not written as."""
    if not _LEAST_INTEGER <= whole <= _MOST_INTEGER:
        raise _refused(where, shown, f"integers are from {_LEAST_INTEGER} to {_MOST_INTEGER}")
    if int(float(whole)) != whole:
        raise _refused(where, shown, "it has more digits than a double-precision number")


# Lengths and numbers of items


def _write_counts(schema: dict[str, Any], where: str) -> None:
    if _COUNTS.keys().isdisjoint(schema):
        return
    for name, side in _COUNTS.items():
        value = schema.get(name)
        if not _is_number(value):
            continue
        exact = _fraction(value, f"{where}/{name}")
        if exact < 0 or exact.denominator > 1:
            if isinstance(value, ExactNumber):
                raise _refused(f"{where}/{name}", value, "it is no number of parts")
            continue
        if exact < UNREACHABLE:
            schema[name] = int(exact)
        elif side == "most":
            del schema[name]
        else:
            raise _refused(f"{where}/{name}", value, "no answer is so long")


# Bounds


class _Bound(NamedTuple):
    value: Fraction
    is_exclusive: bool
    name: str
    shown: Any


def _write_bounds(schema: dict[str, Any], where: str) -> None:
    """Replace the bounds of a schema by at most one of each side."""
    if _BOUND_NAMES.isdisjoint(schema):
        return
    least, most = (_stricter(schema, where, side) for side in ("Minimum", "Maximum"))
    for name in _BOUNDS:
        if _is_number(schema.get(name)) or isinstance(schema.get(name), bool):
            del schema[name]
    if least is not None and most is not None and _is_empty(least, most):
        schema |= {
            "minimum": 1,
            "maximum": 0,
        }  # llguidance finds it empty. It would allow -1 for close doubles.
        return
    kinds = schema.get("type")
    kinds = kinds if isinstance(kinds, list) else [kinds]
    if "integer" in kinds and "number" not in kinds:
        _write_integers(schema, least, most)
    else:
        _write_numbers(schema, least, most)


def _is_empty(least: _Bound, most: _Bound) -> bool:
    no_end = least.is_exclusive or most.is_exclusive
    return least.value > most.value or (least.value == most.value and no_end)


def _stricter(schema: Mapping[str, Any], where: str, side: Literal["Minimum", "Maximum"]) -> _Bound | None:
    plain, exclusive = schema.get(side.lower()), schema.get(f"exclusive{side}")
    found: list[_Bound] = []
    if _is_number(plain):
        # Draft 4 has a boolean beside the bound.
        name = f"{where}/{side.lower()}"
        found.append(_Bound(_fraction(plain, name), exclusive is True, name, plain))
    if _is_number(exclusive):
        name = f"{where}/exclusive{side}"
        found.append(_Bound(_fraction(exclusive, name), True, name, exclusive))
    if not found:
        return None
    sign = 1 if side == "Minimum" else -1
    return max(found, key=lambda bound: (sign * bound.value, bound.is_exclusive))


def _fraction(value: float, where: str) -> Fraction:
    """Return the number that the client wrote, as far as a double keeps its digits."""
    if isinstance(value, int):
        return Fraction(value)
    if isinstance(value, ExactNumber):
        return Fraction(value.text)
    if not math.isfinite(value):
        raise _refused(where, value, "it is not a number of JSON")
    return Fraction(repr(value))


def _write_integers(schema: dict[str, Any], least: _Bound | None, most: _Bound | None) -> None:
    low = high = None
    if least is not None:
        low = math.floor(least.value) + 1 if least.is_exclusive else math.ceil(least.value)
        if low > _MOST_INTEGER:
            raise _refused(least.name, least.shown, f"integers with bounds are at most {_MOST_INTEGER}")
        low = max(low, _LEAST_INTEGER)
        _check_bound(low, least)
    if most is not None:
        high = math.ceil(most.value) - 1 if most.is_exclusive else math.floor(most.value)
        if high < _LEAST_INTEGER:
            raise _refused(most.name, most.shown, f"integers with bounds are at least {_LEAST_INTEGER}")
        high = min(high, _MOST_INTEGER)
        _check_bound(high, most)
    # Bounds of 19 digits need one on the other side: llguidance looks for the next power of ten.
    if low is not None and low >= _MOST_NUMBER and high is None:
        high = _MOST_INTEGER
    if high is not None and high <= -_MOST_NUMBER and low is None:
        low = _LEAST_INTEGER
    if low is not None:
        schema["minimum"] = low
    if high is not None:
        schema["maximum"] = high


def _check_bound(whole: int, bound: _Bound) -> None:
    if whole != _MOST_INTEGER:
        _check_double(whole, bound.name, bound.shown)


def _write_numbers(schema: dict[str, Any], least: _Bound | None, most: _Bound | None) -> None:
    least, most = _moved(least, 1), _moved(most, -1)
    if least is not None:
        if least.value >= _MOST_NUMBER:
            raise _refused(least.name, least.shown, "numbers with bounds are below 10^18")
        name = "exclusiveMinimum" if least.is_exclusive else "minimum"
        if _is_beyond(-least.value, least):
            schema["minimum"] = -_MOST_NUMBER
        else:
            schema[name] = _number(least)
    if most is not None:
        if most.value <= -_MOST_NUMBER:
            raise _refused(most.name, most.shown, "numbers with bounds are above -10^18")
        name = "exclusiveMaximum" if most.is_exclusive else "maximum"
        if _is_beyond(most.value, most):
            schema["maximum"] = _MOST_NUMBER
        else:
            schema[name] = _number(most)


def _is_beyond(distance: Fraction, bound: _Bound) -> bool:
    """Return whether a bound allows the last number that can be written, 10^18 from zero; an exclusive one may not."""
    return distance > _MOST_NUMBER or (distance == _MOST_NUMBER and not bound.is_exclusive)


def _moved(bound: _Bound | None, sign: int) -> _Bound | None:
    """Move an exclusive bound that is an integer towards what it allows, or None.

    llguidance would allow it where all numbers up to the other bound begin with its digits: of
    {"exclusiveMinimum": 0, "maximum": 0.5} it takes 0.
    """
    if bound is None or not bound.is_exclusive or bound.value.denominator > 1 or sign * bound.value < 0:
        return bound
    value = bound.value
    places = next((n for n in range(20, 0, -1) if (abs(value) + 1) * 10**n <= _EXACT), 0) if value else 20
    return bound._replace(value=value + Fraction(sign, 10**places), is_exclusive=False) if places else bound


def _number(bound: _Bound) -> float:
    """Return a bound below 10^18 as the number that llguidance reads."""
    value = bound.value
    if value.denominator == 1:
        whole = int(value)
        if abs(whole) >= _EXACT:
            _check_double(whole, bound.name, bound.shown)
            # llguidance writes a double with its shortest digits, and adds one to an exclusive bound of integers.
            if bound.is_exclusive or Fraction(repr(float(whole))) != whole:
                raise _refused(bound.name, bound.shown, "beyond 2^53 bounds have 15 digits and zeros")
        return whole
    _check_digits(value, bound.name, bound.shown)
    return float(value)


# Multiples


def _multiple(value: float, where: str) -> tuple[Fraction, float]:
    """Return `multipleOf` exactly, and the double from which llguidance reads it.

    llguidance multiplies a double by ten until no fraction is left. From 0.07 it gets 7.000000000000001; from a double
    next to it 7, which is what counts. One in ten numbers with two decimals, such as 0.53, has no such neighbour.
    """
    wanted = _fraction(value, where)
    if wanted > _MOST_MULTIPLE:
        raise _refused(where, value, f"multiples are of at most {_MOST_MULTIPLE}")
    below = above = float(wanted)
    for _ in range(_NEIGHBOURS):
        for one in (below, above):
            if _read_multiple(one) == wanted:
                return wanted, int(one) if one.is_integer() else one
        below, above = math.nextafter(below, 0), math.nextafter(above, math.inf)
    raise _refused(where, value, "its digits are not kept by a double-precision number")


def _read_multiple(value: float) -> Fraction | None:
    """Return the multiple that llguidance reads from a double; None for one that has too many digits."""
    places = 0
    while value % 1 and places < 10:
        value *= 10.0
        places += 1
    return Fraction(value) / 10**places if places < 10 and 0 < value <= _MOST_MULTIPLE else None
