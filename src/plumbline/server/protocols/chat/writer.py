"""Write the events of an answer as chat completion chunks, or fold them into one chat completion.

Both modes agree (CHAT-19): folding the chunks gives the same answer as folding the events.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from msgspec import UNSET

from plumbline.answer.events import (
    Finish,
    FinishReason,
    Logprob,
    OutputEvent,
    Progress,
    ReasoningDelta,
    TextDelta,
    TokenIds,
    ToolCallDelta,
    ToolCallEnd,
    ToolCallStart,
    Usage,
)
from plumbline.contract._generated.chat import (
    ChatCompletionChoice,
    ChatCompletionCustomCall,
    ChatCompletionCustomCallDelta,
    ChatCompletionFunctionCall,
    ChatCompletionFunctionCallDelta,
    ChatCompletionLogprobs,
    ChatCompletionMessageCustomToolCall,
    ChatCompletionMessageToolCall,
    ChatCompletionMessageToolCallChunk,
    ChatCompletionMessageToolCallUnion,
    ChatCompletionResponseMessage,
    ChatCompletionStreamChoice,
    ChatCompletionStreamResponseDelta,
    ChatCompletionTokenLogprob,
    CreateChatCompletionRequest,
    CreateChatCompletionResponse,
    CreateChatCompletionStreamResponse,
)
from plumbline.server.protocols.chat.functions import uses_functions
from plumbline.server.protocols.chat.reasoning import ReasoningFilter
from plumbline.server.protocols.common.delivery import Delivery
from plumbline.server.protocols.common.fields import given, or_default
from plumbline.server.protocols.common.ids import new_id, now
from plumbline.server.protocols.common.logprobs import chat_logprob
from plumbline.server.protocols.common.sampling.parameters import read_num_probs
from plumbline.server.protocols.common.token_facts import NO_FACTS, PromptFacts, named_by_id
from plumbline.server.protocols.common.usage import completion_usage, total_usage

__all__ = ["ChatChunks", "ChatFold", "ChatWriter", "ReasoningField"]

ReasoningField = Literal["reasoning_content", "reasoning", "both"]
"""The field that carries the model's thinking: vLLM sends `reasoning`, other servers `reasoning_content`."""


@dataclass(slots=True)
class _Call:
    """A call with the fragments of its arguments, or of its input for a custom tool."""

    start: ToolCallStart
    fragments: list[str] = field(default_factory=list)

    def as_message_part(self) -> ChatCompletionMessageToolCallUnion:
        """Return the whole call for the message of a non-streaming answer."""
        name, text = self.start.name, "".join(self.fragments)
        if self.start.custom:  # TOOL-14
            return ChatCompletionMessageCustomToolCall(
                id=self.start.id, custom=ChatCompletionCustomCall(name=name, input=text)
            )
        return ChatCompletionMessageToolCall(id=self.start.id, function=self.as_function_call())

    def as_function_call(self) -> ChatCompletionFunctionCall:
        """Return the name and arguments of the call."""
        return ChatCompletionFunctionCall(name=self.start.name, arguments="".join(self.fragments))


class ChatWriter:
    """Make what writes the answer to one request: `fold` in one piece, `chunks` as a stream."""

    def __init__(
        self,
        request: CreateChatCompletionRequest,
        *,
        model: str,
        fingerprint: str,
        reasoning_field: ReasoningField = "both",
        thinking_markers: tuple[str, str] = ("", ""),
        prompt_tokens: int = 0,
        facts: PromptFacts = NO_FACTS,
    ) -> None:
        self.request = request
        self.id = new_id("chatcmpl-")
        self.created = now()
        self.model = model
        self.fingerprint = fingerprint
        self.facts = facts
        self.prompt_tokens = prompt_tokens
        # CS-17: clients read one of two fields with the same text.
        names = ("reasoning", "reasoning_content") if reasoning_field == "both" else (reasoning_field,)
        self.reasoning_fields = names
        self.legacy_calls = uses_functions(request)
        self.wants_logprobs = request.logprobs is True or read_num_probs(request) is not None
        self._names_ids = request.return_tokens_as_token_ids is True
        self._markers = thinking_markers

    def fold(self) -> ChatFold:
        """Return a fold of the events into one answer."""
        return ChatFold(self)

    def chunks(self) -> ChatChunks:
        """Return a writer of the events as chunks."""
        return ChatChunks(self)

    def filters(self) -> list[ReasoningFilter]:
        """Return a filter for the events of each choice."""
        return [ReasoningFilter(self.request, self._markers) for _ in range(or_default(self.request.n, 1))]

    def logprobs(self, entries: tuple[Logprob, ...]) -> list[ChatCompletionTokenLogprob]:
        """Write the entries of a text, if the client wants them."""
        if not self.wants_logprobs:
            return []
        return [chat_logprob(named_by_id(entry) if self._names_ids else entry) for entry in entries]

    def reason(self, finish: Finish) -> FinishReason | Literal["function_call"]:
        """Return why a choice ended, as the API for tools that the request uses names it."""
        return "function_call" if self.legacy_calls and finish.reason == "tool_calls" else finish.reason


