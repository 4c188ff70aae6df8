"""Write the events of an answer as those of Messages, and fold them into one message."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

import msgspec
from msgspec import UNSET

from plumbline.answer.events import (
    Finish,
    OutputEvent,
    Progress,
    ReasoningDelta,
    TextDelta,
    ToolCallDelta,
    ToolCallEnd,
    ToolCallStart,
    Usage,
)
from plumbline.contract._generated.messages import (
    AnswerBlock,
    AnswerTextBlock,
    AnswerThinkingBlock,
    AnswerToolUseBlock,
    BlockDelta,
    BlockInputDelta,
    BlockSignatureDelta,
    BlockTextDelta,
    BlockThinkingDelta,
    ContentBlockDeltaEvent,
    ContentBlockStartEvent,
    ContentBlockStopEvent,
    CreateMessageRequest,
    CreateMessageResponse,
    MessageDelta,
    MessageDeltaEvent,
    MessageDeltaUsage,
    MessageOutputDetails,
    MessageStartEvent,
    MessageStopEvent,
    MessageStreamEvent,
    MessageUsage,
    PingEvent,
)
from plumbline.server.protocols.common.fields import or_default
from plumbline.server.protocols.common.ids import new_id
from plumbline.server.protocols.common.sealing import Sealer
from plumbline.server.protocols.messages.partial_json import parse_partial_object

__all__ = ["MessageWriter"]

StopReason = Literal["end_turn", "max_tokens", "stop_sequence", "tool_use", "model_context_window_exceeded"]


@dataclass(slots=True)
class _Block:
    """A block with the fragments that it has so far."""

    start: AnswerBlock
    fragments: list[str] = field(default_factory=list)

    @property
    def content(self) -> str:
        return "".join(self.fragments)


class MessageWriter:
    """Write the events of one answer, and fold them into the non-streaming answer.

    Both modes agree by construction (MSG-01): `answer` uses the state that the events left.
    """

    def __init__(
        self,
        request: CreateMessageRequest,
        sealer: Sealer,
        *,
        model: str,
        prompt_tokens: int,
        max_model_len: int,
    ) -> None:
        """Prepare for one answer.

        Args:
            request: the request.
            sealer: what seals thinking into signatures.
            model: the model that the answer names.
            prompt_tokens: tokens of the prompt.
            max_model_len: tokens of the context.
        """
        thinking = or_default(request.thinking, None)
        self._shows_thinking = or_default(getattr(thinking, "display", None), "summarized") != "omitted"
        self._max_tokens = request.max_tokens
        self._stop_sequences = frozenset(or_default(request.stop_sequences, []))
        self._sealer = sealer
        self._max_model_len = max_model_len
        self._blocks: list[AnswerBlock] = []
        self._open: _Block | None = None
        self._answer = CreateMessageResponse(
            id=new_id("msg_"),
            role="assistant",
            model=model,
            content=[],
            stop_reason=None,
            stop_sequence=None,
            usage=_usage(Usage(prompt_tokens, 0)),
        )

    def start(self, first: OutputEvent | None) -> list[MessageStreamEvent]:
        """Return the events before the first block (MSG-07).

        Args:
            first: the first event of the answer, if it has come: it may say how much of the prompt was cached (MSG-10).
        """
        if isinstance(first, Progress):
            counted = self._answer.usage
            counted.input_tokens -= first.cached_tokens
            counted.cache_read_input_tokens = first.cached_tokens
        return [MessageStartEvent(message=msgspec.structs.replace(self._answer)), PingEvent()]

    def event(self, index: int, event: OutputEvent) -> list[MessageStreamEvent]:
        """Write one event of the answer, whose `index` is 0: it has one choice."""
        match event:
            case TextDelta(text=text):
                return [*self._begun(AnswerTextBlock(text="")), *self._more(text, BlockTextDelta(text=text))]
            case ReasoningDelta(text=text):
                begun = self._begun(AnswerThinkingBlock(thinking="", signature=""))
                return [
                    *begun,
                    *self._more(text, BlockThinkingDelta(thinking=text) if self._shows_thinking else None),
                ]
            case ToolCallStart():
                return [
                    *self._ended(),
                    *self._begun(AnswerToolUseBlock(id=event.id, name=event.name, input={})),
                ]
            case ToolCallDelta(arguments=text):
                return self._more(text, BlockInputDelta(partial_json=text))
            case ToolCallEnd():
                return self._ended()
            case Finish():
                return [*self._ended(), self._finished(event)]
            case _:
                return []  # Only Responses have tools of remote servers.

    def end(self) -> list[MessageStreamEvent]:
        """Return the last event."""
        return [MessageStopEvent()]

    def answer(self) -> CreateMessageResponse:
        """Return the non-streaming answer, once it has finished."""
        self._answer.content = self._blocks
        return self._answer

    def _begun(self, start: AnswerBlock) -> list[MessageStreamEvent]:
        """Begin a block, unless one of its kind is open (MSG-08)."""
        if self._open is not None and type(self._open.start) is type(start):
            return []
        ended = self._ended()
        self._open = _Block(start)
        return [*ended, ContentBlockStartEvent(index=len(self._blocks), content_block=start)]

    def _more(self, text: str, delta: BlockDelta | None) -> list[MessageStreamEvent]:
        assert self._open is not None
        self._open.fragments.append(text)
        return [] if delta is None else [ContentBlockDeltaEvent(index=len(self._blocks), delta=delta)]

    def _ended(self) -> list[MessageStreamEvent]:
        """End the block that is open, if any."""
        block, self._open = self._open, None
        if block is None:
            return []
        index = len(self._blocks)
        events: list[MessageStreamEvent] = [ContentBlockStopEvent(index=index)]
        match block.start:
            case AnswerTextBlock():
                whole: AnswerBlock = AnswerTextBlock(text=block.content)
            case AnswerThinkingBlock():
                signature = self._sealer.seal(block.content)  # MSG-06
                whole = AnswerThinkingBlock(
                    thinking=block.content if self._shows_thinking else "", signature=signature
                )
                events.insert(
                    0, ContentBlockDeltaEvent(index=index, delta=BlockSignatureDelta(signature=signature))
                )
            case AnswerToolUseBlock(id=call_id, name=name):
                whole = AnswerToolUseBlock(id=call_id, name=name, input=parse_partial_object(block.content))
        self._blocks.append(whole)
        return events

    def _finished(self, finish: Finish) -> MessageDeltaEvent:
        answer = self._answer
        answer.stop_reason, answer.stop_sequence = self._reason(finish)
        answer.usage = _usage(finish.usage)
        answer.undeclared_tools = list(finish.undeclared_tools) or UNSET
        return MessageDeltaEvent(
            delta=MessageDelta(
                stop_reason=answer.stop_reason,
                stop_sequence=answer.stop_sequence,
                undeclared_tools=answer.undeclared_tools,
            ),
            usage=MessageDeltaUsage(
                input_tokens=answer.usage.input_tokens,
                cache_creation_input_tokens=answer.usage.cache_creation_input_tokens,
                cache_read_input_tokens=answer.usage.cache_read_input_tokens,
                output_tokens=answer.usage.output_tokens,
                output_tokens_details=answer.usage.output_tokens_details,
                service_tier=answer.usage.service_tier,
                x_repaired_calls=answer.usage.x_repaired_calls,
                x_unmarked_calls=answer.usage.x_unmarked_calls,
            ),
        )

    def _reason(self, finish: Finish) -> tuple[StopReason, str | None]:
        """Return why the answer ended, and the stop sequence that ended it (MSG-09)."""
        if finish.reason == "tool_calls":
            return "tool_use", None
        usage = finish.usage
        if finish.reason == "length":
            is_full = usage.prompt_tokens + usage.completion_tokens >= self._max_model_len
            if is_full and usage.completion_tokens < self._max_tokens:
                return "model_context_window_exceeded", None
            return "max_tokens", None
        if isinstance(finish.stop_match, str) and finish.stop_match in self._stop_sequences:
            return "stop_sequence", finish.stop_match
        return "end_turn", None


def _usage(usage: Usage) -> MessageUsage:
    """Write counts as Messages has them: the three of the prompt add up to it (MSG-10)."""
    return MessageUsage(
        input_tokens=usage.prompt_tokens - usage.cached_tokens,
        cache_creation_input_tokens=0,
        cache_read_input_tokens=usage.cached_tokens,
        output_tokens=usage.completion_tokens,
        output_tokens_details=MessageOutputDetails(thinking_tokens=usage.reasoning_tokens),
        service_tier="standard",
        x_repaired_calls=usage.repaired_calls or UNSET,
        x_unmarked_calls=usage.unmarked_calls or UNSET,
    )
