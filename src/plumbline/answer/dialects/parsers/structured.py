"""Parse answers with constrained text: after the thinking, nothing in the text is markup.

Constrained text may look like markup (`</think>`, a marker of calls) or begin with white space. The usual parsers would
take it for that; these parse the thinking in the same way and pass on everything after it unchanged. Where calls may
come instead of the text, the beginning after the thinking decides: the grammar never mixes the two in one answer.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from plumbline.answer.dialects.formats.harmony import HarmonyHeader
from plumbline.answer.dialects.parsers.harmony import HarmonyParser
from plumbline.answer.dialects.parsers.marker_parser import MarkerParser
from plumbline.answer.dialects.parsers.render import openings
from plumbline.answer.dialects.spec.dialect import NewId
from plumbline.answer.dialects.spec.markers import Markers
from plumbline.answer.dialects.streams.cursor import Cursor, Finder, Steps, Write
from plumbline.answer.dialects.streams.whitespace import SPACE

__all__ = ["StructuredHarmonyParser", "StructuredTextParser"]


class StructuredTextParser(MarkerParser):
    """Parse an answer of thinking and then constrained text or calls; see `MarkerParser`.

    Args:
        markers: the markers of the dialects. Without a reasoning dialect there is no thinking.
        tools: the tools that may be called instead; empty if the answer is text.
        inside: generation starts inside the thinking.
        new_id: makes ids of calls.
        exact: the gap after the thinking is exactly what the dialect writes there; otherwise it is any white space.
        header: what stands before the text. The text follows it at once.
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
        header: str = "",
        logprobs: bool = False,
        marker_ids: frozenset[int] = frozenset(),
    ) -> None:
        self._exact = exact
        # White space after thinking may have been skipped.
        self._header_texts = Finder((header, header.lstrip(SPACE)))
        begun = () if markers.tool is None else openings(markers.tool, tools)
        self._openings = Finder((*begun, *(text.lstrip(SPACE) for text in begun)))
        super().__init__(
            markers, tools, inside=inside, new_id=new_id, logprobs=logprobs, marker_ids=marker_ids
        )

    def _answer(self) -> Steps[None]:
        cursor = self._cursor
        if self._markers.reasoning is None:
            yield from _begun(cursor, self._emit_text)
        elif self._markers.reasoning.append:
            yield from self._thinking_kept()
        else:
            yield from self._thinking()
        if self._openings.markers and (yield from self._goes_on_as_calls()):
            self._starts_inside = False
            yield from super()._answer()
        else:
            self._content.flush()
            if self._header_texts.markers:
                yield from cursor.take_one(self._header_texts)
            yield from _rest(cursor, self._emit_text)

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
        """Pass on thinking that stays in the text. Its end matters only if calls may follow."""
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
        """Whether calls begin here, or the output was cut where they may have begun."""
        cursor = self._cursor
        while True:
            closed = cursor.closed and not cursor.cut
            certain, opening = self._openings.at(cursor.text, cursor.pos, closed)
            if certain or cursor.closed:
                return opening is not None or not certain
            yield


class StructuredHarmonyParser(HarmonyParser):
    """Parse harmony messages; the final message is text to its end."""

    def _body(self, header: HarmonyHeader, start: int) -> Steps[HarmonyHeader | None]:
        if header.channel != "final":
            return (yield from super()._body(header, start))
        yield from _rest(self._cursor, self._emit_text)
        return None


def _begun(cursor: Cursor, write: Write) -> Steps[None]:
    """Pass on the text from before the output; whether calls follow is decided after it."""
    yield from cursor.peek()
    while cursor.offset < 0:
        if cursor.pos < len(cursor.text):
            piece, offset = cursor.text[cursor.pos : cursor.pos - cursor.offset], cursor.offset
            cursor.pos += len(piece)
            write(piece, offset)
        elif cursor.closed:
            return
        else:
            yield


def _rest(cursor: Cursor, write: Write) -> Steps[None]:
    """Pass on everything that is still to come as text."""
    while True:
        if cursor.pos < len(cursor.text):
            piece, offset = cursor.text[cursor.pos :], cursor.offset
            cursor.pos = len(cursor.text)
            write(piece, offset)
        if cursor.closed:
            return
        yield
