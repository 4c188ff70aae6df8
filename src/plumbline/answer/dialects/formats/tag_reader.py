"""Read a call in tags, also where models write the tags nearly right; see `plumbline.answer.dialects.formats.tags`.

A string ends at an end tag after which the call goes on: with another parameter, with the end of the call, or with the
end of the answer. Any other end tag belongs to the string. Where an end tag is missing or cut, the string ends before
the next parameter of the tool, or before the end of the call.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from difflib import SequenceMatcher
from functools import lru_cache
from typing import Any

from plumbline.answer.dialects.formats.json_calls import buffered_arguments
from plumbline.answer.dialects.formats.tag_names import CallParameters, TagNames
from plumbline.answer.dialects.formats.tags import CDATA, Tags, element
from plumbline.answer.dialects.spec.call_format import CallSink
from plumbline.answer.dialects.streams.coercion import allowed_types, coerce, listed_texts, part_schema
from plumbline.answer.dialects.streams.cursor import Cursor, EndOfOutputError, Finder, Steps, finder
from plumbline.answer.dialects.streams.json_stream import json_value
from plumbline.answer.dialects.streams.tag_values import JsonWriter, StringWriter, json_between, unwrapped

__all__ = ["TagReader"]

_SPACES = re.compile(r"[ \t\r\n]{0,64}")
_BEGIN = re.compile(r"</(?:[^<>]*\W)?(?=\w+ ?>\Z)")
_REST = re.compile(r"(\w{1,24}) ?>")
_BEGUN_REST = re.compile(r"\w{0,24} ?\Z")
_FAR = 2048
"""Characters behind an end of a call in which the end of its value is looked for."""
_ALIKE = 0.8
"""How much a misspelled name is like the right one at least: a letter that is missing, added or in another place."""
_FOREIGN_BEGINS = ("<function", "<invoke")
"""What calls of other families in tags begin with."""

_LONGEST_NAME = 64
"""Characters of the name of a parameter whose own end tag is looked for."""
_MOST_WRAPPERS = 3
"""Markers of sections before a call. A model that repeats itself writes thousands."""

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
        self._parts = finder(tag.key, tag.other_key, element(tag.key), tag.end, *tag.name_close)
        closes = ((close,) if close else ()) + tag.other_closes
        self._after_call = finder(*call.ends.markers, *closes)
        self._after_value = finder(*self._parts.markers, *self._after_call.markers)
        # A text may be about the marker of a section, too, so a call must follow it.
        self._openers = frozenset(_wrappers(call.ends.markers))
        self._call_begins = finder(
            *self._openers,
            element(tag.open),
            *_FOREIGN_BEGINS,
            "{",
            "[",
            "```",
            *_named(call.schemas, tag.open),
        )
        cut_end = tag.end[:-1] if tag.end.endswith(">") and len(tag.end) > 4 else ""
        early = (*closes, *call.ends.markers)
        lines = (f"\n{marker}" for marker in early if marker and tag.newline)
        self._ends = finder(tag.end, cut_end, *tag.other_ends, *early, *lines)
        self._cut_end = cut_end
        self._next_tag = _tags_pattern(tag.end, tag.key, *_wrappers(call.ends.markers))
        """The end of the value, and what begins parameters or calls."""
        # The end of a name may stand in a value as often as the model likes, so a second one does not make it an end.
        ends = (tag.end, *tag.name_close)
        self._after_cut = finder(*(marker for marker in self._after_value.markers if marker not in ends))
        """What may follow an end tag that is cut; where the whole one follows, it belongs to the value."""
        self._parameters = CallParameters({}, call.arguments)
        self._names = TagNames(tags, cursor, call)
        self._listed: frozenset[str] = frozenset()
        """The strings that the schema of the parameter lists."""
        self._schemas: tuple[Any, Mapping[str, Any]] = None, {}
        """The schema of the parameter, and that of all parameters."""
        self._own_end = ""
        """The end of an element with the name of the parameter, which some models write for `end`."""
        begin = _BEGIN.match(tag.end)
        self._end_begin = begin.group() if begin is not None else ""
        """The end tag up to its name, which models misspell."""
        self._nested = element(tags.value_open or tags.key) if tags.is_element else ""
        """The beginning of an element inside the value whose end is like that of the value."""
        self._depth = 0
        """Such elements that have begun and not ended."""

    def read(self) -> Steps[None]:
        """Read the call."""
        cursor, call = self._cursor, self._call
        name = yield from self._names.tool()
        call.begin(name)
        root = call.schemas.get(name, {})
        properties = root.get("properties")
        known = properties if isinstance(properties, Mapping) else {}
        self._parameters = parameters = CallParameters(known, call.arguments)
        self._names.declare(known)
        following = ""
        yield from cursor.space()
        if (yield from cursor.peek()) == "{":  # JSON in the place of the parameters.
            if (yield from self._names.wrapped(parameters)):
                text = yield from buffered_arguments(cursor, self._after_call)
                call.arguments(parameters.unwrapped(text))
            else:
                yield from json_value(cursor, call.arguments, markers=self._after_call)
            yield from cursor.space()
            yield from self._end()
            return
        while True:
            kind: str | None = None
            key, following = following, ""
            if not key:
                yield from self._skip_ends()
                found = yield from self._names.parameter()
                if found is None:
                    break
                key, kind = found
            schema = part_schema(root, root, key)
            types, self._listed = allowed_types(schema, root), listed_texts(schema, root)
            self._schemas = schema, root
            if kind is not None:
                types = self._tags.given(kind, types)
            is_json = (bool(types) or (bool(self._tags.typed) and kind is not None)) and "string" not in types
            put = parameters.writer(key)  # The first one counts.
            if put is None or not parameters.may_wrap(key):
                following = yield from self._value(key, put, types, is_json)
            else:
                held: list[str] = []
                following = yield from self._value(key, held.append, types, is_json)
                parameters.write_wrapped("".join(held), put)
        yield from self._end()
        parameters.end()

    def _skip_ends(self) -> Steps[None]:
        """Skip white space, and ends of values and names where none is open."""
        cursor = self._cursor
        strays = finder(
            self._tags.end, *self._tags.other_ends, *(() if self._names.first else self._tags.name_close)
        )
        yield from cursor.space()
        while (yield from cursor.take_one(strays)) is not None:
            yield from cursor.space()

    def _end(self) -> Steps[None]:
        """Read the end of the call, which may be missing where the output or the markup ends.

        Raises:
            MalformedError: text follows, so the value before it contained its own end; or the tag of a parameter is
                malformed. A call without the rest of that value, or without that parameter, must not run.
        """
        tags, cursor = self._tags, self._cursor
        if tags.close and (yield from cursor.take_one(finder(tags.close, *tags.other_closes))) is not None:
            return
        if (yield from cursor.take_ahead(element(tags.key))):
            cursor.fail(f"expected {tags.key!r}")
        char = yield from cursor.peek()
        # The token limit may have cut further parameters.
        ended = not cursor.cut
        if char:
            ended = (yield from cursor.look_for(self._after_value)) is not None
            ended = ended or (yield from cursor.take_ahead("</"))
        if not ended:
            cursor.fail("expected the end of the call")

    def _value(self, key: str, put: Write | None, types: frozenset[str], is_json: bool) -> Steps[str]:
        """Read a value through its end.

        Args:
            key: the parameter.
            put: takes the JSON of the value; None to skip it.
            types: the types that its schema allows.
            is_json: the value is not a string.

        Returns:
            The next parameter, if its opening tag has been read instead of the end; else nothing.
        """
        tags, cursor = self._tags, self._cursor
        plain, self._names.plain_end = self._names.plain_end, ""
        # A finder of a longer name, which a model that repeats itself writes, would nest too deep.
        named = tags.is_element and len(key) <= _LONGEST_NAME
        self._own_end, self._depth = plain or (f"</{key}>" if named else ""), 0
        if self._names.element_end:
            ends, self._names.element_end = finder(self._names.element_end), ""
        elif tags.cdata and (yield from cursor.take(CDATA)):
            ends = finder(f"]]>{tags.end}")
        else:
            more = (*self._another, self._own_end, self._nested, self._end_begin)
            ends = finder(*self._ends.markers, *(more if self._parameters.names else ()))
        if is_json:
            return (yield from self._json(put, types, ends))
        out = StringWriter(put or _ignore, types, wrapped=tags.wrapped, listed=self._listed)
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
        if marker in self._another:
            return (yield from self._following(marker, write))
        if marker == self._nested:
            self._depth += 1
            write(marker, cursor.offset)
            return None
        if marker not in (*self._ends.markers, self._own_end, self._end_begin):
            return ""
        cursor.unread(marker)
        if marker and marker in (self._end_begin, self._cut_end):
            size = yield from self._misspelled_size()
            if size and (yield from self._goes_on(size, self._after_cut, at_end=False)):
                cursor.pos += size
                return ""
        if marker == self._end_begin:
            ended = read = False
        elif marker in (tags.end, self._cut_end, self._own_end, *tags.other_ends):
            after = self._after_value if marker == tags.end else self._after_cut
            ended = yield from self._goes_on(len(marker), after)
            if ended and self._depth and marker == tags.end:
                self._depth -= 1
                ended = not (yield from self._goes_on(len(marker), finder(tags.end), at_end=False))
            read = ended
        else:
            ended = yield from self._ends_early(marker)
            read = False
        if read or not ended:
            cursor.pos += len(marker)
        if not ended:
            write(marker, cursor.offset)
            return None
        return ""

    def _ends_early(self, marker: str) -> Steps[bool]:
        """Return whether the end of the call or the section ends the value too, or the beginning of another section."""
        size, own = len(marker), marker.lstrip() in (self._tags.close, *self._tags.other_closes)
        if marker.lstrip() in self._openers:
            goes_on = yield from self._goes_on(size, self._call_begins)
        else:
            goes_on = yield from self._goes_on(size, self._call.ends, line=not own)
        if not goes_on:
            return False
        return not (yield from self._end_comes(size))

    def _end_comes(self, size: int) -> Steps[bool]:
        """Return whether the end of the value comes after the next `size` characters, before a parameter or a call.

        Then what stands there is part of the value: an example of calls in a text, say.
        """
        cursor, tags = self._cursor, self._tags
        while True:
            last = cursor.pos + size + _FAR
            found = self._next_tag.search(cursor.text[:last], cursor.pos + size)
            if found is not None:
                return found.group() == tags.end
            if cursor.closed or len(cursor.text) >= last:
                return False
            yield

    def _misspelled_size(self) -> Steps[int]:
        """Return how long the misspelled end tag at the cursor is; 0 if none stands there."""
        cursor, size = self._cursor, len(self._end_begin)
        right = self._tags.end[size:].rstrip("> ")
        while (rest := _REST.match(cursor.text, cursor.pos + size)) is None:
            if cursor.closed or _BEGUN_REST.match(cursor.text, cursor.pos + size) is None:
                return 0
            yield
        alike = SequenceMatcher(None, rest[1], right, autojunk=False).ratio() >= _ALIKE
        other = self._tags.name_close == (f"{self._end_begin}{rest[0]}",)
        alike = alike or (len(rest[1]) > 3 and right.startswith(rest[1]))  # `</param>`
        alike = alike or rest[1] in self._parameters.names  # `</city>` where `</parameter>` is meant.
        return size + len(rest[0]) if other or (alike and rest[1] != right) else 0

    def _goes_on(self, size: int, after: Finder, *, line: bool = False, at_end: bool = True) -> Steps[bool]:
        """Return whether one of these markers follows the next `size` characters, or the end of the answer.

        Args:
            size: the length of the marker that the cursor stands before.
            after: what may follow it, after white space.
            line: a new line may follow it as well.
            at_end: the end of the answer may follow it.
        """
        cursor, wrappers = self._cursor, 0
        while wrappers <= _MOST_WRAPPERS:
            space = _SPACES.match(cursor.text, cursor.pos + size)
            end = cursor.pos + size if space is None else space.end()
            if end < len(cursor.text):
                if line and space is not None and "\n" in space.group():
                    return True
                certain, marker = after.at(cursor.text, end, cursor.closed and not cursor.cut)
                if marker is not None and marker in self._openers:
                    size, after, line, at_end = end + len(marker) - cursor.pos, self._call_begins, False, True
                    wrappers += 1
                    continue
                if (
                    certain and marker is None and cursor.closed and at_end
                ):  # A marker may break off at the end.
                    rest = cursor.text[end:]
                    return len(rest) > 1 and any(one.startswith(rest) for one in after.markers)
                if certain or cursor.closed:
                    return marker is not None or not certain
            elif cursor.closed:
                return at_end
            yield
        return False

    def _json(self, put: Write | None, types: frozenset[str], ends: Finder) -> Steps[str]:
        """Read a value that is not a string; see `_value`."""
        tags, cursor = self._tags, self._cursor
        out = JsonWriter(put, types, *self._schemas)
        following: str | None = None
        while following is None:
            marker = yield from json_between(cursor, out, ends)
            if marker in self._another:
                following = yield from self._following(marker, out.write)
                continue
            following = ""
            if marker and marker in (self._end_begin, self._cut_end):
                cursor.unread(marker)
                size = yield from self._misspelled_size()
                if not size and marker == self._end_begin and not out.begun:
                    out.write(marker)  # The end of another element: the value is a text with markup in it.
                    following = None
                cursor.pos += size or len(marker)
            elif marker in self._ends.markers and marker not in (tags.end, self._cut_end, *tags.other_ends):
                cursor.unread(marker)
        if put is not None and not out.begun and (out.text.strip() or not types or "null" in types):
            # An empty text that is neither a string nor null here is left out: it is no number, for example.
            put(coerce(unwrapped(out.text) if tags.wrapped else out.text, types))
        return following

    @property
    def _another(self) -> tuple[str, ...]:
        """What the next parameter begins with if the value before it has no end."""
        line = f"{self._tags.newline}{self._tags.key}"
        # A tag for the name alone, followed by one for the value, is hardly part of a text.
        return (line, self._tags.key) if self._tags.value_open else (line,)

    def _following(self, marker: str, write: Callable[[str, int], None]) -> Steps[str | None]:
        """Read the rest of another parameter's tag, after `marker`; None if this is text, which goes to `write`."""
        tags, cursor = self._tags, self._cursor
        end = '"' if tags.typed else tags.key_end
        while not (found := self._parameters.next_in(cursor.text, cursor.pos, end))[0]:
            if cursor.closed:
                cursor.pos = len(cursor.text)
                raise EndOfOutputError(f"expected {tags.end!r}")
            yield
        name = found[1]
        if name is None:
            self._depth += not tags.value_open
            write(marker, cursor.offset)
            return None
        cursor.pos += len(name)
        yield from cursor.collect(finder(tags.key_end.lstrip('"')))
        if tags.value_open:
            yield from cursor.space()
            yield from cursor.take(tags.value_open)
        if tags.wrapped:
            write("\n", cursor.offset)
        return name


def _wrappers(markers: Iterable[str]) -> tuple[str, ...]:
    """Return the markers that begin sections of calls."""
    return tuple(marker for marker in markers if "/" not in marker and marker[-1:] in ">]")


@lru_cache(maxsize=256)
def _tags_pattern(*tags: str) -> re.Pattern[str]:
    return re.compile("|".join(map(re.escape, tags)))


def _named(tools: Collection[str], opened: str) -> Iterator[str]:
    """Return what calls begin with that begin with the name of a tool, in a format whose own begin with `opened`."""
    return (f"{name}{after}" for name in tools for after in (("(", "{", " ", "\n") if opened else ("",)))


def _ignore(_: str) -> None:
    """Drop a piece."""
