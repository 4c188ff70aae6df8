"""Choose the format of a call after a marker, also where models write that of another family in its place."""

from __future__ import annotations

from collections.abc import Collection

from plumbline.answer.dialects.formats.json_calls import JsonCall
from plumbline.answer.dialects.formats.named_json import NamedJson
from plumbline.answer.dialects.formats.pythonic import PythonCall
from plumbline.answer.dialects.formats.tagged import TAGS
from plumbline.answer.dialects.spec.call_format import ArgumentSyntax, CallFormat
from plumbline.answer.dialects.streams.cursor import Cursor, Finder, Steps, finder

__all__ = ["written_format"]

_JSON = JsonCall()
_NAMED = NamedJson(separator="")
_PYTHON = PythonCall()
_TAG_BEGINS = finder(*TAGS)


def written_format(cursor: Cursor, own: CallFormat, char: str, tools: Collection[str]) -> Steps[CallFormat]:
    """Return the format of the call that begins at the cursor.

    Args:
        cursor: stands before the call.
        own: the format of the dialect.
        char: the first character of the call.
        tools: the names of the tools that may be called.
    """
    if char == "{" and not own.is_object:
        return _JSON
    begins = own.begins
    if char == "<" and (own.is_object or (begins and begins[0] == "<")):
        found = yield from cursor.look_for(_TAG_BEGINS)
        return own if found is None or begins.startswith(found) else TAGS[found]
    if own.argument_syntax is not ArgumentSyntax.PYTHON and (char.isalnum() or char == "_"):
        shapes = ["{}("]
        if own.is_object:
            shapes += ["{}{{", "{} {{", "{}\n{{"]
        found = yield from cursor.look_for(Finder(shape.format(name) for name in tools for shape in shapes))
        if found is not None:
            return _PYTHON if found[-1] == "(" else _NAMED
    return own
