"""Collect parser output as events: runs of text and of thinking, arguments of calls, logprobs with the text."""

from __future__ import annotations

from plumbline.answer.dialects.parsers.logprob_slices import LogprobSlices
from plumbline.answer.dialects.streams.cursor import Cursor
from plumbline.answer.dialects.streams.whitespace import WhitespaceBuffer
from plumbline.answer.events import OutputEvent, ReasoningDelta, TextDelta, ToolCallDelta, ToolCallEnd

__all__ = ["EventSink", "Region"]

Region = tuple[int, int, bool]
"""A part of the answer in the output: the offsets of its first character and of the one after its last, and whether it
is a call with its markers."""


class EventSink:
    """Collect events until the next flush.

    Args:
        logprobs: the deltas carry logprobs.
        hold: hold white space at the end of text back until it is known to belong to the text.
    """

    def __init__(self, *, logprobs: bool, hold: bool) -> None:
        self._cursor = Cursor()
        self._content = WhitespaceBuffer(self._emit_text, hold=hold, dropped=self._note_space)
        self._thought = WhitespaceBuffer(self._emit_thought, hold=True)
        self._slices = LogprobSlices() if logprobs else None
        self._out: list[OutputEvent] = []
        self._run_text: list[str] = []
        self._run_thought: list[str] = []
        self._arguments: list[str] = []
        """Arguments of the open call that are not events yet. No other event comes between them."""
        self.call_arguments = self._arguments.append
        """Adds to the arguments of the open call. A method of the list itself, because no other is called as often."""
        self._prose_offset: int | None = None
        """Offset of the first character that may still turn out to be markup."""
        self._silent = False
        """Text and thinking from before the output make no events."""
        self._open = False
        """A call has begun and not ended."""
        self._regions_kept: list[Region] | None = None
        """Where text and calls are in the output, for `take_regions`."""
        self._call_start = 0
        self.num_calls = 0
        self.num_broken_calls = 0

    def _emit_text(self, text: str, offset: int) -> None:
        if offset < 0 and self._silent:
            text, offset = text[-offset:], 0
            if not text:
                return
        if self._regions_kept is not None:
            self._regions_kept.append((offset, offset + len(text), False))
        if (
            self._run_thought
        ):  # Not `_end_run`: it would take logprobs before these characters are noted as text.
            self._out.append(ReasoningDelta("".join(self._run_thought)))
            self._run_thought = []
        self._run_text.append(text)
        if self._slices is not None:
            self._slices.content(offset, offset + len(text))

    def _emit_thought(self, text: str, offset: int) -> None:
        if offset < 0 and self._silent and not (text := text[-offset:]):
            return
        if self._run_text:
            self._end_run()
        self._run_thought.append(text)

    def _end_run(self) -> None:
        if self._run_thought:
            self._out.append(ReasoningDelta("".join(self._run_thought)))
            self._run_thought = []
        # The text of a token that ends inside a call comes after the call.
        entries = () if self._slices is None or self._open else self._slices.take(self._decided())
        if self._run_text or entries:
            self._out.append(TextDelta("".join(self._run_text), entries))
            self._run_text = []

    def _flushed(self) -> list[OutputEvent]:
        if self._run_text or self._run_thought or self._slices is not None:
            self._end_run()
        if self._arguments:
            self._end_arguments()
        out, self._out = self._out, []
        return out

    def keep_regions(self) -> None:
        """Note from here on where text and calls are in the output."""
        self._regions_kept = []

    def take_regions(self) -> tuple[list[Region], int]:
        """Return where text and calls are in the output since the last time, in order, and what is decided.

        Returns:
            The regions, and the offset of the first character that may still become a part of one.
        """
        found, self._regions_kept = self._regions_kept or [], []
        decided = self._decided()
        if self._open:
            found.append((self._call_start, self._cursor.offset, True))
        elif (space := self._content.after_text()) is not None:
            end = self._cursor.offset if self._prose_offset is None else self._prose_offset
            found.append((space, end, False))
        return found, decided

    def _note_space(self, space: str, offset: int) -> None:
        """Note white space between text and markup, which counts whether or not it came with the markup."""
        if self._regions_kept is not None:
            self._regions_kept.append((offset, offset + len(space), False))

    def _note_call(self, end: int) -> None:
        """Note that the output has been a call, with the markup around it, up to this offset."""
        if self._regions_kept is not None:
            self._regions_kept.append((self._call_start, end, True))

    def _decided(self) -> int:
        """Return the offset up to which it is certain which characters are text."""
        read = self._cursor.offset if self._prose_offset is None else self._prose_offset
        return self._content.undecided_from(read)

    def _end_arguments(self) -> None:
        text = "".join(self._arguments)
        self._arguments.clear()
        if text:
            self._out.append(ToolCallDelta(text))

    def _end_call(self, *, complete: bool) -> None:
        self._end_arguments()
        self.num_broken_calls += not complete
        self._open = False
        self._note_call(self._cursor.offset)
        self._out.append(ToolCallEnd(complete))
