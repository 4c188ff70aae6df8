"""Read and write calls in Python: `get_weather(city="Paris", days=3)`."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from plumbline.dialects.formats.grammar_parts import separated, with_definitions
from plumbline.dialects.spec.call_format import ArgumentSyntax, Call, CallFormat, CallSink, Grammar
from plumbline.dialects.streams.coercion import admitted, allowed_types
from plumbline.dialects.streams.cursor import Cursor, Steps
from plumbline.dialects.streams.json_stream import quoted
from plumbline.dialects.streams.python_stream import Follows, python_value

__all__ = ["PythonCall"]

_NAME = re.compile(r"[^\s\[\](){}<>\"'=,;]+")
_FOLLOWS = Follows(
    re.compile(
        r"\s{0,8}(?:,\s{0,8}(?:[-.\w]{1,64}\s{0,8}=|\))"
        r"|\)\s{0,8}(?:\]|<\||,\s{0,8}(?:\]|[-.\w]{1,64}\s{0,8}\()))"
    ),
    re.compile(r"\s{0,8}(?:,\s{0,8}[-.\w]{0,64}\s{0,8}|\)\s{0,8}(?:<|,\s{0,8}[-.\w]{0,64}\s{0,8})?)?\Z"),
)
"""What follows an argument: another one, or the end of the call and then another call or the end of all calls."""
_WORDS = {True: "True", False: "False", None: "None"}


class PythonCall(CallFormat, frozen=True, kw_only=True):
    """A call with keyword arguments that are Python literals.

    Values are written in JSON, which is Python except for three words. At the top level these are Python's.
    """

    unescaped: bool = False
    """Models do not escape quotes inside a string argument. So a quote ends it only where the call goes on as it does
    after an argument."""

    @property
    def argument_syntax(self) -> ArgumentSyntax:
        """How the format writes arguments."""
        return ArgumentSyntax.PYTHON

    def read(self, cursor: Cursor, call: CallSink) -> Steps[None]:
        """Read the call. Until its first keyword it may be prose in brackets."""
        name = yield from cursor.run(_NAME, 256)
        if not name:
            cursor.fail("expected the name of a tool")
        if not cursor.skip("("):
            yield from cursor.expect("(")
        if cursor.has_space():
            yield from cursor.space()
        comma = ""
        follows = _FOLLOWS if self.unescaped else None
        keys: set[str] = set()
        while not cursor.skip(")"):
            key = yield from cursor.run(_NAME, 256)
            if not key:
                cursor.fail("expected the name of a parameter")
            if cursor.has_space():
                yield from cursor.space()
            if not cursor.skip("="):
                yield from cursor.expect("=")
            if not keys:
                call.begin(name)
            if cursor.has_space():
                yield from cursor.space()
            if key in keys:  # The first one counts; Python would refuse the second.
                yield from python_value(cursor, lambda _: None, follows=follows)
            else:
                call.arguments(f"{comma or '{'}{quoted(key)}: ")
                comma = ", "
                keys.add(key)
                yield from python_value(cursor, call.arguments, follows=follows)
            if cursor.has_space():
                yield from cursor.space()
            if not cursor.skip(","):
                yield from cursor.expect(")")
                break
            if cursor.has_space():
                yield from cursor.space()
        if not keys:
            call.begin(name)
        call.arguments("}" if keys else "{}")

    def write(self, call: Call) -> str:
        """Write the call."""
        arguments = json.loads(call.arguments)
        return f"{call.name}({', '.join(f'{key}={_literal(value)}' for key, value in arguments.items())})"

    def grammar(self, grammar: Grammar, name: str, schema: Mapping[str, Any]) -> str:
        """Return a call of this tool, with its parameters in the order of the schema, each under its schema."""
        properties: Mapping[str, Any] = schema.get("properties") or {}
        required = schema.get("required") or ()
        opening = grammar.literal(f"{name}(")
        items = [
            (
                grammar.sequence([grammar.literal(f"{key}="), _value(grammar, value, schema)]),
                key in required,
            )
            for key, value in properties.items()
        ]
        inside = separated(grammar, items, ", ")
        return grammar.sequence([opening, *([inside] if inside else []), grammar.literal(")")])


def _literal(value: Any) -> str:
    if value is None or isinstance(value, bool):
        return _WORDS[value]
    return json.dumps(value, ensure_ascii=False)


def _value(grammar: Grammar, schema: Any, root: Mapping[str, Any]) -> str:
    """Return the value of a parameter: JSON, or a word of Python that the schema allows."""
    types = allowed_types(schema, root)
    options = []
    if types != {"boolean"} and types != {"null"}:
        options.append(grammar.json(with_definitions(schema, root)))
    for word in (True, False, None):
        kind = "null" if word is None else "boolean"
        if (not types or kind in types) and admitted(schema, word):
            options.append(grammar.literal(_WORDS[word]))
    return grammar.choice(options)
