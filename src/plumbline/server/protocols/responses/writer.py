"""Write the events of an answer as Responses stream events, and build the final response object.

This writer alone assigns `sequence_number`, `output_index` and item ids. `event_order` lists which wire events each
step emits; `stream_events` builds them. The non-streaming answer is the `response` of the terminal event, so both modes
agree by construction (RS-16).
"""

from __future__ import annotations

import copy

from msgspec import UNSET

from plumbline.answer.events import (
    ApprovalNeeded,
    Finish,
    MessageEnd,
    OutputEvent,
    ReasoningDelta,
    RemoteCallEnd,
    RemoteCallStart,
    TextDelta,
    TokenIds,
    ToolCallDelta,
    ToolCallEnd,
    ToolCallStart,
    ToolsListed,
    ToolsListing,
    Usage,
)
from plumbline.contract._generated.events import ResponseStreamEvent
from plumbline.contract._generated.responses import (
    InputTokensDetails,
    OutputTokensDetails,
    Response,
    ResponseError,
    ResponseIncompleteDetails,
    ResponseUsage,
)
from plumbline.contract.wire.errors import ApiError
from plumbline.server.protocols.responses.client_tools.calls import CLIENT_CALLS
from plumbline.server.protocols.responses.client_tools.declared import client_names
from plumbline.server.protocols.responses.compaction import Compacted
from plumbline.server.protocols.responses.event_order import State, Step, StepError, transition
from plumbline.server.protocols.responses.identity import Identity
from plumbline.server.protocols.responses.items import (
    BriefReasoningItem,
    CallItem,
    CompactionItem,
    CustomCallItem,
    ItemKind,
    ItemStatus,
    OpenItem,
    ReasoningTextItem,
    SummarisedReasoningItem,
    TextItem,
)
from plumbline.server.protocols.responses.mcp.calls import ApprovalItem, ListItem, RemoteCallItem
from plumbline.server.protocols.responses.raw_messages import RawMessages
from plumbline.server.protocols.responses.stream_events import ITEM_EVENTS, RESPONSE_EVENTS, failure_code

__all__ = ["CANCELLED", "ResponsesWriter", "response_usage"]

CANCELLED = ApiError(400, "The response was cancelled.", code="response_cancelled")
"""The error that ends the stream of a cancelled response."""


