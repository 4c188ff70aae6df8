"""Choose the format of a call after a marker, also where models write another one in the place of the family's."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from plumbline.answer.dialects.formats.json_calls import JsonCall
from plumbline.answer.dialects.formats.named_json import NamedJson
from plumbline.answer.dialects.formats.pythonic import PythonCall
from plumbline.answer.dialects.formats.tagged import TAGS
from plumbline.answer.dialects.spec.call_format import ArgumentSyntax, CallFormat, CallSink, declared
from plumbline.answer.dialects.streams.coercion import allowed_types, coerce, listed_texts, part_schema
from plumbline.answer.dialects.streams.cursor import (
    Cursor,
    EndOfOutputError,
    Finder,
    MalformedError,
    Steps,
    finder,
)
from plumbline.answer.dialects.streams.json_text import quoted

__all__ = ["WordsCall", "written_format"]

_JSON = JsonCall()
_NAMED = NamedJson(separator="")
_PYTHON = PythonCall()
_TAG_BEGINS = finder(*TAGS)
_NAME = re.compile(r"[-.\w]{1,256}")
_FIRST_WORD = re.compile(r"([-.\w]{1,256})\s{1,8}([-\w]{1,64})[ \t]{0,8}[=:]")
_BEGUN_WORD = re.compile(r"[-.\w]{0,256}\s{0,8}(?:[-\w]{1,64}[ \t]{0,8})?\Z")
_LONGEST = 32_768
"""Characters of a call in words, which are read when all have come, in a few milliseconds."""
_QUOTED = re.compile(r"""(["'])((?:[^\\]|\\.)*?)\1[,;]?""", re.DOTALL)


class WordsCall(CallFormat, frozen=True):
    """A call in words: `get city=Paris days=3`, or a line for each parameter. It is read, and never written.

    A value ends where another parameter of the tool begins, or with the markup.
    """

    def read(self, cursor: Cursor, call: CallSink) -> Steps[None]:
        """Read the call."""
        name = declared((yield from cursor.run(_NAME, 256)), call.schemas)
        call.begin(name)
        root = call.schemas[name]
        parts: list[str] = []
        size = 0

        def add(piece: str, _: int) -> None:
            nonlocal size
            size += len(piece)
            if size > _LONGEST:
                raise MalformedError(f"expected at most {_LONGEST} characters of words")
            parts.append(piece)

        marker = yield from cursor.until(call.ends, add)
        if marker is None and cursor.cut:
            raise EndOfOutputError("expected the end of the call")
        cursor.unread(marker or "")
        members: dict[str, str] = {}
        for key, text in _members("".join(parts), root["properties"]):
            if key in members:  # The first one counts. A model that repeats itself writes thousands.
                continue
            schema = part_schema(root, root, key)
            value = _QUOTED.fullmatch(text)
            members[key] = coerce(
                text.rstrip(",;") if value is None else value[2],
                allowed_types(schema, root),
                listed_texts(schema, root),
            )
        call.arguments(f"{{{', '.join(f'{quoted(key)}: {value}' for key, value in members.items())}}}")


def _members(text: str, names: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield the parameters in a text, each with its value, white space around it left out."""
    known = "|".join(map(re.escape, sorted(names, key=len, reverse=True)))
    first = re.compile(rf"[\s,;]*({known})[ \t]*[=:]\s*")
    following = re.compile(rf"[\s,;](?:{known})[ \t]*[=:]")
    pos = 0
    while (match := first.match(text, pos)) is not None:
        start = match.end()
        value = _QUOTED.match(text, start)
        whole = value is not None and not text[value.end() : value.end() + 1].strip()
        after = following.search(text, value.end() if value is not None and whole else start)
        pos = len(text) if after is None else after.start()
        yield match[1], text[start:pos].strip()


def _in_words(cursor: Cursor, schemas: Mapping[str, Mapping[str, Any]]) -> Steps[bool]:
    """Return whether the name of a tool and then that of one of its parameters stand here, with an equals sign."""
    while (match := _FIRST_WORD.match(cursor.text, cursor.pos)) is None:
        if cursor.closed or _BEGUN_WORD.match(cursor.text, cursor.pos) is None:
            return False
        yield
    known = schemas.get(declared(match[1], schemas), {}).get("properties")
    return isinstance(known, Mapping) and match[2] in known


_WORDS = WordsCall()


def written_format(
    cursor: Cursor, own: CallFormat, char: str, schemas: Mapping[str, Mapping[str, Any]], *, listed: bool
) -> Steps[CallFormat]:
    """Return the format of the call that begins at the cursor.

    Args:
        cursor: stands before the call.
        own: the format of the dialect.
        char: the first character of the call.
        schemas: the parameters of each tool that may be called, by name.
        listed: the call is in a list.
    """
    if char == "{" and not own.is_object:
        return _JSON
    begins = own.begins
    if char == "<" and (own.is_object or (begins and begins[0] == "<")):
        found = yield from cursor.look_for(_TAG_BEGINS)
        return own if found is None or begins.startswith(found) else TAGS[found]
    if not (char.isalnum() or char == "_"):
        return own
    if own.argument_syntax is not ArgumentSyntax.PYTHON:
        shapes = ["{}("]
        if own.is_object:
            shapes += ["{}{{", "{} {{", "{}\n{{"]
        found = yield from cursor.look_for(Finder(shape.format(name) for name in schemas for shape in shapes))
        if found is not None:
            return _PYTHON if found[-1] == "(" else _NAMED
    if not listed and (yield from _in_words(cursor, schemas)):
        return _WORDS
    return own
