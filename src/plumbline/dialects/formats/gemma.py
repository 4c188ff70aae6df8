"""Read and write the calls of Gemma 4 and FunctionGemma: `call:get_weather{city:<|"|>Paris<|"|>,days:3}`."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from typing import Any

from plumbline.dialects.formats.grammar_parts import separated, with_definitions
from plumbline.dialects.spec.call_format import ArgumentSyntax, Call, CallFormat, CallSink, Grammar
from plumbline.dialects.streams.coercion import allowed_types, coerce, part_schema, resolved
from plumbline.dialects.streams.cursor import Cursor, EndOfOutputError, MalformedError, Steps, finder
from plumbline.dialects.streams.json_stream import quoted, quoted_text

__all__ = ["BracedCall"]

_NAME = re.compile(r"[^\s\[\](){}<>|\"',;:]+")
_BARE = re.compile(r"[^,{}\[\]<\n]+")
_SHORT_KEY = re.compile(r"([A-Za-z_][A-Za-z_0-9]{0,47})(:?)")
_SHORT_VALUE = re.compile(r"([-+.0-9A-Za-z_]{1,48})(?=[,}\]])")
"""Most keys and values. They are taken as they stand once they are complete, which costs less."""
_STRING = frozenset(("string",))
_MAX_DEPTH = 32
_GRAMMAR_DEPTH = 3
"""Levels of nesting in a grammar where the schema does not give types."""

Write = Callable[[str], None]


class BracedCall(CallFormat, frozen=True, kw_only=True):
    """`call:NAME{KEY:VALUE,…}` with bare keys and strings between special quotes.

    Such a string has no escapes, so it cannot contain the quote. Objects and arrays are written in the same way.
    """

    quote: str
    prefix: str = "call:"

    @property
    def argument_syntax(self) -> ArgumentSyntax:
        """How the format writes arguments."""
        return ArgumentSyntax.BRACES

    @property
    def markers(self) -> tuple[str, ...]:
        """Texts inside a call that may be control tokens."""
        return (self.quote,)

    @property
    def forbidden(self) -> tuple[str, ...]:
        """Texts that a string argument cannot contain."""
        return (self.quote,)

    def read(self, cursor: Cursor, call: CallSink) -> Steps[None]:
        """Read the call."""
        yield from cursor.expect(self.prefix)
        if cursor.has_space():
            yield from cursor.space()
        name = yield from cursor.run(_NAME, 256)
        if cursor.has_space():
            yield from cursor.space()
        if not name or (yield from cursor.peek()) != "{":
            cursor.fail("expected the name of a tool and '{'")
        call.begin(name)
        root = call.schemas.get(name, {})
        yield from self._object(cursor, call.arguments, root, root, 0)

    def write(self, call: Call) -> str:
        """Write the call."""
        return f"{self.prefix}{call.name}{self._encoded(json.loads(call.arguments))}"

    def grammar(self, grammar: Grammar, name: str, schema: Mapping[str, Any]) -> str:
        """Return a call of this tool, with its parameters in the order of the schema, each under its schema."""
        before = grammar.literal(f"{self.prefix}{name}")
        return grammar.sequence([before, self._object_grammar(grammar, schema, schema, 0)])

    # Reading

    def _value(
        self, cursor: Cursor, write: Write, schema: Any, root: Mapping[str, Any], depth: int
    ) -> Steps[None]:
        if depth > _MAX_DEPTH:
            raise MalformedError("the value is nested too deeply")
        types = allowed_types(schema, root)
        char = cursor.text[cursor.pos] if cursor.pos < len(cursor.text) else (yield from cursor.peek())
        if char == "{":
            yield from self._object(cursor, write, schema, root, depth)
        elif char == "[":
            yield from self._array(cursor, write, schema, root, depth)
        elif char == self.quote[0] and (yield from cursor.take(self.quote)):
            if types and "string" not in types:
                text, _ = yield from cursor.collect(finder(self.quote))
                write(coerce(text, types))
            else:
                yield from self._string(cursor, write)
        else:
            match = _SHORT_VALUE.match(cursor.text, cursor.pos)
            if match is not None:
                cursor.pos = match.end()
                text = match.group()
            else:
                text = yield from cursor.run(_BARE, 4096)
            if not text or cursor.pos >= len(cursor.text):  # `run` has waited for what follows.
                cursor.fail("expected a value")
            # Strings have quotes, so a bare value is one only where no other type is allowed or fits.
            write(coerce(text.strip(), types - _STRING or types))

    def _string(self, cursor: Cursor, write: Write) -> Steps[None]:
        """Read the rest of a string, and pass it on while it comes."""

        def write_text(piece: str, _: int) -> None:
            write(quoted_text(piece))

        write('"')
        if (yield from cursor.until(finder(self.quote), write_text)) is None:
            raise EndOfOutputError("expected the end of a string")
        write('"')

    def _object(
        self, cursor: Cursor, write: Write, schema: Any, root: Mapping[str, Any], depth: int
    ) -> Steps[None]:
        cursor.pos += 1
        write("{")
        comma = ""
        keys: set[str] = set()
        while True:
            if cursor.has_space():
                yield from cursor.space()
            if cursor.skip("}"):
                break
            key = yield from self._key(cursor)
            if cursor.has_space():
                yield from cursor.space()
            into = write
            if key in keys:  # The first one counts.
                into = _ignore
            else:
                keys.add(key)
                write(f"{comma}{quoted(key)}: ")
                comma = ", "
            yield from self._value(cursor, into, part_schema(schema, root, key), root, depth + 1)
            if cursor.has_space():
                yield from cursor.space()
            if not cursor.skip(","):
                yield from cursor.expect("}")
                break
        write("}")

    def _key(self, cursor: Cursor) -> Steps[str]:
        """Read a key and the colon after it."""
        while (match := _SHORT_KEY.match(cursor.text, cursor.pos)) is not None:
            if match[2]:
                cursor.pos = match.end()
                return match[1]
            if cursor.closed or match.end() < len(cursor.text):
                break
            yield
        if (yield from cursor.take(self.quote)):
            key, _ = yield from cursor.collect(finder(self.quote))
            if cursor.has_space():
                yield from cursor.space()
            yield from cursor.expect(":")
        else:
            key, _ = yield from cursor.collect(finder(":", "{", "}", ",", self.quote))
            if cursor.text[cursor.pos - 1] != ":":
                raise MalformedError("expected a key and ':'")
        return key.strip()

    def _array(
        self, cursor: Cursor, write: Write, schema: Any, root: Mapping[str, Any], depth: int
    ) -> Steps[None]:
        cursor.pos += 1
        write("[")
        comma = ""
        items = part_schema(schema, root, None)
        while True:
            if cursor.has_space():
                yield from cursor.space()
            if cursor.skip("]"):
                break
            write(comma)
            comma = ", "
            yield from self._value(cursor, write, items, root, depth + 1)
            if cursor.has_space():
                yield from cursor.space()
            if not cursor.skip(","):
                yield from cursor.expect("]")
                break
        write("]")

    # Writing

    def _encoded(self, value: Any) -> str:
        if isinstance(value, str):
            return f"{self.quote}{value}{self.quote}"
        if isinstance(value, dict):
            return "{" + ",".join(f"{key}:{self._encoded(item)}" for key, item in value.items()) + "}"
        if isinstance(value, list):
            return "[" + ",".join(map(self._encoded, value)) + "]"
        return json.dumps(value)

    def _object_grammar(
        self, grammar: Grammar, schema: Mapping[str, Any], root: Mapping[str, Any], depth: int
    ) -> str:
        """Return the expression of an object with the properties of a schema."""
        required = schema.get("required") or ()
        items = [
            (
                grammar.sequence([grammar.literal(f"{key}:"), self._one(grammar, value, root, depth + 1)]),
                key in required,
            )
            for key, value in (schema.get("properties") or {}).items()
        ]
        inside = separated(grammar, items, ",")
        if not items and schema.get("additionalProperties", True) is not False and 0 < depth < _GRAMMAR_DEPTH:
            further = self._one(grammar, schema.get("additionalProperties"), root, depth + 1)
            member = grammar.sequence(
                [grammar.regex("[A-Za-z_][A-Za-z_0-9]*"), grammar.literal(":"), further]
            )
            more = grammar.repeat(grammar.sequence([grammar.literal(","), member]), 0, None)
            inside = grammar.optional(grammar.sequence([member, more]))
        return grammar.sequence([grammar.literal("{"), *([inside] if inside else []), grammar.literal("}")])

    def _one(self, grammar: Grammar, schema: Any, root: Mapping[str, Any], depth: int) -> str:
        """Return the expression of a value."""
        schema = resolved(schema, root)
        if isinstance(schema.get("enum"), list):
            return grammar.choice([grammar.literal(self._encoded(value)) for value in schema["enum"]])
        if "const" in schema:
            return grammar.literal(self._encoded(schema["const"]))
        types = allowed_types(schema, root) or frozenset(
            ("string", "number", "boolean", "null", *(("array", "object") if depth < _GRAMMAR_DEPTH else ()))
        )
        options: list[str] = []
        if "string" in types:
            text = grammar.raw_string(schema, self.quote, self.quote)
            options.append(grammar.sequence([grammar.literal(self.quote), text]))
        if "array" in types:
            options.append(self._array_grammar(grammar, schema, root, depth))
        if "object" in types:
            options.append(self._object_grammar(grammar, schema, root, depth))
        plain = [kind for kind in ("integer", "number", "boolean", "null") if kind in types]
        if plain:
            limits = {key: value for key, value in schema.items() if key not in ("type", "anyOf", "oneOf")}
            options.append(grammar.json(with_definitions({**limits, "type": plain}, root)))
        return grammar.choice(options)

    def _array_grammar(
        self, grammar: Grammar, schema: Mapping[str, Any], root: Mapping[str, Any], depth: int
    ) -> str:
        """Return the expression of an array."""
        item = self._one(grammar, schema.get("items") or {}, root, depth + 1)
        least, most = schema.get("minItems") or 0, schema.get("maxItems")
        further = grammar.sequence([grammar.literal(","), item])
        parts = [grammar.literal("[")]
        if most != 0:
            rest = grammar.repeat(further, max(least - 1, 0), None if most is None else most - 1)
            some = grammar.sequence([item, rest])
            parts.append(some if least else grammar.optional(some))
        return grammar.sequence([*parts, grammar.literal("]")])


def _ignore(_: str) -> None:
    """Drop a piece."""