@dataclass(slots=True)
class _Choice:
    """The parts of one choice."""

    filter: ReasoningFilter
    text: list[str] = field(default_factory=list)
    reasoning: list[str] = field(default_factory=list)
    calls: list[_Call] = field(default_factory=list)
    logprobs: list[ChatCompletionTokenLogprob] = field(default_factory=list)
    token_ids: list[int] = field(default_factory=list)
    finish: Finish | None = None


class ChatFold:
    """Fold the events of one answer into a chat completion."""

    def __init__(self, writer: ChatWriter) -> None:
        self._writer = writer
        self._choices = [_Choice(each) for each in writer.filters()]

    def event(self, index: int, event: OutputEvent) -> None:
        """Take one event of a choice."""
        choice = self._choices[index]
        for shown in choice.filter.apply(event):
            match shown:
                case TextDelta():
                    choice.text.append(shown.text)
                    choice.logprobs += self._writer.logprobs(shown.logprobs)
                case ReasoningDelta():
                    choice.reasoning.append(shown.text)
                case ToolCallStart():
                    choice.calls.append(_Call(shown))
                case ToolCallDelta():
                    choice.calls[-1].fragments.append(shown.arguments)
                case TokenIds():
                    choice.token_ids += shown.token_ids
                case Finish():
                    choice.finish = shown
                case _:
                    pass  # Calls end with the next one, and only Responses have tools of remote servers.

    def answer(self) -> CreateChatCompletionResponse:
        """Return the answer, once every choice has finished."""
        writer = self._writer
        return CreateChatCompletionResponse(
            id=writer.id,
            created=writer.created,
            model=writer.model,
            choices=[self._whole(index, choice) for index, choice in enumerate(self._choices)],
            usage=completion_usage(
                total_usage([choice.finish.usage for choice in self._choices if choice.finish is not None])
            ),
            service_tier="default",
            system_fingerprint=writer.fingerprint,
            metadata=writer.request.metadata if given(writer.request.metadata) else UNSET,
            # Null where vLLM has null: its clients read these as attributes, which fail where a member is absent.
            prompt_token_ids=writer.facts.token_ids,
            prompt_logprobs=writer.facts.logprobs,
        )

    def _whole(self, index: int, choice: _Choice) -> ChatCompletionChoice:
        writer, finish = self._writer, choice.finish
        if finish is None:
            raise RuntimeError(f"choice {index} has no finish yet")
        text = "".join(choice.text)
        message = ChatCompletionResponseMessage(content=None if choice.calls and not text else text)
        if writer.legacy_calls and choice.calls:
            message.function_call = choice.calls[0].as_function_call()
        elif choice.calls:
            message.tool_calls = [call.as_message_part() for call in choice.calls]
        for name in writer.reasoning_fields if choice.reasoning else ():
            setattr(message, name, "".join(choice.reasoning))
        return ChatCompletionChoice(
            index=index,
            message=message,
            finish_reason=writer.reason(finish),
            logprobs=ChatCompletionLogprobs(content=choice.logprobs) if writer.wants_logprobs else None,
            stop_reason=finish.stop_match,
            token_ids=choice.token_ids if writer.request.return_token_ids is True else None,
            matched_stop=finish.stop_match,
            undeclared_tools=list(finish.undeclared_tools) or UNSET,
            hidden_states=list(finish.hidden_state) or UNSET,
        )


