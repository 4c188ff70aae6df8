"""Calls written in tags, one for each parameter, with values that carry no types."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

import msgspec

from plumbline.dialects.api import Call, CallSink, Grammar
from plumbline.dialects.coercion import allowed_types, coerce
from plumbline.dialects.cursor import Cursor, EndOfOutputError, Finder, Steps

__all__ = ["TaggedCall"]

_NAME = re.compile(r"[^\s\[\](){}<>\"']+")
_STRING = frozenset(("string",))


class TaggedCall(msgspec.Struct, frozen=True, kw_only=True):
    """`OPEN name OPENED  (KEY key KEYED value END)…  CLOSE`, for example

        <function=get_weather>
        <parameter=city>
        Paris
        </parameter>
        </function>

    String values are passed on while they are written. A value ends at the first `end`, which no format can escape.
    """

    open: str
    """Before the name; may be empty."""
    opened: str = ""
    """After the name; empty if the name ends with its line or with the first tag."""
    key: str
    """Before the name of a parameter."""
    key_end: str
    """After it."""
    value_open: str = ""
    """Before the value, if that has a tag of its own."""
    value_gap: str = ""
    """White space that is written before `value_open`."""
    end: str
    """After the value."""
    close: str = ""
    newline: str = ""
    """Written after `opened` and after each `end`."""
    wrapped: bool = False
    """One line feed at each side of a value belongs to the markup."""
    typed: str | None = None
    """An attribute between key and value that says whether the value is a string: ` string="true"`."""

    @property
    def markers(self) -> tuple[str, ...]:
        """Texts inside a call that may be control tokens."""
        texts = (
            self.open,
            self.opened,
            self.key,
            self.key_end,
            self.value_open,
            self.end,
            self.close,
        )
        return tuple(text for text in texts if text)

    def read(self, cursor: Cursor, call: CallSink) -> Steps[None]:
        """Read the call."""
        if self.open:
            yield from cursor.expect(self.open)
        name = yield from cursor.run(_NAME, 256)
        if not name:
            cursor.fail("expected the name of a tool")
        if self.opened:
            yield from cursor.expect(self.opened)
        else:
            yield from cursor.space()
            # A name is a name only if what may follow it follows: else this is prose.
            if not (yield from cursor.take_ahead(self.key)):
                ending = self.close and (yield from cursor.take_ahead(self.close))
                if not ending and (yield from cursor.peek()) not in ("", "<"):
                    cursor.fail(f"expected {self.key!r}")
        call.begin(name)
        root = call.schemas.get(name, {})
        properties = root.get("properties")
        comma = "{"
        keys: set[str] = set()
        while True:
            yield from cursor.space()
            if not (yield from cursor.take(self.key)):
                break
            key, is_string = yield from self._key(cursor)
            types = allowed_types(properties.get(key) if isinstance(properties, Mapping) else None, root)
            if is_string is not None:
                types = _STRING if is_string else types - _STRING or frozenset(("object",))
            if key in keys:
                yield from cursor.collect(Finder((self.end,)))
                continue
            keys.add(key)
            call.arguments(f"{comma}{json.dumps(key, ensure_ascii=False)}: ")
            comma = ", "
            yield from self._value(cursor, call, types, loose=is_string is False)
        call.arguments("{}" if comma == "{" else "}")
        if self.close:
            yield from cursor.take(self.close)

    def write(self, call: Call) -> str:
        """The call; strings as they are, everything else as JSON."""
        parts = [self.open, call.name, self.opened, self.newline]
        for key, value in json.loads(call.arguments).items():
            text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
            line = "\n" if self.wrapped else ""
            attribute = "" if self.typed is None else self._attribute(isinstance(value, str))
            parts += [self.key, key, attribute, self._keyed, line, text, line, self.end, self.newline]
        return "".join([*parts, self.close])

    def grammar(self, grammar: Grammar, name: str, schema: Mapping[str, Any]) -> str:
        """The call of this tool: its parameters in the order of the schema, each value under its own schema."""
        properties: Mapping[str, Any] = schema.get("properties") or {}
        required = schema.get("required") or ()
        line = "\n" if self.wrapped else ""
        parts = [grammar.literal(self.open + name + self.opened + self.newline)]
        for key, value in properties.items():
            types = allowed_types(value, schema)
            is_text = types == _STRING
            attribute = "" if self.typed is None else self._attribute(is_text)
            before = grammar.literal(self.key + key + attribute + self._keyed + line)
            after = line + self.end
            if is_text and isinstance(value, Mapping) and isinstance(value.get("enum"), list):
                texts = [grammar.literal(str(option) + after) for option in value["enum"]]
                body = grammar.choice(texts)
            elif is_text:
                body = grammar.until(after)
            else:
                defined = {name: schema[name] for name in ("$defs", "definitions") if name in schema}
                typed = {**value, **defined} if isinstance(value, Mapping) else value
                body = grammar.sequence([grammar.json(typed), grammar.literal(after)])
            parameter = [before, body]
            if self.newline:
                parameter.append(grammar.literal(self.newline))
            one = grammar.sequence(parameter)
            parts.append(one if key in required else grammar.optional(one))
        if self.close:
            parts.append(grammar.literal(self.close))
        return grammar.sequence(parts)

    @property
    def _keyed(self) -> str:
        return self.key_end + self.value_gap + self.value_open

    def _attribute(self, is_string: bool) -> str:
        return f'" string="{"true" if is_string else "false"}'

    def _key(self, cursor: Cursor) -> Steps[tuple[str, bool | None]]:
        """The name of a parameter, and whether the markup says that its value is a string."""
        yield from cursor.space()
        text, _ = yield from cursor.collect(Finder((self.key_end,)))
        if self.value_open:
            yield from cursor.space()
            yield from cursor.expect(self.value_open)
        if self.typed is None:
            return text.strip(), None
        key, _, attribute = text.partition('"')
        return key.strip(), "true" in attribute if attribute else None

    def _value(self, cursor: Cursor, call: CallSink, types: frozenset[str], *, loose: bool) -> Steps[None]:
        if types == _STRING:
            yield from self._string(cursor, call)
            return
        text, _ = yield from cursor.collect(Finder((self.end,)))
        if self.wrapped:
            text = text.removeprefix("\n").removesuffix("\n")
        call.arguments(coerce(text, frozenset() if loose else types))

    def _string(self, cursor: Cursor, call: CallSink) -> Steps[None]:
        """Pass a string on while it is written."""
        call.arguments('"')
        first = True
        held = ""

        def write(piece: str, _: int) -> None:
            nonlocal first, held
            piece = held + piece
            held = ""
            if self.wrapped:
                if first:
                    piece = piece.removeprefix("\n")
                    first = False
                if piece.endswith("\n"):
                    piece, held = piece[:-1], "\n"
            call.arguments(json.dumps(piece, ensure_ascii=False)[1:-1])

        if (yield from cursor.until(Finder((self.end,)), write)) is None:
            raise EndOfOutputError(f"expected {self.end!r}")
        call.arguments('"')
