"""Read the names in the tags of a call: of the tool and of each parameter, also where the tags are nearly right."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from typing import Any

from plumbline.answer.dialects.formats.tags import Tags, element
from plumbline.answer.dialects.spec.call_format import CallSink, declared
from plumbline.answer.dialects.streams.coercion import allowed_types
from plumbline.answer.dialects.streams.cursor import Cursor, Finder, Steps, finder
from plumbline.answer.dialects.streams.json_quotes import NO_MARKERS
from plumbline.answer.dialects.streams.json_text import quoted
from plumbline.base.exact_number import dumps, exact_number

__all__ = ["CallParameters", "TagNames"]

_NAME = re.compile(r"[^\s\[\](){}<>\"'\u201c\u201d\u2018\u2019]+")
_QUOTES = re.compile(r"[\"'\u201c\u201d\u2018\u2019\s]*")
_ATTRIBUTES = re.compile(r"[^<>\n]*")
_NAME_OF = re.compile(
    r"""\s*(?:name\s*)?[=:]?\s*["'\u201c\u2018]?([^"'\u201c\u201d\u2018\u2019>\s=]+)["'\u201d\u2019]?(.*)\Z""",
    re.DOTALL,
)
_PLAIN_NAME = re.compile(r"[A-Za-z_]\w{0,63}")
_LONGEST = 64
_IN_TAGS = frozenset("<>\n")
_WRAPPERS = frozenset(("args", "arguments", "input", "parameters", "params"))
"""Names that models write around the parameters of a tool, as APIs do."""
_WRAPPED = re.compile(rf'\{{\s{{0,32}}"({"|".join(sorted(_WRAPPERS))})"\s{{0,8}}:')
_MAY_BE_WRAPPED = re.compile(r'\{\s{0,32}(?:"[a-z]{0,10}(?:"\s{0,8})?)?\Z')


class CallParameters:
    """Write the parameters of a call, and record which have come.

    Args:
        known: the schemas of the parameters of the tool. One of these may begin although the parameter before it has no
            end, unless its name has more than 64 characters, or characters of tags.
        put: takes the JSON of the arguments.
    """

    __slots__ = ("_come", "_put", "_put_before", "_short", "names")

    def __init__(self, known: Mapping[str, Any], put: Callable[[str], None]) -> None:
        self.names = known
        self._put = put
        self._come: set[str] = set()
        self._put_before = "{"
        """What stands before the next parameter."""
        self._short: frozenset[str] | None = None

    def writer(self, name: str) -> Callable[[str], None] | None:
        """Return what takes the JSON of a value and writes the name before it; None if the parameter has come."""
        if name in self._come:
            return None
        self._come.add(name)
        begun = False

        def write(text: str) -> None:
            nonlocal begun
            if not begun:
                begun = True
                text = f"{self._put_before}{quoted(name)}: {text}"
                self._put_before = ", "
            self._put(text)

        return write

    def end(self) -> None:
        """End the arguments."""
        self._put("{}" if self._put_before == "{" else "}")

    def may_wrap(self, name: str) -> bool:
        """Return whether this may be a name around the parameters of the tool, which has none of this name."""
        return name in _WRAPPERS and bool(self.names) and name not in self.names

    def write_wrapped(self, text: str, write: Callable[[str], None]) -> None:
        """Write the parameters in the JSON `text` of a value that may wrap them; the value itself if it does not."""
        members = self._members(text)
        if members is None:
            write(text)
            return
        for name, value in members.items():
            if (member := self.writer(name)) is not None:
                member(dumps(value))

    def unwrapped(self, text: str) -> str:
        """Return arguments without a name around them."""
        value = json.loads(text, parse_float=exact_number)
        name = next(iter(value), "")
        inner = self._members(dumps(value[name])) if len(value) == 1 and self.may_wrap(name) else None
        return text if inner is None else dumps(inner)

    def _members(self, text: str) -> dict[str, Any] | None:
        """Return the parameters in JSON: an object of them, or the text of the only one; None if it has others."""
        try:
            value = json.loads(text, parse_float=exact_number) if text else {}
            if isinstance(value, str):
                if not value.lstrip().startswith("{"):
                    types = [allowed_types(schema, {}) for schema in self.names.values()]
                    only = types == [{"string"}]
                    return dict.fromkeys(self.names, value) if only else None
                value = json.loads(value, parse_float=exact_number)  # As it is: what breaks off must not run.
        except (ValueError, RecursionError):
            return None
        return value if isinstance(value, dict) and value.keys() <= self.names.keys() else None

    def next_in(self, text: str, start: int, end: str) -> tuple[bool, str | None]:
        """Find the parameter at `start`: one that has not come yet, followed by `end`.

        Returns:
            Whether the result is certain, and the parameter's name; None if no parameter stands there.
        """
        if self._short is None:  # Made at most once a call, because most calls never get here.
            self._short = frozenset(n for n in self.names if len(n) <= _LONGEST and not _IN_TAGS & set(n))
        rest = text[start : start + _LONGEST + len(end)]
        name, found, _ = rest.partition(end)
        if found:
            return True, name if name in self._short and name not in self._come else None
        if len(rest) == _LONGEST + len(end):
            return True, None
        begun = next((size for size in range(len(end) - 1, 0, -1) if rest.endswith(end[:size])), 0)
        return not _IN_TAGS.isdisjoint(rest[: len(rest) - begun]), None


class TagNames:
    """Read the names of one call.

    Args:
        tags: the tags of the format.
        cursor: stands at the beginning of the call.
        call: takes the call.

    Attributes:
        element_end: the end of the parameter that `parameter` read last, if it is an element with the parameter's name.
        first: the name of the first parameter, if it came without its opening tag.
        plain_end: the end that belongs to `other_key`, if the parameter that was read last begins with that.
    """

    def __init__(self, tags: Tags, cursor: Cursor, call: CallSink) -> None:
        self._tags = tags
        self._cursor = cursor
        self._call = call
        self.first = ""
        self._elements = NO_MARKERS
        """Elements with the names of parameters, which some models write in the place of parameters."""
        self.element_end = ""
        self.plain_end = ""

    def declare(self, known: Mapping[str, Any]) -> None:
        """Set the parameters of the tool."""
        if self._tags.is_element:
            self._elements = finder(*(f"<{key}>" for key in known if _PLAIN_NAME.fullmatch(key)))

    def wrapped(self, parameters: CallParameters) -> Steps[bool]:
        """Return whether the JSON that begins here has a name around the parameters."""
        cursor = self._cursor
        while (match := _WRAPPED.match(cursor.text, cursor.pos)) is None:
            if cursor.closed or _MAY_BE_WRAPPED.match(cursor.text, cursor.pos) is None:
                return False
            yield
        return parameters.may_wrap(match[1])

    def tool(self) -> Steps[str]:
        """Read what stands before the parameters. Returns the name of the tool."""
        tags, cursor = self._tags, self._cursor
        if tags.open and not (yield from cursor.take(tags.open)):
            yield from cursor.expect(element(tags.open))
            yield from cursor.run(_QUOTES, 16)
            yield from cursor.take("name")
            yield from cursor.run(_QUOTES, 16)
            if not (yield from cursor.take("=")):
                yield from cursor.take(":")
        yield from cursor.run(_QUOTES, 16)
        name = yield from cursor.run(_NAME, 256)
        if name == "name=":
            yield from cursor.run(_QUOTES, 16)
            name = yield from cursor.run(_NAME, 256)
        if not name:
            cursor.fail("expected the name of a tool")
        if tags.number:
            yield from cursor.collect(finder(tags.opened))
        elif tags.opened and not (yield from cursor.take(tags.opened)):
            rest = yield from cursor.run(_ATTRIBUTES, 256)
            if not (yield from cursor.take(tags.opened.lstrip('"'))) and (
                # Where the output ends, the name may be the beginning of another one.
                rest.strip() or not tags.key or not (yield from cursor.peek())
            ):
                cursor.fail(f"expected {tags.opened!r}")
        if tags.name_ends:
            yield from cursor.space()
            if (yield from self._stray_end(name)):
                return declared(name, self._call.schemas)
            yield from self._repeated_beginning(name)
            glued = yield from self._glued(name)
            if glued:
                return glued
            if (yield from cursor.look_for(self._after_name)) is None:
                cursor.fail(f"expected {tags.key!r}")
        name = declared(name, self._call.schemas)
        if tags.doubled and name not in self._call.schemas:
            namespace, _, rest = name.partition(".")
            name = rest if rest == namespace else name
        return name

    @property
    def _after_name(self) -> Finder:
        """What follows the name of a tool; without a marker before it, less may."""
        tags = self._tags
        return finder(*tags.name_ends, *(("{", element(tags.key)) if self._call.marked else ()))

    def _stray_end(self, name: str) -> Steps[bool]:
        """Drop the end of a value or a name, though none has begun. Returns whether the output ends there."""
        cursor = self._cursor
        # After an unknown name it may be the end of a parameter's name that is glued to the tool's.
        known = declared(name, self._call.schemas) in self._call.schemas
        strays = finder(self._tags.end, *(self._tags.name_close if known else ()))
        if (yield from cursor.take_one(strays)) is None:
            return False
        yield from cursor.space()
        return not (yield from cursor.peek()) and not cursor.cut

    def _repeated_beginning(self, name: str) -> Steps[None]:
        """Drop the beginning of a call that models write in the place of the first parameter's opening tag."""
        cursor, again = self._cursor, self._tags.wrapper
        known = self._call.schemas.get(declared(name, self._call.schemas), {}).get("properties")
        if again and isinstance(known, Mapping) and known:
            ahead = finder(
                *(f"{again}{key}{self._tags.key_end}" for key in known if _PLAIN_NAME.fullmatch(key))
            )
            if (yield from cursor.look_for(ahead)) is not None:
                cursor.pos += len(again)

    def _glued(self, name: str) -> Steps[str]:
        """Return the tool of a name that the first parameter's name follows without its opening tag, else nothing."""
        tags, cursor = self._tags, self._cursor
        word = "" if tags.open else (yield from cursor.run(_NAME, 256))
        if (tags.open or tags.key_end in tags.name_ends) or (
            yield from cursor.look_for(finder(tags.key_end))
        ) is None:
            return self._failed_word(word)
        for tool, schema in self._call.schemas.items():
            rest = word or name.removeprefix(tool)
            known = schema.get("properties")
            if name in (tool, tool + rest) and isinstance(known, Mapping) and rest in known:
                self.first = rest
                return tool
        return self._failed_word(word)

    def _failed_word(self, word: str) -> str:
        """Check that no word follows the name."""
        if word:
            self._cursor.fail("expected a parameter")
        return ""

    def parameter(self) -> Steps[tuple[str, str | None] | None]:
        """Read the name of a parameter, and the type that the model writes for it; None if no parameter comes."""
        tags, cursor = self._tags, self._cursor
        text, valued = "", False
        first, self.first = self.first, ""
        if first:  # Its opening tag is missing.
            yield from cursor.expect(tags.key_end)
            text, quotes = first, False
        elif (yield from cursor.take(tags.key)) or (yield from self._other_key()):
            text, valued = yield from self._text()
            quotes = tags.key[-1:] == '"'
        elif (yield from self._other_tag()):
            text, _ = yield from cursor.collect(finder(tags.key_end.lstrip('"')))
            match = _NAME_OF.match(text)
            if match is None:
                cursor.fail(f"expected {tags.key!r}")
                raise AssertionError
            text, quotes = f'{match[1]}"{match[2]}"', True
        elif (found := (yield from cursor.take_one(self._elements))) is not None:
            self.element_end = f"</{found[1:]}"
            return found[1:-1], None
        else:
            return None
        kind = None
        if tags.type_open:
            yield from cursor.space()
            if (yield from cursor.take(tags.type_open)):
                kind, _ = yield from cursor.collect(finder(tags.type_close))
        if tags.value_open and not valued:
            yield from cursor.space()
            yield from cursor.take(tags.value_open)  # Some models leave it out.
        key, _, attribute = text.partition('"') if quotes else (text.strip().strip("\"'"), "", "")
        if tags.typed and attribute.strip('" '):
            yes = "true" if tags.typed == "string" else "string"
            kind = "string" if attribute.rstrip('" ').endswith(yes) else "any"
        return key.strip(), kind

    def _other_key(self) -> Steps[bool]:
        """Read the other beginning of a parameter's tag, if it comes."""
        other = self._tags.other_key
        if not other or not (yield from self._cursor.take(other)):
            return False
        begun = element(other)
        self.plain_end = f"</{begun[1:]}>" if begun != other else ""
        return True

    def _text(self) -> Steps[tuple[str, bool]]:
        """Read what stands in a parameter's tag, which may come twice. Returns it, and whether the value's tag came."""
        tags, cursor = self._tags, self._cursor
        yield from cursor.space()
        while tags.value_open and (yield from cursor.take(tags.key)):
            yield from cursor.space()
        # The end of the name may be missing before the value.
        again = tags.key if tags.value_open else ""  # Some models write the name's beginning for its end.
        ends = (tags.key_end, tags.value_open, "\n" if tags.wrapped else "", again)
        text, marker = yield from cursor.collect(finder(*ends))
        valued = bool(tags.value_open) and marker == tags.value_open
        if tags.value_open and not valued:
            yield from cursor.space()
            while (yield from cursor.take(tags.key_end)):
                yield from cursor.space()
        return text, valued

    def _other_tag(self) -> Steps[bool]:
        """Read the beginning of a parameter's tag that is written in another way: `<parameter name='a'>`."""
        cursor, begun = self._cursor, element(self._tags.key)
        if begun == self._tags.key:
            return False
        if (yield from cursor.take_one(finder(*(f"{begun}{char}" for char in "=: \t\n\"'")))) is None:
            return False
        cursor.pos -= 1
        return True
