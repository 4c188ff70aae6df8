"""Write the events of an answer as chat completion chunks, and fold them into one chat completion."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from msgspec import UNSET, UnsetType

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
from plumbline.contract._generated.common import CompletionUsage
from plumbline.server.protocols.chat.functions import uses_functions
from plumbline.server.protocols.chat.reasoning import ReasoningFilter
from plumbline.server.protocols.common.fields import given, or_default
from plumbline.server.protocols.common.ids import new_id, now
from plumbline.server.protocols.common.logprobs import chat_logprob
from plumbline.server.protocols.common.sampling.parameters import read_num_probs
from plumbline.server.protocols.common.token_facts import NO_FACTS, PromptFacts, named_by_id
from plumbline.server.protocols.common.usage import add_usage, completion_usage, usage_so_far, wants_progress

__all__ = ["ChatWriter", "ReasoningField"]

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


@dataclass(slots=True)
class _Choice:
    """The parts of one choice that were sent so far; the non-streaming answer is built from them."""

    text: list[str] = field(default_factory=list)
    reasoning: list[str] = field(default_factory=list)
    calls: list[_Call] = field(default_factory=list)
    logprobs: list[ChatCompletionTokenLogprob] = field(default_factory=list)
    finish: FinishReason | Literal["function_call"] | None = None
    stop_match: int | str | None = None
    undeclared: tuple[str, ...] = ()
    hidden_states: tuple[float, ...] = ()
    token_ids: list[int] = field(default_factory=list)
    num_sent_ids: int = 0
    """How many of `token_ids` the chunks so far carry."""


class ChatWriter:
    """Write the events of one answer as chunks, and fold them into the non-streaming answer.

    Both modes agree by construction (CHAT-19): `answer` uses the state that the chunks left.
    """

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
        self._facts = facts
        self._returns_ids = request.return_token_ids is True
        self._names_ids = request.return_tokens_as_token_ids is True
        options = or_default(request.stream_options, None)
        self._id = new_id("chatcmpl-")
        self._created = now()
        self._model = model
        self._fingerprint = fingerprint
        self._metadata = request.metadata if given(request.metadata) else UNSET
        # CS-17: clients read one of two fields with the same text.
        names = ("reasoning", "reasoning_content") if reasoning_field == "both" else (reasoning_field,)
        self._reasoning_fields = names
        self._legacy_calls = uses_functions(request)
        self._wants_logprobs = request.logprobs is True or read_num_probs(request) is not None
        self._reports = wants_progress(request)
        self._progress: dict[int, int] = {}
        """Tokens of each choice so far."""
        self._delivered: dict[int, int] = {}
        """Those that its chunks have carried; a chunk with the role alone carries none."""
        self._prompt_tokens = prompt_tokens
        self._include_usage = options is not None and options.include_usage is True
        self._choices = [_Choice() for _ in range(or_default(request.n, 1))]
        self._filters = [ReasoningFilter(request, thinking_markers) for _ in self._choices]
        self._num_begun = 0
        """How many choices have sent their role."""
        self._usage: Usage | None = None

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
            chunk = self._chunk(other, delta, with_tokens=False)
            if self._facts.token_ids is not None:
                chunk.prompt_token_ids = self._facts.token_ids
            chunks.append(chunk)
        self._num_begun = index + 1
        return chunks

    def _written(self, index: int, event: OutputEvent) -> list[CreateChatCompletionStreamResponse]:
        choice = self._choices[index]
        match event:
            case TokenIds():
                # They go with the next chunk; the last chunk of a choice comes in any case.
                choice.token_ids += event.token_ids
                return []
            case TextDelta():
                choice.text.append(event.text)
                logprobs = self._logprobs(choice, event.logprobs)
                delta = ChatCompletionStreamResponseDelta(content=event.text)
                return [self._chunk(index, delta, logprobs=logprobs)]
            case ReasoningDelta():
                choice.reasoning.append(event.text)
                delta = ChatCompletionStreamResponseDelta()
                for name in self._reasoning_fields:
                    setattr(delta, name, event.text)
                return [self._chunk(index, delta)]
            case ToolCallStart():
                choice.calls.append(_Call(event))
                if self._legacy_calls:
                    return self._legacy_delta(index, choice, event.name)
                # CS-10: id, type and name come once, in the first delta.
                call = ChatCompletionMessageToolCallChunk(index=len(choice.calls) - 1, id=event.id)
                if event.custom:
                    call.type, call.custom = (
                        "custom",
                        ChatCompletionCustomCallDelta(name=event.name, input=""),
                    )
                else:
                    call.type = "function"
                    call.function = ChatCompletionFunctionCallDelta(name=event.name, arguments="")
                return [self._chunk(index, ChatCompletionStreamResponseDelta(tool_calls=[call]))]
            case ToolCallDelta():
                choice.calls[-1].fragments.append(event.arguments)
                if self._legacy_calls:
                    return self._legacy_delta(index, choice, arguments=event.arguments)
                call = ChatCompletionMessageToolCallChunk(index=len(choice.calls) - 1)
                if choice.calls[-1].start.custom:
                    call.custom = ChatCompletionCustomCallDelta(input=event.arguments)
                else:
                    call.function = ChatCompletionFunctionCallDelta(arguments=event.arguments)
                return [self._chunk(index, ChatCompletionStreamResponseDelta(tool_calls=[call]))]
            case Progress():
                self._progress[index] = event.completion_tokens
                return []
            case Finish():
                choice.finish = self._reason(event)
                choice.stop_match = event.stop_match
                choice.undeclared = event.undeclared_tools
                self._usage = add_usage(self._usage, event.usage)
                choice.hidden_states = event.hidden_state
                # CS-03: the reason comes with an empty delta, which is the last of the choice.
                deltas = [ChatCompletionStreamResponseDelta(hidden_states=list(event.hidden_state))]
                return [
                    *(self._chunk(index, delta) for delta in deltas if event.hidden_state),
                    self._chunk(index, ChatCompletionStreamResponseDelta(), finish=event),
                ]
            case _:
                return []  # Chunks have no ends of calls, and only Responses have tools of remote servers.

    def end(self) -> list[CreateChatCompletionStreamResponse]:
        """Return the usage chunk, the last of the stream, if the client wants it (CS-06, CS-07, CS-08)."""
        if not self._include_usage or self._usage is None:
            return []
        chunk = self._envelope([])
        chunk.usage = completion_usage(self._usage)
        return [chunk]

    def answer(self) -> CreateChatCompletionResponse:
        """Return the non-streaming answer, once every choice has finished."""
        return CreateChatCompletionResponse(
            id=self._id,
            created=self._created,
            model=self._model,
            choices=[self._folded(index, choice) for index, choice in enumerate(self._choices)],
            usage=UNSET if self._usage is None else completion_usage(self._usage),
            service_tier="default",
            system_fingerprint=self._fingerprint,
            metadata=self._metadata,
            # Null where vLLM has null: its clients read these as attributes, which fail where a member is absent.
            prompt_token_ids=self._facts.token_ids,
            prompt_logprobs=self._facts.logprobs,
        )

    def _folded(self, index: int, choice: _Choice) -> ChatCompletionChoice:
        if choice.finish is None:
            raise RuntimeError(f"choice {index} has no finish yet")
        calls = [call.as_message_part() for call in choice.calls]
        text = "".join(choice.text)
        message = ChatCompletionResponseMessage(content=None if calls and not text else text)
        if self._legacy_calls and choice.calls:
            message.function_call = choice.calls[0].as_function_call()
        elif calls:
            message.tool_calls = calls
        for name in self._reasoning_fields if choice.reasoning else ():
            setattr(message, name, "".join(choice.reasoning))
        return ChatCompletionChoice(
            index=index,
            message=message,
            finish_reason=choice.finish,
            logprobs=ChatCompletionLogprobs(content=choice.logprobs) if self._wants_logprobs else None,
            stop_reason=choice.stop_match,
            token_ids=choice.token_ids if self._returns_ids else None,
            matched_stop=choice.stop_match,
            undeclared_tools=list(choice.undeclared) or UNSET,
            hidden_states=list(choice.hidden_states) or UNSET,
        )

    def _legacy_delta(
        self, index: int, choice: _Choice, name: str | None = None, arguments: str = ""
    ) -> list[CreateChatCompletionStreamResponse]:
        """Write a delta of `function_call` (TOOL-16). It has room for one call: further ones are left out."""
        if len(choice.calls) > 1:
            return []
        call = ChatCompletionFunctionCallDelta(arguments=arguments)
        if name is not None:
            call.name = name
        return [self._chunk(index, ChatCompletionStreamResponseDelta(function_call=call))]

    def _reason(self, finish: Finish) -> FinishReason | Literal["function_call"]:
        return "function_call" if self._legacy_calls and finish.reason == "tool_calls" else finish.reason

    def _logprobs(self, choice: _Choice, entries: tuple[Logprob, ...]) -> ChatCompletionLogprobs | None:
        if not self._wants_logprobs:
            return None
        found = [chat_logprob(named_by_id(entry) if self._names_ids else entry) for entry in entries]
        choice.logprobs.extend(found)
        return ChatCompletionLogprobs(content=found)

    def _chunk(
        self,
        index: int,
        delta: ChatCompletionStreamResponseDelta,
        *,
        finish: Finish | None = None,
        logprobs: ChatCompletionLogprobs | None = None,
        with_tokens: bool = True,
    ) -> CreateChatCompletionStreamResponse:
        reason: FinishReason | Literal["function_call"] | None = None
        stop_reason: int | str | UnsetType = UNSET
        if finish is not None:
            reason = self._reason(finish)
            stop_reason = UNSET if finish.stop_match is None else finish.stop_match
        choice = ChatCompletionStreamChoice(
            index=index,
            delta=delta,
            finish_reason=reason,
            logprobs=logprobs,
            stop_reason=stop_reason,
            matched_stop=stop_reason,
            undeclared_tools=UNSET if finish is None else list(finish.undeclared_tools) or UNSET,
        )
        if with_tokens:
            self._delivered[index] = self._progress.get(index, 0)
        if self._returns_ids and not with_tokens:
            choice.token_ids = []
        elif self._returns_ids:
            known = self._choices[index]
            choice.token_ids = known.token_ids[known.num_sent_ids :]
            known.num_sent_ids = len(known.token_ids)
        return self._envelope([choice])

    def _current_usage(self) -> CompletionUsage | None:
        """Return the counts of what was delivered, if every chunk reports them (`continuous_usage_stats`)."""
        if not self._reports:
            return None
        return usage_so_far(self._prompt_tokens, sum(self._delivered.values()))

    def _envelope(self, choices: list[ChatCompletionStreamChoice]) -> CreateChatCompletionStreamResponse:
        return CreateChatCompletionStreamResponse(
            id=self._id,
            created=self._created,
            model=self._model,
            choices=choices,
            service_tier="default",
            system_fingerprint=self._fingerprint,
            usage=self._current_usage() if self._include_usage or self._reports else UNSET,
        )
