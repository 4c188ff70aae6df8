"""Read and write calls in JSON: name and arguments in one object, a name before the arguments, or the name as a key."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from plumbline.dialects.spec.call_format import Call, CallFormat, CallSink, Grammar
from plumbline.dialects.streams.cursor import Cursor, Finder, MalformedError, Steps, finder
from plumbline.dialects.streams.json_quotes import CLOSING
from plumbline.dialects.streams.json_stream import json_string, json_value, readable_object

__all__ = ["JsonCall", "KeyedJson", "NamedJson", "numbered"]

_FURTHER_KEYS = ("type", "id", "index", "call_id")
_OTHER_ID = re.compile(r"functions[._](.+)[_:][0-9]+")
_WRAPPERS = ("function", "function_call", "tool_call", "tool")
"""Keys of an object with the name and the arguments, or of the name."""
_NAME = re.compile(r"[^\s\[\](){}<>|\"',;=｜]+")


class JsonCall(CallFormat, frozen=True, kw_only=True):
    """One JSON object: `{"name": "f", "arguments": {…}}`.

    The keys may come in any order. Arguments before the name are held back until the name is known. Other keys are
    skipped, but an object with a name and other keys instead of arguments is not a call. OpenAI's shape
    (`{"type": "function", "function": {…}}`) is read too.
    """

    name_key: str = "name"
    arguments_key: str = "arguments"
    id_key: str | None = None
    """A key for the call's number in the answer, as a string. It is written first."""
    other_name_keys: tuple[str, ...] = ("name", "tool_name")
    other_arguments_keys: tuple[str, ...] = ("arguments", "parameters", "args", "input")

    @property
    def is_object(self) -> bool:
        """Whether a call is a JSON object."""
        return True

    @property
    def begins(self) -> str:
        """What every call begins with."""
        return "{"

    def read(self, cursor: Cursor, call: CallSink) -> Steps[None]:
        """Read the object."""
        yield from _members(cursor, _CallMembers(self, call), call.ends)

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


def _members(cursor: Cursor, found: _CallMembers, ends: Finder) -> Steps[None]:
    """Read the object of a call. Commas and braces too many are skipped, and braces may be missing after arguments."""
    depth = 0
    yield from cursor.expect("{")
    while True:
        char = yield from _next_key(cursor)
        if not char or (char in ends.starts and (yield from cursor.look_for(ends)) is not None):
            if not found.complete:
                cursor.fail("expected a key or '}'")
            return
        if char == "}":
            cursor.pos += 1
            depth -= 1
            if depth < 0:
                break
        elif found.complete and (char in "[{]" or char not in CLOSING):
            return  # Only braces are missing after complete arguments.
        elif char in "{[]()":
            cursor.pos += 1
        else:
            key = yield from _key(cursor)
            char = yield from cursor.peek()
            if key in _WRAPPERS and char == "{" and found.name is None and key not in found.keys:
                cursor.pos += 1
                depth += 1
            else:
                yield from found.member(cursor, key, char)
    found.end()


def _next_key(cursor: Cursor) -> Steps[str]:
    """Skip white space and commas. Returns the next character."""
    while True:
        if cursor.has_space():
            yield from cursor.space()
        if not cursor.skip(","):
            return (yield from cursor.peek())


class _CallMembers:
    """The members of a call's object so far. Arguments before the name are held back.

    Args:
        keys: the keys of names and arguments.
        call: takes the call.
        keyed: the name of the tool is the key of the arguments. It may be in any case, if the request has that tool.

    Attributes:
        name: the name of the tool, once it has come.
        keys: the keys of names and arguments.
        complete: the call is announced and its arguments are complete.
    """

    __slots__ = (
        "_arguments",
        "_begun",
        "_call",
        "_held",
        "_ignored",
        "_keyed",
        "_names",
        "_other",
        "_own",
        "complete",
        "keys",
        "name",
    )

    def __init__(self, keys: JsonCall, call: CallSink, *, keyed: bool = False) -> None:
        self._call = call
        self._keyed = keyed
        self._names = (keys.name_key, *keys.other_name_keys)
        self._arguments = (keys.arguments_key, *keys.other_arguments_keys)
        self.keys = (*self._names, *self._arguments)
        self._ignored = (*_FURTHER_KEYS, keys.id_key)
        self.name: str | None = None
        self._held: str | None = None
        self._begun = False
        self.complete = False
        self._other: str | None = None
        """A key that no call has."""
        self._own = False
        """The name came with the key that the format writes."""

    def member(self, cursor: Cursor, key: str, char: str) -> Steps[None]:
        """Read the value of a key; `char` is its first character.

        Raises:
            MalformedError: the object is not a call.
        """
        if not char:
            cursor.fail("expected a value")
        is_text = char in CLOSING or char.isalpha()
        if self.name is None and is_text and char != "n" and (key in self._names or key in _WRAPPERS):
            self.name = yield from json_string(cursor)
            self._own = key == self._names[0]
            self._announce_held()
        elif key in self._arguments and self._held is None and not self._begun:
            yield from self._read_arguments(cursor, char)
        elif self.name is None and self._held is None and key not in self._ignored:
            if char != "{" or not (self._keyed or key in self._call.schemas):
                raise MalformedError(f"a call cannot have the key {key[:40]!r}")
            self.name = key
            yield from self._read_arguments(cursor, char)
        else:
            if key not in self._ignored and key not in self.keys:
                self._other = key
            yield from json_value(cursor, _ignore, markers=self._call.ends, nested=True)

    def _read_arguments(self, cursor: Cursor, char: str) -> Steps[None]:
        if self.name is not None and char == "{":
            self._begin(self.name)
            yield from json_value(cursor, self._call.arguments, markers=self._call.ends, nested=True)
            self.complete = True
            return
        self._held = yield from _buffered_arguments(cursor, self._call.ends, nested=True)
        self._announce_held()

    def _announce_held(self) -> None:
        """Announce the call with the arguments that were held back, if both its name and they have come."""
        if self.name is not None and self._held is not None:
            self._begin(self.name)
            self._call.arguments(self._held)
            self.complete = True

    def _begin(self, name: str) -> None:
        self._call.begin(name)
        self._begun = True

    def end(self) -> None:
        """Announce a call without arguments.

        Raises:
            MalformedError: the object is not a call.
        """
        if self.name is None:
            raise MalformedError("a call without a name")
        if self._begun:
            return
        if not (
            self._own or self._call.marked
        ):  # Any object may have such a key, so it takes arguments to be a call.
            raise MalformedError("the call has neither arguments nor the key of a name")
        if self._other is not None:
            raise MalformedError(f"the call has no arguments, but the unknown key {self._other[:40]!r}")
        self._begin(self.name)
        self._call.arguments("{}")


