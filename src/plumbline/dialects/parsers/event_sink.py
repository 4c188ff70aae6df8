"""What a parser has read, told as events: runs of text and of thinking, arguments of calls, logprobs with the text."""

from __future__ import annotations

from plumbline.dialects.parsers.logprob_spans import LogprobSpans
from plumbline.dialects.parsers.whitespace import WhitespaceBuffer
from plumbline.dialects.streams.cursor import Cursor
from plumbline.events import OutputEvent, ReasoningDelta, TextDelta, ToolCallDelta, ToolCallEnd

__all__ = ["EventSink"]


class EventSink:
    """The telling half of a parser: collects what the reading half finds, until the next flush.

    Args:
        logprobs: the deltas carry logprobs.
        hold: white space at the end of a text is held until it is known to belong to it.
    """

    def __init__(self, *, logprobs: bool, hold: bool) -> None:
        self._cursor = Cursor()
        self._content = WhitespaceBuffer(self._say, hold=hold)
        self._thought = WhitespaceBuffer(self._think_aloud, hold=True)
        self._spans = LogprobSpans() if logprobs else None
        self._out: list[OutputEvent] = []
        self._run_text: list[str] = []
        self._run_thought: list[str] = []
        self._arguments: list[str] = []
        """Pieces of the open call's arguments that have not been told yet; nothing else is told between them."""
        self.call_arguments = self._arguments.append
        """Takes more of the arguments of the announced call; the list's own method, because it is called most."""
        self._prose_offset: int | None = None
        """Where text begins that may still turn out to be markup."""
        self._silent = False
        """Text and thinking from before the output are not told."""
        self._open = False
        """A call has been announced and not ended."""
        self.num_calls = 0
        self.num_broken_calls = 0

    def _say(self, text: str, offset: int) -> None:
        if offset < 0 and self._silent:
            text, offset = text[-offset:], 0
            if not text:
                return
        if self._run_thought:  # Logprobs wait until it is noted that these characters are text.
            self._out.append(ReasoningDelta("".join(self._run_thought)))
            self._run_thought = []
        self._run_text.append(text)
        if self._spans is not None:
            self._spans.content(offset, offset + len(text))

    def _think_aloud(self, text: str, offset: int) -> None:
        if offset < 0 and self._silent and not (text := text[-offset:]):
            return
        if self._run_text:
            self._end_run()
        self._run_thought.append(text)

    def _end_run(self) -> None:
        if self._run_thought:
            self._out.append(ReasoningDelta("".join(self._run_thought)))
            self._run_thought = []
        # Of a token that ends inside of a call, what is text is told when the call has ended.
        entries = () if self._spans is None or self._open else self._spans.take(self._decided())
        if self._run_text or entries:
            self._out.append(TextDelta("".join(self._run_text), entries))
            self._run_text = []

    def _flushed(self) -> list[OutputEvent]:
        if self._run_text or self._run_thought or self._spans is not None:
            self._end_run()
        if self._arguments:
            self._end_arguments()
        out, self._out = self._out, []
        return out

    def _decided(self) -> int:
        """Up to where it is certain what the characters of the output are."""
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
        self._out.append(ToolCallEnd(complete))
