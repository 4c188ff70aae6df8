"""Write the bounds of a JSON Schema's numbers as the grammar engine enforces them.

A bound that lies beyond the numbers that can be written is moved to the last of these: then all that is allowed is
valid, but not every valid number is allowed.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from fractions import Fraction
from typing import Any, Literal, NamedTuple

from plumbline.answer.structured_output.grammar.numbers.literals import (
    EXACT,
    LEAST_INTEGER,
    MOST_INTEGER,
    check_digits,
    check_double,
    fraction,
    is_number,
    refused,
)
from plumbline.answer.structured_output.grammar.numbers.ranges import Bound

__all__ = ["BOUNDS", "bounds_of", "stricter", "write_bounds"]

BOUNDS = ("minimum", "exclusiveMinimum", "maximum", "exclusiveMaximum")
_BOUND_NAMES = frozenset(BOUNDS)
_MOST_NUMBER = 10**18
"""The largest power of ten within 64 bits, which hold the digits before the point of a bound."""


def bounds_of(schema: Mapping[str, Any]) -> tuple[Bound | None, Bound | None]:
    """Return the bounds of a schema as the client wrote them."""
    least, most = (stricter(schema, "#", side) for side in ("Minimum", "Maximum"))
    return (
        None if least is None else Bound(least.value, least.is_exclusive),
        None if most is None else Bound(most.value, most.is_exclusive),
    )


class _Bound(NamedTuple):
    value: Fraction
    is_exclusive: bool
    name: str
    shown: Any


def write_bounds(schema: dict[str, Any], where: str) -> None:
    """Replace the bounds of a schema by at most one of each side."""
    if _BOUND_NAMES.isdisjoint(schema):
        return
    least, most = (stricter(schema, where, side) for side in ("Minimum", "Maximum"))
    for name in BOUNDS:
        if is_number(schema.get(name)) or isinstance(schema.get(name), bool):
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


def stricter(schema: Mapping[str, Any], where: str, side: Literal["Minimum", "Maximum"]) -> _Bound | None:
    """Return the bound of a side that allows less, or None: drafts 4 and 2020-12 write exclusive ones differently."""
    plain, exclusive = schema.get(side.lower()), schema.get(f"exclusive{side}")
    found: list[_Bound] = []
    if is_number(plain):
        # Draft 4 has a boolean beside the bound.
        name = f"{where}/{side.lower()}"
        found.append(_Bound(fraction(plain, name), exclusive is True, name, plain))
    if is_number(exclusive):
        name = f"{where}/exclusive{side}"
        found.append(_Bound(fraction(exclusive, name), True, name, exclusive))
    if not found:
        return None
    sign = 1 if side == "Minimum" else -1
    return max(found, key=lambda bound: (sign * bound.value, bound.is_exclusive))


def _write_integers(schema: dict[str, Any], least: _Bound | None, most: _Bound | None) -> None:
    low = high = None
    if least is not None:
        low = math.floor(least.value) + 1 if least.is_exclusive else math.ceil(least.value)
        if low > MOST_INTEGER:
            raise refused(least.name, least.shown, f"integers with bounds are at most {MOST_INTEGER}")
        low = max(low, LEAST_INTEGER)
        _check_bound(low, least)
    if most is not None:
        high = math.ceil(most.value) - 1 if most.is_exclusive else math.floor(most.value)
        if high < LEAST_INTEGER:
            raise refused(most.name, most.shown, f"integers with bounds are at least {LEAST_INTEGER}")
        high = min(high, MOST_INTEGER)
        _check_bound(high, most)
    # Bounds of 19 digits need one on the other side: llguidance looks for the next power of ten.
    if low is not None and low >= _MOST_NUMBER and high is None:
        high = MOST_INTEGER
    if high is not None and high <= -_MOST_NUMBER and low is None:
        low = LEAST_INTEGER
    if low is not None:
        schema["minimum"] = low
    if high is not None:
        schema["maximum"] = high


def _check_bound(whole: int, bound: _Bound) -> None:
    if whole != MOST_INTEGER:
        check_double(whole, bound.name, bound.shown)


def _write_numbers(schema: dict[str, Any], least: _Bound | None, most: _Bound | None) -> None:
    least, most = _moved(least, 1), _moved(most, -1)
    if least is not None:
        if least.value >= _MOST_NUMBER:
            raise refused(least.name, least.shown, "numbers with bounds are below 10^18")
        name = "exclusiveMinimum" if least.is_exclusive else "minimum"
        if _is_beyond(-least.value, least):
            schema["minimum"] = -_MOST_NUMBER
        else:
            schema[name] = _number(least)
    if most is not None:
        if most.value <= -_MOST_NUMBER:
            raise refused(most.name, most.shown, "numbers with bounds are above -10^18")
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
    places = next((n for n in range(20, 0, -1) if (abs(value) + 1) * 10**n <= EXACT), 0) if value else 20
    return bound._replace(value=value + Fraction(sign, 10**places), is_exclusive=False) if places else bound


def _number(bound: _Bound) -> float:
    """Return a bound below 10^18 as the number that llguidance reads."""
    value = bound.value
    if value.denominator == 1:
        whole = int(value)
        if abs(whole) >= EXACT:
            check_double(whole, bound.name, bound.shown)
            # llguidance writes a double with its shortest digits, and adds one to an exclusive bound of integers.
            if bound.is_exclusive or Fraction(repr(float(whole))) != whole:
                raise refused(bound.name, bound.shown, "beyond 2^53 bounds have 15 digits and zeros")
        return whole
    check_digits(value, bound.name, bound.shown)
    return float(value)
