"""Read and write calls that are JSON objects: name and arguments in one, or the name as a key."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from plumbline.answer.dialects.formats.grammar_parts import numbered
from plumbline.answer.dialects.spec.call_format import CallFormat, CallSink, Grammar, WrittenCall, declared
from plumbline.answer.dialects.streams.cursor import Cursor, Finder, MalformedError, Steps
from plumbline.answer.dialects.streams.json_quotes import CLOSING
from plumbline.answer.dialects.streams.json_stream import json_key, json_string, json_value, readable_object

__all__ = ["JsonCall", "KeyedJson", "buffered_arguments"]

_FURTHER_KEYS = ("type", "id", "index", "call_id")
_SCHEMA_BEGINS = {"type": '{"type":"object"', "properties": '{"properties":{', "$schema": '{"$schema":'}
"""What the parameters of a tool begin with by their first key, white space left out."""
_LOOK_AHEAD = 256
_WRAPPERS = ("function", "function_call", "tool_call", "tool")
"""Keys of an object with the name and the arguments, or of the name."""


class JsonCall(CallFormat, frozen=True, kw_only=True):
    """One JSON object: `{"name": "f", "arguments": {…}}`.

    The keys may come in any order. Arguments before the name are held back until the name is known. Other keys are
    skipped. Without arguments, the members after the name are these if all are parameters of the tool; otherwise the
    object is not a call. OpenAI's shape (`{"type": "function", "function": {…}}`) is read too.

    Where a text may stand as well, an object without arguments or the definition of a tool is none.
    """

    name_key: str = "name"
    arguments_key: str = "arguments"
    id_key: str | None = None
    """A key for the call's number in the answer, as a string. It is written first."""
    other_name_keys: tuple[str, ...] = ("name", "tool_name", "function_name", "action")
    other_arguments_keys: tuple[str, ...] = (
        "arguments",
        "parameters",
        "params",
        "args",
        "kwargs",
        "input",
        "tool_input",
        "action_input",
    )

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

    def write(self, call: WrittenCall) -> str:
        """Write the object with the spaces of Python's JSON, as most templates do."""
        first = f'{json.dumps(self.id_key)}: "{call.number}", ' if self.id_key else ""
        return (
            f"{{{first}{json.dumps(self.name_key)}: {json.dumps(call.name, ensure_ascii=False)}, "
            f"{json.dumps(self.arguments_key)}: {call.arguments}}}"
        )

    def grammar(self, grammar: Grammar, name: str, schema: Mapping[str, Any]) -> str:
        """Return the object with this name and arguments of the schema."""
        before, _, after = self.write(WrittenCall(name, "\0")).partition("\0")
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
        "_described",
        "_flat",
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
        self._described = False
        self._other: str | None = None
        """A key that no call has."""
        self._flat: dict[str, str] = {}
        """The JSON of members that have the names of parameters."""
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
            if self._call.loose and declared(self.name, self._call.schemas) not in self._call.schemas:
                raise MalformedError(f"the request has no tool {self.name[:40]!r}")
            self._announce_held()
        elif key in self._arguments and self._held is None and not self._begun:
            yield from self._read_arguments(cursor, char)
        elif self.name is None and self._held is None and key not in self._ignored:
            if char != "{" or not (self._keyed or key in self._call.schemas):
                raise MalformedError(f"a call cannot have the key {key[:40]!r}")
            self.name = key
            yield from self._read_arguments(cursor, char)
        else:
            value: list[str] = []
            yield from json_value(cursor, value.append, markers=self._call.ends, nested=True)
            self._keep(key, "".join(value))

    def _keep(self, key: str, value: str) -> None:
        """Keep a member that may be an argument."""
        if self._begun or key in self._ignored:
            return
        if key in self._known():
            self._flat.setdefault(key, value)
        elif key not in self.keys:
            self._other = key
            self._described = self._described or key == "description"

    def _known(self) -> Mapping[str, Any]:
        """Return the parameters of the tool."""
        schema = self._call.schemas.get(declared(self.name or "", self._call.schemas), {})
        known = schema.get("properties")
        return known if isinstance(known, Mapping) else {}

    def _read_arguments(self, cursor: Cursor, char: str) -> Steps[None]:
        if self._call.loose and (self._described or (yield from self._is_schema(cursor))):
            raise MalformedError("the definition of a tool is not a call")
        if self.name is not None and char == "{":
            self._begin(self.name)
            yield from json_value(cursor, self._call.arguments, markers=self._call.ends, nested=True)
            self.complete = True
            return
        self._held = yield from buffered_arguments(cursor, self._call.ends, nested=True)
        self._announce_held()

    def _is_schema(self, cursor: Cursor) -> Steps[bool]:
        """Return whether a schema of parameters stands here, and not arguments that begin with the same key."""
        known = self._known()
        begins = [begin for key, begin in _SCHEMA_BEGINS.items() if key not in known]
        while True:
            rest = cursor.text[cursor.pos : cursor.pos + _LOOK_AHEAD]
            text = "".join(rest.split())
            if text.startswith((*begins,)):
                return True
            if cursor.closed or len(rest) == _LOOK_AHEAD or not any(b.startswith(text) for b in begins):
                return False
            yield

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
        own = self._own and not self._call.loose
        if not (own or self._call.marked):  # Any object may have such a key: it takes arguments.
            raise MalformedError("the call has neither arguments nor the key of a name")
        if self._other is not None:
            raise MalformedError(f"the call has no arguments, but the unknown key {self._other[:40]!r}")
        self._begin(self.name)
        members = (f"{json.dumps(key, ensure_ascii=False)}: {value}" for key, value in self._flat.items())
        self._call.arguments(f"{{{', '.join(members)}}}")


def _key(cursor: Cursor) -> Steps[str]:
    """Read a key, its colon and the white space around it."""
    key = yield from json_key(cursor)
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

    def write(self, call: WrittenCall) -> str:
        """Write the object."""
        return f"{{{json.dumps(call.name, ensure_ascii=False)}: {call.arguments}}}"

    def grammar(self, grammar: Grammar, name: str, schema: Mapping[str, Any]) -> str:
        """Return the object with this name and arguments of the schema."""
        before = grammar.literal(f"{{{json.dumps(name, ensure_ascii=False)}: ")
        return grammar.sequence([before, grammar.json(schema), grammar.literal("}")])


def buffered_arguments(cursor: Cursor, ends: Finder, *, nested: bool = False) -> Steps[str]:
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
        text = "{}" if value.strip() in ("", "null", "None") else readable_object(value)
        if not text:
            raise MalformedError("the arguments are not a JSON object")
        return text
    if value is None:
        return "{}"
    if not isinstance(value, dict):
        raise MalformedError("the arguments are not a JSON object")
    return text
