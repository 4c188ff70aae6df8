"""Read and write the calls of MiniMax M3, with elements at every level and a marker before each tag.

NS<invoke name="order">
NS<items>NS<item>NS<sku>a-1NS</sku>NS</item>NS</items>
NS</invoke>
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from typing import Any

from plumbline.answer.dialects.formats.element_list import ElementList
from plumbline.answer.dialects.formats.grammar_parts import with_definitions
from plumbline.answer.dialects.formats.nested_elements import (
    ITEM,
    NESTING,
    NestedElements,
    ignore,
    joined,
    kind_of,
)
from plumbline.answer.dialects.spec.call_format import (
    ArgumentSyntax,
    CallFormat,
    CallSink,
    Grammar,
    WrittenCall,
    declared,
)
from plumbline.answer.dialects.streams.coercion import (
    allowed_types,
    coerce,
    listed_texts,
    part_schema,
    resolved,
)
from plumbline.answer.dialects.streams.cursor import Cursor, EndOfOutputError, MalformedError, Steps, finder
from plumbline.answer.dialects.streams.json_stream import json_value
from plumbline.answer.dialects.streams.json_text import quoted
from plumbline.answer.dialects.streams.tag_values import JsonWriter, StringWriter, json_between

__all__ = ["ElementCall"]

_NAME = re.compile(r"[^\s<>\"'\u201c\u201d]+")
_QUOTES = re.compile(r"[\"'\u201c\u201d]*")
_TAG = re.compile(r"[^\s<>/]+")
_PARAMETER_END = "</parameter>"
_ATTRIBUTE = re.compile(r"[^\s<>/\"']+")
_PLAIN = ("integer", "number", "boolean", "null")
_MAX_DEPTH = 64
_GRAMMAR_DEPTH = 3
"""Levels of nesting in a grammar where the schema does not give types."""

Write = Callable[[str], None]


class ElementCall(CallFormat, frozen=True, kw_only=True):
    """A call with values that are text or elements. The schema decides which are arrays, and the type of a text.

    A value of a known type is passed on while it comes: strings, the elements of arrays and objects, and their JSON.
    Everything else is passed on when its element is complete, and the members of an object from the first one of an
    unknown type on when the object is complete.
    """

    tag: str
    """The marker before each tag. No text can contain it."""
    begun: bool = False
    """The marker of the section is the beginning of the call."""

    @property
    def argument_syntax(self) -> ArgumentSyntax:
        """How the format writes arguments."""
        return ArgumentSyntax.ELEMENTS

    @property
    def markers(self) -> tuple[str, ...]:
        """Texts inside a call that may be control tokens."""
        return (self.tag,)

    @property
    def begins(self) -> str:
        """What every call begins with; empty if the marker of the section is that."""
        return "" if self.begun else f"{self.tag}<invoke"

    @property
    def forbidden(self) -> tuple[str, ...]:
        """Texts that a string argument cannot contain."""
        return (self.tag,)

    def read(self, cursor: Cursor, call: CallSink) -> Steps[None]:
        """Read the call."""
        if not self.begun:
            yield from cursor.expect(f"{self.tag}<invoke")
        yield from cursor.space()
        yield from cursor.expect("name=")
        yield from cursor.run(_QUOTES, 1)
        name = yield from cursor.run(_NAME, 256)
        yield from cursor.run(_QUOTES, 1)
        yield from cursor.expect(">")
        name = declared(name, call.schemas)
        call.begin(name)
        root = call.schemas.get(name, {})
        keys: set[str] = set()
        items: ElementList | None = None
        yield from cursor.space()
        if (yield from cursor.peek()) == "{":  # JSON in the place of the elements.
            yield from json_value(cursor, call.arguments, markers=finder(self.tag))
            yield from self._ended(cursor, call)
            return
        while not (yield from self._ended(cursor, call)):
            yield from cursor.expect(self.tag)
            text = None
            if (yield from cursor.take("<")):
                key = yield from self._opened(cursor)
            else:
                key, text = yield from self._unopened(cursor)
            schema = part_schema(root, root, key)
            if items is not None and key == items.key and text is None:
                items.another()
                yield from self._element(cursor, items.next, key, items.schema, root, 2)
                continue
            if items is not None:
                items.end()
                items = None
            if key in keys:  # The first one counts: what has been passed on cannot become a list.
                if text is None:
                    yield from self._element(cursor, ignore, key, schema, root, 1)
                continue
            call.arguments(f"{', ' if keys else '{'}{quoted(key)}: ")
            keys.add(key)
            if text is not None:
                call.arguments(coerce(text, allowed_types(schema, root), listed_texts(schema, root)))
                continue
            items = ElementList(call.arguments, key, part_schema(schema, root, None), root)
            is_list = allowed_types(schema, root) == {"array"}
            yield from self._element(cursor, items.first if is_list else call.arguments, key, schema, root, 1)
            items = items if items.begun else None
        if items is not None:
            items.end()
        call.arguments("}" if keys else "{}")

    def write(self, call: WrittenCall) -> str:
        """Write the call."""
        lines = [f'{self.begins} name="{call.name}">']
        lines += [self._encoded(key, value) for key, value in json.loads(call.arguments).items()]
        return "\n".join([*lines, f"{self.tag}</invoke>"])

    def grammar(self, grammar: Grammar, name: str, schema: Mapping[str, Any]) -> str:
        """Return a call of this tool, with its parameters in the order of the schema, each under its schema."""
        required = schema.get("required") or ()
        parts = [grammar.literal(f'{self.begins} name="{name}">\n')]
        for key, value in (schema.get("properties") or {}).items():
            one = grammar.sequence([self._one(grammar, key, value, schema, 1), grammar.literal("\n")])
            parts.append(one if key in required else grammar.optional(one))
        return grammar.sequence([*parts, grammar.literal(f"{self.tag}</invoke>")])

    # Reading

    def _ended(self, cursor: Cursor, call: CallSink) -> Steps[bool]:
        """Read the end of the call. It may be missing where another call, the end of the section or nothing follows.

        Closing tags of elements that have not begun, or that ended without them, are dropped.
        """
        while True:
            yield from cursor.space()
            if (yield from cursor.take(f"{self.tag}</invoke>")):
                return True
            if not (yield from cursor.peek()):
                return not cursor.cut
            ends = finder(*call.ends.markers, f"{self.tag}<invoke ")
            if (yield from cursor.look_for(ends)) is not None:
                return True
            if not (yield from cursor.take(f"{self.tag}</")):
                return False
            yield from self._opened(cursor)

    def _unopened(self, cursor: Cursor) -> Steps[tuple[str, str]]:
        """Read an element without its opening tag. Returns its name, which its closing tag has, and its text."""
        text, _ = yield from cursor.collect(finder(self.tag))
        yield from cursor.expect("</")
        return (yield from self._opened(cursor)), text

    def _opened(self, cursor: Cursor) -> Steps[str]:
        """Read the name in a tag, after `<`. In M2's tags an attribute has it: `<parameter name="city">`."""
        key = yield from cursor.run(_TAG, 256)
        if key == "parameter" and (yield from cursor.take(" name=")):
            yield from cursor.run(_QUOTES, 1)
            key = yield from cursor.run(_ATTRIBUTE, 256)
            yield from cursor.run(_QUOTES, 1)
        if not key:
            cursor.fail("expected the name of an element")
        yield from cursor.expect(">")
        return key

    def _next(self, cursor: Cursor, key: str) -> Steps[str | None]:
        """Read a tag. Returns the name of the element that begins; None if `key` ends, maybe with what is around it."""
        if (yield from cursor.take(f"{self.tag}</{key}>")) or (yield from cursor.take_ahead(f"{self.tag}</")):
            return None
        yield from cursor.expect(f"{self.tag}<")
        return (yield from self._opened(cursor))

    def _element(
        self, cursor: Cursor, put: Write, key: str, schema: Any, root: Mapping[str, Any], depth: int
    ) -> Steps[None]:
        """Read an element after its opening tag, through its closing tag, and pass on its JSON."""
        if depth > _MAX_DEPTH:
            raise MalformedError("the value is nested too deeply")
        types = allowed_types(schema, root)
        if not types:
            yield from self._unknown(cursor, put, key, schema, root, depth)
        elif "string" in types and not types & NESTING:
            yield from self._string(cursor, key, StringWriter(put, types, listed=listed_texts(schema, root)))
        else:
            yield from self._nesting(cursor, put, key, schema, root, depth)

    def _string(self, cursor: Cursor, key: str, out: StringWriter) -> Steps[None]:
        """Read an element that may be a string, without elements in it."""
        ends = (f"{end}{space}{self.tag}" for end in ("", _PARAMETER_END) for space in ("", "\n"))
        marker = yield from cursor.until(finder(*ends), out.write)
        if marker is None:
            raise EndOfOutputError("expected the end of an element")
        cursor.unread(self.tag)
        if (yield from cursor.take(f"{self.tag}</{key}>")):
            out.write(marker.removesuffix(self.tag))
        elif not (yield from cursor.take_ahead(f"{self.tag}<")):
            cursor.fail(f"expected the end of {key}")
        out.close()

    def _nesting(
        self, cursor: Cursor, put: Write, key: str, schema: Any, root: Mapping[str, Any], depth: int
    ) -> Steps[None]:
        """Read an element of known types that may contain elements."""
        types = allowed_types(schema, root)
        found = NestedElements(put, types)
        marked = False
        while True:
            text = yield from self._text(cursor, key, found)
            if text is None:
                return
            name = yield from self._inner(cursor, key, text, types)
            if name is None:
                break
            found.kind = found.kind or kind_of(name, schema, root)
            inner = part_schema(schema, root, None if found.kind == "array" else name)
            into = found.begin(name, typed=bool(allowed_types(inner, root)))
            if found.held and not cursor.marked:
                cursor.mark(f"{self.tag}<{name}>")
                marked = True
            yield from self._element(cursor, into, name, inner, root, depth + 1)
        if marked:
            cursor.unmark()
        found.release()
        if found.comma:
            put("]" if found.kind == "array" else "}")
        elif found.is_json and types & NESTING and not text.strip():
            # Of an array and an object, the first in the schema counts.
            first = "object" if "object" in allowed_types(resolved(schema, root), root) else "array"
            put("[]" if (found.kind or first) == "array" else "{}")
        else:
            put(coerce(text, types, listed_texts(schema, root)))

    def _inner(self, cursor: Cursor, key: str, text: str, types: frozenset[str]) -> Steps[str | None]:
        """Read the tag after a text. Returns the name of the element that begins; None if `key` ends."""
        # Until a tag follows, the text may not be part of an element.
        held = not cursor.marked and bool(text.strip())
        if held:
            cursor.mark(text)
        # Where no element can be inside, the closing tag is missing.
        inside = bool(types & NESTING) or (yield from cursor.take_ahead(f"{self.tag}</"))
        name = (yield from self._next(cursor, key)) if inside else None
        if held:
            cursor.unmark()
        return name

    def _text(self, cursor: Cursor, key: str, found: NestedElements) -> Steps[str | None]:
        """Read the text before the next tag. Returns None if it was the whole value, as JSON."""
        if not found.is_json:
            text, _ = yield from cursor.collect(finder(self.tag))
            cursor.unread(self.tag)
            return text
        out = JsonWriter(None if found.comma or found.held else found.put, found.types)
        yield from json_between(cursor, out, finder(self.tag), finder(f"</{key}>"))
        if not out.begun:
            if out.in_string:  # What follows the marker has been looked at, so it cannot be read again.
                yield from cursor.expect(f"</{key}>")
                found.put(coerce(out.text, found.types))
                return None
            cursor.unread(self.tag)
            return out.text
        yield from cursor.expect(f"</{key}>")
        return None

    def _unknown(
        self, cursor: Cursor, put: Write, key: str, schema: Any, root: Mapping[str, Any], depth: int
    ) -> Steps[None]:
        """Read an element of an unknown type: an array if all elements in it are items."""
        held = not cursor.marked
        if held:
            cursor.mark()
        found: list[tuple[str, str]] = []
        while True:
            text, _ = yield from cursor.collect(finder(self.tag))
            cursor.unread(self.tag)
            if (name := (yield from self._next(cursor, key))) is None:
                break
            parts: list[str] = []
            inner = part_schema(schema, root, name)
            yield from self._element(cursor, parts.append, name, inner, root, depth + 1)
            found.append((name, "".join(parts)))
        if held:
            cursor.unmark()
        if not found:
            put(coerce(text, frozenset()))
        elif all(name == ITEM for name, _ in found):
            put(f"[{', '.join(value for _, value in found)}]")
        else:
            members: dict[str, list[str]] = {}
            for name, value in found:
                members.setdefault(name, []).append(value)  # Elements of one name are a list.
            put("{" + ", ".join(f"{quoted(k)}: {joined(v)}" for k, v in members.items()) + "}")

    # Writing

    def _encoded(self, key: str, value: Any) -> str:
        if isinstance(value, dict):
            text = "".join(self._encoded(name, item) for name, item in value.items())
        elif isinstance(value, list):
            text = "".join(self._encoded(ITEM, item) for item in value)
        else:
            text = value if isinstance(value, str) else json.dumps(value)
        return f"{self.tag}<{key}>{text}{self.tag}</{key}>"

    def _one(self, grammar: Grammar, key: str, schema: Any, root: Mapping[str, Any], depth: int) -> str:
        """Return the expression of an element."""
        schema = resolved(schema, root)
        end = grammar.literal(f"{self.tag}</{key}>")
        if isinstance(schema.get("enum"), list):
            return grammar.choice([grammar.literal(self._encoded(key, value)) for value in schema["enum"]])
        if "const" in schema:
            return grammar.literal(self._encoded(key, schema["const"]))
        types = allowed_types(schema, root) or frozenset(
            ("string", *(("array", "object") if depth < _GRAMMAR_DEPTH else ()))
        )
        options: list[str] = []
        # One lexeme for both: a lexer that has begun a text would not find the null in it.
        nullable = types == {"string", "null"}
        if "string" in types:
            options.append(grammar.raw_string(schema, f"{self.tag}</{key}>", self.tag, or_null=nullable))
        if "array" in types:
            item = self._one(grammar, ITEM, schema.get("items") or {}, root, depth + 1)
            some = grammar.repeat(item, schema.get("minItems") or 0, schema.get("maxItems"))
            options.append(grammar.sequence([some, end]))
        if "object" in types:
            options.append(grammar.sequence([*self._members(grammar, schema, root, depth), end]))
        plain = [] if nullable else [kind for kind in _PLAIN if kind in types]
        if plain:
            limits = {name: value for name, value in schema.items() if name not in ("type", "anyOf", "oneOf")}
            value = grammar.json(with_definitions({**limits, "type": plain}, root))
            options.append(grammar.sequence([value, end]))
        return grammar.sequence([grammar.literal(f"{self.tag}<{key}>"), grammar.choice(options)])

    def _members(
        self, grammar: Grammar, schema: Mapping[str, Any], root: Mapping[str, Any], depth: int
    ) -> list[str]:
        """Return the expressions of the members of an object, in the order of the schema."""
        if not schema.get("properties"):
            # A grammar cannot close elements with unknown names, but the parser reads JSON too.
            return [grammar.json(with_definitions({**schema, "type": "object"}, root))]
        required = schema.get("required") or ()
        parts = []
        for name, value in schema["properties"].items():
            one = self._one(grammar, name, value, root, depth + 1)
            parts.append(one if name in required else grammar.optional(one))
        return parts
