"""Read and write calls with a name before arguments in JSON."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from plumbline.answer.dialects.formats.grammar_parts import numbered
from plumbline.answer.dialects.formats.json_calls import buffered_arguments
from plumbline.answer.dialects.spec.call_format import CallFormat, CallSink, Grammar, WrittenCall
from plumbline.answer.dialects.spec.markers import is_control
from plumbline.answer.dialects.streams.cursor import Cursor, Finder, Steps, finder
from plumbline.answer.dialects.streams.json_quotes import CLOSING
from plumbline.answer.dialects.streams.json_stream import json_value
from plumbline.base.exact_number import dumps, exact_number

__all__ = ["NamedJson"]

_OTHER_IDS = (
    re.compile(r"functions[._](.+)[_:][0-9]+"),
    re.compile(r"(?:functions[._]?)?(.+?)[^0-9A-Za-z]?[0-9]+"),
    re.compile(r"functions(.+)"),
)
"""Ids as clients hand them back that clean them up, and as models write them after such ids."""
_COUNTER = re.compile(r"(?:call[_-]?[0-9A-Za-z]*|[0-9]+)", re.IGNORECASE)
"""An id without the name of a tool, which models write after clients' ids of this kind."""
_AROUND = frozenset(("arguments", "parameters"))
_FENCES = finder("```json\n", "```\n", "json\n", "json{")
_NAME = re.compile(r"[^\s\[\](){}<>|\"',;=｜]+")


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
    kind_end: str = ""
    """Between the word `function` and the name in one version of the family, and before the arguments in another."""
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

    @property
    def after_name(self) -> tuple[str, ...]:
        """What follows a name with nothing before it, if that is a control token, which no prose has."""
        separator = self.separator.strip()
        return (separator,) if is_control(separator) and not self.prefix else ()

    def read(self, cursor: Cursor, call: CallSink) -> Steps[None]:
        """Read the call."""
        if self.prefix and not (yield from cursor.take(self.prefix)) and not self.kind_end:
            cursor.fail(f"expected {self.prefix!r}")
        if cursor.has_space():
            yield from cursor.space()
        name, call_id = yield from self._name(cursor, call)
        if cursor.has_space():
            yield from cursor.space()
        if self.id_marker is not None and (yield from cursor.take(self.id_marker)):
            call_id = yield from cursor.run(_NAME, 512)
            if cursor.has_space():
                yield from cursor.space()
        if self.kind_end and (yield from cursor.take(self.kind_end)):
            name = yield from self._kind_or_name(cursor, call, name)
        fence = yield from self._separated(cursor)
        yield from self._arguments(cursor, call, name, call_id or None, fence)
        for suffix in filter(None, (fence, self.suffix.strip())):
            yield from cursor.space()
            yield from cursor.take(suffix)

    def _arguments(
        self, cursor: Cursor, call: CallSink, name: str, call_id: str | None, fence: str
    ) -> Steps[None]:
        """Read the arguments, and announce the call."""
        ends = finder(*call.ends.markers, self.suffix.strip(), fence)
        char = yield from cursor.peek()
        if self.numbered and name not in call.schemas and _COUNTER.fullmatch(name):
            held = yield from buffered_arguments(cursor, ends)
            meant, held = _tool_of(held, call.schemas)
            call.begin(meant or name, call_id)
            call.arguments(held)
        elif char == "{":
            call.begin(name, call_id)
            yield from json_value(cursor, call.arguments, markers=ends)
        elif char in CLOSING:
            held = yield from buffered_arguments(cursor, ends)
            call.begin(name, call_id)
            call.arguments(held)
        else:
            yield from self._without(cursor, call, ends)
            call.begin(name, call_id)
            call.arguments("{}")

    def _kind_or_name(self, cursor: Cursor, call: CallSink, name: str) -> Steps[str]:
        """Return the name of the tool: what was read, or what follows if that was the word `function`."""
        yield from cursor.space()
        if name == "function" and name not in call.schemas:
            name = (yield from cursor.run(_NAME, 512)) or name
            yield from cursor.space()
        return name

    def _separated(self, cursor: Cursor) -> Steps[str]:
        """Read what stands before the arguments, which some models leave out. Returns the end of their code fence."""
        separator = self.separator.strip()
        if separator:
            yield from cursor.take(separator)
            yield from cursor.space()
        fence = (yield from cursor.take_one(_FENCES)) if cursor.may_take(_FENCES) else None
        yield from cursor.space()
        if fence is not None and fence[-1] == "{":
            cursor.pos -= 1
        return "```" if fence is not None and fence[0] == "`" else ""

    def _name(self, cursor: Cursor, call: CallSink) -> Steps[tuple[str, str | None]]:
        """Read the name of the tool, and the id before it, if there is one."""
        name = yield from cursor.run(_NAME, 512)
        call_id: str | None = None
        if self.after_id and (yield from cursor.take(self.after_id)):
            call_id, name = name, (yield from cursor.run(_NAME, 512))
        if not name:
            cursor.fail("expected the name of a tool")
        if self.numbered:
            others = [match[1] for match in (pattern.fullmatch(name) for pattern in _OTHER_IDS) if match]
            name = re.sub(r"^functions\.|:[0-9]+$", "", name)
            if name not in call.schemas:
                others.append(name.rpartition(".")[2])  # Names of modules before that of the tool.
                name = next((other for other in others if other in call.schemas), name)
        return name, call_id

    def _without(self, cursor: Cursor, call: CallSink, ends: Finder) -> Steps[None]:
        """Check that a call without arguments ends here: at the end of the answer, or with a marker.

        Raises:
            MalformedError: other text follows the name.
        """
        ended = not (yield from cursor.peek()) and not cursor.cut
        if not call.marked or not (ended or (yield from cursor.look_for(ends)) is not None):
            cursor.fail("expected '{'")

    def write(self, call: WrittenCall) -> str:
        """Write the call."""
        name = f"functions.{call.name}:{call.number}" if self.numbered else call.name
        before = f"call{call.number:06}{self.after_id}" if self.after_id else ""
        return f"{self.prefix}{before}{name}{self.separator}{call.arguments}{self.suffix}"

    def grammar(self, grammar: Grammar, name: str, schema: Mapping[str, Any]) -> str:
        """Return the call with this name and arguments of the schema."""
        before, _, after = self.write(WrittenCall(name, "\0")).partition("\0")
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


def _tool_of(arguments: str, schemas: Mapping[str, Mapping[str, Any]]) -> tuple[str, str]:
    """Return the tool that arguments without a name are for, and its arguments.

    Either these name it, around them or beside them (`{"name": "f", "arguments": {…}}`, `{"name": "f", …}`), or one
    tool only has all their keys, and they have all keys that it requires. Otherwise the name is empty.
    """
    value = json.loads(arguments, parse_float=exact_number)
    name = value.get("name")
    if isinstance(name, str) and name in schemas:
        rest = {key: inner for key, inner in value.items() if key != "name"}
        inner = next(iter(rest.values())) if len(rest) == 1 and rest.keys() <= _AROUND else rest
        if isinstance(inner, dict) and inner.keys() <= set(schemas[name].get("properties") or ()):
            return name, dumps(inner)
    keys = set(value)
    fitting = [
        tool
        for tool, schema in schemas.items()
        if keys and keys <= set(schema.get("properties") or ()) and keys >= set(schema.get("required") or ())
    ]
    return (fitting[0] if len(fitting) == 1 else ""), arguments
