"""Write regexes for the numbers of a range, with bounds of any size.

Numbers are written in plain decimals: an integer part without leading zeros, and at most 40 digits after the point.
"""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction
from typing import NamedTuple

__all__ = ["Bound", "range_lexeme"]

_FURTHER = 40
"""Digits that a number without an upper bound has more than its lower bound."""
_FRACTION = rf"(?:\.[0-9]{{1,{_FURTHER}}})?"
_SMALL = 10**100
_EXPONENT = rf"/-?[1-9]{_FRACTION}[eE][+-]?[0-9]{{1,2}}/"
"""Numbers that lie within every range that reaches further than `_SMALL` on both sides."""


class Bound(NamedTuple):
    """One end of a range."""

    value: Fraction
    is_exclusive: bool = False


def range_lexeme(least: Bound | None, most: Bound | None, *, integers: bool) -> str:
    """Return the expression of a lexeme, in llguidance's dialect of Lark.

    Args:
        least: the lower bound; its value has a finite decimal expansion.
        most: the upper bound.
        integers: whether fractions are left out.
    """
    sides = []
    if least is not None:
        sides.append(f"/{_at_least(least)}/")
    if most is not None:
        sides.append(f"/{_at_most(most)}/")
    if integers:
        sides.append(f"/-?{_ANY_INTEGER}/")
    found = " & ".join(sides)
    wide = least is not None and most is not None and least.value < -_SMALL and most.value > _SMALL
    return f"({found}) | {_EXPONENT}" if wide and not integers else found


_ANY_INTEGER = "(?:0|[1-9][0-9]*)"
_ANY = f"{_ANY_INTEGER}{_FRACTION}"


def _at_least(bound: Bound) -> str:
    if bound.value < 0:
        return f"(?:{_ANY}|-(?:{_below(-bound.value, bound.is_exclusive)}))"
    return f"(?:{_above(bound.value, bound.is_exclusive)})"


def _at_most(bound: Bound) -> str:
    if bound.value < 0:
        return f"-(?:{_above(-bound.value, bound.is_exclusive)})"
    negative = f"|-{_ANY}" if bound.value or not bound.is_exclusive else f"|-(?:{_above(Fraction(0), True)})"
    within = _below(bound.value, bound.is_exclusive)
    return f"(?:{within}{negative})" if within else f"(?:{negative[1:]})"


def _above(value: Fraction, exclusive: bool) -> str:
    """Match numbers without a sign that are not below a bound."""
    whole, digits = divmod(value, 1)[0], _digits(value % 1)
    text = str(whole)
    larger = [f"{prefix}[{low}-9][0-9]{{{rest}}}" for prefix, low, rest in _next(text, up=True)]
    larger.append(f"[1-9][0-9]{{{len(text)},{len(text) + _FURTHER}}}")
    found = [f"(?:{'|'.join(larger)}){_FRACTION}"]
    more = [rf"\.{prefix}[{low}-9][0-9]{{0,{_FURTHER}}}" for prefix, low, _ in _next(digits, up=True)]
    positive = rf"[0-9]{{0,{_FURTHER}}}[1-9][0-9]{{0,{_FURTHER}}}"
    if exclusive:
        more.append(rf"\.{digits}{positive}")
    else:
        more.append(rf"\.{digits}[0-9]{{0,{_FURTHER}}}" if digits else _FRACTION)
    return "|".join([*found, f"{text}(?:{'|'.join(more)})"])


def _below(value: Fraction, exclusive: bool) -> str:
    """Match numbers without a sign that are not above a bound; empty if there are none."""
    whole, digits = divmod(value, 1)[0], _digits(value % 1)
    text = str(whole)
    smaller = [
        f"{prefix}[{'1' if not prefix and rest else '0'}-{high}][0-9]{{{rest}}}"
        for prefix, high, rest in _next(text, up=False)
        if prefix or not rest or high > 0
    ]
    if len(text) > 1:
        smaller.append(f"(?:0|[1-9][0-9]{{0,{len(text) - 2}}})")
    found = [f"(?:{'|'.join(smaller)}){_FRACTION}"] if smaller else []
    less = [rf"\.{prefix}[0-{high}][0-9]{{0,{_FURTHER}}}" for prefix, high, _ in _next(digits, up=False)]
    less += [rf"\.{digits[:count]}" for count in range(1, len(digits))]
    if digits:
        less.append("")
    if not exclusive:
        less.append(rf"\.{digits}0{{0,{_FURTHER}}}" if digits else rf"(?:\.0{{1,{_FURTHER}}})?")
    return "|".join([*found, *([f"{text}(?:{'|'.join(less)})"] if less else [])])


def _next(digits: str, *, up: bool) -> Iterator[tuple[str, int, int]]:
    """Yield where digits of the same length first differ: those before, the bound of that one, how many follow."""
    for index, digit in enumerate(digits):
        bound = int(digit) + (1 if up else -1)
        if 0 <= bound <= 9:
            yield digits[:index], bound, len(digits) - index - 1


def _digits(fraction: Fraction) -> str:
    """Return the digits after the point."""
    found = []
    while fraction:
        fraction *= 10
        found.append(str(int(fraction)))
        fraction %= 1
    return "".join(found)
