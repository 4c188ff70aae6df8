"""Answers whose text has a promised form: once the thinking is over nothing in them means anything but itself.

A promised text may look like markup (`</think>`, a marker of calls) or begin with white space. The dialects' own
parsers would take it for what it looks like; these read the thinking as they do and pass on everything after it as it
stands. Where calls may come instead of the text, how the answer goes on after the thinking says which of them it is:
the grammar mixes them in no answer.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from plumbline.dialects.formats.harmony import Header
from plumbline.dialects.parsers.harmony import HarmonyParser
from plumbline.dialects.parsers.marker_parser import MarkerParser
from plumbline.dialects.parsers.render import openings
from plumbline.dialects.parsers.whitespace import SPACE
from plumbline.dialects.spec.dialect import NewId
from plumbline.dialects.spec.markers import Markers
from plumbline.dialects.streams.cursor import Cursor, Finder, Steps, Write

__all__ = ["StructuredHarmonyParser", "StructuredTextParser"]


class StructuredTextParser(MarkerParser):
    """Reads an answer of thinking and then promised text or calls; see `MarkerParser`.

    Args:
        markers: the markers of the dialects. Without a reasoning dialect there is no thinking.
        tools: the tools that may be called instead; empty if the answer is text.
        inside: generation starts inside the thinking.
        new_id: makes ids of calls.
        exact: between the thinking and what follows stands exactly what the dialect writes there; else white space
            there belongs to neither.
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
        exact: bool,
        logprobs: bool = False,
        marker_ids: frozenset[int] = frozenset(),
    ) -> None:
        self._exact = exact
        self._openings = Finder(() if markers.tool is None else openings(markers.tool, tools))
        super().__init__(
            markers, tools, inside=inside, new_id=new_id, logprobs=logprobs, marker_ids=marker_ids
        )

    def _answer(self) -> Steps[None]:
        cursor = self._cursor
        if self._markers.reasoning is None:
            yield from _begun(cursor, self._say)
        elif self._markers.reasoning.append:
            yield from self._thinking_kept()
        else:
            yield from self._thinking()
        if self._openings.markers and (yield from self._goes_on_as_calls()):
            self._starts_inside = False
            yield from super()._answer()
        else:
            self._content.flush()
            yield from _rest(cursor, self._say)

    def _thinking(self) -> Steps[None]:
        cursor, markers = self._cursor, self._markers
        assert markers.reasoning is not None
        if self._starts_inside:
            yield from cursor.space()
            yield from cursor.take_one(markers.opening)
            yield from self._think(0)
        elif (marker := (yield from cursor.take_one(markers.opening))) is not None:
            yield from self._think(cursor.offset - len(marker))
        else:
            return
        if self._exact:
            yield from cursor.take(markers.reasoning.after_close)
        else:
            yield from cursor.space()

    def _thinking_kept(self) -> Steps[None]:
        """Thinking that stays in the text, where its end matters only if calls may follow it."""
        cursor, reasoning = self._cursor, self._markers.reasoning
        assert reasoning is not None
        if self._starts_inside:
            self._run_text.append(reasoning.open[0] + reasoning.after_open)
        if not self._openings.markers:
            return
        if not self._starts_inside and (yield from cursor.look_for(Finder(reasoning.open))) is None:
            return
        if (marker := (yield from cursor.until(Finder(reasoning.close), self._content.write))) is not None:
            self._content.write(marker, cursor.offset - len(marker))
        while (char := (yield from cursor.peek())) and char in SPACE:
            self._content.wait(char, cursor.offset)
            cursor.pos += 1

    def _goes_on_as_calls(self) -> Steps[bool]:
        """Whether what comes next is the beginning of calls, or was cut where it may have become one."""
        cursor = self._cursor
        while True:
            closed = cursor.closed and not cursor.cut
            certain, opening = self._openings.at(cursor.text, cursor.pos, closed)
            if certain or cursor.closed:
                return opening is not None or not certain
            yield


class StructuredHarmonyParser(HarmonyParser):
    """The same for harmony's messages: the final one is text to its end."""

    def _body(self, header: Header, start: int) -> Steps[Header | None]:
        if header.channel != "final":
            return (yield from super()._body(header, start))
        yield from _rest(self._cursor, self._say)
        return None


def _begun(cursor: Cursor, say: Write) -> Steps[None]:
    """The text that was there before the output is text; what the answer goes on as is decided behind it."""
    yield from cursor.peek()
    while cursor.offset < 0:
        if cursor.pos < len(cursor.text):
            piece, offset = cursor.text[cursor.pos : cursor.pos - cursor.offset], cursor.offset
            cursor.pos += len(piece)
            say(piece, offset)
        elif cursor.closed:
            return
        else:
            yield


def _rest(cursor: Cursor, say: Write) -> Steps[None]:
    """Everything that is still to come is text."""
    while True:
        if cursor.pos < len(cursor.text):
            piece, offset = cursor.text[cursor.pos :], cursor.offset
            cursor.pos = len(cursor.text)
            say(piece, offset)
        if cursor.closed:
            return
        yield
