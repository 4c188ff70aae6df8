"""Read the calls of a section, in the format of the dialect or in another that models write in its place."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from plumbline.answer.dialects.formats.foreign import written_format
from plumbline.answer.dialects.parsers.cursor_parser import CursorParser, OpenCall
from plumbline.answer.dialects.spec.call_format import ArgumentSyntax, CallFormat
from plumbline.answer.dialects.spec.dialect import NewId, Section
from plumbline.answer.dialects.spec.markers import Markers, is_markup
from plumbline.answer.dialects.streams.code_fence import CodeFence
from plumbline.answer.dialects.streams.cursor import (
    EndOfOutputError,
    Finder,
    MalformedError,
    Steps,
    UndeclaredToolError,
    finder,
)
from plumbline.answer.dialects.streams.empty_list import empty_list
from plumbline.answer.dialects.streams.whitespace import WhitespaceBuffer

__all__ = ["SectionReader"]

_NAME = re.compile(r"[-.0-9A-Za-z_]+")
_CALL_BEGINS = ("{", "[", "<", "```")
_FENCES = finder("```json", "```python", "```")


class SectionReader(CursorParser):
    """Base of `MarkerParser`, which reads answers with markers: the calls after a marker.

    Args:
        markers: the markers of the dialects.
        exact: read only the call formats that the dialect writes, not JSON or a list in their place.
    """

    def __init__(
        self,
        markers: Markers,
        tools: Mapping[str, Mapping[str, Any]],
        *,
        inside: bool,
        new_id: NewId,
        logprobs: bool,
        marker_ids: frozenset[int],
        exact: bool,
    ) -> None:
        self._markers = markers
        self._only_own = exact
        self._next_marker: str | None = None
        self._owed: Section | None = None
        """The section of the last calls, if its end is still to come. Later it is dropped."""
        self._shows_markup = False
        """Markup has been kept as text, so its ends are text as well."""
        super().__init__(
            tools,
            inside=inside and markers.reasoning is not None,
            new_id=new_id,
            logprobs=logprobs,
            # White space at the end of a text is held back only where markup may follow it.
            hold=bool(markers.in_text.markers),
            marker_ids=marker_ids,
        )
        if markers.at_line or markers.named or markers.plain_closers:
            self._content.fence = CodeFence()

    def _section(self, sections: tuple[Section, ...], marker: str, prose: WhitespaceBuffer) -> Steps[bool]:
        """Read the calls of a section after its `marker`. Returns whether it had a call.

        Args:
            sections: the sections that begin with this marker. The first character of the calls decides between them.
            prose: takes everything else: text with its markers, the rest of a call that breaks off, and the white
                space after calls.
        """
        cursor = self._cursor
        self._begin_markup(marker)
        section, at_item = yield from self._chosen(sections, marker)
        if marker:
            yield from self._repeated(section)
        first, announced, array = not at_item, False, False
        self._continues = False
        self._owed = None
        while True:
            call = OpenCall(self, self._markers.json_ends[id(section)], section, marked=is_markup(marker))
            try:
                if first:
                    begun = yield from self._begun(section, marker, prose)
                    if begun is None:
                        return True
                    array = begun
                if not at_item and not (yield from self._item(section)):
                    call.marked = False
                if cursor.has_space():
                    yield from cursor.space()
                first = at_item = False
                call_format = yield from self._format(section, marker, listed=array)
                yield from call_format.read(cursor, call)
            except MalformedError as error:
                return (yield from self._failed(call, error, section, prose, marker, announced=announced))
            self._end_call(complete=True)
            announced = self._continues = True
            self._begin_markup()
            brackets = array or call_format.argument_syntax is ArgumentSyntax.JSON
            if not (yield from self._another(section, bool(marker), array, brackets=brackets)):
                self._leave(prose)
                return True

    def _begun(self, section: Section, marker: str, prose: WhitespaceBuffer) -> Steps[bool | None]:
        """Read the beginning of a section. Returns whether a list of calls begins; None if the section has no call."""
        cursor = self._cursor
        if cursor.has_space():
            yield from cursor.space()
        if is_markup(marker) and (yield from self._closed_at_once(section)):
            return None
        if is_markup(marker) and cursor.may_take(_FENCES):
            yield from cursor.take_one(_FENCES)
        return (yield from self._array_begins(section, marker, prose))

    def _item(self, section: Section) -> Steps[bool]:
        """Read what stands before each call of a section. Returns whether it came: some models leave it out."""
        return not section.item_open or (yield from self._cursor.take(section.item_open))

    def _failed(
        self,
        call: OpenCall,
        error: MalformedError,
        section: Section,
        prose: WhitespaceBuffer,
        marker: str,
        *,
        announced: bool,
    ) -> Steps[bool]:
        """End a section where no whole call comes. Returns whether it had a call."""
        if call.begun:
            yield from self._break_off(call, error, section, prose)
            return True
        if announced and section.close and not isinstance(error, UndeclaredToolError):
            _, start = self._end_markup()
            if not self._is_cut(error):
                self._note_place(start, failed="")
            yield from self._drop_rest(section, prose)
            return True
        self._keep_as_text(error, prose, marker, announced=announced, loose=section.loose)
        return announced

    def _leave(self, prose: WhitespaceBuffer) -> None:
        """End a section. White space that no markup follows may belong to text."""
        raw, start = self._end_markup()
        self._note_call(start)
        if raw.strip():
            prose.write(raw, start)
        elif raw:
            prose.wait(raw, start)

    def _begin_markup(self, marker: str = "") -> None:
        """Remember where markup begins that may turn out to be text; `marker`, if any, was read just now."""
        self._cursor.mark(marker)
        self._prose_offset = self._cursor.offset - len(marker)

    def _end_markup(self) -> tuple[str, int]:
        """Return what was read since `_begin_markup`, and its offset."""
        start, self._prose_offset = self._prose_offset, None
        return self._cursor.unmark(), 0 if start is None else start

    def _chosen(self, sections: tuple[Section, ...], marker: str) -> Steps[tuple[Section, bool]]:
        """Choose a section by the first character of its calls. Returns it, and whether its first item has begun."""
        cursor, section = self._cursor, sections[0]
        at_item = bool(marker) and marker == section.item_open
        if len(sections) == 1:
            return section, at_item
        if cursor.has_space():
            yield from cursor.space()
        if section.item_open and not at_item:
            at_item = yield from cursor.take(section.item_open)
            if cursor.has_space():
                yield from cursor.space()
        char = yield from cursor.peek()
        fitting = [s for s in sections if char and char in s.starts]
        return (fitting or [s for s in sections if not s.starts] or [section])[0], at_item

    def _repeated(self, section: Section) -> Steps[None]:
        """Drop further markers that begin the section."""
        cursor, again = self._cursor, self._markers.again.get(id(section))
        while again is not None:
            if cursor.has_space():
                yield from cursor.space()
            if not cursor.may_take(again) or (yield from cursor.take_one(again)) is None:
                return

    def _is_whole_answer(self, prose: WhitespaceBuffer) -> Steps[bool]:
        """Return whether the answer is nothing but the code fence that begins here: else it shows JSON in prose."""
        cursor, seen = self._cursor, 0
        if prose.begun or self.num_calls:
            return False
        while (end := cursor.text.find("```", cursor.pos + max(seen - 2, 0))) < 0:
            if cursor.closed:
                return True
            seen = len(cursor.text) - cursor.pos
            yield
        size = end + 3 - cursor.pos
        while not cursor.text[cursor.pos + size :].strip():
            if cursor.closed:
                return True
            yield
        return False

    def _array_begins(self, section: Section, marker: str, prose: WhitespaceBuffer) -> Steps[bool]:
        """Read the bracket of an array of calls. After a marker, a list and its only call are read for one another."""
        cursor = self._cursor
        if cursor.has_space():
            yield from cursor.space()
        free = bool(marker) and not self._only_own
        # A fence in prose shows JSON, unless that is the family's own form of calls.
        fenced = free and marker in _FENCES.markers and (yield from cursor.peek()) not in [*section.starts]
        if fenced and not (yield from self._is_whole_answer(prose)):
            cursor.fail("expected a call as the whole answer")
        if (yield from cursor.peek()) != "[" or not (section.array or free):
            if section.array and not free:
                cursor.fail("expected '['")
            return False
        cursor.pos += 1
        if cursor.has_space():
            yield from cursor.space()
        return True

    def _format(self, section: Section, marker: str, *, listed: bool) -> Steps[CallFormat]:
        """Return the format of the call that begins here, also where models write that of another family."""
        char = yield from self._cursor.peek()
        if not is_markup(marker) or self._only_own:
            return section.call_format
        return (
            yield from written_format(self._cursor, section.call_format, char, self.schemas, listed=listed)
        )

    def _break_off(
        self, call: OpenCall, error: MalformedError, section: Section, prose: WhitespaceBuffer
    ) -> Steps[None]:
        """End an announced call with arguments that break off; the rest of its markup is dropped."""
        self._end_markup()
        self._end_call(complete=False)
        self._warn(f"a call of {call.name} broke off: {error}")
        if isinstance(error, EndOfOutputError):
            return
        yield from self._drop_rest(section, prose)

    def _drop_rest(self, section: Section, prose: WhitespaceBuffer) -> Steps[None]:
        """Drop the rest of a call through its end, or up to the next one: whoever shows it shows half of a call."""
        marker = yield from self._cursor.until(self._markers.after_broken[id(section)], _ignore)
        if marker is not None and marker in self._markers.sections:
            self._next_marker = marker
        prose.drop()

    def _keep_as_text(
        self, error: MalformedError, prose: WhitespaceBuffer, marker: str, *, announced: bool, loose: bool
    ) -> None:
        """Write markup that is not a call as text; drop it if the token limit has cut it."""
        raw, start = self._end_markup()
        marked = (bool(marker) and not loose) or announced  # What begins like text was text.
        if marked and self._is_cut(error):
            self._warn("the token limit cut a call before its name")
            return
        if marked and raw.strip():
            self._warn(f"markup that is not a call was kept as text: {error}")
            # A marker that only words follow is prose about the marker, and a fence shows JSON.
            undeclared = error.name if isinstance(error, UndeclaredToolError) else ""
            self._note_undeclared(undeclared)
            shaped = undeclared or raw[len(marker) :].lstrip().startswith(_CALL_BEGINS)
            if shaped and marker not in _FENCES.markers:
                self._note_place(start, failed=undeclared)
        if not (marker or loose) and isinstance(error, UndeclaredToolError):
            self._note_place(start, failed=error.name)
        if raw.strip() or not announced:
            self._shows_markup = self._shows_markup or bool(marker)
            prose.write(raw, start)

    def _closed_at_once(self, section: Section) -> Steps[bool]:
        """Drop a section without any call, or with an empty list, which is noise. Returns whether it is one.

        Plain words in brackets with nothing in them may be markup of another kind, such as `<tool></tool>`.
        """
        if section.loose:
            return False
        cursor, closers = self._cursor, self._markers.closers.get(id(section))
        size = (yield from empty_list(cursor, closers)) if (yield from cursor.peek()) == "[" else 0
        cursor.pos += size
        if not size and not (yield from self._closer(section)):
            return False
        self._end_markup()
        self._warn("a section without calls was dropped")
        return True

    def _another(self, section: Section, marked: bool, array: bool, *, brackets: bool) -> Steps[bool]:
        """Read what stands after a call. Returns whether another call of the section must follow.

        Ends of calls without a beginning, brackets and commas too many are dropped. Other text stays marked.
        """
        cursor = self._cursor
        comma = ended = False
        listed = any((array, marked, section.starts))
        yield from self._item_ended(section, brackets)
        while True:
            if cursor.has_space():
                yield from cursor.space()
            if (yield from self._between(section)):
                return True
            # A brace inside a list of calls is no end of the section.
            inside = array and not ended and (yield from cursor.peek()) == "}"
            if not inside and (yield from self._closer(section)):
                return False
            char = yield from cursor.peek()  # The limit may have cut a marker.
            if char and brackets and char in "}])":
                cursor.pos += 1
                ended = ended or char == "]"
                self._begin_markup()
            elif char == "," and listed and not comma:
                cursor.pos += 1
                comma = True
            elif not char or not (yield from self._stray(section)):
                break
        char = yield from cursor.peek()
        if char and (yield from self._begins(section, marked, array, char, ended=ended, comma=comma)):
            return True
        self._no_end(section, at_end=not char)
        return False

    def _no_end(self, section: Section, *, at_end: bool) -> None:
        """Note that calls have no end so far. At the end of the output, what was read since the last one is dropped."""
        if section.close:
            self._warn(f"calls have no {section.close[0]}")
            self._owed = section
        if at_end:
            self._begin_markup()

    def _item_ended(self, section: Section, brackets: bool) -> Steps[None]:
        """Read the end of an item, and braces too many before it."""
        cursor = self._cursor
        if cursor.has_space():
            yield from cursor.space()
        if not section.item_close:
            return
        while brackets and (yield from cursor.peek()) == "}":
            cursor.pos += 1
            self._begin_markup()
        if (yield from cursor.take(section.item_close)):
            self._begin_markup()
        else:
            self._warn(f"a call has no {section.item_close}")

    def _closer(self, section: Section) -> Steps[bool]:
        """Read the end of a section. Returns whether it came."""
        cursor, closers = self._cursor, self._markers.closers.get(id(section))
        if closers is None or not cursor.may_take(closers):
            return False
        if (yield from cursor.take_one(closers)) is None:
            rest = cursor.text[cursor.pos :]  # It may break off at the end of the answer.
            if not cursor.closed or len(rest) < 2 or not any(one.startswith(rest) for one in closers.markers):
                return False
            cursor.pos += len(rest)
        self._begin_markup()
        return True

    def _begins(
        self, section: Section, marked: bool, array: bool, char: str, *, ended: bool, comma: bool
    ) -> Steps[bool]:
        """Return whether another call of the section begins with this character."""
        if ended and array:
            return False
        if section.item_open:
            return (yield from self._cursor.take_ahead(section.item_open))
        if array and comma:
            return True
        if char in section.starts and not section.array and not section.single:
            return True
        begins = section.call_format.begins
        if begins and (marked or not section.single) and (yield from self._cursor.take_ahead(begins)):
            return True
        if (char == "{" and marked) or (yield from self._is_called(section, char)):
            return True
        return bool(section.close) and not section.single and not array and not begins

    def _is_called(self, section: Section, char: str) -> Steps[bool]:
        """Return whether a call in Python begins here."""
        if section.call_format.argument_syntax is not ArgumentSyntax.PYTHON or char in "{<":
            return False
        called = Finder(f"{name}(" for name in self.schemas)
        return (yield from self._cursor.look_for(called)) is not None

    def _stray(self, section: Section) -> Steps[bool]:
        """Drop an end of a call, or of a part of one, that stands alone. Returns whether one came."""
        cursor, stray = self._cursor, self._markers.stray[id(section)]
        if not (cursor.may_take(stray) or section.call_format.is_element):
            return False
        if (yield from cursor.take_one(stray)) is not None:
            self._begin_markup()
            return True
        if not (yield from cursor.take("</")):
            return False
        try:  # The end of an element that no family has, such as `</function_invocation>`.
            named: str | bool = yield from cursor.run(_NAME, 64)
            if named and not (yield from cursor.take(">")):
                named = (yield from cursor.peek()) in ("", "\n", "<")
        except MalformedError:
            named = False
        if named:
            self._begin_markup()
        return bool(named)

    def _between(self, section: Section) -> Steps[bool]:
        """Read the text that stands between two calls of a section. Returns whether it came."""
        cursor, more = self._cursor, False
        if between := section.between.strip():
            headers = self._markers.headers.get(id(section))
            if headers is None or (yield from cursor.look_for(headers)) is None:
                more = yield from cursor.take(between)
            if cursor.has_space():
                yield from cursor.space()
        return more


def _ignore(_: str, __: int) -> None:
    """Drop a piece."""
