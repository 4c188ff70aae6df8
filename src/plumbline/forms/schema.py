"""JSON Schemas that can be promised: bounded, closed in themselves, and held to the letter.

The grammar engine refuses by itself what it does not implement. What it would hold too loosely is refused here, so that
every document it lets through is valid: nothing is weakened.

Documents are written compactly, or with one space after commas and colons, as models write them. White space anywhere
else is not needed by any reader, and a model that may write it sometimes writes nothing else until its tokens are used
up (SO-09).
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from plumbline.forms.errors import FormError

__all__ = ["MAX_DEPTH", "MAX_SIZE", "checked"]

MAX_SIZE = 256 * 1024
"""Characters of a schema as JSON."""

MAX_DEPTH = 64
"""How deep objects and arrays of a schema may nest."""

_LAYOUT = {
    "item_separator": ", ?",
    "key_separator": ": ?",
    "whitespace_flexible": False,
    # Without \\u there is one way only to write a name or a value. A second one would be a way around `properties`:
    # {"a": 1, "\\u0061": "x"} has the member "a" twice, and readers take the last.
    "json_allowed_escapes": 'nrbtf\\"',
}


def checked(schema: Mapping[str, Any] | bool) -> dict[str, Any]:
    """The schema as the grammar engine gets it.

    Raises:
        FormError: it is too large, refers to another document, or cannot be held to the letter.
    """
    if schema is False:
        raise FormError("The schema is false: nothing satisfies it.")
    if schema is True:
        return {"x-guidance": _LAYOUT}
    for depth, where, value in _walk(schema):
        if depth > MAX_DEPTH:
            raise FormError(f"The schema is nested more than {MAX_DEPTH} deep.")
        if isinstance(value, Mapping):
            _check_reference(where, value)
            _check_members(where, value)
        elif isinstance(value, str) and any(char in _UNWRITABLE for char in value):
            raise FormError(f"'{where}' has a control character that can only be written as a \\u escape.")
    if len(json.dumps(schema, ensure_ascii=False)) > MAX_SIZE:
        raise FormError(f"The schema has more than {MAX_SIZE} characters.")
    return {**schema, "x-guidance": _LAYOUT}


def _walk(schema: Any) -> Iterator[tuple[int, str, Any]]:
    """Every value of the schema with its depth and its JSON pointer, without recursion: it may be a hostile one."""
    left: list[tuple[int, str, Any]] = [(0, "#", schema)]
    while left:
        depth, where, value = left.pop()
        yield depth, where, value
        if isinstance(value, Mapping):
            left.extend((depth + 1, f"{where}/{name}", item) for name, item in value.items())
        elif isinstance(value, list):
            left.extend((depth + 1, f"{where}/{index}", item) for index, item in enumerate(value))


def _check_reference(where: str, schema: Mapping[str, Any]) -> None:
    reference = schema.get("$ref")
    if isinstance(reference, str) and not reference.startswith("#"):
        raise FormError(
            f"'{where}/$ref' refers to another document ({reference[:80]}); only '#…' is supported."
        )


def _check_members(where: str, schema: Mapping[str, Any]) -> None:
    """Names that no property lists are not kept apart by the grammar, so only named members can be counted."""
    least = schema.get("minProperties")
    if isinstance(least, int | float) and least > 1:
        required = schema.get("required")
        named = len(set(required)) if isinstance(required, list) else 0
        if least > named:
            raise FormError(f"'{where}/minProperties' cannot be held; list the members as 'required'.")


_UNWRITABLE = frozenset(map(chr, range(0x20))) - frozenset("\n\r\b\t\f")
