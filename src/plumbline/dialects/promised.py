"""Answers whose text has a promised form: once the thinking is over nothing in them means anything but itself.

A promised text may look like markup (`</think>`, a marker of calls) or begin with white space. The dialects' own
parsers would take it for what it looks like; these read the thinking as they do and pass on everything after it as it
stands.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from plumbline.dialects.api import NewId
from plumbline.dialects.cursor import Cursor, Steps, Write
from plumbline.dialects.harmony import HarmonyParser, Header
from plumbline.dialects.markup import Markup
from plumbline.dialects.parser import DialectParser

__all__ = ["PromisedHarmonyParser", "PromisedTextParser"]


class PromisedTextParser(DialectParser):
    """Reads an answer of thinking and promised text; see `DialectParser`.

    Args:
        markup: the dialects, of which only the reasoning matters.
        inside: generation starts inside the thinking.
        new_id: makes ids of calls, of which there are none.
        exact: between the thinking and the text stands exactly what the dialect writes there; else white space there
            belongs to neither.
        logprobs: the deltas carry logprobs.
    """

    def __init__(
        self, markup: Markup, *, inside: bool, new_id: NewId, exact: bool, logprobs: bool = False
    ) -> None:
        self._exact = exact
        no_tools: Mapping[str, Mapping[str, Any]] = {}
        super().__init__(markup, no_tools, inside=inside, new_id=new_id, logprobs=logprobs)

    def _answer(self) -> Steps[None]:
        cursor, markup = self._cursor, self._markup
        reasoning = markup.reasoning
        assert reasoning is not None
        if reasoning.append:
            if self._starts_inside:
                self._run_text.append(reasoning.open[0] + reasoning.after_open)
        elif self._starts_inside:
            yield from cursor.space()
            yield from cursor.take_one(markup.opening)
            yield from self._think(0)
            yield from self._gap(reasoning.after_close)
        elif (marker := (yield from cursor.take_one(markup.opening))) is not None:
            yield from self._think(cursor.offset - len(marker))
            yield from self._gap(reasoning.after_close)
        yield from _rest(cursor, self._say)

    def _gap(self, written: str) -> Steps[None]:
        if self._exact:
            yield from self._cursor.take(written)
        else:
            yield from self._cursor.space()


class PromisedHarmonyParser(HarmonyParser):
    """The same for harmony's messages: the final one is text to its end."""

    def _body(self, header: Header, start: int) -> Steps[Header | None]:
        if header.channel != "final":
            return (yield from super()._body(header, start))
        yield from _rest(self._cursor, self._say)
        return None


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