def _key(cursor: Cursor) -> Steps[str]:
    """Read a key, its colon and the white space around it."""
    key = yield from json_string(cursor)
    if cursor.has_space():
        yield from cursor.space()
    if not cursor.skip(":") and not cursor.skip("="):
        cursor.fail("expected ':'")
    if cursor.has_space():
        yield from cursor.space()
    return key


class KeyedJson(CallFormat, frozen=True):
    """An object with one key, the name of the tool: `{"f": {…}}`."""

    @property
    def is_object(self) -> bool:
        """Whether a call is a JSON object."""
        return True

    @property
    def begins(self) -> str:
        """What every call begins with."""
        return "{"

    def read(self, cursor: Cursor, call: CallSink) -> Steps[None]:
        """Read the object."""
        yield from _members(cursor, _CallMembers(JsonCall(), call, keyed=True), call.ends)

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
    def ends(self) -> tuple[str, ...]:
        """What ends a call."""
        return (self.suffix.strip(),) if self.suffix else ()

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
        name, call_id = yield from self._name(cursor, call)
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
        char = yield from cursor.peek()
        if char == "{":
            call.begin(name, call_id or None)
            yield from json_value(cursor, call.arguments, markers=self._ends(call))
        elif char in CLOSING:
            held = yield from _buffered_arguments(cursor, self._ends(call))
            call.begin(name, call_id or None)
            call.arguments(held)
        else:
            yield from self._without(cursor, call)
            call.begin(name, call_id or None)
            call.arguments("{}")
        if self.suffix:
            if cursor.has_space():
                yield from cursor.space()
            yield from cursor.take(self.suffix.strip())

    def _name(self, cursor: Cursor, call: CallSink) -> Steps[tuple[str, str | None]]:
        """Read the name of the tool, and the id before it, if there is one."""
        name = yield from cursor.run(_NAME, 512)
        call_id: str | None = None
        if self.after_id and (yield from cursor.take(self.after_id)):
            call_id, name = name, (yield from cursor.run(_NAME, 512))
        if not name:
            cursor.fail("expected the name of a tool")
        if self.numbered:
            other = _OTHER_ID.fullmatch(name)  # As clients hand ids back that they clean up.
            name = re.sub(r"^functions\.|:[0-9]+$", "", name)
            if other is not None and name not in call.schemas and other[1] in call.schemas:
                name = other[1]
        return name, call_id

    def _ends(self, call: CallSink) -> Finder:
        """Return what may follow the arguments."""
        return finder(*call.ends.markers, self.suffix.strip()) if self.suffix else call.ends

    def _without(self, cursor: Cursor, call: CallSink) -> Steps[None]:
        """Check that a call without arguments ends here: at the end of the answer, or with a marker.

        Raises:
            MalformedError: other text follows the name.
        """
        ended = not (yield from cursor.peek()) and not cursor.cut
        if not call.marked or not (ended or (yield from cursor.look_for(self._ends(call))) is not None):
            cursor.fail("expected '{'")

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
    """Match a text with any number in the place of the 0 after `before`."""
    start, _, rest = text.partition(before + "0")
    return [grammar.literal(start + before), grammar.regex("[0-9]{1,3}"), grammar.literal(rest)]


def _ignore(_: str) -> None:
    """Drop a piece."""


def _buffered_arguments(cursor: Cursor, ends: Finder, *, nested: bool = False) -> Steps[str]:
    """Read arguments that cannot be passed on yet. Some models write JSON in a string, or null for no arguments.

    Raises:
        MalformedError: the arguments are not an object.
    """
    parts: list[str] = []
    yield from json_value(cursor, parts.append, markers=ends, nested=nested)
    text = "".join(parts)
    value = json.loads(text)
    if isinstance(value, list) and len(value) <= 1:
        value = value[0] if value else None
        text = json.dumps(value, ensure_ascii=False)
    if isinstance(value, str):
        text = readable_object(value) if value.strip() else "{}"
        if not text:
            raise MalformedError("the arguments are not a JSON object")
        return text
    if value is None:
        return "{}"
    if not isinstance(value, dict):
        raise MalformedError("the arguments are not a JSON object")
    return text
