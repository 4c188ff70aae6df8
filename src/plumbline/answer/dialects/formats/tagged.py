"""Read and write calls in tags, one for each parameter, with untyped values."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

from plumbline.answer.dialects.formats.grammar_parts import numbered, with_definitions
from plumbline.answer.dialects.formats.tag_reader import TagReader
from plumbline.answer.dialects.formats.tags import CDATA, STRING, Tags
from plumbline.answer.dialects.spec.call_format import CallSink, Grammar, WrittenCall
from plumbline.answer.dialects.streams.coercion import allowed_types
from plumbline.answer.dialects.streams.cursor import Cursor, Steps

__all__ = ["TAGS", "TaggedCall"]

_TYPE_NAMES = {"integer": "number"}


class TaggedCall(Tags, frozen=True, kw_only=True):
    """Calls in tags; see `Tags`."""

    def read(self, cursor: Cursor, call: CallSink) -> Steps[None]:
        """Read the call."""
        yield from TagReader(self, cursor, call).read()

    def write(self, call: WrittenCall) -> str:
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
        other = types - STRING
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
                begun = CDATA if self.cdata else ""  # The parser would drop this beginning.
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


TAGS: Final[Mapping[str, TaggedCall]] = {
    "<function": TaggedCall(
        open="<function=",
        opened=">",
        key="<parameter=",
        key_end=">",
        end="</parameter>",
        close="</function>",
        newline="\n",
        wrapped=True,
    ),
    "<invoke": TaggedCall(
        open='<invoke name="',
        opened='">',
        key='<parameter name="',
        key_end='">',
        end="</parameter>",
        close="</invoke>",
        newline="\n",
    ),
}
"""The tags that models of other families write as well, by what they begin with."""
