"""Remove parameters with names that a call format cannot represent.

A name may contain characters that the parser treats as markup. Whether a name works is tried by writing a call and
parsing it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from plumbline.answer.dialects.spec.call_format import ArgumentSyntax, CallFormat, WrittenCall
from plumbline.answer.dialects.streams.cursor import Cursor, MalformedError
from plumbline.answer.dialects.streams.json_quotes import NO_MARKERS
from plumbline.answer.structured_output.grammar.errors import ConstraintError

__all__ = ["MARKUP_NAME", "with_readable_names"]

MARKUP_NAME = re.compile(r"[\w.$@-]+")
"""Names that every call format can represent."""
_VALUES = frozenset(("const", "default", "enum", "examples"))
_TOOL = "f"


def with_readable_names(call_format: CallFormat, schema: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the parameters without those optional ones that the call format cannot represent by their names.

    Raises:
        ConstraintError: a required name cannot be represented.
        RecursionError: the schema nests too deeply.
    """
    match call_format.argument_syntax:
        case ArgumentSyntax.JSON:  # JSON can represent every name.
            return schema
        case ArgumentSyntax.TAGS | ArgumentSyntax.TYPED_TAGS | ArgumentSyntax.PYTHON:
            return _without_lost(call_format, schema)  # Nested values are JSON.
    found = _readable(call_format, schema)
    assert isinstance(found, Mapping)
    return found


def _readable(call_format: CallFormat, schema: Any) -> Any:
    if isinstance(schema, list):
        return [_readable(call_format, one) for one in schema]
    if not isinstance(schema, Mapping):
        return schema
    return _without_lost(
        call_format,
        {key: value if key in _VALUES else _readable(call_format, value) for key, value in schema.items()},
    )


def _without_lost(call_format: CallFormat, schema: Mapping[str, Any]) -> Mapping[str, Any]:
    properties, required = schema.get("properties"), schema.get("required")
    lost = (
        [name for name in properties if not _reads(call_format, name)]
        if isinstance(properties, Mapping)
        else []
    )
    if not lost or not isinstance(properties, Mapping):
        return schema
    for name in lost:
        if isinstance(required, list) and name in required:
            raise ConstraintError(
                f"The name {name[:40]!r} of a required parameter cannot be represented in this model's call format: it "
                "would be parsed as markup. Use letters, digits and '_', or make it optional."
            )
    return {**schema, "properties": {name: one for name, one in properties.items() if name not in lost}}


def _reads(call_format: CallFormat, name: str) -> bool:
    """Return whether a call with this parameter is parsed back correctly."""
    if MARKUP_NAME.fullmatch(name):
        return True
    arguments = {name: 7}
    cursor, sink = Cursor(), _Sink({_TOOL: {"type": "object", "properties": {name: {"type": "integer"}}}})
    cursor.feed(call_format.write(WrittenCall(_TOOL, json.dumps(arguments))))
    cursor.closed = True
    try:
        for _ in call_format.read(cursor, sink):
            pass
        return cursor.pos == len(cursor.text) and json.loads("".join(sink.parts)) == arguments
    except (MalformedError, ValueError):
        return False


class _Sink:
    """Collect the arguments of the parsed call."""

    ends = NO_MARKERS
    marked = True
    loose = False

    def __init__(self, schemas: Mapping[str, Mapping[str, Any]]) -> None:
        self.schemas = schemas
        self.parts: list[str] = []

    def begin(self, name: str, call_id: str | None = None) -> None:
        if name != _TOOL:
            raise MalformedError("another tool")

    def arguments(self, text: str) -> None:
        self.parts.append(text)
