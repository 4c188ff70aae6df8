"""The one parser of answers: text in, reasoning, text and calls out, for every dialect and every way of cutting.

What an answer means is decided by its characters alone, in their order:

* Thinking begins where the prompt left it open, or with its marker at the beginning of the answer or after a call.
* A marker of calls begins a call if a call follows. Nothing is announced before its name is certain, so what turns out
  to be no call is still text, marker and all. The same words in prose stay prose.
* An announced call whose arguments break off stays as far as it got and is marked incomplete; what is left of its
  markup is text. A call that the token limit cut before its name was known leaves nothing.
* White space between text and markup belongs to neither.

What was emitted is never taken back.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from plumbline.dialects.api import NewId, ReasoningDialect, Section, ToolDialect
from plumbline.dialects.cursor import (
    Cursor,
    EndOfOutputError,
    Finder,
    MalformedError,
    Steps,
    Write,
)
from plumbline.dialects.spans import LogprobSpans
from plumbline.events import (
    FinishReason,
    OutputEvent,
    ReasoningDelta,
    TextDelta,
    ToolCallDelta,
    ToolCallEnd,
    ToolCallStart,
)

__all__ = ["DialectParser", "Markup"]

_SPACE = " \t\r\n"
_MAX_ID = 64


class Markup:
    """What can be prepared once for a pair of dialects: which texts mean something, and where. Immutable."""

    def __init__(self, tool: ToolDialect | None, reasoning: ReasoningDialect | None) -> None:
        self.tool = tool
        self.reasoning = reasoning
        self.sections: dict[str, tuple[Section, ...]] = {}
        self.bare: tuple[Section, ...] = ()
        silent = (tool.silent if tool else ()) + (reasoning.silent if reasoning else ())
        if tool is not None:
            for section in tool.sections:
                for marker in filter(None, (*section.open, section.item_open)):
                    self.sections[marker] = (*self.sections.get(marker, ()), section)
            self.bare = tuple(s for s in tool.sections if s.starts and not (s.open or s.item_open))
        self.in_text = Finder((*self.sections, *silent), least=2)
        thinks = reasoning is not None and not reasoning.append
        self.opens = reasoning.open if reasoning is not None and thinks else ()
        self.closes = reasoning.close if reasoning is not None and thinks else ()
        self.opening = Finder(self.opens)
        self.at_boundary = Finder((*self.opens, *self.closes))
        ends = tuple(self.sections) if reasoning is not None and reasoning.call_ends else ()
        self.in_thought = Finder((*self.closes, *ends), least=2)
        self.after_broken = {
            id(section): Finder((*section.close, section.item_close, *self.sections))
            for section in (tool.sections if tool else ())
        }
        self.markers = (
            frozenset((*self.in_text.markers, *self.at_boundary.markers))
            | frozenset(
                marker
                for section in (tool.sections if tool else ())
                for marker in (*section.close, section.item_close, *getattr(section.form, "markers", ()))
                if marker
            )
            | frozenset(reasoning.markers if reasoning is not None else ())
        )
        """Every text of this dialect; those that are control tokens have to be shown to the parser."""
        self.closers = {
            id(section): Finder(section.close) for section in (tool.sections if tool else ()) if section.close
        }


class DialectParser:
    """Parses one choice of one answer. Sans-IO: text goes in by `push` and `finish`, events come out.

    Args:
        markup: the dialects.
        tools: the parameters of each tool that may be called, by name (TOOL-02, TOOL-06).
        inside: generation starts inside the thinking.
        new_id: makes the id of a call from its name and its number in this answer.
        logprobs: the deltas carry logprobs.
        holds: white space at the end of a text is held even if no marker of `markup` can follow it.

    Attributes:
        num_calls: calls announced so far.
        warnings: what was malformed, for the log.
    """

    def __init__(
        self,
        markup: Markup,
        tools: Mapping[str, Mapping[str, Any]],
        *,
        inside: bool,
        new_id: NewId,
        logprobs: bool = False,
        holds: bool = False,
    ) -> None:
        self._markup = markup
        self._tools = tools
        self._new_id = new_id
        self._cursor = Cursor()
        # White space at the end of a text is held only where markup may follow it.
        self._content = _Text(self._say, hold=holds or bool(markup.in_text.markers))
        self._thought = _Text(self._think_aloud, hold=True)
        self._spans = LogprobSpans() if logprobs else None
        self._out: list[OutputEvent] = []
        self._run_text: list[str] = []
        self._run_thought: list[str] = []
        self._reason: FinishReason | None = None
        self._regions: list[tuple[int, int]] = []
        self._thought_start: int | None = None
        self._next_marker: str | None = None
        self._prose_offset: int | None = None
        reasoning = markup.reasoning
        self._starts_inside = reasoning is not None and (inside or reasoning.starts_inside)
        self._ids: set[str] = set()  # TOOL-09: an id that the model gives twice is given once.
        self.num_calls = 0
        self.warnings: list[str] = []
        self._steps = self._answer()
        next(self._steps, None)

    def push(self, delta: TextDelta) -> list[OutputEvent]:
        """More of the output."""
        if self._spans is not None:
            self._spans.add(delta.logprobs)
        self._cursor.feed(delta.text)
        next(self._steps, None)
        return self._flushed()

    def finish(self, reason: FinishReason) -> list[OutputEvent]:
        """The output has ended, for this reason of the engine (`stop` or `length`)."""
        self._reason = reason
        self._cursor.closed = True
        self._cursor.cut = reason == "length"
        next(self._steps, None)
        if self._spans is not None:
            self._spans.close()
        return self._flushed()

    @property
    def reads_calls(self) -> bool:
        """Whether calls are looked for at all."""
        return self._markup.tool is not None

    def num_reasoning_tokens(self, ends: Sequence[int]) -> int:
        """How many tokens belong to the thinking and its markers.

        Args:
            ends: for each token, how many characters of the output it completed.
        """
        found = 0
        for start, end in self._regions:
            found += sum(1 for token_end in ends if start < token_end <= end)
        return found

    # What was read

    def _say(self, text: str, offset: int) -> None:
        if self._run_thought:
            self._end_run()
        self._run_text.append(text)
        if self._spans is not None:
            self._spans.content(offset, offset + len(text))

    def _think_aloud(self, text: str, offset: int) -> None:
        if self._run_text:
            self._end_run()
        self._run_thought.append(text)

    def _end_run(self) -> None:
        if self._run_thought:
            self._out.append(ReasoningDelta("".join(self._run_thought)))
            self._run_thought = []
        entries = () if self._spans is None else self._spans.take(self._decided())
        if self._run_text or entries:
            self._out.append(TextDelta("".join(self._run_text), entries))
            self._run_text = []

    def _flushed(self) -> list[OutputEvent]:
        if self._run_text or self._run_thought or self._spans is not None:
            self._end_run()
        out, self._out = self._out, []
        return out

    def _decided(self) -> int:
        """Up to where it is certain what the characters of the output are."""
        read = self._cursor.offset if self._prose_offset is None else self._prose_offset
        return self._content.held_from(read)

    # Reading

    def _answer(self) -> Steps[None]:
        cursor, markup = self._cursor, self._markup
        reasoning = markup.reasoning
        if self._starts_inside and reasoning is not None:
            if reasoning.append:
                self._say(reasoning.open[0] + reasoning.after_open, 0)
            else:
                yield from cursor.space()
                yield from cursor.take_one(
                    markup.opening
                )  # Some models open what the prompt has opened already.
                yield from self._think(0)
        boundary = True
        while True:
            if boundary and (yield from self._boundary()):
                continue
            marker, self._next_marker = self._next_marker, None
            if marker is None:
                marker = yield from cursor.until(markup.in_text, self._content.write)
            if marker is None:
                break
            if marker in markup.sections:
                boundary = yield from self._section(markup.sections[marker], marker, self._content.write)
            else:
                self._content.drop()
                boundary = True
        self._content.flush()

    def _boundary(self) -> Steps[bool]:
        """What may only come at the beginning of the answer, or after thinking or calls. Returns whether it did."""
        cursor, markup = self._cursor, self._markup
        if self._next_marker is not None:
            return False
        while (char := (yield from cursor.peek())) and char in _SPACE:
            self._content.wait(char, cursor.offset)
            cursor.pos += 1
        if not char:
            return False
        marker = yield from cursor.take_one(markup.at_boundary)
        if marker is not None:
            self._content.drop()
            if marker in markup.opens:
                yield from self._think(cursor.offset - len(marker))
            return True  # An end without a beginning means nothing.
        for section in markup.bare:
            if char in section.starts:
                return (yield from self._section((section,), "", self._content.write))
        return False

    def _think(self, start: int) -> Steps[None]:
        cursor, markup, thought = self._cursor, self._markup, self._thought
        thought.drop()
        self._thought_start = start
        while True:
            marker = yield from cursor.until(markup.in_thought, thought.write)
            if marker is not None and marker not in markup.closes:
                if (yield from self._section(markup.sections[marker], marker, thought.write)):
                    return
                continue
            self._end_thought(cursor.offset)
            return

    def _end_thought(self, end: int) -> None:
        if self._thought_start is not None:
            self._regions.append((self._thought_start, end))
            self._thought_start = None
            self._thought.drop()
            self._content.drop()

    def _section(self, sections: tuple[Section, ...], marker: str, prose: Write) -> Steps[bool]:
        """Read the calls of a section, of which `marker` has been read. Returns whether there was any.

        Args:
            sections: those that begin with this marker; the first character of the calls says which it is.
            prose: takes the text, markers and all, if this is no call.
        """
        cursor = self._cursor
        cursor.mark(marker)
        self._prose_offset = start = cursor.offset - len(marker)
        section = sections[0]
        if len(sections) > 1:
            yield from cursor.space()
            char = yield from cursor.peek()
            fitting = [s for s in sections if char and char in s.starts]
            section = (fitting or [s for s in sections if not s.starts] or [section])[0]
        at_item = bool(marker) and marker == section.item_open
        first = not at_item
        announced = False
        while True:
            call = _OpenCall(self)
            try:
                yield from cursor.space()
                if first and section.array:
                    yield from cursor.expect("[")
                    yield from cursor.space()
                first = False
                if section.item_open and not at_item:
                    yield from cursor.expect(section.item_open)
                    yield from cursor.space()
                at_item = False
                yield from section.form.read(cursor, call)
            except MalformedError as error:
                raw = cursor.unmark()
                self._prose_offset = None
                if call.begun:
                    self._end_call(complete=False)
                    self._warn(f"a call of {call.name} broke off: {error}")
                    if not isinstance(error, EndOfOutputError):
                        self._content.write(error.rest, cursor.offset - len(error.rest))
                        yield from self._after_broken(section)
                    return True
                cut = isinstance(error, EndOfOutputError) and self._reason == "length"
                if cut and (marker or announced):
                    self._warn("the token limit cut a call before its name")
                elif raw.strip():
                    if marker or announced:
                        self._warn(f"markup that is no call was kept as text: {error}")
                    (self._content.write if announced else prose)(raw, start)
                elif not announced:
                    prose(raw, start)
                return announced
            self._end_call(complete=True)
            announced = True
            cursor.mark()
            self._prose_offset = start = cursor.offset
            if not (yield from self._another(section)):
                raw = cursor.unmark()
                self._prose_offset = None
                # White space that no markup follows may belong to text.
                if space := raw[len(raw.rstrip(_SPACE)) :]:
                    self._content.wait(space, cursor.offset - len(space))
                return True

    def _another(self, section: Section) -> Steps[bool]:
        """Read what stands after a call. Returns whether a further one of the section has to follow."""
        cursor = self._cursor
        yield from cursor.space()
        if section.item_close:
            if not (yield from cursor.take(section.item_close)):
                self._warn(f"a call has no {section.item_close}")
            yield from cursor.space()
        more = False
        if section.array:
            more = yield from cursor.take(",")
            if more:
                yield from cursor.space()
            if (yield from cursor.take("]")):
                more = False
                yield from cursor.space()
        elif section.between.strip():
            more = yield from cursor.take(section.between.strip())
            yield from cursor.space()
        if section.close and not more:
            if (yield from cursor.take_one(self._markup.closers[id(section)])) is not None:
                return False
            if section.array or section.single or not (yield from cursor.peek()):
                self._warn(f"calls have no {section.close[0]}")
                return False
        if more or section.array or section.single:
            return more
        if section.item_open:
            return (yield from cursor.take_ahead(section.item_open))
        char = yield from cursor.peek()
        return bool(char) and (bool(section.close) or char in section.starts)

    def _after_broken(self, section: Section) -> Steps[None]:
        """Keep what is left of a broken call's markup as text; its end means nothing any more."""
        marker = yield from self._cursor.until(self._markup.after_broken[id(section)], self._content.write)
        if marker is not None and marker in self._markup.sections:
            self._next_marker = marker
        else:
            self._content.drop()

    # Calls

    def begin_call(self, name: str, call_id: str | None) -> None:
        """A form is certain that this is a call."""
        if name not in self._tools:  # TOOL-02: what calls none of the request's tools is no call.
            raise MalformedError(f"{name[:40]!r} is no tool of this request")
        self._content.drop()
        self._cursor.unmark()
        start, self._prose_offset = self._prose_offset, None
        if self._thought_start is not None:
            self._end_thought(self._cursor.offset if start is None else start)
        self._end_run()
        if call_id is None or call_id in self._ids or len(call_id) > _MAX_ID:
            call_id = self._new_id(name, self.num_calls)
        self._ids.add(call_id)
        self._out.append(ToolCallStart(name, call_id))
        self.num_calls += 1

    def call_arguments(self, text: str) -> None:
        """More of the arguments of the announced call."""
        if text:
            last = self._out[-1] if self._out else None
            if isinstance(last, ToolCallDelta):
                self._out[-1] = ToolCallDelta(last.arguments + text)
            else:
                self._out.append(ToolCallDelta(text))

    @property
    def schemas(self) -> Mapping[str, Mapping[str, Any]]:
        """The parameters of the tools."""
        return self._tools

    def _end_call(self, *, complete: bool) -> None:
        self._out.append(ToolCallEnd(complete))

    def _warn(self, message: str) -> None:
        self.warnings.append(message)


