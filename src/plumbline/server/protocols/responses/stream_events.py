"""Build the wire events of a Responses stream: one function for each event type of `event_order`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from plumbline.contract._generated.content import SummaryTextContent
from plumbline.contract._generated.errors import Error
from plumbline.contract._generated.events import (
    ResponseCompletedEvent,
    ResponseContentPartAddedEvent,
    ResponseContentPartDoneEvent,
    ResponseCreatedEvent,
    ResponseCustomToolCallInputDeltaEvent,
    ResponseCustomToolCallInputDoneEvent,
    ResponseErrorEvent,
    ResponseFailedEvent,
    ResponseFunctionCallArgumentsDeltaEvent,
    ResponseFunctionCallArgumentsDoneEvent,
    ResponseIncompleteEvent,
    ResponseInProgressEvent,
    ResponseMCPCallArgumentsDeltaEvent,
    ResponseMCPCallArgumentsDoneEvent,
    ResponseMCPCallCompletedEvent,
    ResponseMCPCallFailedEvent,
    ResponseMCPCallInProgressEvent,
    ResponseMCPListToolsCompletedEvent,
    ResponseMCPListToolsFailedEvent,
    ResponseMCPListToolsInProgressEvent,
    ResponseOutputItemAddedEvent,
    ResponseOutputItemDoneEvent,
    ResponseQueuedEvent,
    ResponseReasoningSummaryPartAddedEvent,
    ResponseReasoningSummaryPartDoneEvent,
    ResponseReasoningSummaryTextDeltaEvent,
    ResponseReasoningSummaryTextDoneEvent,
    ResponseReasoningTextDeltaEvent,
    ResponseReasoningTextDoneEvent,
    ResponseShellCallCommandAddedStreamingEvent,
    ResponseShellCallCommandDeltaStreamingEvent,
    ResponseShellCallCommandDoneStreamingEvent,
    ResponseStreamEvent,
    ResponseTextDeltaEvent,
    ResponseTextDoneEvent,
)
from plumbline.contract._generated.responses import Response, ResponseErrorCode
from plumbline.contract.wire.errors import ApiError
from plumbline.server.protocols.responses.client_tools.calls import ShellCallItem
from plumbline.server.protocols.responses.items import (
    CallItem,
    ContentItem,
    CustomCallItem,
    OpenItem,
    ReasoningTextItem,
    TextItem,
    delta_logprobs,
)
from plumbline.server.protocols.responses.mcp.calls import RemoteCallItem

__all__ = ["ITEM_EVENTS", "RESPONSE_EVENTS", "failure_code"]

_FAILURE_CODES: dict[int, ResponseErrorCode] = {400: "invalid_prompt", 429: "rate_limit_exceeded"}
"""By the status that the same failure has before the stream begins."""


def failure_code(error: ApiError) -> ResponseErrorCode:
    """Return the code of a failure from the closed list of `response.error.code` (ERR-10)."""
    return _FAILURE_CODES.get(error.status, "server_error")


def _item_added(number: int, index: int, item: OpenItem) -> ResponseOutputItemAddedEvent:
    return ResponseOutputItemAddedEvent(sequence_number=number, output_index=index, item=item.added())


def _part_added(number: int, index: int, item: ContentItem) -> ResponseContentPartAddedEvent:
    return ResponseContentPartAddedEvent(
        sequence_number=number, item_id=item.id, output_index=index, content_index=0, part=item.empty_part()
    )


def _text_delta(number: int, index: int, item: TextItem) -> ResponseTextDeltaEvent:
    return ResponseTextDeltaEvent(
        sequence_number=number,
        item_id=item.id,
        output_index=index,
        content_index=0,
        delta=item.fragments[-1],
        logprobs=delta_logprobs(item.last_logprobs) if item.last_logprobs else [],
    )


def _text_done(number: int, index: int, item: TextItem) -> ResponseTextDoneEvent:
    return ResponseTextDoneEvent(
        sequence_number=number,
        item_id=item.id,
        output_index=index,
        content_index=0,
        text=item.text,
        logprobs=delta_logprobs(item.logprobs),
    )


def _reasoning_delta(number: int, index: int, item: ReasoningTextItem) -> ResponseReasoningTextDeltaEvent:
    return ResponseReasoningTextDeltaEvent(
        sequence_number=number,
        item_id=item.id,
        output_index=index,
        content_index=0,
        delta=item.fragments[-1],
    )


def _reasoning_done(number: int, index: int, item: ReasoningTextItem) -> ResponseReasoningTextDoneEvent:
    return ResponseReasoningTextDoneEvent(
        sequence_number=number, item_id=item.id, output_index=index, content_index=0, text=item.text
    )


def _summary_added(
    number: int, index: int, item: ReasoningTextItem
) -> ResponseReasoningSummaryPartAddedEvent:
    return ResponseReasoningSummaryPartAddedEvent(
        sequence_number=number,
        item_id=item.id,
        output_index=index,
        summary_index=0,
        part=SummaryTextContent(text=""),
    )


def _summary_delta(
    number: int, index: int, item: ReasoningTextItem
) -> ResponseReasoningSummaryTextDeltaEvent:
    return ResponseReasoningSummaryTextDeltaEvent(
        sequence_number=number,
        item_id=item.id,
        output_index=index,
        summary_index=0,
        delta=item.summary_piece(),
    )


def _summary_text_done(
    number: int, index: int, item: ReasoningTextItem
) -> ResponseReasoningSummaryTextDoneEvent:
    return ResponseReasoningSummaryTextDoneEvent(
        sequence_number=number, item_id=item.id, output_index=index, summary_index=0, text=item.text
    )


def _summary_done(number: int, index: int, item: ReasoningTextItem) -> ResponseReasoningSummaryPartDoneEvent:
    return ResponseReasoningSummaryPartDoneEvent(
        sequence_number=number,
        item_id=item.id,
        output_index=index,
        summary_index=0,
        part=SummaryTextContent(text=item.text),
    )


def _arguments_delta(number: int, index: int, item: CallItem) -> ResponseFunctionCallArgumentsDeltaEvent:
    return ResponseFunctionCallArgumentsDeltaEvent(
        sequence_number=number, item_id=item.id, output_index=index, delta=item.fragments[-1]
    )


def _arguments_done(number: int, index: int, item: CallItem) -> ResponseFunctionCallArgumentsDoneEvent:
    return ResponseFunctionCallArgumentsDoneEvent(
        sequence_number=number, item_id=item.id, output_index=index, name=item.name, arguments=item.text
    )


def _input_delta(number: int, index: int, item: CustomCallItem) -> ResponseCustomToolCallInputDeltaEvent:
    return ResponseCustomToolCallInputDeltaEvent(
        sequence_number=number, item_id=item.id, output_index=index, delta=item.fragments[-1]
    )


def _input_done(number: int, index: int, item: CustomCallItem) -> ResponseCustomToolCallInputDoneEvent:
    return ResponseCustomToolCallInputDoneEvent(
        sequence_number=number, item_id=item.id, output_index=index, input=item.text
    )


def _command_added(
    number: int, index: int, item: ShellCallItem
) -> ResponseShellCallCommandAddedStreamingEvent:
    return ResponseShellCallCommandAddedStreamingEvent(
        sequence_number=number, output_index=index, command_index=item.command_index, command=""
    )


def _command_delta(
    number: int, index: int, item: ShellCallItem
) -> ResponseShellCallCommandDeltaStreamingEvent:
    return ResponseShellCallCommandDeltaStreamingEvent(
        sequence_number=number, output_index=index, command_index=item.command_index, delta=item.command
    )


def _command_done(number: int, index: int, item: ShellCallItem) -> ResponseShellCallCommandDoneStreamingEvent:
    return ResponseShellCallCommandDoneStreamingEvent(
        sequence_number=number, output_index=index, command_index=item.command_index, command=item.command
    )


def _list_in_progress(number: int, index: int, item: OpenItem) -> ResponseMCPListToolsInProgressEvent:
    return ResponseMCPListToolsInProgressEvent(sequence_number=number, item_id=item.id, output_index=index)


def _list_completed(number: int, index: int, item: OpenItem) -> ResponseMCPListToolsCompletedEvent:
    return ResponseMCPListToolsCompletedEvent(sequence_number=number, item_id=item.id, output_index=index)


def _list_failed(number: int, index: int, item: OpenItem) -> ResponseMCPListToolsFailedEvent:
    return ResponseMCPListToolsFailedEvent(sequence_number=number, item_id=item.id, output_index=index)


def _remote_in_progress(number: int, index: int, item: OpenItem) -> ResponseMCPCallInProgressEvent:
    return ResponseMCPCallInProgressEvent(sequence_number=number, item_id=item.id, output_index=index)


def _remote_delta(number: int, index: int, item: RemoteCallItem) -> ResponseMCPCallArgumentsDeltaEvent:
    return ResponseMCPCallArgumentsDeltaEvent(
        sequence_number=number, item_id=item.id, output_index=index, delta=item.fragments[-1]
    )


def _remote_done(number: int, index: int, item: RemoteCallItem) -> ResponseMCPCallArgumentsDoneEvent:
    return ResponseMCPCallArgumentsDoneEvent(
        sequence_number=number, item_id=item.id, output_index=index, arguments="".join(item.fragments)
    )


def _remote_completed(number: int, index: int, item: OpenItem) -> ResponseMCPCallCompletedEvent:
    return ResponseMCPCallCompletedEvent(sequence_number=number, item_id=item.id, output_index=index)


def _remote_failed(number: int, index: int, item: OpenItem) -> ResponseMCPCallFailedEvent:
    return ResponseMCPCallFailedEvent(sequence_number=number, item_id=item.id, output_index=index)


def _part_done(number: int, index: int, item: ContentItem) -> ResponseContentPartDoneEvent:
    return ResponseContentPartDoneEvent(
        sequence_number=number, item_id=item.id, output_index=index, content_index=0, part=item.part
    )


def _item_done(number: int, index: int, item: OpenItem) -> ResponseOutputItemDoneEvent:
    return ResponseOutputItemDoneEvent(sequence_number=number, output_index=index, item=item.finished)


ITEM_EVENTS: Mapping[str, Callable[[int, int, Any], ResponseStreamEvent]] = {
    "response.output_item.added": _item_added,
    "response.content_part.added": _part_added,
    "response.output_text.delta": _text_delta,
    "response.output_text.done": _text_done,
    "response.reasoning_summary_part.added": _summary_added,
    "response.reasoning_summary_part.done": _summary_done,
    "response.reasoning_summary_text.delta": _summary_delta,
    "response.reasoning_summary_text.done": _summary_text_done,
    "response.reasoning_text.delta": _reasoning_delta,
    "response.reasoning_text.done": _reasoning_done,
    "response.function_call_arguments.delta": _arguments_delta,
    "response.function_call_arguments.done": _arguments_done,
    "response.custom_tool_call_input.delta": _input_delta,
    "response.custom_tool_call_input.done": _input_done,
    "response.shell_call_command.added": _command_added,
    "response.shell_call_command.delta": _command_delta,
    "response.shell_call_command.done": _command_done,
    "response.mcp_list_tools.in_progress": _list_in_progress,
    "response.mcp_list_tools.completed": _list_completed,
    "response.mcp_list_tools.failed": _list_failed,
    "response.mcp_call.in_progress": _remote_in_progress,
    "response.mcp_call_arguments.delta": _remote_delta,
    "response.mcp_call_arguments.done": _remote_done,
    "response.mcp_call.completed": _remote_completed,
    "response.mcp_call.failed": _remote_failed,
    "response.content_part.done": _part_done,
    "response.output_item.done": _item_done,
}
"""For each type the function that builds it from its sequence number, the item's output index and the item."""


