"""The output items of the Responses writer: what each kind looks like while it is open and when it is done."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import Literal, TypeVar

from plumbline._generated.content import (
    LogProb,
    OutputTextContent,
    ReasoningTextContent,
    ResponseLogProb,
    ResponseTopLogProb,
    TopLogProb,
)
from plumbline._generated.events import (
    ResponseCustomToolCallInputDoneEvent,
    ResponseFunctionCallArgumentsDoneEvent,
    ResponseReasoningTextDoneEvent,
    ResponseStreamEvent,
    ResponseTextDoneEvent,
)
from plumbline._generated.items import (
    CustomToolCallResource,
    FunctionToolCallResource,
    OutputItem,
    OutputMessage,
    ReasoningItem,
)
from plumbline.events import Logprob, ToolCallStart
from plumbline.protocols.common.ids import new_id
from plumbline.protocols.common.logprobs import chat_logprob

__all__ = [
    "CallItem",
    "CustomCallItem",
    "ItemKind",
    "ItemStatus",
    "OpenItem",
    "ReasoningTextItem",
    "TextItem",
    "delta_logprobs",
]

ItemStatus = Literal["in_progress", "completed", "incomplete"]


class OpenItem(ABC):
    """An item that is being written. Subclasses know their parts and their events."""

    prefix = ""

    def __init__(self) -> None:
        self.id = new_id(self.prefix)
        self.texts: list[str] = []
        self.logprobs: list[Logprob] = []

    @property
    def text(self) -> str:
        return "".join(self.texts)

    @abstractmethod
    def added(self) -> OutputItem:
        """The item as `output_item.added` shows it: empty, with its identity."""

    @abstractmethod
    def part(self, *, empty: bool) -> OutputTextContent | ReasoningTextContent | None:
        """Its only content part, empty or as it stands; None for an item without parts."""

    @abstractmethod
    def done_event(self, index: int) -> ResponseStreamEvent:
        """The event that closes its text."""

    @abstractmethod
    def finished(self, status: ItemStatus) -> OutputItem:
        """The item as `output_item.done` and the final response show it."""


ItemKind = TypeVar("ItemKind", bound=OpenItem)


class TextItem(OpenItem):
    prefix = "msg_"

    def added(self) -> OutputItem:
        return OutputMessage(id=self.id, content=[], status="in_progress")

    def part(self, *, empty: bool) -> OutputTextContent:
        if empty:
            return OutputTextContent(text="", annotations=[], logprobs=[])
        return OutputTextContent(text=self.text, annotations=[], logprobs=_logprobs(self.logprobs))

    def done_event(self, index: int) -> ResponseStreamEvent:
        return ResponseTextDoneEvent(
            sequence_number=0,
            item_id=self.id,
            output_index=index,
            content_index=0,
            text=self.text,
            logprobs=delta_logprobs(self.logprobs),
        )

    def finished(self, status: ItemStatus) -> OutputItem:
        return OutputMessage(id=self.id, content=[self.part(empty=False)], status=status)


class ReasoningTextItem(OpenItem):
    """RS-12: raw reasoning text, in the events that OpenAI's clients know."""

    prefix = "rs_"

    def added(self) -> OutputItem:
        return ReasoningItem(id=self.id, summary=[], content=[], status="in_progress")

    def part(self, *, empty: bool) -> ReasoningTextContent:
        return ReasoningTextContent(text="" if empty else self.text)

    def done_event(self, index: int) -> ResponseStreamEvent:
        return ResponseReasoningTextDoneEvent(
            sequence_number=0, item_id=self.id, output_index=index, content_index=0, text=self.text
        )

    def finished(self, status: ItemStatus) -> OutputItem:
        return ReasoningItem(id=self.id, summary=[], content=[self.part(empty=False)], status=status)


class CallItem(OpenItem):
    prefix = "fc_"

    def __init__(self, start: ToolCallStart) -> None:
        super().__init__()
        self._start = start

    def added(self) -> OutputItem:
        return self._item("", "in_progress")

    def part(self, *, empty: bool) -> None:
        return None

    def done_event(self, index: int) -> ResponseStreamEvent:
        return ResponseFunctionCallArgumentsDoneEvent(
            sequence_number=0,
            item_id=self.id,
            output_index=index,
            name=self._start.name,
            arguments=self.text,
        )

    def finished(self, status: ItemStatus) -> OutputItem:
        return self._item(self.text, status)

    def _item(self, text: str, status: ItemStatus) -> OutputItem:
        return FunctionToolCallResource(
            id=self.id, call_id=self._start.id, name=self._start.name, arguments=text, status=status
        )


class CustomCallItem(CallItem):
    """A call of a custom tool (TOOL-14): its text is the input."""

    prefix = "ctc_"

    def done_event(self, index: int) -> ResponseStreamEvent:
        return ResponseCustomToolCallInputDoneEvent(
            sequence_number=0, item_id=self.id, output_index=index, input=self.text
        )

    def _item(self, text: str, status: ItemStatus) -> OutputItem:
        return CustomToolCallResource(
            id=self.id, call_id=self._start.id, name=self._start.name, input=text, status=status
        )


def _logprobs(entries: Iterable[Logprob]) -> list[LogProb]:
    found: list[LogProb] = []
    for entry in map(chat_logprob, entries):
        top = [TopLogProb(token=t.token, logprob=t.logprob, bytes=t.bytes or []) for t in entry.top_logprobs]
        found.append(
            LogProb(token=entry.token, logprob=entry.logprob, bytes=entry.bytes or [], top_logprobs=top)
        )
    return found


def delta_logprobs(entries: Iterable[Logprob]) -> list[ResponseLogProb]:
    """The form that delta and done events have: without bytes."""
    return [
        ResponseLogProb(
            token=entry.token,
            logprob=entry.logprob,
            top_logprobs=[ResponseTopLogProb(token=t.token, logprob=t.logprob) for t in entry.top_logprobs],
        )
        for entry in map(chat_logprob, entries)
    ]
