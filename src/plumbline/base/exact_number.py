"""Keep number literals of JSON that a double-precision number would change, such as `1e400`.

Integers need no such care: Python's have any size.
"""

from __future__ import annotations

import json
import re
import secrets
from collections.abc import Mapping
from decimal import Decimal, InvalidOperation
from typing import Any

__all__ = ["ExactNumber", "dumps", "exact_number"]

_MOST_DIGITS = 4000
"""Digits and powers of ten of a literal that is kept; Python converts integers of 4,300 digits at most."""
_EXPONENT = re.compile(r"[eE][+-]?0*([0-9]+)")


class ExactNumber(float):
    """A number that also has the text which the client wrote.

    Wherever the text does not matter it is the nearest double.
    """

    __slots__ = ("text",)
    text: str
    exist = False
    """Whether this process has ever met one, which is rare; `dumps` looks for them only then."""

    def __new__(cls, text: str) -> ExactNumber:
        """Return the number of a literal."""
        found = super().__new__(cls, text)
        found.text = text
        cls.exist = True
        return found

    def __reduce__(self) -> Any:
        """Pickle the text, for workers that render prompts."""
        return ExactNumber, (self.text,)

    def __repr__(self) -> str:
        return self.text

    __str__ = __repr__


def exact_number(text: str) -> float:
    """Return the number of a literal with a fraction or an exponent.

    >>> exact_number("1.50"), exact_number("1e400"), exact_number("9007199254740993.0")
    (1.5, 1e400, 9007199254740993.0)
    >>> type(exact_number("1.50")).__name__, type(exact_number("1e400")).__name__
    ('float', 'ExactNumber')
    """
    value = float(text)
    exponent = _EXPONENT.search(text)
    if len(text) > _MOST_DIGITS or (
        exponent is not None and len(exponent[1]) > 3 and int(exponent[1]) > _MOST_DIGITS
    ):
        return value
    try:
        return value if Decimal(text) == Decimal(repr(value)) else ExactNumber(text)
    except InvalidOperation:
        return value


def dumps(value: Any, encoder: json.JSONEncoder | None = None) -> str:
    """Return a value as JSON, with its literals; by default without escapes of other characters than ASCII's.

    >>> dumps({"é": [exact_number("1e400")]})
    '{"é": [1e400]}'
    """
    encoder = _ENCODER if encoder is None else encoder
    if not ExactNumber.exist:
        return encoder.encode(value)
    return _MARKED.sub(lambda found: found[1], encoder.encode(_marked(value)))


_ENCODER = json.JSONEncoder(ensure_ascii=False)
_MARK = f"{secrets.token_hex(16)}:"
"""Begins the texts that stand for exact numbers; no text of a client does, because nobody sees it."""
_MARKED = re.compile(rf'"{_MARK}([0-9.eE+-]+)"')


def _marked(value: Any) -> Any:
    """Return a value with marked texts for its exact numbers: `json` writes every kind of float as a double."""
    if isinstance(value, ExactNumber):
        return _MARK + value.text
    if isinstance(value, Mapping):
        return {name: _marked(item) for name, item in value.items()}
    return [_marked(item) for item in value] if isinstance(value, list | tuple) else value