def _created(number: int, response: Response, error: ApiError | None) -> ResponseCreatedEvent:
    return ResponseCreatedEvent(sequence_number=number, response=response)


def _in_progress(number: int, response: Response, error: ApiError | None) -> ResponseInProgressEvent:
    return ResponseInProgressEvent(sequence_number=number, response=response)


def _queued(number: int, response: Response, error: ApiError | None) -> ResponseQueuedEvent:
    return ResponseQueuedEvent(sequence_number=number, response=response)


def _completed(number: int, response: Response, error: ApiError | None) -> ResponseCompletedEvent:
    return ResponseCompletedEvent(sequence_number=number, response=response)


def _incomplete(number: int, response: Response, error: ApiError | None) -> ResponseIncompleteEvent:
    return ResponseIncompleteEvent(sequence_number=number, response=response)


def _failed(number: int, response: Response, error: ApiError | None) -> ResponseFailedEvent:
    return ResponseFailedEvent(sequence_number=number, response=response)


def _error(number: int, response: Response, error: ApiError | None) -> ResponseErrorEvent:
    assert error is not None
    return error_event(number, error, error.code if response.status == "cancelled" else failure_code(error))


def error_event(number: int, error: ApiError, code: str | None) -> ResponseErrorEvent:
    """Return the event of an error. Its fields stand at the top level and again under `error` (ERR-11)."""
    return ResponseErrorEvent(
        sequence_number=number,
        code=code,
        message=error.message,
        param=error.param,
        error=Error(message=error.message, type=error.type, param=error.param, code=code),
    )


RESPONSE_EVENTS: Mapping[str, Callable[[int, Response, ApiError | None], ResponseStreamEvent]] = {
    "response.created": _created,
    "response.in_progress": _in_progress,
    "response.queued": _queued,
    "response.completed": _completed,
    "response.incomplete": _incomplete,
    "response.failed": _failed,
    "error": _error,
}
"""For each type the function that builds it from its sequence number, a snapshot of the response and the failure."""
