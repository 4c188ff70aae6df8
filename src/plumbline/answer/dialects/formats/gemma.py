"""Read and write the calls of Gemma 4 and FunctionGemma: `call:get_weather{city:<|"|>Paris<|"|>,days:3}`."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from plumbline.answer.dialects.formats.braces.reader import BraceReader
from plumbline.answer.dialects.formats.grammar_parts import separated, with_definitions
from plumbline.answer.dialects.spec.call_format import (
    ArgumentSyntax,
    CallFormat,
    CallSink,
    Grammar,
    WrittenCall,
)
from plumbline.answer.dialects.streams.coercion import allowed_types, resolved
from plumbline.answer.dialects.streams.cursor import Cursor, Steps

__all__ = ["BracedCall"]

_NAME = re.compile(r"[^\s\[\](){}<>|\"',;:]+")
_GRAMMAR_DEPTH = 3
"""Levels of nesting in a grammar where the schema does not give types."""


class BracedCall(CallFormat, frozen=True, kw_only=True):
    """`call:NAME{KEY:VALUE,…}` with bare keys and strings between special quotes.

    Such a string has no escapes. Objects and arrays are written in the same way. The reader also accepts JSON's
    quotes; see `BraceReader`.
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
    def begins(self) -> str:
        """What every call begins with."""
        return self.prefix

    @property
    def forbidden(self) -> tuple[str, ...]:
        """Texts that a string argument cannot contain."""
        return (self.quote,)

    def read(self, cursor: Cursor, call: CallSink) -> Steps[None]:
        """Read the call."""
        if not (yield from cursor.take(self.prefix)):
            yield from cursor.take(":")  # Some models leave the word out.
        if cursor.has_space():
            yield from cursor.space()
        name = yield from cursor.run(_NAME, 256)
        while (yield from cursor.take(":")):  # A namespace before the name.
            rest = yield from cursor.run(_NAME, 256)
            name = rest if rest in call.schemas else f"{name}:{rest}"
        if cursor.has_space():
            yield from cursor.space()
        if not name or (yield from cursor.peek()) not in ("{", "("):
            cursor.fail("expected the name of a tool and '{'")
        call.begin(name)
        root = call.schemas.get(name, {})
        yield from BraceReader(self.quote, cursor, call, root).read()

    def write(self, call: WrittenCall) -> str:
        """Write the call."""
        return f"{self.prefix}{call.name}{self._encoded(json.loads(call.arguments))}"

    def grammar(self, grammar: Grammar, name: str, schema: Mapping[str, Any]) -> str:
        """Return a call of this tool, with its parameters in the order of the schema, each under its schema."""
        before = grammar.literal(f"{self.prefix}{name}")
        return grammar.sequence([before, self._object_grammar(grammar, schema, schema, 0)])

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
                grammar.sequence(
                    [grammar.literal(f"{key}:"), self._value_grammar(grammar, value, root, depth + 1)]
                ),
                key in required,
            )
            for key, value in (schema.get("properties") or {}).items()
        ]
        inside = separated(grammar, items, ",")
        if not items and schema.get("additionalProperties", True) is not False and 0 < depth < _GRAMMAR_DEPTH:
            further = self._value_grammar(grammar, schema.get("additionalProperties"), root, depth + 1)
            member = grammar.sequence(
                [grammar.regex("[A-Za-z_][A-Za-z_0-9]*"), grammar.literal(":"), further]
            )
            more = grammar.repeat(grammar.sequence([grammar.literal(","), member]), 0, None)
            inside = grammar.optional(grammar.sequence([member, more]))
        return grammar.sequence([grammar.literal("{"), *([inside] if inside else []), grammar.literal("}")])

    def _value_grammar(self, grammar: Grammar, schema: Any, root: Mapping[str, Any], depth: int) -> str:
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
        item = self._value_grammar(grammar, schema.get("items") or {}, root, depth + 1)
        least, most = schema.get("minItems") or 0, schema.get("maxItems")
        further = grammar.sequence([grammar.literal(","), item])
        parts = [grammar.literal("[")]
        if most != 0:
            rest = grammar.repeat(further, max(least - 1, 0), None if most is None else most - 1)
            some = grammar.sequence([item, rest])
            parts.append(some if least else grammar.optional(some))
        return grammar.sequence([*parts, grammar.literal("]")])
