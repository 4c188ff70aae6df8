"""Write values of answers in messages: as JSON, which readers of any language know."""

from __future__ import annotations

import json
from typing import Any

__all__ = ["as_json"]


def as_json(value: Any) -> str:
    """Return a value as JSON in one line; bytes are written as text.

    >>> as_json({"role": None, "tools": [True, "é"]})
    '{"role": null, "tools": [true, "é"]}'
    """
    return json.dumps(_plain(value), ensure_ascii=False, default=_plain)


def _plain(value: Any) -> Any:
    match value:
        case bytes() | bytearray():
            return value.decode("utf-8", "backslashreplace")
        case set() | frozenset():
            return sorted(value, key=str)
        case None | str() | bool() | int() | float() | list() | tuple() | dict():
            return value
    return str(value)