class _OpenCall:
    """What a form is given: the call that it reads."""

    __slots__ = ("_parser", "begun", "name")

    def __init__(self, parser: DialectParser) -> None:
        self._parser = parser
        self.begun = False
        self.name = ""

    @property
    def schemas(self) -> Mapping[str, Mapping[str, Any]]:
        return self._parser.schemas

    def begin(self, name: str, call_id: str | None = None) -> None:
        self._parser.begin_call(name, call_id)
        self.begun = True
        self.name = name

    def arguments(self, text: str) -> None:
        self._parser.call_arguments(text)


class _Text:
    """Text of one kind. White space at its end is held until more text shows that it belongs to it.

    Text that goes on behind markup keeps the white space before it, because without it two words would become one.
    """

    __slots__ = ("_emit", "_held", "_hold", "_skip", "_written")

    def __init__(self, emit: Write, *, hold: bool) -> None:
        self._emit = emit
        self._hold = hold
        self._held: list[tuple[str, int]] = []
        self._skip = False
        self._written = False

    def write(self, piece: str, offset: int) -> None:
        """More text."""
        if self._skip and not self._written:
            stripped = piece.lstrip(_SPACE)
            offset += len(piece) - len(stripped)
            piece = stripped
        body = piece.rstrip(_SPACE) if self._hold or self._skip else piece
        if body:
            self._skip = False
            self._written = True
            if self._held:
                for held, at in self._held:
                    self._emit(held, at)
                self._held = []
            self._emit(body, offset)
        if len(body) < len(piece):
            self._held.append((piece[len(body) :], offset + len(body)))

    def wait(self, space: str, offset: int) -> None:
        """White space of which it is not known yet whether it belongs to the text."""
        if self._written or not self._skip:
            self._held.append((space, offset))

    def drop(self) -> None:
        """Markup stands here: the white space before and after it is none of the text's."""
        self._held = []
        self._skip = True

    def flush(self) -> None:
        """The output has ended: what is held belongs to the text, unless nothing but markup stands before it."""
        if not self._skip:
            for held, at in self._held:
                self._emit(held, at)
        self._held = []

    def held_from(self, default: int) -> int:
        """The offset of the first character that is held."""
        return self._held[0][1] if self._held else default