class ChatChunks:
    """Write the events of one answer as chunks."""

    def __init__(self, writer: ChatWriter) -> None:
        self._writer = writer
        self._filters = writer.filters()
        self._calls: list[list[ToolCallStart]] = [[] for _ in self._filters]
        """The calls of each choice so far."""
        self._delivery = Delivery(writer.request, writer.prompt_tokens)
        self._num_begun = 0
        """How many choices have sent their role."""
        self._usages: dict[int, Usage] = {}

    def start(self) -> list[CreateChatCompletionStreamResponse]:
        """Return no chunks: what a choice begins with depends on its first event."""
        return []

    def event(self, index: int, event: OutputEvent) -> list[CreateChatCompletionStreamResponse]:
        """Write one event of a choice."""
        return [
            chunk
            for shown in self._filters[index].apply(event)
            for chunk in (*self._begun(index, shown), *self._written(index, shown))
        ]

    def _begun(self, index: int, event: OutputEvent) -> list[CreateChatCompletionStreamResponse]:
        """Return the role chunks that must come before an event of a choice (CS-02).

        Choices appear in index order (CS-04), so those before it begin as well. An empty content announces a text;
        clients would open one for an answer that only calls a tool.
        """
        if index < self._num_begun or isinstance(event, TokenIds | Progress | ToolCallEnd):
            return []
        chunks = []
        for other in range(self._num_begun, index + 1):
            begins_text = other == index and isinstance(event, TextDelta | Finish)
            delta = ChatCompletionStreamResponseDelta(role="assistant", content="" if begins_text else None)
            choice = ChatCompletionStreamChoice(
                index=other,
                delta=delta,
                finish_reason=None,
                logprobs=None,
                token_ids=self._delivery.deliver_none(),
            )
            chunk = self._envelope([choice])
            if self._writer.facts.token_ids is not None:
                chunk.prompt_token_ids = self._writer.facts.token_ids
            chunks.append(chunk)
        self._num_begun = index + 1
        return chunks

    def _written(self, index: int, event: OutputEvent) -> list[CreateChatCompletionStreamResponse]:
        match event:
            case TokenIds() | Progress():
                self._delivery.note(index, event)
                return []
            case TextDelta():
                delta = ChatCompletionStreamResponseDelta(content=event.text)
                if not self._writer.wants_logprobs:
                    return [self._chunk(index, delta)]
                logprobs = ChatCompletionLogprobs(content=self._writer.logprobs(event.logprobs))
                return [self._chunk(index, delta, logprobs=logprobs)]
            case ReasoningDelta():
                delta = ChatCompletionStreamResponseDelta()
                for name in self._writer.reasoning_fields:
                    setattr(delta, name, event.text)
                return [self._chunk(index, delta)]
            case ToolCallStart():
                self._calls[index].append(event)
                return self._call(index, event.name, "")
            case ToolCallDelta():
                return self._call(index, None, event.arguments)
            case Finish():
                self._usages[index] = event.usage
                # CS-03: the reason comes with an empty delta, which is the last of the choice.
                states = ChatCompletionStreamResponseDelta(hidden_states=list(event.hidden_state))
                return [
                    *([self._chunk(index, states)] if event.hidden_state else []),
                    self._chunk(index, ChatCompletionStreamResponseDelta(), finish=event),
                ]
            case _:
                return []  # Chunks have no ends of calls, and only Responses have tools of remote servers.

    def _call(self, index: int, name: str | None, arguments: str) -> list[CreateChatCompletionStreamResponse]:
        """Write the start or a part of the last call of a choice.

        CS-10: id, type and name come once, in the first delta. `function_call` (TOOL-16) has room for one call:
        further ones are left out.
        """
        calls = self._calls[index]
        start = calls[-1]
        function = ChatCompletionFunctionCallDelta(name=UNSET if name is None else name, arguments=arguments)
        if self._writer.legacy_calls:
            delta = ChatCompletionStreamResponseDelta(function_call=function)
            return [self._chunk(index, delta)] if len(calls) == 1 else []
        call = ChatCompletionMessageToolCallChunk(index=len(calls) - 1)
        if name is not None:
            call.id, call.type = start.id, "custom" if start.custom else "function"
        if start.custom:
            call.custom = ChatCompletionCustomCallDelta(name=function.name, input=arguments)
        else:
            call.function = function
        return [self._chunk(index, ChatCompletionStreamResponseDelta(tool_calls=[call]))]

    def end(self) -> list[CreateChatCompletionStreamResponse]:
        """Return the usage chunk, the last of the stream, if the client wants it (CS-06, CS-07, CS-08)."""
        if not self._delivery.includes_usage or not self._usages:
            return []
        chunk = self._envelope([])
        chunk.usage = completion_usage(total_usage([self._usages[index] for index in sorted(self._usages)]))
        return [chunk]

    def _chunk(
        self,
        index: int,
        delta: ChatCompletionStreamResponseDelta,
        *,
        finish: Finish | None = None,
        logprobs: ChatCompletionLogprobs | None = None,
    ) -> CreateChatCompletionStreamResponse:
        choice = ChatCompletionStreamChoice(
            index=index,
            delta=delta,
            finish_reason=None,
            logprobs=logprobs,
            token_ids=self._delivery.deliver(index),
        )
        if finish is not None:
            choice.finish_reason = self._writer.reason(finish)
            if finish.stop_match is not None:
                choice.stop_reason = choice.matched_stop = finish.stop_match
            choice.undeclared_tools = list(finish.undeclared_tools) or UNSET
        return self._envelope([choice])

    def _envelope(self, choices: list[ChatCompletionStreamChoice]) -> CreateChatCompletionStreamResponse:
        return CreateChatCompletionStreamResponse(
            id=self._writer.id,
            created=self._writer.created,
            model=self._writer.model,
            choices=choices,
            service_tier="default",
            system_fingerprint=self._writer.fingerprint,
            usage=self._delivery.usage(),
        )
