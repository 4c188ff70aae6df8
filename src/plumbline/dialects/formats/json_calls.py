"""Read and write calls in JSON: name and arguments in one object, a name before the arguments, or the name as a key."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from plumbline.dialects.spec.call_format import Call, CallFormat, CallSink, Grammar
from plumbline.dialects.streams.cursor import Cursor, MalformedError, Steps
from plumbline.dialects.streams.json_stream import json_string, json_value

__all__ = ["JsonCall", "KeyedJson", "NamedJson", "numbered"]

_FURTHER_KEYS = ("type", "id", "index")
_NAME = re.compile(r"[^\s\[\](){}<>|\"',;=｜]+")


class JsonCall(CallFormat, frozen=True, kw_only=True):
    """One JSON object: `{"name": "f", "arguments": {…}}`.

    The keys may come in any order. Arguments before the name are held back until the name is known. Other keys are
    skipped, but an object with a name and other keys instead of arguments is no call. OpenAI's shape
    (`{"type": "function", "function": {…}}`) is read too.
    """

    name_key: str = "name"
    arguments_key: str = "arguments"
    id_key: str | None = None
    """A key for the call's number in the answer, as a string. It is written first."""
    other_name_keys: tuple[str, ...] = ()
    other_arguments_keys: tuple[str, ...] = ("arguments", "parameters")

    def read(self, cursor: Cursor, call: CallSink) -> Steps[None]:
        """Read the object."""
        names = (self.name_key, *self.other_name_keys)
        argument_keys = (self.arguments_key, *self.other_arguments_keys)
        name: str | None = None
        held: list[str] | None = None
        begun = complete = False
        other: str | None = None
        depth = 0
        yield from cursor.expect("{")
        try:
            while True:
                if cursor.has_space():
                    yield from cursor.space()
                if cursor.skip("}"):
                    depth -= 1
                    if depth < 0:
                        break
                else:
                    key = yield from json_string(cursor)
                    if cursor.has_space():
                        yield from cursor.space()
                    if not cursor.skip(":"):
                        yield from cursor.expect(":")
                    if cursor.has_space():
                        yield from cursor.space()
                    char = yield from cursor.peek()
                    if key in names and name is None:
                        name = yield from json_string(cursor)
                        if held is not None:
                            call.begin(name)
                            begun = complete = True
                            call.arguments("".join(held))
                    elif key in argument_keys and held is None and not begun:
                        held = []
                        if name is not None and char == "{":
                            call.begin(name)
                            begun = True
                            yield from json_value(cursor, call.arguments)
                        else:
                            yield from _buffered_arguments(cursor, held)
                            if name is not None:
                                call.begin(name)
                                begun = True
                                call.arguments("".join(held))
                        complete = begun
                    elif key == "function" and char == "{" and name is None:
                        cursor.pos += 1
                        depth += 1
                        continue
                    elif name is None and held is None and key not in (*_FURTHER_KEYS, self.id_key):
                        raise MalformedError(f"{key[:40]!r} is no key of a call")
                    else:
                        if key not in (*_FURTHER_KEYS, self.id_key, *names, *argument_keys):
                            other = key
                        yield from json_value(cursor, _ignore)
                if cursor.has_space():
                    yield from cursor.space()
                if not cursor.skip(",") and (yield from cursor.peek()) != "}":
                    cursor.fail("expected ',' or '}'")
        except MalformedError:
            if not complete:
                raise
            return  # Only braces are missing behind complete arguments, so the call is whole.
        if name is None:
            raise MalformedError("a call without a name")
        if not begun:
            if other is not None:
                raise MalformedError(f"there are no arguments, and {other[:40]!r} is no key of a call")
            call.begin(name)
            call.arguments("{}")

    def write(self, call: Call) -> str:
        """Write the object with the spaces of Python's JSON, as most templates do."""
        first = f'{json.dumps(self.id_key)}: "{call.number}", ' if self.id_key else ""
        return (
            f"{{{first}{json.dumps(self.name_key)}: {json.dumps(call.name, ensure_ascii=False)}, "
            f"{json.dumps(self.arguments_key)}: {call.arguments}}}"
        )

    def grammar(self, grammar: Grammar, name: str, schema: Mapping[str, Any]) -> str:
        """Return the object with this name and arguments of the schema."""
        before, _, after = self.write(Call(name, "\0")).partition("\0")
        start = [grammar.literal(before)]
        if self.id_key:
            start = numbered(grammar, before, f'{json.dumps(self.id_key)}: "')
        return grammar.sequence([*start, grammar.json(schema), grammar.literal(after)])