class ResponsesWriter:
    """Write one answer. Every method returns the wire events that it caused, in order."""

    def __init__(
        self,
        response: Response,
        identity: Identity,
        *,
        logprobs: bool = False,
        raw: RawMessages | None = None,
    ) -> None:
        """Begin an answer.

        Args:
            response: the response as it starts (`initial_response`); the writer completes it.
            identity: names the items.
            logprobs: whether the client asked for logprobs.
            raw: takes the tokens, if the client asked for them.
        """
        self._response = response
        self._identity = identity
        self._wants_logprobs = logprobs
        self._raw = raw
        self._client_names = client_names(response.tools)
        self._reasoning_kind = _reasoning_kind(response)
        self._state: State = "new"
        self._number = -1
        """RS-02: the last `sequence_number`; they are 0, 1, 2, … over all events of the stream."""
        self._emitted: list[ResponseStreamEvent] = []
        self._item: OpenItem | None = None
        self._call_broke_off = False
        """The open item is a call that ended before it was complete."""

    @property
    def response(self) -> Response:
        """The response as it stands."""
        return self._response

    def start(self) -> list[ResponseStreamEvent]:
        """Begin the stream: no output yet, every field present (RS-04)."""
        self._response.status = "in_progress"
        self._step_response("start")
        return self._take_emitted()

    def queue(self) -> list[ResponseStreamEvent]:
        """Begin the stream of a response that waits for the engine; `start` follows (ST-12)."""
        self._response.status = "queued"
        self._step_response("queue")
        return self._take_emitted()

    def event(self, event: OutputEvent | Compacted) -> list[ResponseStreamEvent]:
        """Write one event of the answer."""
        match event:
            case Compacted():
                compaction = CompactionItem()
                compaction.append(event.encrypted_content)
                self._add_item(compaction)
                self._finish_item("completed")
            case TokenIds() if self._raw is not None:
                self._raw.add(event.token_ids)
            case TextDelta():
                text = self._open_item(TextItem)
                text.append(event.text, event.logprobs if self._wants_logprobs else ())  # LP-06
                self._step_item(text, "delta")
            case ReasoningDelta():
                reasoning = self._open_item(self._reasoning_kind)
                reasoning.append(event.text)
                self._step_item(reasoning, "delta")
            case ToolCallStart():
                self._finish_item("completed")
                kind = CustomCallItem if event.custom else CallItem
                if event.name in self._client_names:  # TOOL-20
                    kind = CLIENT_CALLS[event.name]
                self._add_item(kind(event))
            case ToolCallDelta():
                call = self._item
                if not isinstance(call, CallItem | RemoteCallItem):
                    raise StepError("arguments of a call come before the call")
                call.append(event.arguments)
                self._step_item(call, "delta")
            case ToolCallEnd(complete=True):
                self._end_call()
            case ToolCallEnd():
                # only the last item may be incomplete. If another item follows, the model broke this call off
                # and went on: then it is `completed`, and its arguments are not valid JSON.
                self._call_broke_off = True
            case ToolsListing() | RemoteCallStart() | ApprovalNeeded():
                self._begin_remote(event)
            case ToolsListed() | RemoteCallEnd():
                self._end_remote(event)
            case MessageEnd():
                self._finish_item("completed")
            case Finish():
                self._finish(event)
        return self._take_emitted()

    def fail(self, error: ApiError) -> list[ResponseStreamEvent]:
        """End the stream with an error event and `response.failed` (ERR-10, ERR-11).

        The terminal event, if it has been written, was not sent: this takes its place and its number.
        """
        if self._state == "done":
            self._state = "open"
            self._number -= 1
        self._finish_item("incomplete")
        self._response.status = "failed"
        self._response.completed_at = self._response.incomplete_details = None
        self._response.error = ResponseError(code=failure_code(error), message=error.message)
        self._step_response("fail", error)
        return self._take_emitted()

    def cancel(self) -> list[ResponseStreamEvent]:
        """End the stream of a response that was cancelled, with an error event (ST-11)."""
        self._finish_item("incomplete")
        self._response.status = "cancelled"
        self._step_response("cancel", CANCELLED)
        return self._take_emitted()

    @property
    def queued(self) -> bool:
        """Whether the answer has not begun yet."""
        return self._state == "queued"

    @property
    def ended(self) -> bool:
        """Whether the terminal event has been written."""
        return self._state == "done"

    def _finish(self, finish: Finish) -> None:
        response = self._response
        if self._item is None and not response.output and not finish.is_unasked:
            # An answer without a single character still is a message, an empty one.
            self._open_item(TextItem)
        response.usage = response_usage(finish.usage)
        if self._raw is not None:
            self._raw.finish(response)
        response.undeclared_tools = list(finish.undeclared_tools) or UNSET
        if finish.reason == "length":  # RS-15
            self._finish_item("incomplete")
            response.status = "incomplete"
            response.incomplete_details = ResponseIncompleteDetails(reason="max_output_tokens")
            self._step_response("cut")
        else:
            # SO-05: a call that a stop string cut is incomplete; a custom tool's input would not show the cut.
            self._finish_item("incomplete" if self._call_broke_off else "completed")
            response.status = "completed"
            ended_at = self._identity.ended_at()
            response.completed_at = max(ended_at or 0, response.created_at)
            self._step_response("complete")

    # Tools of MCP servers (TOOL-21)

    def _begin_remote(self, event: ToolsListing | RemoteCallStart | ApprovalNeeded) -> None:
        self._finish_item("completed")
        match event:
            case ToolsListing():
                self._add_item(ListItem(event))
            case RemoteCallStart():
                self._add_item(RemoteCallItem(event))
            case ApprovalNeeded():
                self._add_item(ApprovalItem(event))
                self._finish_item("completed")

    def _end_remote(self, event: ToolsListed | RemoteCallEnd) -> None:
        match self._item, event:
            case ListItem() as item, ToolsListed():
                item.listed = event
            case RemoteCallItem() as item, RemoteCallEnd():
                item.result = event
            case _:
                raise StepError("a list or a result comes before its beginning")
        self._finish_item("completed")

    # Items

    def _end_call(self) -> None:
        """End a call of the client; one of an MCP server is made now, and its result ends it."""
        if isinstance(self._item, RemoteCallItem):
            self._item.runs = True
            self._step_item(self._item, "run")
        else:
            self._finish_item("completed")

    def _open_item(self, kind: type[ItemKind]) -> ItemKind:
        """Return the open item if it is of this kind; otherwise finish it and add a new one (RS-07)."""
        item = self._item
        if isinstance(item, kind):
            return item
        self._finish_item("completed")
        added = kind()
        self._add_item(added)
        return added

    def _add_item(self, item: OpenItem) -> None:
        self._step_response("add")
        item.id = self._identity.item_id(len(self._response.output), item.prefix)
        self._item = item
        self._step_item(item, "add")

    def _finish_item(self, status: ItemStatus) -> None:
        item = self._item
        if item is None:
            return
        if isinstance(item, ReasoningTextItem):
            item.sealed = self._identity.sealed(len(self._response.output), "".join(item.fragments))
        item.finish(status)
        self._item, self._call_broke_off = None, False
        if item.dropped:
            return
        for step in item.last_steps():
            self._step_item(item, step)
        self._step_item(item, "finish")
        self._response.output.append(item.finished)

    # Walking the table

    def _step_item(self, item: OpenItem, step: Step) -> None:
        item.state, names = transition(item.machine, item.state, step)
        index = len(self._response.output)  # RS-06: the items before the open one are done.
        for name in names:
            self._emitted.append(ITEM_EVENTS[name](self._next_number(), index, item))

    def _step_response(self, step: Step, error: ApiError | None = None) -> None:
        self._state, names = transition("response", self._state, step)
        for name in names:
            # A copy: later changes must not reach an event that is not encoded yet.
            snapshot = copy.copy(self._response)
            snapshot.output = list(self._response.output)
            self._emitted.append(RESPONSE_EVENTS[name](self._next_number(), snapshot, error))

    def _next_number(self) -> int:
        self._number += 1
        return self._number

    def _take_emitted(self) -> list[ResponseStreamEvent]:
        emitted, self._emitted = self._emitted, []
        return emitted


def _reasoning_kind(response: Response) -> type[ReasoningTextItem]:
    """Return how reasoning is written: without a summary, with one if it is short, or as its own summary."""
    wanted = None if response.reasoning is None else response.reasoning.summary
    if wanted is None:
        return ReasoningTextItem
    return SummarisedReasoningItem if wanted == "detailed" else BriefReasoningItem


def response_usage(usage: Usage) -> ResponseUsage:
    """Write token counts as Responses send them (R-10)."""
    return ResponseUsage(
        input_tokens=usage.prompt_tokens,
        input_tokens_details=InputTokensDetails(cached_tokens=usage.cached_tokens, cache_write_tokens=0),
        output_tokens=usage.completion_tokens,
        output_tokens_details=OutputTokensDetails(reasoning_tokens=usage.reasoning_tokens),
        total_tokens=usage.prompt_tokens + usage.completion_tokens,
        x_repaired_calls=usage.repaired_calls or UNSET,
        x_unmarked_calls=usage.unmarked_calls or UNSET,
    )
