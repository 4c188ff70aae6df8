"""Names of parameters that a model's markup cannot carry: what is written of them is read as something else.

A tool that is not strict is promised names and types at least, so a name that its reader takes for other markup is no
part of the grammar. Whether that is so is tried, by the form's own writing and reading.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from plumbline.dialects.spec.call_format import ArgumentSyntax, Call, CallFormat
from plumbline.dialects.streams.cursor import Cursor, MalformedError
from plumbline.structured_output.grammar.errors import ConstraintError

__all__ = ["MARKUP_NAME", "with_readable_names"]

MARKUP_NAME = re.compile(r"[\w.$@-]+")
"""A name that every markup carries as it is."""
_VALUES = frozenset(("const", "default", "enum", "examples"))
_TOOL = "f"


def with_readable_names(call_format: CallFormat, schema: Mapping[str, Any]) -> Mapping[str, Any]:
    """Parameters without the optional ones whose names the form cannot carry.

    Raises:
        ConstraintError: one of these is required.
        RecursionError: the schema nests too deeply.
    """
    match call_format.argument_syntax:
        case ArgumentSyntax.JSON:  # JSON can carry every name.
            return schema
        case ArgumentSyntax.TAGS | ArgumentSyntax.TYPED_TAGS | ArgumentSyntax.PYTHON:
            return _without_lost(call_format, schema)  # Deeper inside, values are JSON.
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
                f"The name {name[:40]!r} of a required parameter cannot be written in the markup of this model's "
                "calls in: it would be read as something else. Use letters, digits and '_', or make it optional."
            )
    return {**schema, "properties": {name: one for name, one in properties.items() if name not in lost}}


def _reads(call_format: CallFormat, name: str) -> bool:
    """Whether a call with this parameter is read as it was written."""
    if MARKUP_NAME.fullmatch(name):
        return True
    arguments = {name: 7}
    cursor, sink = Cursor(), _Sink({_TOOL: {"type": "object", "properties": {name: {"type": "integer"}}}})
    cursor.feed(call_format.write(Call(_TOOL, json.dumps(arguments))))
    cursor.closed = True
    try:
        for _ in call_format.read(cursor, sink):
            pass
        return cursor.pos == len(cursor.text) and json.loads("".join(sink.parts)) == arguments
    except (MalformedError, ValueError):
        return False


class _Sink:
    """Takes the one call that is read back."""

    def __init__(self, schemas: Mapping[str, Mapping[str, Any]]) -> None:
        self.schemas = schemas
        self.parts: list[str] = []

    def begin(self, name: str, call_id: str | None = None) -> None:
        if name != _TOOL:
            raise MalformedError("another tool")

    def arguments(self, text: str) -> None:
        self.parts.append(text)
