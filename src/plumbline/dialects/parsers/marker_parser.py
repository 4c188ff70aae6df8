"""Parse answers with markers into thinking, text and calls, the same for every way of cutting them.

The characters alone decide, in their order:

* Thinking begins where the prompt left it open, or with its marker at the beginning of the answer or after a call;
  inside text only in families whose markers no model writes in prose.
* A marker of calls begins a call if a call follows. A call is announced once its name is certain, so markup that is
  not a call is still text, with its marker. A marker in prose stays prose.
* A call inside thinking is a call, and what follows it is thinking up to the end marker: models that go on after a
  call there write the end marker later.
* An announced call with arguments that break off keeps what was read and is marked incomplete; the rest of its
  markup is text. A call that the token limit cuts before its name is dropped.
* White space between text and markup belongs to neither.

Events are never taken back.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from plumbline.dialects.parsers.cursor_parser import CursorParser
from plumbline.dialects.parsers.whitespace import SPACE, WhitespaceBuffer
from plumbline.dialects.spec.dialect import NewId, Section
from plumbline.dialects.spec.markers import Markers
from plumbline.dialects.streams.cursor import (
    EndOfOutputError,
    MalformedError,
    Steps,
    UndeclaredToolError,
)

__all__ = ["MarkerParser"]


_NAME = re.compile(r"[-.0-9A-Za-z_]+")


class MarkerParser(CursorParser):
    """Parse an answer in which markers stand around thinking and calls.

    Args:
        markers: the markers of the dialects.
        tools: the parameters of each tool that may be called, by name (TOOL-02, TOOL-06).
        inside: generation starts inside the thinking.
        new_id: makes the id of a call from its name and its number in this answer.
        logprobs: the deltas carry logprobs.
        marker_ids: see `AnswerParser`.
    """

    def __init__(
        self,
        markers: Markers,
        tools: Mapping[str, Mapping[str, Any]],
        *,
        inside: bool,
        new_id: NewId,
        logprobs: bool = False,
        marker_ids: frozenset[int] = frozenset(),
    ) -> None:
        self._markers = markers
        self._next_marker: str | None = None
        super().__init__(
            tools,
            inside=inside and markers.reasoning is not None,
            new_id=new_id,
            logprobs=logprobs,
            # White space at the end of a text is held back only where markup may follow it.
            hold=bool(markers.in_text.markers),
            marker_ids=marker_ids,
        )

    def _answer(self) -> Steps[None]:
        cursor, markers = self._cursor, self._markers
        yield from self._continue_thinking()
        boundary = True
        while True:
            if boundary and (yield from self._boundary()):
                continue
            marker, self._next_marker = self._next_marker, None
            if marker is None:
                marker = yield from cursor.until(markers.in_text, self._content.write)
            if marker is None:
                break
            if marker in markers.at_line and not self._content.at_line:
                self._content.write(marker, cursor.offset - len(marker))
                boundary = False
            elif marker in markers.sections:
                boundary = yield from self._section(markers.sections[marker], marker, self._content)
            elif marker in markers.silent:
                boundary = yield from self._silent_text(marker)
            else:
                self._content.drop()
                if marker in markers.opens:
                    yield from self._think(cursor.offset - len(marker))
                boundary = True
        self._content.flush()

    def _continue_thinking(self) -> Steps[None]:
        """Read the thinking that the prompt has begun, if it has."""
        cursor, reasoning = self._cursor, self._markers.reasoning
        if not self._starts_inside or reasoning is None:
            return
        if reasoning.append:
            # The prompt has written this, so it has no logprobs.
            self._run_text.append(reasoning.open[0] + reasoning.after_open)
            return
        if cursor.has_space():
            yield from cursor.space()
        # Some models write the opening marker although the prompt ends with it.
        yield from cursor.take_one(self._markers.opening)
        yield from self._think(0)

    def _boundary(self) -> Steps[bool]:
        """Read what may come only where the answer begins, or after thinking or calls. Returns whether it came."""
        cursor, markers = self._cursor, self._markers
        if self._next_marker is not None:
            return False
        while (char := (yield from cursor.peek())) and char in SPACE:
            self._content.wait(char, cursor.offset)
            cursor.pos += 1
        if not char:
            return False
        marker = yield from cursor.take_one(markers.at_boundary)
        if marker in markers.sections:
            self._next_marker = marker
            return False
        if marker is not None:
            self._content.drop()
            if marker in markers.opens:
                yield from self._think(cursor.offset - len(marker))
            return True  # An end of thinking without a beginning is dropped, and so are texts around answers.
        if markers.headed.markers and (yield from self._header()):
            return True
        if char in markers.before_bare.starts and (yield from cursor.may_become(markers.before_bare)):
            return False  # A marker that begins like a bare call.
        for section in markers.bare:
            if char in section.starts:
                return (yield from self._section((section,), "", self._content))
        return False

    def _header(self) -> Steps[bool]:
        """Drop the name of a tool in the header of a message; any other word is text. Returns whether it was one."""
        cursor, markers = self._cursor, self._markers
        self._begin_markup()
        name = ""
        headed = bool(markers.header) and (yield from cursor.take(markers.header))
        if headed or not markers.header:
            try:
                name = yield from cursor.run(_NAME, 128)
            except MalformedError:
                name = ""
        named = bool(name) and (headed or not self._tools or name in self._tools)
        ends = named and (yield from cursor.may_become(markers.headed))
        if headed and not ends and not (yield from cursor.peek()):
            ends = cursor.cut
        raw, start = self._end_markup()
        if ends:
            self._content.drop()
        else:
            self._content.write(raw, start)
        return ends

    def _silent_text(self, marker: str) -> Steps[bool]:
        """Drop a text that stands around answers if only markup follows. Returns whether the answer ends here.

        Anywhere else the model writes about the text, so it stays.
        """
        cursor = self._cursor
        self._begin_markup(marker)
        yield from cursor.space()
        marked = (yield from cursor.look_for(self._markers.after_silent)) is not None
        ends = marked or not (yield from cursor.peek())
        raw, start = self._end_markup()
        if ends:
            self._content.drop()
        else:
            self._content.write(raw, start)
        return ends

    def _think(self, start: int) -> Steps[None]:
        cursor, markers, thought = self._cursor, self._markers, self._thought
        thought.drop()
        self._thought_start = start
        while True:
            marker, self._next_marker = self._next_marker, None
            if marker is None:
                marker = yield from cursor.until(markers.in_thought, thought.write)
            if marker is not None and marker in markers.at_line:  # Only after a call that broke off.
                thought.write(marker, cursor.offset - len(marker))
                continue
            if marker is not None and marker in markers.sections:
                earlier = self.num_calls
                yield from self._section(markers.sections[marker], marker, thought)
                if self.num_calls > earlier:
                    self._thought_start = cursor.offset
                continue
            if marker in markers.reopening.markers:
                continue
            self._end_thought(cursor.offset)
            return

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
        first, announced = not at_item, False
        while True:
            call = _OpenCall(self)
            try:
                if not (yield from self._before_call(section, marker, first=first, at_item=at_item)):
                    return True
                first = at_item = False
                yield from section.call_format.read(cursor, call)
            except MalformedError as error:
                if call.begun:
                    yield from self._break_off(call, error, section, prose)
                    return True
                self._keep_as_text(error, prose, marked=bool(marker) or announced, announced=announced)
                return announced
            self._end_call(complete=True)
            announced = True
            self._begin_markup()
            if not (yield from self._another(section)):
                raw, _ = self._end_markup()
                self._note_call()
                # White space that no markup follows may belong to text.
                if space := raw[len(raw.rstrip(SPACE)) :]:
                    prose.wait(space, cursor.offset - len(space))
                return True

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
        while again is not None and cursor.may_take(again):
            if (yield from cursor.take_one(again)) is None:
                return

    def _before_call(self, section: Section, marker: str, *, first: bool, at_item: bool) -> Steps[bool]:
        """Read what stands before a call. Returns False if the section ends without any call."""
        cursor = self._cursor
        if cursor.has_space():
            yield from cursor.space()
        if first and marker and (yield from self._closed_at_once(section)):
            return False
        if first and section.array:
            if not cursor.skip("["):
                yield from cursor.expect("[")
            if cursor.has_space():
                yield from cursor.space()
        if section.item_open and not at_item:
            yield from cursor.expect(section.item_open)
            if cursor.has_space():
                yield from cursor.space()
        return True

    def _break_off(
        self, call: _OpenCall, error: MalformedError, section: Section, prose: WhitespaceBuffer
    ) -> Steps[None]:
        """End an announced call with arguments that break off; the rest of its markup is text."""
        raw, _ = self._end_markup()
        self._end_call(complete=False)
        self._warn(f"a call of {call.name} broke off: {error}")
        if isinstance(error, EndOfOutputError):
            return
        rest = raw or error.rest
        prose.write(rest, self._cursor.offset - len(rest))
        marker = yield from self._cursor.until(self._markers.after_broken[id(section)], prose.write)
        if marker is not None and marker in self._markers.sections:
            self._next_marker = marker
        else:
            prose.drop()

    def _keep_as_text(
        self, error: MalformedError, prose: WhitespaceBuffer, *, marked: bool, announced: bool
    ) -> None:
        """Write markup that is not a call as text; drop it if the token limit has cut it."""
        raw, start = self._end_markup()
        if marked and isinstance(error, EndOfOutputError) and self._reason == "length":
            self._warn("the token limit cut a call before its name")
            return
        if marked and isinstance(error, UndeclaredToolError):
            self._note_undeclared(error.name)
        if marked and raw.strip():
            self._warn(f"markup that is not a call was kept as text: {error}")
        if raw.strip() or not announced:
            prose.write(raw, start)

    def _closed_at_once(self, section: Section) -> Steps[bool]:
        """Drop a section without any call, which is noise. Returns whether it is one."""
        cursor = self._cursor
        closers = self._markers.closers.get(id(section))
        if closers is None or not cursor.may_take(closers) or (yield from cursor.take_one(closers)) is None:
            return False
        self._end_markup()
        self._warn("a section without calls was dropped")
        return True

    def _another(self, section: Section) -> Steps[bool]:
        """Read what stands after a call. Returns whether another call of the section must follow."""
        cursor = self._cursor
        if cursor.has_space():
            yield from cursor.space()
        if section.item_close:
            if not (yield from cursor.take(section.item_close)):
                self._warn(f"a call has no {section.item_close}")
            if cursor.has_space():
                yield from cursor.space()
        more = yield from (self._comma() if section.array else self._between(section))
        if section.close and not more and (yield from self._closed(section)):
            return False
        if more or section.array or section.single:
            return more
        if section.item_open:
            return (yield from cursor.take_ahead(section.item_open))
        char = cursor.text[cursor.pos] if cursor.pos < len(cursor.text) else (yield from cursor.peek())
        return bool(char) and (bool(section.close) or char in section.starts)

    def _comma(self) -> Steps[bool]:
        """Read a comma or the end of an array of calls. Returns whether the array goes on."""
        cursor = self._cursor
        more = cursor.skip(",")
        if more and cursor.has_space():
            yield from cursor.space()
        if cursor.skip("]"):
            more = False
            if cursor.has_space():
                yield from cursor.space()
        return more

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

    def _closed(self, section: Section) -> Steps[bool]:
        """Read the end of a section. Returns whether the section ends here, with its marker or without."""
        cursor, closers = self._cursor, self._markers.closers[id(section)]
        if cursor.may_take(closers) and (yield from cursor.take_one(closers)) is not None:
            return True
        if section.array or section.single or not (yield from cursor.peek()):
            self._warn(f"calls have no {section.close[0]}")
            return True
        return False


class _OpenCall:
    """Take the call that a call format reads."""

    __slots__ = ("_parser", "arguments", "begun", "name")

    def __init__(self, parser: MarkerParser) -> None:
        self._parser = parser
        self.arguments = parser.call_arguments
        self.begun = False
        self.name = ""

    @property
    def schemas(self) -> Mapping[str, Mapping[str, Any]]:
        return self._parser.schemas

    def begin(self, name: str, call_id: str | None = None) -> None:
        self._parser.begin_call(name, call_id)
        self.begun = True
        self.name = name
