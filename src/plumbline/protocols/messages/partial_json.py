"""Read the arguments of a call that the token limit cut."""

from __future__ import annotations

import re
from typing import Any

import msgspec

__all__ = ["begun_object"]

_TOKEN = re.compile(
    r'\s*(?:(?P<string>"(?:[^"\\]|\\.)*")|(?P<scalar>(?:-?[0-9]+(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?|true|false|null)'
    r"(?![0-9.eE+-]))|(?P<mark>[{}\[\]:,]))"
)
_CLOSERS = {"{": "}", "[": "]"}


def begun_object(text: str) -> dict[str, Any]:
    """Return the members of a JSON object that are whole; what breaks off is left out, as the official client does.

    Args:
        text: the object, or its beginning.
    """
    try:
        return _object(text)
    except msgspec.DecodeError:
        pass
    try:
        return _object(_closed(text))
    except msgspec.DecodeError:  # It does not begin as an object.
        return {}


def _object(text: str) -> dict[str, Any]:
    # A surrogate that a model wrote as an escape is no error.
    found: dict[str, Any] = msgspec.json.decode(text.encode("utf-8", "replace"), type=dict[str, Any])
    return found


def _closed(text: str) -> str:
    """Return the text up to its last whole value, with what closes the objects and arrays around it."""
    end, closers = 0, ""
    stack: list[str] = []
    is_value = True
    position = 0
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
        end, closers = position, "".join(_CLOSERS[one] for one in reversed(stack))
    return text[:end] + closers
