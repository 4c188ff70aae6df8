"""Run the generator of a parser over the text as it comes, with the state that all such parsers share."""

from __future__ import annotations

from abc import abstractmethod
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from typing import Any

from plumbline.answer.dialects.parsers.answer_parser import AnswerParser
from plumbline.answer.dialects.parsers.event_sink import EventSink
from plumbline.answer.dialects.spec.call_format import declared
from plumbline.answer.dialects.spec.dialect import NewId, Section
from plumbline.answer.dialects.streams.cursor import (
    EndOfOutputError,
    Finder,
    MalformedError,
    Steps,
    UndeclaredToolError,
)
from plumbline.answer.events import (
    CallPlace,
    FinishReason,
    OutputEvent,
    TextDelta,
    ToolCallEnd,
    ToolCallStart,
)

__all__ = ["CursorParser", "OpenCall"]

_PIECE = 256
"""Characters that are read at a time."""
_MAX_ID = 64
_MAX_WARNINGS = 32
"""Warnings of one answer at most; each is a line of the log."""
_MAX_UNDECLARED = 16
"""Names of undeclared tools of one answer at most."""
_MAX_NAME = 64
"""Characters of such a name at most; the model may write any."""


class CursorParser(EventSink, AnswerParser):
    """Base of the parsers that read an answer with one generator (`_answer`); see `Cursor`.

    Args:
        tools: the parameters of each tool that may be called, by name (TOOL-02, TOOL-06).
        inside: generation starts inside the thinking.
        new_id: makes the id of a call from its name and its number in this answer.
        logprobs: the deltas carry logprobs.
        hold: white space at the end of a text is held back, because markup may follow it.
        marker_ids: see `AnswerParser`.
    """

    needs_token_ends = True

    def __init__(
        self,
        tools: Mapping[str, Mapping[str, Any]],
        *,
        inside: bool,
        new_id: NewId,
        logprobs: bool,
        hold: bool,
        marker_ids: frozenset[int],
    ) -> None:
        super().__init__(logprobs=logprobs, hold=hold)
        self._tools = tools
        self._new_id = new_id
        self.marker_ids = marker_ids
        self._reason: FinishReason | None = None
        self._regions: list[tuple[int, int]] = []
        self._thought_start: int | None = None
        self._starts_inside = inside
        self._ids: set[str] = set()  # TOOL-09: ids are unique; an id that the model repeats is replaced.
        self._forgotten = 0
        self._continues = False
        """The next call follows another one within one pair of markers."""
        self._places = False
        self.undeclared: list[str] = []
        self.warnings: list[str] = []
        self._steps = self._answer()
        next(self._steps, None)

    @abstractmethod
    def _answer(self) -> Steps[None]:
        """Read the whole answer from the cursor."""

    def push(self, delta: TextDelta) -> list[OutputEvent]:
        """Parse more of the output."""
        if self._slices is not None:
            self._slices.add(delta.logprobs)
        # In pieces: of a message to continue or a whole beam, readers would look at all that is left again and again.
        for start in range(0, len(delta.text) or 1, _PIECE):
            self._cursor.feed(delta.text[start : start + _PIECE])
            next(self._steps, None)
        return self._flushed()

    def finish(self, reason: FinishReason) -> list[OutputEvent]:
        """Parse what is left, because the engine has ended the output for this reason (`stop` or `length`)."""
        self._reason = reason
        self._cursor.closed = True
        self._cursor.cut = reason == "length"
        next(self._steps, None)
        if self._slices is not None:
            self._slices.close()
        return self._flushed()

    def continue_message(self, text: str, *, echo: bool) -> list[OutputEvent]:
        """Parse the beginning of a message that the answer continues, before any `push`.

        The message may break off inside thinking, a marker or a call, so the rest cannot be parsed without its
        beginning. A call that goes on in the answer is announced again, because without its name it means nothing.
        """
        self._cursor.begin_at(-len(text))
        self._silent = not echo
        events = self.push(TextDelta(text))
        if echo:
            return events
        begun = [number for number, event in enumerate(events) if isinstance(event, ToolCallStart)]
        ended = sum(isinstance(event, ToolCallEnd) for event in events)
        # Complete calls of the beginning are not emitted, but the numbering of later calls continues.
        self._forgotten = ended
        self.num_calls -= ended
        self.num_broken_calls = 0
        self.undeclared.clear()
        self.warnings.clear()
        return events[begun[-1] :] if len(begun) > ended else []

    @property
    def is_inside_markup(self) -> bool:
        """Whether the text so far ends in a call, or in what may become one."""
        cursor = self._cursor
        return self._open or cursor.marked or bool(cursor.text[cursor.pos :].strip())

    def num_reasoning_tokens(self, ends: Sequence[int]) -> int:
        """Count the tokens of the thinking and its markers."""
        return sum(bisect_right(ends, end) - bisect_right(ends, start) for start, end in self._regions)

    def note_places(self) -> None:
        """Emit from here on where each call begins, and each call that cannot be read."""
        self._places = True

    def _note_place(self, start: int, *, before: str = "", failed: str | None = None) -> None:
        """Note that a call begins in the output, or that one could not be read; see `CallPlace`."""
        if self._places:
            self._end_run()
            name = failed if failed is None else failed[:_MAX_NAME]
            self._out.append(CallPlace(start, self._continues, before, name))

    def _end_thought(self, end: int) -> None:
        if self._thought_start is not None:
            self._regions.append((self._thought_start, end))
            self._thought_start = None
            self._thought.drop()
            self._content.drop()

    # Calls

    def begin_call(self, name: str, call_id: str | None) -> None:
        """Announce a call, once its call format is certain that it is one.

        Raises:
            UndeclaredToolError: no tool of the request has this name (TOOL-02).
        """
        if name not in self._tools:
            raise UndeclaredToolError(name)
        self._content.drop()
        self._cursor.unmark()
        start, self._prose_offset = self._prose_offset, None
        self._call_start = self._cursor.offset if start is None else start
        if self._thought_start is not None:
            self._end_thought(self._call_start)
        self._end_run()
        if call_id is None or call_id in self._ids or len(call_id) > _MAX_ID:
            call_id = self._new_id(name, self.num_calls + self._forgotten)
        self._ids.add(call_id)
        self._note_place(self._call_start)
        self._out.append(ToolCallStart(name, call_id))
        self.num_calls += 1
        self._open = True

    @property
    def schemas(self) -> Mapping[str, Mapping[str, Any]]:
        """The parameters of the tools."""
        return self._tools

    def _note_undeclared(self, name: str) -> None:
        """Keep the name of a tool that the model called and the request does not have."""
        name = name[:_MAX_NAME]
        if name and name not in self.undeclared and len(self.undeclared) < _MAX_UNDECLARED:
            self.undeclared.append(name)

    def _is_cut(self, error: MalformedError) -> bool:
        """Return whether the token limit has caused an error."""
        return isinstance(error, EndOfOutputError) and self._reason == "length"

    def _warn(self, message: str) -> None:
        if len(self.warnings) < _MAX_WARNINGS:
            self.warnings.append(message)


class OpenCall:
    """Take the call that a call format reads."""

    __slots__ = ("_parser", "arguments", "begun", "ends", "loose", "marked", "name")

    def __init__(self, parser: CursorParser, ends: Finder, section: Section, *, marked: bool) -> None:
        self._parser = parser
        self.ends = ends
        self.marked = marked
        self.loose = section.loose
        self.arguments = parser.call_arguments
        self.begun = False
        self.name = ""

    @property
    def schemas(self) -> Mapping[str, Mapping[str, Any]]:
        return self._parser.schemas

    def begin(self, name: str, call_id: str | None = None) -> None:
        name = declared(name, self.schemas)
        self._parser.begin_call(name, call_id)
        self.begun = True
        self.name = name
