"""Read the arguments of a call that the token limit cut."""

from __future__ import annotations

import json
import re
from typing import Any, NoReturn

from plumbline.base.exact_number import exact_number

__all__ = ["parse_partial_object"]

_TOKEN = re.compile(
    r'\s*(?:(?P<string>"(?:[^"\\]|\\.)*")|(?P<scalar>(?:-?[0-9]+(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?|true|false|null)'
    r"(?![0-9.eE+-]))|(?P<mark>[{}\[\]:,]))"
)
_CLOSERS = {"{": "}", "[": "]"}


def parse_partial_object(text: str) -> dict[str, Any]:
    """Return the members of a JSON object that are whole; what breaks off is left out, as the official client does.

    Args:
        text: the object, or its beginning.
    """
    for candidate in (text, _closed(text)):
        try:
            found = json.loads(candidate, parse_float=exact_number, parse_constant=_refuse)
            return _encodable(found) if isinstance(found, dict) else {}
        except (ValueError, RecursionError):
            continue
    return {}  # It does not begin as an object.


def _encodable(value: Any) -> Any:
    """Replace the halves of surrogate pairs that a model wrote as escapes, which UTF-8 does not have."""
    match value:
        case str():
            return value.encode("utf-8", "replace").decode()
        case list():
            return [_encodable(item) for item in value]
        case dict():
            return {_encodable(key): _encodable(item) for key, item in value.items()}
        case _:
            return value


def _refuse(name: str) -> NoReturn:
    """Refuse the NaN and Infinity that Python's parser takes."""
    raise ValueError(name)


def _closed(text: str) -> str:
    """Return the text up to its last whole value, with what closes the objects and arrays around it."""
    end = position = 0
    stack: list[str] = []
    is_value = True
    while (token := _TOKEN.match(text, position)) is not None:
        position = token.end()
        mark = token["mark"]
        if mark == ":":
            is_value = True
            continue
        if mark == ",":
            is_value = stack[-1:] == ["["]
            continue
        if mark in ("{", "["):
            stack.append(mark)
            is_value = mark == "["
        elif mark is not None:
            if not stack:
                break
            stack.pop()
        elif not is_value:  # It is the key of a member whose value is yet to come.
            continue
        end = position
    return text[:end] + "".join(_CLOSERS[one] for one in reversed(stack))
