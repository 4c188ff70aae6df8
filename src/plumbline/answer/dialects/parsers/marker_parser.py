"""Parse answers with markers into thinking, text and calls, the same for every way of cutting them.

The characters alone decide, in their order:

* Thinking begins where the prompt left it open, or with its marker at the beginning of the answer or after a call;
  inside text only in families whose markers no model writes in prose.
* A marker of calls begins a call if a call follows. A call is announced once its name is certain, so markup that is
  not a call is still text, with its marker. A marker in prose stays prose.
* A call inside thinking is a call if no answer follows the thinking: some models call before they have ended it. What
  follows such a call is thinking up to the end marker. Before an answer it is a draft, which is thinking.
* An announced call with arguments that break off keeps what was read and is marked incomplete; the rest of its
  markup is dropped. A call that the token limit cuts before its name is also dropped.
* Markup that is nearly right is read as it is meant: ends that are missing or come twice, several calls in one pair of
  markers, the format of another family.
* An end of thinking in quotes or backticks is a part of the thinking.
* White space between text and markup belongs to neither.

Events are never taken back.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from plumbline.answer.dialects.parsers.noise import last_noise, stray_ends, words_before_call
from plumbline.answer.dialects.parsers.section_reader import SectionReader
from plumbline.answer.dialects.spec.call_format import declared
from plumbline.answer.dialects.spec.dialect import NewId
from plumbline.answer.dialects.spec.markers import Markers, is_control, is_tag
from plumbline.answer.dialects.streams.cursor import Finder, MalformedError, Steps, finder
from plumbline.answer.dialects.streams.whitespace import SPACE, WhitespaceBuffer
from plumbline.answer.events import FinishReason, OutputEvent, ReasoningDelta, TextDelta

__all__ = ["MarkerParser"]


_NAME = re.compile(r"[-.0-9A-Za-z_]+")
_TOOL = re.compile(r"([-.\w]{1,256})(?::[0-9]{0,6})?\s{0,4}")
"""The name of a tool, as an id with its number in families that write one."""
_NO_CALL = ("", *"{[<(`")
_NO_WORDS = (*_NO_CALL, " ", "\t")
"""What follows a marker of calls where no words stand before the call."""
_MOST_LOOKS = 16
"""Looks ahead in vain for words and stray ends, of one answer."""
_LONGEST_QUOTED = 2048
"""Characters of calls in code within a sentence."""


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

    _finds_drafts = True
    """Whether a call in thinking may be a draft. What follows decides it, so the text is held back until then."""
    _finds_noise = True
    """Whether words between a marker and its call, and ends that end nothing, are looked for."""
    _looks_in_vain = 0
    _looks_ahead = False
    """A marker has been read, and what follows decides what it is."""
    _thinking_end: tuple[int, int] | None = None
    """Where the first thinking ended, before its end marker, and how many calls came before."""

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
            if marker == "\n":
                self._content.write(marker, cursor.offset - 1)
                boundary = yield from self._named_call()
            elif (yield from self._is_quoted(marker)):
                self._shows_markup, boundary = True, False
            elif (marker in markers.at_line and not self._content.at_line) or self._is_prose(marker):
                self._shows_markup = self._shows_markup or is_tag(marker)
                self._content.write(marker, cursor.offset - len(marker))
                boundary = False
            elif marker in markers.plain_ends.markers and self._owed is None:
                boundary = yield from self._stray_run(marker)
            elif marker in markers.sections:
                yield from self._pass_words(marker)
                boundary = yield from self._section(markers.sections[marker], marker, self._content)
            elif marker in markers.silent:
                boundary = yield from self._silent_text(marker)
            else:
                self._content.drop()
                if marker in markers.opens:
                    yield from self._think(cursor.offset - len(marker))
                boundary = True
        self._content.flush()

    def _pass_words(self, marker: str) -> Steps[None]:
        """Pass on words between a marker and its call: one that begins a line, or a control token before another."""
        cursor, section = self._cursor, self._markers.sections[marker][0]
        inside = is_control(marker) and is_control(section.item_open) and marker != section.item_open
        item = section.item_open if inside else ""
        spoken = is_tag(marker) and self._content.at_line
        if not self._finds_noise or self._only_own or section.loose or not (item or spoken):
            return
        self._begin_markup(marker)
        self._looks_ahead, size = True, 0
        if (yield from cursor.peek()) not in (_NO_CALL if item else _NO_WORDS):
            scout = self._scout()
            size = yield from words_before_call(cursor, marker, item, self._tools, scout)
            untouched = bool(item) and not (scout._cursor.text or scout._cursor.offset)
            self._note_look(size > 0 or untouched)
        self._looks_ahead = False
        self._end_markup()
        if size:
            cursor.pos += size
            self._content.write(cursor.text[cursor.pos - size : cursor.pos], cursor.offset - size)

    def _stray_run(self, marker: str) -> Steps[bool]:
        """Drop ends of calls that end none, after prose; others are text. Returns whether it dropped them."""
        cursor, content, markers = self._cursor, self._content, self._markers
        shown = self._shows_markup or content.sets_off or content.introduces or content.in_fence
        cursor.unread(marker)
        size, stray = len(marker), False
        if not shown and content.begun and self._finds_noise and not self._only_own:
            size, stray = yield from stray_ends(
                cursor, markers.plain_ends, markers.plain_closers, self._scout()
            )
            self._note_look(stray)
        offset = cursor.offset
        cursor.pos += size
        if stray:
            content.drop()
        else:
            content.write(cursor.text[cursor.pos - size : cursor.pos], offset)
        return stray

    def _note_look(self, found: bool) -> None:
        """Look ahead no longer after many looks in vain: a model that repeats a marker writes thousands."""
        self._looks_in_vain += not found
        if self._looks_in_vain >= _MOST_LOOKS:
            self._finds_noise = False

    def _scout(self) -> MarkerParser:
        """Return a parser that looks ahead, and does not let another one look ahead."""
        scout = MarkerParser(self._markers, self._tools, inside=False, new_id=self._new_id)
        scout._finds_noise = False
        return scout

    @property
    def _in_text(self) -> Finder:
        """What may come in text."""
        return self._markers.to_markup if self._owed is None else self._markers.owed_in_text[id(self._owed)]

    @property
    def _in_thought(self) -> Finder:
        """What may come in thinking."""
        return (
            self._markers.in_thought if self._owed is None else self._markers.owed_in_thought[id(self._owed)]
        )

    def finish_in_text(self) -> list[OutputEvent]:
        """Parse what is left of an output that a stop string has ended in its text: no markup ends there."""
        cursor = self._cursor
        if self._open or self._thought_start is not None:
            return self.finish("length")
        if cursor.marked and not self._looks_ahead:  # What has been read may look like a call, and is none.
            raw, start = self._end_markup()
            rest = cursor.text[cursor.pos :]
            cursor.pos += len(rest)
            self._content.write(raw + rest, start)
            self._content.flush()
            self._steps.close()
        return self.finish("stop")

    def _is_prose(self, marker: str) -> bool:
        """Return whether an end that ends nothing is set off, or belongs to markup that is text."""
        if marker not in self._markers.stray_ends or self._owed is not None:
            return False
        return self._shows_markup or self._content.sets_off

    def _is_quoted(self, marker: str) -> Steps[bool]:
        """Pass on calls in code within a sentence, which a backtick ends or follows at once; return whether it does."""
        cursor, sections = self._cursor, self._markers.sections.get(marker, ())
        if not sections or is_control(marker) or not self._content.in_backtick:
            return False
        self._begin_markup(marker)
        self._looks_ahead = True
        ends = finder("`", *(close for section in sections for close in section.close))
        after = size = 0  # From where the cursor stands, because text that was read is dropped.
        while size <= _LONGEST_QUOTED:
            end, found = ends.search(cursor.text, cursor.pos + after, cursor.closed)
            size = end - cursor.pos
            if found == "`":
                if size != after and len(ends.markers) > 1:  # Not right after an end, if such calls have one.
                    break
                cursor.pos = end
                self._content.write(*self._end_markup())
                self._looks_ahead = False
                return True
            if found is not None:
                after = size + len(found)
            elif cursor.closed:
                break
            else:
                yield
        self._end_markup()
        self._looks_ahead = False
        return False

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
        if self.num_calls and (size := (yield from last_noise(cursor, markers.begins, tags=markers.in_tags))):
            cursor.pos += size
            self._content.drop()
            return True
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
        return (yield from self._named_call())

    def _named_call(self) -> Steps[bool]:
        """Read a call that begins with the name of its tool where a line begins. Returns whether one came."""
        cursor, markers = self._cursor, self._markers
        if not (markers.named and self._content.at_line):
            return False
        while True:
            match = _TOOL.match(cursor.text, cursor.pos)
            end = cursor.pos if match is None else match.end()
            if end < len(cursor.text) or cursor.closed:
                if match is None or declared(match[1], self._tools) not in self._tools:
                    return False
                certain, tag = markers.after_name.at(cursor.text, end, cursor.closed)
                if certain:
                    return tag is not None and (
                        yield from self._section((markers.named[tag],), "", self._content)
                    )
            yield

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
            if marker is not None and (self._is_thought(marker) or (yield from self._is_quoted_end(marker))):
                thought.write(marker, cursor.offset - len(marker))
                continue
            if marker is not None and marker in markers.sections:
                draft = yield from self._draft(marker)
                if draft:
                    end = cursor.pos + draft - len(marker)
                    thought.write(marker + cursor.text[cursor.pos : end], cursor.offset - len(marker))
                    cursor.pos = end
                    continue
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
            owed = () if self._owed is None else self._owed.close
            if marker in markers.reopening.markers or marker in owed or marker in markers.stray_ends:
                thought.drop()
                continue
            if self._thinking_end is None and marker is not None:
                self._thinking_end = cursor.offset - len(marker), self.num_calls
            self._end_thought(cursor.offset)
            return

    def _is_thought(self, marker: str) -> bool:
        """Return whether a marker in thinking is a part of it."""
        markers, thought = self._markers, self._thought
        if marker in markers.at_line:  # Only after a call that broke off.
            return True
        if marker in markers.stray_ends:
            return self._owed is None and (self._shows_markup or thought.sets_off)
        return marker in markers.follows and not (is_control(marker) or thought.at_line)

    def _is_quoted_end(self, marker: str) -> Steps[bool]:
        """Return whether an end of thinking is quoted in it, as in thinking about templates: "the `</think>` tag"."""
        if marker not in self._markers.closes or is_control(marker):
            return False
        quote = self._thought.opened_quote
        return bool(quote) and (yield from self._cursor.peek()) == quote

    def _draft(self, marker: str) -> Steps[int]:
        """Return how many characters from a marker in thinking on are thinking: all before its end, or none.

        Another parser reads on from the marker until it is certain that an answer follows, or that none does.
        """
        cursor, reasoning = self._cursor, self._markers.reasoning
        if not self._finds_drafts or cursor.closed or reasoning is None or not reasoning.calls_inside:
            return 0
        scout = _DraftScout(
            self._markers, self._tools, inside=True, new_id=self._new_id, exact=self._only_own
        )
        self._begin_markup(marker)
        scout.push(TextDelta(marker))
        while True:
            piece = cursor.text[cursor.pos :]
            cursor.pos = len(cursor.text)
            size = scout.draft(piece, self._reason if self._cursor.closed else None)
            if size is not None:
                break
            yield
        raw, _ = self._end_markup()
        cursor.unread(raw[len(marker) :])
        return size


class _DraftScout(MarkerParser):
    """Read on from a call in thinking, to see whether an answer follows."""

    _finds_drafts = False

    def draft(self, piece: str, reason: FinishReason | None) -> int | None:
        """Return the size of the draft, 0 for a call or prose, None while it is uncertain.

        Args:
            piece: more of the output.
            reason: why the output has ended; None if it has not.
        """
        events = self.push(TextDelta(piece))
        if reason is not None:
            events += self.finish(reason)
        if not self.num_calls and any(isinstance(e, ReasoningDelta) and e.text.strip() for e in events):
            return 0  # The marker is prose.
        if self._thinking_end is not None:
            end, num_calls = self._thinking_end
            if self.num_calls > num_calls or any(isinstance(e, TextDelta) and e.text.strip() for e in events):
                return end
        return None if reason is None else 0
