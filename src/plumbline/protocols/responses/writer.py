"""Responses: the events of an answer written as stream events, and the final object built from the same state.

This writer alone owns `sequence_number`, `output_index`, `content_index` and item ids. The non-streaming answer is the
`response` of the terminal event, so both modes agree by construction (RS-16).

    created ─ in_progress ─ { item added ─ part added ─ delta… ─ text done ─ part done ─ item done }… ─ terminal
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any, TypeVar

import msgspec

from plumbline._generated.common import ResponseFormatText
from plumbline._generated.errors import Error
from plumbline._generated.events import (
    ResponseCompletedEvent,
    ResponseContentPartAddedEvent,
    ResponseContentPartDoneEvent,
    ResponseCreatedEvent,
    ResponseCustomToolCallInputDeltaEvent,
    ResponseErrorEvent,
    ResponseFailedEvent,
    ResponseFunctionCallArgumentsDeltaEvent,
    ResponseIncompleteEvent,
    ResponseInProgressEvent,
    ResponseOutputItemAddedEvent,
    ResponseOutputItemDoneEvent,
    ResponseReasoningTextDeltaEvent,
    ResponseStreamEvent,
    ResponseTextDeltaEvent,
)
from plumbline._generated.responses import (
    CreateResponse,
    InputTokensDetails,
    OutputTokensDetails,
    Reasoning,
    Response,
    ResponseError,
    ResponseErrorCode,
    ResponseIncompleteDetails,
    ResponseReasoning,
    ResponseTextParam,
    ResponseUsage,
)
from plumbline._generated.tools import FunctionTool, FunctionToolParam, ResponseTool
from plumbline.events import (
    Finish,
    OutputEvent,
    ReasoningDelta,
    TextDelta,
    ToolCallDelta,
    ToolCallEnd,
    ToolCallStart,
    Usage,
)
from plumbline.protocols.common.fields import given, or_default
from plumbline.protocols.common.ids import new_id, now
from plumbline.protocols.responses.items import (
    CallItem,
    CustomCallItem,
    ItemKind,
    ItemStatus,
    OpenItem,
    ReasoningTextItem,
    TextItem,
    delta_logprobs,
)
from plumbline.turn import Turn
from plumbline.wire.errors import ApiError

__all__ = ["ResponsesWriter"]

E = TypeVar("E", bound=msgspec.Struct)

_FAILURE_CODES: dict[int, ResponseErrorCode] = {400: "invalid_prompt", 429: "rate_limit_exceeded"}
"""By the status that the same failure would have had before the stream began."""


class ResponsesWriter:
    """Writes one answer. Methods return the events that say what happened, in order."""

    def __init__(self, request: CreateResponse, turn: Turn, *, model: str) -> None:
        self._response = _skeleton(request, turn, model)
        self._wants_logprobs = turn.sampling.logprobs is not None
        self._sequence = 0
        self._open: OpenItem | None = None
        self._broken = False
        """The open item is a call that ended before it was whole."""

    @property
    def response(self) -> Response:
        """The response as it stands."""
        return self._response

    def start(self) -> list[ResponseStreamEvent]:
        """RS-01: created, then in_progress, both with the whole shape and no output yet (RS-04)."""
        return [
            self._number(ResponseCreatedEvent(sequence_number=0, response=self._snapshot())),
            self._number(ResponseInProgressEvent(sequence_number=0, response=self._snapshot())),
        ]

    def event(self, event: OutputEvent) -> list[ResponseStreamEvent]:
        """Take an event of the answer."""
        match event:
            case TextDelta():
                events, item = self._opened(TextItem)
                item.texts.append(event.text)
                entries = event.logprobs if self._wants_logprobs else ()  # LP-06
                item.logprobs += entries
                delta = ResponseTextDeltaEvent(
                    sequence_number=0,
                    item_id=item.id,
                    output_index=self._index,
                    content_index=0,
                    delta=event.text,
                    logprobs=delta_logprobs(entries),
                )
                return [*events, self._number(delta)]
            case ReasoningDelta():
                events, reasoning = self._opened(ReasoningTextItem)
                reasoning.texts.append(event.text)
                thought = ResponseReasoningTextDeltaEvent(
                    sequence_number=0,
                    item_id=reasoning.id,
                    output_index=self._index,
                    content_index=0,
                    delta=event.text,
                )
                return [*events, self._number(thought)]
            case ToolCallStart():
                events = self._close("completed")
                return [*events, *self._open_item(CustomCallItem(event) if event.custom else CallItem(event))]
            case ToolCallDelta():
                call = self._open
                if call is None:
                    raise RuntimeError("a call's arguments come before the call")
                call.texts.append(event.arguments)
                if isinstance(call, CustomCallItem):
                    given_input = ResponseCustomToolCallInputDeltaEvent(
                        sequence_number=0, item_id=call.id, output_index=self._index, delta=event.arguments
                    )
                    return [self._number(given_input)]
                arguments = ResponseFunctionCallArgumentsDeltaEvent(
                    sequence_number=0, item_id=call.id, output_index=self._index, delta=event.arguments
                )
                return [self._number(arguments)]
            case ToolCallEnd():
                # an incomplete item is the last one. What comes next tells whether this call was cut, or the
                # model broke it off and went on: such a call is as complete as it will be, with arguments that are no
                # JSON, and the client hears so at once when it reads them.
                self._broken = not event.complete
                return self._close("completed") if event.complete else []
            case Finish():
                return self._finish(event)

    def fail(self, error: ApiError) -> list[ResponseStreamEvent]:
        """ERR-10, ERR-11: an error event with flat and nested fields, then `response.failed`."""
        code = _FAILURE_CODES.get(error.status, "server_error")
        told = ResponseErrorEvent(
            sequence_number=0,
            code=code,
            message=error.message,
            param=error.param,
            error=Error(message=error.message, type=error.type, param=error.param, code=code),
        )
        events = [*self._close("incomplete"), self._number(told)]
        self._response.status = "failed"
        self._response.error = ResponseError(code=code, message=error.message)
        return [*events, self._number(ResponseFailedEvent(sequence_number=0, response=self._snapshot()))]

    @property
    def _index(self) -> int:
        """The output index of the open item: the items before it are done."""
        return len(self._response.output)

    def _finish(self, finish: Finish) -> list[ResponseStreamEvent]:
        events: list[ResponseStreamEvent] = []
        if self._open is None and not self._response.output:
            # An answer without a single character still is a message, an empty one.
            events, _ = self._opened(TextItem)
        response = self._response
        response.usage = _usage(finish.usage)
        if finish.reason == "length":  # RS-15
            events += self._close("incomplete")
            response.status = "incomplete"
            response.incomplete_details = ResponseIncompleteDetails(reason="max_output_tokens")
            terminal: ResponseStreamEvent = ResponseIncompleteEvent(
                sequence_number=0, response=self._snapshot()
            )
        else:
            # SO-05: what a stop string has cut is not called complete; the input of a custom tool would not show it.
            events += self._close("incomplete" if self._broken else "completed")
            response.status = "completed"
            response.completed_at = max(now(), response.created_at)
            terminal = ResponseCompletedEvent(sequence_number=0, response=self._snapshot())
        return [*events, self._number(terminal)]

    def _opened(self, kind: type[ItemKind]) -> tuple[list[ResponseStreamEvent], ItemKind]:
        """The open item, if it is of this kind; else that one is closed and a new one opened (RS-07)."""
        item = self._open
        if isinstance(item, kind):
            return [], item
        events = self._close("completed")
        fresh = kind()
        return [*events, *self._open_item(fresh)], fresh

    def _open_item(self, item: OpenItem) -> list[ResponseStreamEvent]:
        self._open = item
        added = ResponseOutputItemAddedEvent(sequence_number=0, output_index=self._index, item=item.added())
        events: list[ResponseStreamEvent] = [self._number(added)]
        part = item.part(empty=True)
        if part is not None:  # RS-08; function calls have no parts (RS-10)
            part_added = ResponseContentPartAddedEvent(
                sequence_number=0, item_id=item.id, output_index=self._index, content_index=0, part=part
            )
            events.append(self._number(part_added))
        return events

    def _close(self, status: ItemStatus) -> list[ResponseStreamEvent]:
        """RS-09: what `.done` says is the sum of what the deltas said."""
        item, self._open, self._broken = self._open, None, False
        if item is None:
            return []
        events: list[ResponseStreamEvent] = [self._number(item.done_event(self._index))]
        part = item.part(empty=False)
        if part is not None:
            part_done = ResponseContentPartDoneEvent(
                sequence_number=0, item_id=item.id, output_index=self._index, content_index=0, part=part
            )
            events.append(self._number(part_done))
        finished = item.finished(status)
        done = ResponseOutputItemDoneEvent(sequence_number=0, output_index=self._index, item=finished)
        events.append(self._number(done))
        self._response.output.append(finished)
        return events

    def _snapshot(self) -> Response:
        """The response at this moment; later changes do not reach an event that is not encoded yet."""
        snapshot = copy.copy(self._response)
        snapshot.output = list(self._response.output)
        return snapshot

    def _number(self, event: E) -> E:
        """RS-02: 0, 1, 2, … over all events of the stream."""
        event.sequence_number = self._sequence  # type: ignore[attr-defined]
        self._sequence += 1
        return event


def _skeleton(request: CreateResponse, turn: Turn, model: str) -> Response:
    """The response before there is any output: every field present, the request's parameters echoed (R-11)."""
    text = or_default(request.text, ResponseTextParam())
    reasoning = or_default(request.reasoning, Reasoning())
    sampling = turn.sampling
    echoed: Mapping[str, Any] = {
        name: getattr(request, name)
        for name in ("user", "prompt_cache_retention")
        if given(getattr(request, name))
    }
    return Response(
        id=new_id("resp_"),
        created_at=now(),
        status="in_progress",
        model=model,
        instructions=or_default(request.instructions, None),
        output=[],
        tools=[_echo_tool(tool) for tool in or_default(request.tools, [])],
        tool_choice=or_default(request.tool_choice, "auto"),
        truncation=or_default(request.truncation, "disabled"),
        parallel_tool_calls=or_default(request.parallel_tool_calls, True),
        text=ResponseTextParam(
            format=text.format if given(text.format) else ResponseFormatText(), verbosity=text.verbosity
        ),
        temperature=sampling.temperature,
        top_p=sampling.top_p,
        presence_penalty=sampling.presence_penalty,
        frequency_penalty=sampling.frequency_penalty,
        top_logprobs=or_default(request.top_logprobs, 0),
        reasoning=ResponseReasoning(
            mode=reasoning.mode,
            effort=or_default(reasoning.effort, None),
            summary=or_default(reasoning.summary, None),
            context=reasoning.context,
            generate_summary=reasoning.generate_summary,
        ),
        max_output_tokens=or_default(request.max_output_tokens, None),
        max_tool_calls=or_default(request.max_tool_calls, None),
        # The effective value: nothing is kept yet, whatever the API's default says.
        store=False,
        background=False,
        service_tier="default",
        metadata=or_default(request.metadata, {}),
        safety_identifier=or_default(request.safety_identifier, None),
        prompt_cache_key=or_default(request.prompt_cache_key, None),
        **echoed,
    )


def _echo_tool(tool: Any) -> ResponseTool:
    """Function tools are echoed with description, parameters and strict present, null where absent."""
    if isinstance(tool, FunctionToolParam):
        return FunctionTool(
            name=tool.name,
            description=or_default(tool.description, None),
            parameters=or_default(tool.parameters, None),
            strict=or_default(tool.strict, None),
            output_schema=tool.output_schema,
            defer_loading=tool.defer_loading,
            allowed_callers=tool.allowed_callers,
        )
    echoed: ResponseTool = tool
    return echoed


def _usage(usage: Usage) -> ResponseUsage:
    """R-10."""
    return ResponseUsage(
        input_tokens=usage.prompt_tokens,
        input_tokens_details=InputTokensDetails(cached_tokens=usage.cached_tokens, cache_write_tokens=0),
        output_tokens=usage.completion_tokens,
        output_tokens_details=OutputTokensDetails(reasoning_tokens=usage.reasoning_tokens),
        total_tokens=usage.prompt_tokens + usage.completion_tokens,
    )
