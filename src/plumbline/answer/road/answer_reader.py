"""Turn the token chunks of one choice into the events of its answer."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence

import msgspec

from plumbline.answer.dialects.answer_regions import answer_regions
from plumbline.answer.dialects.parsers.cursor_parser import CursorParser
from plumbline.answer.dialects.parsers.custom_tools import CustomCalls
from plumbline.answer.events import (
    Finish,
    FinishReason,
    OutputEvent,
    Progress,
    TextDelta,
    TokenIds,
    ToolCallStart,
    Usage,
)
from plumbline.answer.road.errors import raise_if_failed
from plumbline.answer.road.prepare import PreparedTurn
from plumbline.answer.text.assemble import TextAssembler
from plumbline.answer.text.tokenizer import TextTokenizer
from plumbline.answer.turn import ChatPrompt, begun_text
from plumbline.port.engine import TokenChunk

__all__ = ["AnswerReader"]


class AnswerReader:
    """Assemble, parse and count one choice. Sans-IO: chunks go in by `push`, events come out.

    Nothing else computes a finish reason or a usage number.

    Args:
        prepared: the turn that is answered.
        tokenizer: the model's.
        eos_token_ids: the tokens that end a sequence of the model.

    Attributes:
        is_done: a stop string or `end` has ended the answer, so the engine can stop.
        warnings: what was malformed, one line each, for the log.
    """

    def __init__(
        self, prepared: PreparedTurn, tokenizer: TextTokenizer, eos_token_ids: frozenset[int]
    ) -> None:
        turn = prepared.turn
        sampling = turn.sampling
        self._prompt_tokens = len(prepared.prompt_token_ids)
        self._parser = prepared.parser()
        tools = turn.prompt.tools if isinstance(turn.prompt, ChatPrompt) else ()
        begun = begun_text(turn.prompt)
        custom_tools = [tool.name for tool in tools if tool.custom]
        self._custom_calls = CustomCalls(custom_tools) if custom_tools else None
        self._members = {tool.name: tool.member for tool in tools if tool.member is not None}
        self._assembler = TextAssembler(
            tokenizer,
            stop=turn.stop,
            # CHAT-23: a second parser, because the first must not read beyond a stop string.
            regions=answer_regions(prepared.parser(), begun) if turn.stop else None,
            include_stop=turn.include_stop,
            skip_special_tokens=turn.skip_special_tokens,
            # An end-of-sequence token ends the answer and is not part of its text, even if special tokens are shown.
            # With `ignore_eos` it ends nothing, so it is shown like any other special token.
            hidden_ids=frozenset() if sampling.ignore_eos and not turn.skip_special_tokens else eos_token_ids,
            shown_ids=self._parser.marker_ids,
            logprobs=sampling.logprobs is not None,
            min_tokens=sampling.min_tokens,
            token_ends=self._parser.needs_token_ends,
            # A completion is a list of tokens, a message is a text.
            every_token=not isinstance(turn.prompt, ChatPrompt),
        )
        self._returns_token_ids = turn.return_token_ids
        self._reports = turn.report_progress
        self._stop_token_ids = sampling.stop_token_ids
        self._end_token_ids = sampling.stop_token_ids | eos_token_ids
        self._last_token: int | None = None
        self._ended = False
        self._cached_tokens = 0
        self._hidden_state: tuple[float, ...] = ()
        self._reason: FinishReason = "length" if sampling.max_tokens == 0 else "stop"
        self._output: tuple[list[int], list[str]] | None = None
        """The tokens and the text so far, if they are kept."""
        self._before: Sequence[OutputEvent] = ()
        """Events of the message that the answer continues. They wait for the first chunk, because until then the engine
        may still refuse the request."""
        if begun:
            self._before = self._translated(self._parser.continue_message(begun, echo=turn.echo))

    def note_calls(self) -> None:
        """Keep the output, and emit from here on where each call begins (`CallPlace`)."""
        assert isinstance(self._parser, CursorParser)
        self._parser.note_places()
        self._output = ([], [])

    def output_before(self, start: int) -> tuple[Sequence[int], str]:
        """Return the output before a character of it, since `note_calls`.

        Args:
            start: how many characters.

        Returns:
            The tokens that end there or earlier, and the text after them.
        """
        assert self._output is not None
        ends = self._assembler.token_ends or ()
        count = bisect_right(ends, start)
        token_ids, texts = self._output
        return token_ids[:count], "".join(texts)[ends[count - 1] if count else 0 : start]

    @property
    def is_done(self) -> bool:
        """Whether a stop string or `end` has ended the answer."""
        return self._ended or self._assembler.stop_match is not None

    def end(self) -> None:
        """End the answer here, as if the model had."""
        self._ended = True

    @property
    def warnings(self) -> Sequence[str]:
        """Descriptions of malformed parts of the output."""
        return self._parser.warnings

    def push(self, chunk: TokenChunk) -> Sequence[OutputEvent]:
        """Read the next chunk of the engine.

        Raises:
            GenerationError: the engine failed.
            AbortedError: the server is shutting down.
        """
        raise_if_failed(chunk)
        token_ids, reason = chunk.token_ids, chunk.finish_reason
        if chunk.num_cached_tokens > self._cached_tokens:
            self._cached_tokens = chunk.num_cached_tokens
        if token_ids:
            self._last_token = token_ids[-1]
            if self._output is not None:
                self._output[0].extend(token_ids)
        if chunk.hidden_state:
            self._hidden_state = chunk.hidden_state
        if reason is not None:
            self._reason = "length" if reason == "length" else "stop"
        num_tokens = self._assembler.num_tokens
        delta = self._assembler.push(
            token_ids,
            chunk.logprobs,
            ends_with_stop_token=reason == "stop"
            and bool(token_ids)
            and token_ids[-1] in self._end_token_ids,
        )
        events: Sequence[OutputEvent] = () if delta is None else self._parsed(delta)
        if self._returns_token_ids and token_ids:
            # Tokens after a stop string are not part of the answer.
            events = (TokenIds(token_ids[: self._assembler.num_tokens - num_tokens]), *events)
        if self._before:
            events = (*self._before, *events)
            self._before = ()
        return (self._progress(), *events) if self._reports and events else events

    def finish(self) -> Sequence[OutputEvent]:
        """Read what is left, after the last chunk or once `is_done`. The last event is the `Finish`."""
        events: list[OutputEvent] = [self._progress()] if self._reports else []
        events += self._before
        rest = self._assembler.finish()
        stop_string = self._assembler.stop_match
        if rest is not None:
            events += self._parsed(rest)
        if self._assembler.stops_in_text:
            left = self._parser.finish_in_text()
        else:  # A stop string cuts a call as the token limit does: nothing of it is text.
            left = self._parser.finish("length" if stop_string is not None else self._reason)
        events += self._translated(left)
        events.append(self._finish(stop_string))
        return events

    def _progress(self) -> Progress:
        return Progress(self._assembler.num_tokens, self._cached_tokens)

    def _finish(self, stop_string: str | None) -> Finish:
        parser, assembler = self._parser, self._assembler
        reason: FinishReason = "stop" if stop_string is not None else self._reason
        match: int | str | None = stop_string
        if match is None and reason == "stop" and self._last_token in self._stop_token_ids:
            match = self._last_token
        if reason == "stop" and parser.num_calls and not parser.num_broken_calls:
            # CHAT-05: an answer that the token limit ended stays `length`, with calls or without. Calls that broke off
            # are shown incomplete, but no client is asked to run them.
            reason = "tool_calls"
        usage = Usage(
            self._prompt_tokens,
            assembler.num_tokens,
            cached_tokens=self._cached_tokens,
            reasoning_tokens=parser.num_reasoning_tokens(assembler.token_ends or ()),
        )
        return Finish(reason, usage, match, tuple(parser.undeclared), self._hidden_state)

    def _parsed(self, delta: TextDelta) -> Sequence[OutputEvent]:
        if self._output is not None:
            self._output[1].append(delta.text)
        return self._translated(self._parser.push(delta))

    def _translated(self, events: Sequence[OutputEvent]) -> Sequence[OutputEvent]:
        """Return the events, with the plain input of custom tools (TOOL-14), and with namespaces of calls."""
        if self._custom_calls is not None:
            events = [*self._custom_calls.translate(events)]
        return [self._in_namespace(event) for event in events] if self._members else events

    def _in_namespace(self, event: OutputEvent) -> OutputEvent:
        if not isinstance(event, ToolCallStart):
            return event
        return msgspec.structs.replace(event, member=self._members.get(event.name))
