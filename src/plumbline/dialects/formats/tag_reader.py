"""Read a call in tags, also where models write the tags nearly right; see `plumbline.dialects.formats.tags`.

A string ends at an end tag after which the call goes on: with another parameter, with the end of the call, or with the
end of the answer. Any other end tag belongs to the string. Where an end tag is missing or cut, the string ends before
the next parameter of the tool, or before the end of the call.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

from plumbline.dialects.formats.parameters import Parameters
from plumbline.dialects.formats.tags import CDATA, Tags
from plumbline.dialects.spec.call_format import CallSink
from plumbline.dialects.streams.coercion import allowed_types, coerce, part_schema
from plumbline.dialects.streams.cursor import Cursor, EndOfOutputError, Finder, Steps, finder
from plumbline.dialects.streams.json_quotes import NO_MARKERS
from plumbline.dialects.streams.json_stream import json_value
from plumbline.dialects.streams.json_text import quoted
from plumbline.dialects.streams.tag_values import JsonWriter, StringWriter, json_between, unwrapped

__all__ = ["TagReader"]

_NAME = re.compile(r"[^\s\[\](){}<>\"'\u201c\u201d\u2018\u2019]+")
_QUOTES = re.compile(r"[\"'\u201c\u201d\u2018\u2019\s]*")
_ATTRIBUTES = re.compile(r"[^<>\n]*")
_NAME_OF = re.compile(
    r"""\s*(?:name\s*)?[=:]?\s*["'\u201c\u2018]?([^"'\u201c\u201d\u2018\u2019>\s=]+)["'\u201d\u2019]?(.*)\Z""",
    re.DOTALL,
)
_ELEMENT = re.compile(r"[\s=]")
"""Ends the name of the element in the tag of a parameter."""
_SPACES = re.compile(r"[ \t\r\n]{0,64}")
_PLAIN_NAME = re.compile(r"[A-Za-z_]\w{0,63}")
_STRING = frozenset(("string",))

Write = Callable[[str], None]


class TagReader:
    """Read one call.

    Args:
        tags: the tags of the format.
        cursor: stands at the beginning of the call.
        call: takes the call.
    """

    def __init__(self, tags: Tags, cursor: Cursor, call: CallSink) -> None:
        self._tags = tags
        self._cursor = cursor
        self._call = call
        tag, close = tags, tags.close
        self._parts = finder(tag.key, tag.other_key, _element(tag.key), tag.end)
        self._after_call = finder(*call.ends.markers, *((close,) if close else ()))
        self._after_value = finder(*self._parts.markers, *self._after_call.markers)
        cut_end = tag.end[:-1] if tag.end.endswith(">") and len(tag.end) > 4 else ""
        early = (close, *call.ends.markers)
        lines = (f"\n{marker}" for marker in early if marker and tag.newline and not tag.wrapped)
        self._ends = finder(tag.end, cut_end, *early, *lines)
        self._cut_end = cut_end
        self._after_cut = finder(*(marker for marker in self._after_value.markers if marker != tag.end))
        """What may follow an end tag that is cut; where the whole one follows, it belongs to the value."""
        self._parameters = Parameters(())
        self._elements = NO_MARKERS
        """Elements with the names of parameters, which some models write in the place of parameters."""
        self._element_end = ""
        self._first = ""
        """The name of the first parameter, if it came without its opening tag."""

    def read(self) -> Steps[None]:
        """Read the call."""
        cursor, call = self._cursor, self._call
        name = yield from self._name()
        call.begin(name)
        root = call.schemas.get(name, {})
        properties = root.get("properties")
        known = properties if isinstance(properties, Mapping) else {}
        self._parameters = Parameters(known)
        if self._tags.is_element:
            self._elements = finder(*(f"<{key}>" for key in known if _PLAIN_NAME.fullmatch(key)))
        come = self._parameters.come
        comma, following = "{", ""
        yield from cursor.space()
        if (yield from cursor.peek()) == "{":  # JSON in the place of the parameters.
            yield from json_value(cursor, call.arguments, markers=self._after_call)
            yield from cursor.space()
            yield from self._end()
            return
        while True:
            kind: str | None = None
            key, following = following, ""
            if not key:
                yield from self._skip_ends()
                found = yield from self._key()
                if found is None:
                    break
                key, kind = found
            types = allowed_types(part_schema(root, root, key), root)
            if kind is not None:
                types = self._tags.given(kind, types)
            is_json = (bool(types) or (bool(self._tags.typed) and kind is not None)) and "string" not in types
            put = None if key in come else call.arguments  # The first one counts.
            if put is not None:
                come.add(key)
                put(f"{comma}{quoted(key)}: ")
                comma = ", "
            following = yield from self._value(put, types, is_json)
        yield from self._end()
        call.arguments("{}" if comma == "{" else "}")

    def _name(self) -> Steps[str]:
        """Read what stands before the parameters. Returns the name of the tool."""
        tags, cursor = self._tags, self._cursor
        if tags.open and not (yield from cursor.take(tags.open)):
            yield from cursor.expect(_element(tags.open))
            yield from cursor.run(_QUOTES, 16)
            yield from cursor.take("name")
            yield from cursor.run(_QUOTES, 16)
            yield from cursor.take("=")
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
            glued = yield from self._glued(name)
            if glued:
                return glued
            if (yield from cursor.look_for(finder(*tags.name_ends, "{", _element(tags.key)))) is None:
                cursor.fail(f"expected {tags.key!r}")
        if tags.doubled and name not in self._call.schemas:
            namespace, _, rest = name.partition(".")
            name = rest if rest == namespace else name
        return name

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
                self._first = rest
                return tool
        return self._failed_word(word)

    def _failed_word(self, word: str) -> str:
        """Check that no word follows the name."""
        if word:
            self._cursor.fail("expected a parameter")
        return ""

    def _skip_ends(self) -> Steps[None]:
        """Skip white space, and ends of values where no value is."""
        cursor = self._cursor
        yield from cursor.space()
        while (yield from cursor.take(self._tags.end)):
            yield from cursor.space()

    def _end(self) -> Steps[None]:
        """Read the end of the call, which may be missing where the output or the markup ends.

        Raises:
            MalformedError: text follows, so the value before it contained its own end; or the tag of a parameter is
                malformed. A call without the rest of that value, or without that parameter, must not run.
        """
        tags, cursor = self._tags, self._cursor
        if tags.close and (yield from cursor.take(tags.close)):
            return
        if (yield from cursor.take_ahead(_element(tags.key))):
            cursor.fail(f"expected {tags.key!r}")
        char = yield from cursor.peek()
        # The token limit may have cut further parameters.
        ended = not cursor.cut
        if char:
            ended = (yield from cursor.look_for(self._after_value)) is not None
            ended = ended or (yield from cursor.take_ahead("</"))
        if not ended:
            cursor.fail("expected the end of the call")

    def _key(self) -> Steps[tuple[str, str | None] | None]:
        """Read the name of a parameter, and the type that the model writes for it; None if no parameter comes."""
        tags, cursor = self._tags, self._cursor
        text, valued = "", False
        first, self._first = self._first, ""
        if first:  # Its opening tag is missing.
            yield from cursor.expect(tags.key_end)
            text, quotes = first, False
        elif (yield from cursor.take(tags.key)) or (
            tags.other_key and (yield from cursor.take(tags.other_key))
        ):
            yield from cursor.space()
            # The end of the name may be missing before the value.
            ends = (tags.key_end, tags.value_open, "\n" if tags.wrapped else "")
            text, marker = yield from cursor.collect(finder(*ends))
            valued = bool(tags.value_open) and marker == tags.value_open
            quotes = tags.key[-1:] == '"'
        elif (yield from self._other_tag()):
            text, _ = yield from cursor.collect(finder(tags.key_end.lstrip('"')))
            match = _NAME_OF.match(text)
            if match is None:
                cursor.fail(f"expected {tags.key!r}")
                raise AssertionError
            text, quotes = f'{match[1]}"{match[2]}"', True
        elif (element := (yield from cursor.take_one(self._elements))) is not None:
            self._element_end = f"</{element[1:]}"
            return element[1:-1], None
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

    def _other_tag(self) -> Steps[bool]:
        """Read the beginning of a parameter's tag that is written in another way: `<parameter name='a'>`."""
        cursor, element = self._cursor, _element(self._tags.key)
        if element == self._tags.key:
            return False
        if (yield from cursor.take_one(finder(*(f"{element}{char}" for char in "= \t\n\"'")))) is None:
            return False
        cursor.pos -= 1
        return True

    def _value(self, put: Write | None, types: frozenset[str], is_json: bool) -> Steps[str]:
        """Read a value through its end.

        Args:
            put: takes the JSON of the value; None to skip it.
            types: the types that its schema allows.
            is_json: the value is not a string.

        Returns:
            The next parameter, if its opening tag has been read instead of the end; else nothing.
        """
        tags, cursor = self._tags, self._cursor
        if self._element_end:
            ends, self._element_end = finder(self._element_end), ""
        elif tags.cdata and (yield from cursor.take(CDATA)):
            ends = finder(f"]]>{tags.end}")
        else:
            ends = finder(*self._ends.markers, self._another) if self._parameters.names else self._ends
        if is_json:
            return (yield from self._json(put, types, ends))
        out = StringWriter(put or _ignore, types, wrapped=tags.wrapped)
        following: str | None = None
        while following is None:
            marker = yield from cursor.until(ends, out.write)
            if marker is None:
                if cursor.cut:
                    raise EndOfOutputError(f"expected {tags.end!r}")
                break
            following = yield from self._at_marker(marker, out.write)
        out.close()
        return following or ""

    def _at_marker(self, marker: str, write: Callable[[str, int], None]) -> Steps[str | None]:
        """Decide what a marker in a string is, which was read just now.

        Returns:
            The parameter that begins; nothing if the value ends; None if the marker is text, which goes to `write`.
        """
        tags, cursor = self._tags, self._cursor
        if marker == self._another:
            return (yield from self._following(write))
        if marker not in self._ends.markers:
            return ""
        cursor.pos -= len(marker)
        if marker in (tags.end, self._cut_end):
            after = self._after_value if marker == tags.end else self._after_cut
            ended = yield from self._goes_on(len(marker), after)
            read = ended
        elif marker.lstrip() == tags.close:
            ended = yield from self._goes_on(len(marker), self._call.ends)
            read = False
        else:  # The end of the section, where the call has none of its own.
            ended = yield from self._goes_on(len(marker), self._call.ends, line=True)
            read = False
        if read or not ended:
            cursor.pos += len(marker)
        if not ended:
            write(marker, cursor.offset)
            return None
        return ""

    def _goes_on(self, size: int, after: Finder, *, line: bool = False) -> Steps[bool]:
        """Return whether one of these markers follows the next `size` characters, or the end of the answer.

        Args:
            size: the length of the marker that the cursor stands before.
            after: what may follow it, after white space.
            line: a new line may follow it as well.
        """
        cursor = self._cursor
        while True:
            space = _SPACES.match(cursor.text, cursor.pos + size)
            end = cursor.pos + size if space is None else space.end()
            if end < len(cursor.text):
                if line and space is not None and "\n" in space.group():
                    return True
                certain, marker = after.at(cursor.text, end, cursor.closed and not cursor.cut)
                if certain or cursor.closed:
                    return marker is not None or not certain
            elif cursor.closed:
                return True
            yield

    def _json(self, put: Write | None, types: frozenset[str], ends: Finder) -> Steps[str]:
        """Read a value that is not a string; see `_value`."""
        tags, cursor = self._tags, self._cursor
        out = JsonWriter(put, types)
        following: str | None = None
        while following is None:
            marker = yield from json_between(cursor, out, ends)
            if marker == self._another:
                following = yield from self._following(out.write)
                continue
            following = ""
            if marker in self._ends.markers and marker not in (tags.end, self._cut_end):
                cursor.pos -= len(marker)
        if put is not None and not out.begun:
            put(coerce(unwrapped(out.text) if tags.wrapped else out.text, types))
        return following

    @property
    def _another(self) -> str:
        """What the next parameter begins with if the value before it has no end."""
        return f"{self._tags.newline}{self._tags.key}"

    def _following(self, write: Callable[[str, int], None]) -> Steps[str | None]:
        """Read the rest of another parameter's tag, after `key`; None if this is text, which goes to `write`."""
        tags, cursor = self._tags, self._cursor
        end = '"' if tags.typed else tags.key_end + ("\n" if tags.wrapped else "")
        while not (found := self._parameters.next_in(cursor.text, cursor.pos, end))[0]:
            if cursor.closed:
                cursor.pos = len(cursor.text)
                raise EndOfOutputError(f"expected {tags.end!r}")
            yield
        name = found[1]
        if name is None:
            write(self._another, cursor.offset)
            return None
        cursor.pos += len(name)
        yield from cursor.collect(finder(tags.key_end.lstrip('"')))
        if tags.value_open:
            yield from cursor.space()
            yield from cursor.take(tags.value_open)
        if tags.wrapped:
            write("\n", cursor.offset)
        return name


def _element(tag: str) -> str:
    """Return the beginning of a tag through the name of its element."""
    return (
        _ELEMENT.split(tag.lstrip(), maxsplit=1)[0] if not tag.startswith("<｜DSML｜ ") else tag.split("=")[0]
    )


def _ignore(_: str) -> None:
    """Drop a piece."""