class KeyedJson(CallFormat, frozen=True):
    """An object with one key, the name of the tool: `{"f": {…}}`."""

    def read(self, cursor: Cursor, call: CallSink) -> Steps[None]:
        """Read the object."""
        yield from cursor.expect("{")
        if cursor.has_space():
            yield from cursor.space()
        name = yield from json_string(cursor)
        if cursor.has_space():
            yield from cursor.space()
        yield from cursor.expect(":")
        if cursor.has_space():
            yield from cursor.space()
        if (yield from cursor.peek()) != "{":
            cursor.fail("expected '{'")
        call.begin(name)
        yield from json_value(cursor, call.arguments)
        if cursor.has_space():
            yield from cursor.space()
        yield from cursor.take("}")

    def write(self, call: Call) -> str:
        """Write the object."""
        return f"{{{json.dumps(call.name, ensure_ascii=False)}: {call.arguments}}}"

    def grammar(self, grammar: Grammar, name: str, schema: Mapping[str, Any]) -> str:
        """Return the object with this name and arguments of the schema."""
        before = grammar.literal(f"{{{json.dumps(name, ensure_ascii=False)}: ")
        return grammar.sequence([before, grammar.json(schema), grammar.literal("}")])


class NamedJson(CallFormat, frozen=True, kw_only=True):
    """A name before the arguments: `PREFIX name SEPARATOR {…} SUFFIX`."""

    separator: str
    """Between name and arguments, maybe with white space around it."""
    prefix: str = ""
    suffix: str = ""
    """After the arguments; it may be missing."""
    numbered: bool = False
    """The name is written as an id, `functions.name:0`. Either part may be missing when it is read."""
    id_marker: str | None = None
    """This text and an id may stand between the name and the separator."""
    after_id: str = ""
    """An id of ten letters and digits stands before the name, and this text between them. Both may be missing."""

    @property
    def markers(self) -> tuple[str, ...]:
        """Texts inside a call that may be control tokens."""
        return tuple(
            text for text in (self.separator, self.prefix, self.suffix, self.id_marker, self.after_id) if text
        )

    def read(self, cursor: Cursor, call: CallSink) -> Steps[None]:
        """Read the call."""
        if self.prefix:
            yield from cursor.expect(self.prefix)
            if cursor.has_space():
                yield from cursor.space()
        name = yield from cursor.run(_NAME, 512)
        call_id: str | None = None
        if self.after_id and (yield from cursor.take(self.after_id)):
            call_id, name = name, (yield from cursor.run(_NAME, 512))
        if not name:
            cursor.fail("expected the name of a tool")
        if self.numbered:
            name = re.sub(r"^functions\.|:[0-9]+$", "", name)
        if cursor.has_space():
            yield from cursor.space()
        if self.id_marker is not None and (yield from cursor.take(self.id_marker)):
            call_id = yield from cursor.run(_NAME, 512)
            if cursor.has_space():
                yield from cursor.space()
        separator = self.separator.strip()
        if separator:
            yield from cursor.take(separator)  # Some models leave it out.
            yield from cursor.space()
        if (yield from cursor.peek()) != "{":
            cursor.fail("expected '{'")
        call.begin(name, call_id or None)
        yield from json_value(cursor, call.arguments)
        if self.suffix:
            if cursor.has_space():
                yield from cursor.space()
            yield from cursor.take(self.suffix.strip())

    def write(self, call: Call) -> str:
        """Write the call."""
        name = f"functions.{call.name}:{call.number}" if self.numbered else call.name
        before = f"call{call.number:06}{self.after_id}" if self.after_id else ""
        return f"{self.prefix}{before}{name}{self.separator}{call.arguments}{self.suffix}"

    def grammar(self, grammar: Grammar, name: str, schema: Mapping[str, Any]) -> str:
        """Return the call with this name and arguments of the schema."""
        before, _, after = self.write(Call(name, "\0")).partition("\0")
        start = [grammar.literal(before)]
        if self.numbered:
            start = numbered(grammar, before, f"{self.prefix}functions.{name}:")
        elif self.after_id:
            given, _, rest = before.removeprefix(self.prefix).partition(self.after_id)
            some_id = grammar.regex(f"[a-z0-9]{{{len(given)}}}")
            start = [
                *([grammar.literal(self.prefix)] if self.prefix else []),
                some_id,
                grammar.literal(self.after_id + rest),
            ]
        after_it = [grammar.literal(after)] if after else []
        return grammar.sequence([*start, grammar.json(schema), *after_it])


def numbered(grammar: Grammar, text: str, before: str) -> list[str]:
    """Match a text with any number in the place of the 0 behind `before`."""
    start, _, rest = text.partition(before + "0")
    return [grammar.literal(start + before), grammar.regex("[0-9]{1,3}"), grammar.literal(rest)]


def _ignore(_: str) -> None:
    """Drop a piece."""


def _buffered_arguments(cursor: Cursor, held: list[str]) -> Steps[None]:
    """Read arguments that cannot be passed on yet. Some models write JSON in a string, or null for none.

    Raises:
        MalformedError: the arguments are no object.
    """
    parts: list[str] = []
    yield from json_value(cursor, parts.append)
    text = "".join(parts)
    value = json.loads(text)
    if isinstance(value, str):
        text = value.strip() or "{}"
        try:
            value = json.loads(text)
        except ValueError as error:
            raise MalformedError("the arguments are no JSON object") from error
    if value is None:
        text, value = "{}", {}
    if not isinstance(value, dict):
        raise MalformedError("the arguments are no JSON object")
    held.append(text)
