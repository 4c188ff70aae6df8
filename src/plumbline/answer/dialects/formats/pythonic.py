"""Read and write calls in Python: `get_weather(city="Paris", days=3)`."""

from __future__ import annotations

import json
import re
import string
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

from plumbline.answer.dialects.formats.grammar_parts import separated, with_definitions
from plumbline.answer.dialects.spec.call_format import (
    ArgumentSyntax,
    CallFormat,
    CallSink,
    Grammar,
    WrittenCall,
    declared,
)
from plumbline.answer.dialects.streams.coercion import admitted, allowed_types
from plumbline.answer.dialects.streams.cursor import Cursor, Steps, finder
from plumbline.answer.dialects.streams.json_text import quoted
from plumbline.answer.dialects.streams.python_stream import Follows, python_value

__all__ = ["PythonCall"]

_NAME = re.compile(r"[^\s\[\](){}<>\"'=,;]+")
_CHAINS = finder(*(f".{letter}" for letter in f"{string.ascii_letters}_"))
_CHAINED = re.compile(r"[.\w]+")
_POSITIONAL = frozenset("\"'[(-0123456789")
_AFTER_CALL = (
    r"\)\s{0,64}(?:\]|<|,\s{0,64}(?:\]|[-.\w]{1,64}\s{0,8}\()|(?:%)\s{0,8}\(|\s{64})|\]\s{0,64}<|<[|/]"
)
_BEGUN = (
    r"\s{0,63}(?:<|\]\s{0,63}|,\s{0,64}@\s{0,8}"
    r"|\)\s{0,63}(?:<|,\s{0,64}[-.\w]{0,64}\s{0,8}|[-.\w]{0,64}\s{0,8})?)?\Z"
)
_PLAIN = re.compile(r"[-.\w]{1,64}")
_LONGEST = 128
_DICTS = finder(*(f"{{{space}{quote}" for space in ("", " ", "\n") for quote in "\"'"))
"""The beginnings of a dict with text for its first key."""
_WORDS = {True: "True", False: "False", None: "None"}


class PythonCall(CallFormat, frozen=True, kw_only=True):
    """A call with keyword arguments that are Python literals.

    Values are written in JSON, which is Python except for three words. At the top level these are Python's.

    Models do not always escape quotes inside a string argument. So a quote ends it only where the call goes on as it
    does after an argument: with another parameter of the tool, or with the end of the call. An argument without a name
    is that of the next parameter.
    """

    @property
    def argument_syntax(self) -> ArgumentSyntax:
        """How the format writes arguments."""
        return ArgumentSyntax.PYTHON

    def read(self, cursor: Cursor, call: CallSink) -> Steps[None]:
        """Read the call. Until its first keyword it may be prose in brackets."""
        name = yield from self._tool(cursor, call)
        properties = call.schemas.get(name, {}).get("properties")
        names = tuple(properties) if isinstance(properties, Mapping) else ()
        if (yield from self._is_dict(cursor, call.schemas.get(name, {}))):
            call.begin(name)
            yield from python_value(cursor, call.arguments)
            if not (yield from self._ended(cursor, call)):
                yield from cursor.expect(")")
            return
        keys: set[str] = set()
        while not cursor.skip(")"):
            if cursor.skip(","):
                yield from cursor.space()
                continue
            key = yield from self._key(cursor, [one for one in names if one not in keys])
            if not keys:
                call.begin(name)
            left = tuple(one for one in names if one not in keys and one != key) if names else None
            follows = _follows(left, tuple(call.schemas))
            if key in keys:  # The first one counts; Python would refuse the second.
                yield from python_value(cursor, lambda _: None, follows=follows)
            else:
                call.arguments(f"{', ' if keys else '{'}{quoted(key)}: ")
                keys.add(key)
                yield from python_value(cursor, call.arguments, follows=follows)
            if (yield from self._ended(cursor, call)):
                break
        if not keys:
            call.begin(name)
        call.arguments("}" if keys else "{}")
        yield from self._chained(cursor)

    def _tool(self, cursor: Cursor, call: CallSink) -> Steps[str]:
        """Read the name of the tool and the parenthesis after it."""
        name = yield from cursor.run(_NAME, 256)
        if not name:
            cursor.fail("expected the name of a tool")
        if not cursor.skip("("):
            yield from cursor.expect("(")
        if cursor.has_space():
            yield from cursor.space()
        return declared(name, call.schemas)

    def _chained(self, cursor: Cursor) -> Steps[None]:
        """Drop attributes and methods of the result, such as `.strip()`: nobody can compute them."""
        while (yield from cursor.look_for(_CHAINS)) is not None:
            yield from cursor.run(_CHAINED, 256)
            yield from cursor.take("()")

    def _is_dict(self, cursor: Cursor, schema: Mapping[str, Any]) -> Steps[bool]:
        """Return whether a dict of all arguments comes: after stars, or where the first one is no object."""
        if (yield from cursor.take("**")):
            return True
        properties = schema.get("properties")
        first = next(iter(properties.values()), None) if isinstance(properties, Mapping) else None
        return (
            "object" not in allowed_types(first, schema) and (yield from cursor.look_for(_DICTS)) is not None
        )

    def _ended(self, cursor: Cursor, call: CallSink) -> Steps[bool]:
        """Read what stands after an argument. Returns whether the call ends, with its parenthesis or without."""
        if cursor.has_space():
            yield from cursor.space()
        if cursor.skip(","):
            if cursor.has_space():
                yield from cursor.space()
            return False
        char = yield from cursor.peek()
        if (char or cursor.cut) and char != "]" and (yield from cursor.look_for(call.ends)) is None:
            yield from cursor.expect(")")
        return True

    def _key(self, cursor: Cursor, names: Sequence[str]) -> Steps[str]:
        """Read the name of a parameter and its equals sign; for an argument without a name, return the next one."""
        char = yield from cursor.peek()
        if char and char in _POSITIONAL and names:
            return names[0]
        key = yield from cursor.run(_NAME, 256)
        if not key:
            cursor.fail("expected the name of a parameter")
        if cursor.has_space():
            yield from cursor.space()
        if not key.endswith(":") and not cursor.skip("="):
            yield from cursor.expect("=")
        if cursor.has_space():
            yield from cursor.space()
        return key.rstrip(":")

    def write(self, call: WrittenCall) -> str:
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


@lru_cache(maxsize=256)
def _follows(names: tuple[str, ...] | None, tools: tuple[str, ...]) -> Follows:
    """Return what follows an argument: one of these parameters, or any if they are unknown, or the end of the call.

    Without a comma, a call of one of these tools may follow that end. Other calls are code inside a string.
    """
    readable = None if names is None else [n for n in names if len(n) <= _LONGEST and _NAME.fullmatch(n)]
    name = _PLAIN.pattern if readable is None else "|".join(map(re.escape, readable))
    another = rf"(?:{name})\s{{0,8}}=|" if name else ""
    after = _AFTER_CALL.replace("%", "|".join(map(re.escape, tools)) or r"[-.\w]{1,64}")
    whole = rf"\s{{0,64}}(?:,\s{{0,64}}(?:{another}\))|{after}|\s{{64}})"
    # Long names and unusual characters are waited for only where a parameter has them.
    odd = not all(map(_PLAIN.fullmatch, readable or ()))
    begun = rf"{_NAME.pattern[:-1]}{{0,{_LONGEST}}}" if odd else r"[-.\w]{0,64}"
    return Follows(re.compile(whole), re.compile(_BEGUN.replace("@", begun)))


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
