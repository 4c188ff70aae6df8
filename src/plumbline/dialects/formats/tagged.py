"""Read and write calls in tags, one for each parameter, with untyped values."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from typing import Any, Literal

from plumbline.dialects.formats.grammar_parts import with_definitions
from plumbline.dialects.formats.json_calls import numbered
from plumbline.dialects.formats.parameters import Parameters
from plumbline.dialects.spec.call_format import ArgumentSyntax, Call, CallFormat, CallSink, Grammar
from plumbline.dialects.streams.coercion import allowed_types, coerce, part_schema
from plumbline.dialects.streams.cursor import Cursor, EndOfOutputError, Finder, Steps, finder
from plumbline.dialects.streams.json_stream import quoted
from plumbline.dialects.streams.tag_values import JsonWriter, StringWriter, json_between, unwrapped

__all__ = ["TaggedCall"]

_NAME = re.compile(r"[^\s\[\](){}<>\"']+")
_ELEMENT = re.compile(r"[\s=]")
"""Ends the name of the element in the tag of a parameter."""
_STRING = frozenset(("string",))
_NUMBERS = frozenset(("integer", "number"))
_ANYTHING: frozenset[str] = frozenset()
_TYPE_NAMES = {"integer": "number"}
_CDATA = "<![CDATA["


class TaggedCall(CallFormat, frozen=True, kw_only=True):
    """Calls written as `OPEN name OPENED (KEY key KEY_END value END)… CLOSE`, for example

        <function=get_weather>
        <parameter=city>
        Paris
        </parameter>
        </function>

    Strings, objects and arrays are passed on while they come. A string ends at the first `end`, because the
    format cannot escape it. In a value in JSON, an `end` inside a string is part of that string.
    """

    open: str
    """Before the name; may be empty."""
    opened: str = ""
    """After the name; empty if the name ends with its line or with a tag."""
    name_ends: tuple[str, ...] = ()
    """One of these follows a name and `opened`; otherwise it is prose. Required where `opened` is empty."""
    number: str = ""
    """An attribute with the call's number, between name and `opened`: `" index="`."""
    key: str
    """Before the name of a parameter."""
    other_key: str = ""
    """Another text before the name, which is read and never written."""
    key_end: str
    """After the name of a parameter."""
    value_open: str = ""
    """Before the value, if it has another tag."""
    value_gap: str = ""
    """White space before `value_open`."""
    end: str
    """After the value."""
    close: str = ""
    newline: str = ""
    """Written after `opened` and after each `end`."""
    wrapped: bool = False
    """One line feed at each side of a value belongs to the markup."""
    unended: bool = False
    """Models leave `end` out before the next parameter. So a value also ends before a line that begins with `KEY name
    KEY_END` and, if values are wrapped, consists of it, where `name` is a parameter of the tool that has not come yet.
    Any other such text belongs to the value."""
    typed: Literal["", "string", "type"] = ""
    """An attribute of each parameter: whether the value is a string (`string="true"`), or its type
    (`type="number"`)."""

    type_open: str = ""
    type_close: str = ""
    """Around the name of the value's type, which may stand before `value_open`. It is read, and never written."""
    doubled: bool = False
    """Models write a name without a namespace twice, with a dot between."""
    cdata: bool = False
    """A value may stand between `<![CDATA[` and `]]>`. They are read, and never written."""

    @property
    def argument_syntax(self) -> ArgumentSyntax:
        """How the format writes arguments."""
        return ArgumentSyntax.TYPED_TAGS if self.typed else ArgumentSyntax.TAGS

    @property
    def markers(self) -> tuple[str, ...]:
        """Texts inside a call that may be control tokens."""
        texts = (
            self.open,
            self.opened,
            self.key,
            self.key_end,
            self.type_open,
            self.type_close,
            self.value_open,
            self.end,
            self.close,
        )
        return tuple(text for text in texts if text)

    @property
    def forbidden(self) -> tuple[str, ...]:
        """Texts that a string argument cannot contain."""
        return (self.end, _CDATA) if self.cdata else (self.end,)

    def read(self, cursor: Cursor, call: CallSink) -> Steps[None]:
        """Read the call."""
        name = yield from self._name(cursor, call)
        call.begin(name)
        root = call.schemas.get(name, {})
        properties = root.get("properties")
        known = properties if isinstance(properties, Mapping) else {}
        parameters = Parameters(known if self.unended else ())
        comma = "{"
        following: str | None = None
        while True:
            if following is None:
                yield from cursor.space()
                if not (yield from self._opened(cursor)):
                    break
                key, kind = yield from self._key(cursor)
            else:
                key, kind = following, None
            types = allowed_types(part_schema(root, root, key), root)
            if kind is not None:
                types = self._given(kind, types)
            is_json = (bool(types) or (bool(self.typed) and kind is not None)) and "string" not in types
            put = None if key in parameters.come else call.arguments  # The first one counts.
            if put is not None:
                parameters.come.add(key)
                put(f"{comma}{quoted(key)}: ")
                comma = ", "
            following = yield from self._value(cursor, put, types, is_json, parameters)
        yield from self._end(cursor)
        call.arguments("{}" if comma == "{" else "}")

    def _name(self, cursor: Cursor, call: CallSink) -> Steps[str]:
        """Read what stands before the parameters. Returns the name of the tool."""
        if self.open:
            yield from cursor.expect(self.open)
        name = yield from cursor.run(_NAME, 256)
        if not name:
            cursor.fail("expected the name of a tool")
        if self.number:
            yield from cursor.collect(finder(self.opened))
        elif self.opened:
            yield from cursor.expect(self.opened)
        if self.name_ends:
            yield from cursor.space()
            if (yield from cursor.look_for(finder(*self.name_ends))) is None:
                cursor.fail(f"expected {self.key!r}")
        if self.doubled and name not in call.schemas:
            namespace, _, rest = name.partition(".")
            name = rest if rest == namespace else name
        return name

    def _opened(self, cursor: Cursor) -> Steps[bool]:
        """Read what stands before the name of a parameter. Returns whether it came."""
        if (yield from cursor.take(self.key)):
            return True
        return bool(self.other_key) and (yield from cursor.take(self.other_key))

    def _end(self, cursor: Cursor) -> Steps[None]:
        """Read the end of the call, which may be missing where the output or the markup ends.

        Raises:
            MalformedError: text follows, so the value before it contained its own end; or the tag of a parameter is
                malformed. A call without the rest of that value, or without that parameter, must not run.
        """
        if self.close and (yield from cursor.take(self.close)):
            return
        if (yield from cursor.take_ahead(_ELEMENT.split(self.key, maxsplit=1)[0])):
            cursor.fail(f"expected {self.key!r}")
        char = yield from cursor.peek()
        # The token limit may have cut further parameters.
        ended = any(marker.startswith(char) for marker in self.markers) if char else not cursor.cut
        if not ended:
            cursor.fail("expected the end of the call")

    def write(self, call: Call) -> str:
        """Write the call, with strings unquoted and everything else as JSON."""
        number = f"{self.number}{call.number + 1}" if self.number else ""
        parts = [self.open, call.name, number, self.opened, self.newline]
        for key, value in json.loads(call.arguments).items():
            text = _text(value)
            line = "\n" if self.wrapped else ""
            attribute = self._attribute(_type_name(value))
            parts += [self.key, key, attribute, self._keyed, line, text, line, self.end, self.newline]
        return "".join([*parts, self.close])

    def grammar(self, grammar: Grammar, name: str, schema: Mapping[str, Any]) -> str:
        """Return a call of this tool, with its parameters in the order of the schema, each under its schema."""
        properties: Mapping[str, Any] = schema.get("properties") or {}
        required = schema.get("required") or ()
        line = "\n" if self.wrapped else ""
        if self.number:
            before = f"{self.open}{name}{self.number}0{self.opened}{self.newline}"
            parts = numbered(grammar, before, f"{self.open}{name}{self.number}")
        else:
            parts = [grammar.literal(self.open + name + self.opened + self.newline)]
        for key, value in properties.items():
            options = []
            for kind, types in self._alternatives(allowed_types(value, schema)):
                before = grammar.literal(self.key + key + self._attribute(kind) + self._keyed + line)
                options.append(grammar.sequence([before, self._typed(grammar, value, schema, types)]))
            one = grammar.choice(options)
            if self.newline:
                one = grammar.sequence([one, grammar.literal(self.newline)])
            parts.append(one if key in required else grammar.optional(one))
        if self.close:
            parts.append(grammar.literal(self.close))
        return grammar.sequence(parts)

    def _alternatives(self, types: frozenset[str]) -> list[tuple[str, frozenset[str] | None]]:
        """List the ways to write a parameter of these types.

        Returns:
            For each, the type for the attribute, and the types of the JSON; None for unquoted text.
        """
        if not self.typed:
            # Where text is allowed, other values are text too: the parser finds out the type.
            return [("", types if types and "string" not in types else None)]
        found: list[tuple[str, frozenset[str] | None]] = []
        if not types or "string" in types:
            found.append(("string", None))
        other = types - _STRING
        if self.typed == "string":
            return [*found, ("object", other)] if other or not types else found
        kinds = sorted(other) if types else ["array", "boolean", "null", "number", "object"]
        return [*found, *((_TYPE_NAMES.get(kind, kind), frozenset((kind,))) for kind in kinds)]

    def _typed(
        self, grammar: Grammar, schema: Any, root: Mapping[str, Any], types: frozenset[str] | None
    ) -> str:
        """Return a value and its end."""
        after = ("\n" if self.wrapped else "") + self.end
        if types is None:
            known = schema if isinstance(schema, Mapping) else {}
            options = [known["const"]] if "const" in known else known.get("enum")
            if not isinstance(options, list):
                nullable = not self.typed and allowed_types(schema, root) == {"string", "null"}
                begun = _CDATA if self.cdata else ""  # The parser would drop this beginning.
                return grammar.raw_string(known, after, self.end, or_null=nullable, not_first=begun)
            texts = [o for o in options if isinstance(o, str) or not self.typed]
            return grammar.choice([grammar.literal(_text(option) + after) for option in texts])
        if types and types != allowed_types(schema, root):
            schema = {"allOf": [{"type": sorted(types)}, schema]}
        return grammar.sequence([grammar.json(with_definitions(schema, root)), grammar.literal(after)])

    @property
    def _keyed(self) -> str:
        return self.key_end + self.value_gap + self.value_open

    def _attribute(self, kind: str) -> str:
        """Return the attribute for a type, from the quote that ends the key to just before its last quote."""
        match self.typed:
            case "string":
                return f'" string="{"true" if kind == "string" else "false"}'
            case "type":
                return f'" type="{kind}'
        return ""

    def _given(self, kind: str, types: frozenset[str]) -> frozenset[str]:
        """Return the allowed types of a value for the type that the model wrote."""
        if self.typed:
            return _STRING if kind == "string" else _ANYTHING
        named = allowed_types({"type": kind.partition("[")[0].strip()}, {})
        if named & _NUMBERS:
            named |= _NUMBERS
        return types & named or types or named - {"integer"}

    def _key(self, cursor: Cursor) -> Steps[tuple[str, str | None]]:
        """Read the name of a parameter, and the type that the model writes for it, if there is one."""
        yield from cursor.space()
        text, _ = yield from cursor.collect(finder(self.key_end))
        kind = None
        if self.type_open:
            yield from cursor.space()
            if (yield from cursor.take(self.type_open)):
                kind, _ = yield from cursor.collect(finder(self.type_close))
        if self.value_open:
            yield from cursor.space()
            yield from cursor.expect(self.value_open)
        if not self.typed:
            return text.strip(), kind
        key, _, attribute = text.partition('"')
        yes = "true" if self.typed == "string" else "string"
        if attribute:
            kind = "string" if attribute.endswith(yes) else "any"
        return key.strip(), kind

    def _value(
        self,
        cursor: Cursor,
        put: Callable[[str], None] | None,
        types: frozenset[str],
        is_json: bool,
        parameters: Parameters,
    ) -> Steps[str | None]:
        """Read a value through its end.

        Args:
            cursor: stands after the opening tag.
            put: takes the JSON of the value; None to skip it.
            types: the types that its schema allows.
            is_json: the value is not a string.
            parameters: the parameters that may follow without an end of this one.

        Returns:
            The next parameter, if its opening tag has been read instead of the end.
        """
        end = self.end
        if self.cdata and (yield from cursor.take(_CDATA)):
            end = f"]]>{end}"
        ends = finder(end, self._another) if parameters.names else finder(end)
        if is_json:
            return (yield from self._json(cursor, put, types, ends, parameters))
        out = StringWriter(put or _ignore, types, wrapped=self.wrapped)
        following = None
        while following is None:
            marker = yield from cursor.until(ends, out.write)
            if marker is None:
                raise EndOfOutputError(f"expected {end!r}")
            if marker == end:
                break
            following = yield from self._following(cursor, out.write, parameters)
        out.close()
        return following

    def _json(
        self,
        cursor: Cursor,
        put: Callable[[str], None] | None,
        types: frozenset[str],
        ends: Finder,
        parameters: Parameters,
    ) -> Steps[str | None]:
        """Read a value that is not a string; see `_value`."""
        out = JsonWriter(put, types)
        following = None
        while following is None and (yield from json_between(cursor, out, ends)) == self._another:
            following = yield from self._following(cursor, out.write, parameters)
        if put is not None and not out.begun:
            put(coerce(unwrapped(out.text) if self.wrapped else out.text, types))
        return following

    @property
    def _another(self) -> str:
        """What the next parameter begins with if the value before it has no end."""
        return f"\n{self.key}"

    def _following(
        self, cursor: Cursor, write: Callable[[str], None], parameters: Parameters
    ) -> Steps[str | None]:
        """Read the rest of another parameter's tag, after `key`; None if this is text, which goes to `write`."""
        end = self.key_end + ("\n" if self.wrapped else "")
        while not (found := parameters.next_in(cursor.text, cursor.pos, end))[0]:
            if cursor.closed:
                cursor.pos = len(cursor.text)
                raise EndOfOutputError(f"expected {self.end!r}")
            yield
        name = found[1]
        if name is None:
            write(f"\n{self.key}")
            return None
        cursor.pos += len(name) + len(self.key_end)
        if self.wrapped:
            write("\n")
        return name


def _ignore(_: str) -> None:
    """Drop a piece."""


def _type_name(value: Any) -> str:
    """Return the JSON type of a value, as attributes name it."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "boolean"
    if isinstance(value, int | float):
        return "number"
    return "string" if isinstance(value, str) else "array" if isinstance(value, list) else "object"


def _text(value: Any) -> str:
    """Write a value as it stands between tags."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
