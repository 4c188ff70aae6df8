"""Find where in an output the answer is, apart from thinking and the markup around it."""

from __future__ import annotations

from plumbline.answer.dialects.parsers.answer_parser import AnswerParser
from plumbline.answer.dialects.parsers.cursor_parser import CursorParser
from plumbline.answer.events import AnswerPart, TextDelta

__all__ = ["ParsedRegions", "answer_regions"]


class ParsedRegions:
    """The regions of text and calls in an output, from a parser that reads it for this purpose only.

    Calls count with the markers around them. White space counts if it follows text, also where markup follows it.

    Args:
        parser: has read nothing yet.
        begun: the beginning of the message that the output continues; it has places before 0.
    """

    def __init__(self, parser: CursorParser, begun: str = "") -> None:
        parser.keep_regions()
        if begun:
            parser.continue_message(begun, echo=False)
        self._parser = parser
        self._end = 0

    def push(self, text: str) -> list[AnswerPart]:
        """Take more of the output. Returns the parts that are decided."""
        self._parser.push(TextDelta(text))
        return self._decided()

    def close(self) -> list[AnswerPart]:
        """End the output. Returns the parts that were undecided."""
        self._parser.finish("stop")
        return self._decided()

    def _decided(self) -> list[AnswerPart]:
        parts: list[AnswerPart] = []
        regions, decided = self._parser.take_regions()
        for start, end, is_call in (*regions, (decided, decided, False)):
            if start > self._end:
                parts.append((start - self._end, ""))
                self._end = start
            if end > self._end:
                parts.append((end - self._end, "call" if is_call else "text"))
                self._end = end
        return parts


def answer_regions(parser: AnswerParser, begun: str = "") -> ParsedRegions | None:
    """Return what finds the answer in an output; None if all of it is the answer.

    Args:
        parser: of such an output; it is used for this purpose only.
        begun: the beginning of the message that the output continues.
    """
    return ParsedRegions(parser, begun) if isinstance(parser, CursorParser) else None
