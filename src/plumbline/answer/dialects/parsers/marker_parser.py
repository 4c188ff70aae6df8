"""Parse answers with markers into thinking, text and calls, the same for every way of cutting them.

The characters alone decide, in their order:

* Thinking begins where the prompt left it open, or with its marker at the beginning of the answer or after a call;
  inside text only in families whose markers no model writes in prose.
* A marker of calls begins a call if a call follows. A call is announced once its name is certain, so markup that is
  not a call is still text, with its marker. A marker in prose stays prose.
* A call inside thinking is a call, and what follows it is thinking up to the end marker: models that go on after a
  call there write the end marker later.
* An announced call with arguments that break off keeps what was read and is marked incomplete; the rest of its
  markup is dropped. A call that the token limit cuts before its name is also dropped.
* Markup that is nearly right is read as it is meant: ends that are missing or come twice, several calls in one pair of
  markers, the format of another family.
* White space between text and markup belongs to neither.

Events are never taken back.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from plumbline.answer.dialects.parsers.section_reader import SectionReader
from plumbline.answer.dialects.spec.dialect import NewId
from plumbline.answer.dialects.spec.markers import Markers, is_control
from plumbline.answer.dialects.streams.cursor import Finder, MalformedError, Steps
from plumbline.answer.dialects.streams.whitespace import SPACE, WhitespaceBuffer

__all__ = ["MarkerParser"]


_NAME = re.compile(r"[-.0-9A-Za-z_]+")


class MarkerParser(SectionReader):
    """Parse an answer in which markers stand around thinking and calls.

    Args:
        markers: the markers of the dialects.
        tools: the parameters of each tool that may be called, by name (TOOL-02, TOOL-06).
        inside: generation starts inside the thinking.
        new_id: makes the id of a call from its name and its number in this answer.
        logprobs: the deltas carry logprobs.
        marker_ids: see `AnswerParser`.
        exact: read only the call formats that the dialect writes, not JSON or a list in their place.
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
        exact: bool = False,
    ) -> None:
        super().__init__(
            markers,
            tools,
            inside=inside,
            new_id=new_id,
            logprobs=logprobs,
            marker_ids=marker_ids,
            exact=exact,
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
                marker = yield from cursor.until(self._in_text, self._content.write)
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

    @property
    def _in_text(self) -> Finder:
        """What may come in text."""
        return self._markers.in_text if self._owed is None else self._markers.owed_in_text[id(self._owed)]

    @property
    def _in_thought(self) -> Finder:
        """What may come in thinking."""
        return (
            self._markers.in_thought if self._owed is None else self._markers.owed_in_thought[id(self._owed)]
        )

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
        marker = yield from cursor.take_one(markers.after_call if self.num_calls else markers.at_boundary)
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
            ends = cursor.cut  # The token limit has cut a header. A whole answer may well be about one.
        raw, start = self._end_markup()
        if ends:
            self._content.drop()
        else:
            self._content.write(raw, start)
        return ends

    def _inner_header(self, marker: str, prose: WhitespaceBuffer) -> Steps[bool]:
        """Drop a header before which no message ended; anything else is text. Returns whether it was one."""
        cursor = self._cursor
        self._begin_markup(marker)
        try:
            name = yield from cursor.run(_NAME, 128)
        except MalformedError:
            name = ""
        ends = bool(name) and (yield from cursor.look_for(self._markers.headed)) is not None
        raw, start = self._end_markup()
        if ends:
            prose.drop()
        else:
            prose.write(raw, start)
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
                marker = yield from cursor.until(self._in_thought, thought.write)
            if marker is not None and marker in markers.at_line:  # Only after a call that broke off.
                thought.write(marker, cursor.offset - len(marker))
                continue
            if marker is not None and marker in markers.sections:
                earlier = self.num_calls
                yield from self._section(markers.sections[marker], marker, thought)
                if self.num_calls > earlier:
                    self._thought_start = cursor.offset
                continue
            if marker == markers.header and marker:
                if not (yield from self._inner_header(marker, thought)):
                    continue
                self._end_thought(cursor.offset)
                return
            if marker in markers.follows and not (is_control(marker) or thought.at_line):
                thought.write(marker, cursor.offset - len(marker))
                continue
            if marker in markers.reopening.markers or (self._owed is not None and marker in self._owed.close):
                thought.drop()
                continue
            self._end_thought(cursor.offset)
            return
