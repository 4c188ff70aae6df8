"""Say exactly what a number of JSON is, and whether the grammar engine can hold it."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from fractions import Fraction
from typing import Any, TypeGuard

from plumbline.answer.structured_output.grammar.errors import ConstraintError
from plumbline.base.exact_number import ExactNumber

__all__ = [
    "EXACT",
    "LEAST_INTEGER",
    "MAX_DEPTH",
    "MOST_INTEGER",
    "canonical_text",
    "check_digits",
    "check_double",
    "exact_value",
    "fraction",
    "is_number",
    "number_text",
    "refused",
]

MOST_INTEGER = 2**63 - 1
"""llguidance reads it as the double 2^63, which it turns into this integer again."""
LEAST_INTEGER = 1024 - 2**63
"""The double above -2^63, which llguidance cannot negate."""
EXACT = 2**53
"""Up to here every integer is a double, and so is the next one."""
_MOST_PLACES = 22
"""Digits after the point: the parser of JSON in llguidance reads 99.00000000000001 as 99. It is exact as long as all
digits are an integer up to 2^53, and the power of ten is a double."""
MAX_DEPTH = 200


def is_number(value: Any) -> TypeGuard[int | float]:
    """Return whether a value of JSON is a number; booleans are not."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def refused(where: str, value: Any, reason: str) -> ConstraintError:
    """Return the error of a number that cannot be enforced."""
    return ConstraintError(f"'{where}' is {str(value)[:40]}, which cannot be enforced: {reason}.")


def fraction(value: float, where: str) -> Fraction:
    """Return the number that the client wrote, as far as a double keeps its digits."""
    if isinstance(value, int):
        return Fraction(value)
    if isinstance(value, ExactNumber):
        return Fraction(value.text)
    if not math.isfinite(value):
        raise refused(where, value, "it is not a number of JSON")
    return Fraction(repr(value))


def number_text(value: float) -> str:
    """Return the literal of a number: the client's where a double would change it, integers without a fraction."""
    if isinstance(value, int):
        return str(value)
    exact = fraction(value, "#")
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
    if not is_number(value):
        return json.dumps(value)
    exact = fraction(value, "#")
    return f"{exact.numerator:x}/{exact.denominator:x}"  # Decimal digits would take quadratic time.


def exact_value(value: Any, where: str, depth: int) -> Any:
    """Return a value of `const` or `enum` with numbers that are written as they are."""
    if depth > MAX_DEPTH:
        raise ConstraintError(f"The schema is nested more than {MAX_DEPTH} deep.")
    if isinstance(value, list):
        return [exact_value(item, f"{where}/{index}", depth + 1) for index, item in enumerate(value)]
    if isinstance(value, Mapping):
        return {name: exact_value(item, f"{where}/{name}", depth + 1) for name, item in value.items()}
    if not is_number(value):
        return value
    exact = fraction(value, where)
    if exact.denominator > 1:
        check_digits(exact, where, value)
        return value
    if exact != MOST_INTEGER:
        check_double(int(exact), where, value)
    return int(exact)


def check_digits(value: Fraction, where: str, shown: Any) -> None:
    """Refuse a fraction that the parser does not read exactly."""
    places = next((n for n in range(_MOST_PLACES + 1) if 10**n % value.denominator == 0), None)
    if places is None or abs(value) * 10**places > EXACT:
        raise refused(
            where, shown, f"it has more than 15 digits, or more than {_MOST_PLACES} after the point"
        )


def check_double(whole: int, where: str, shown: Any) -> None:
    """Refuse an integer that is no double within 64 bits, or that a double is not written as."""
    if not LEAST_INTEGER <= whole <= MOST_INTEGER:
        raise refused(where, shown, f"integers are from {LEAST_INTEGER} to {MOST_INTEGER}")
    if int(float(whole)) != whole:
        raise refused(where, shown, "it has more digits than a double-precision number")
