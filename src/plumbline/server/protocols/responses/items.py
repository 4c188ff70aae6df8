"""Collect the output items of a response, and write each kind as it looks at its beginning and at its end."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from typing import Literal, TypeVar

from msgspec import UNSET, UnsetType

from plumbline.answer.events import Logprob, ToolCallStart
from plumbline.contract._generated.content import (
    LogProb,
    OutputTextContent,
    ReasoningTextContent,
    ResponseLogProb,
    ResponseTopLogProb,
    SummaryTextContent,
    TopLogProb,
)
from plumbline.contract._generated.items import (
    CompactionBody,
    CustomToolCallResource,
    FunctionToolCallResource,
    OutputItem,
    OutputMessage,
    ReasoningItem,
)
from plumbline.server.protocols.common.logprobs import chat_logprob
from plumbline.server.protocols.responses.event_order import Machine, State, Step

__all__ = [
    "BriefReasoningItem",
    "CallItem",
    "CompactionItem",
    "ContentItem",
    "CustomCallItem",
    "ItemKind",
    "ItemStatus",
    "OpenItem",
    "ReasoningTextItem",
    "SummarisedReasoningItem",
    "TextItem",
    "delta_logprobs",
]

_SHORT = 2000
"""Characters of reasoning that counts as short."""

ItemStatus = Literal["in_progress", "completed", "incomplete"]


class OpenItem(ABC):
    """An item that the model is writing."""

    machine: Machine
    """The row of `EVENT_ORDER` that its events follow."""
    prefix: str
    """How its id begins."""

    text: str
    """All of its text; set by `finish`."""
    finished: OutputItem
    """The item as `output_item.done` and the final response show it; set by `finish`."""

    dropped = False
    """Whether the answer leaves the item out; set by `finish`."""

    id: str
    """Set by the writer before the item is shown."""

    def __init__(self) -> None:
        self.state: State = "new"
        self.fragments: list[str] = []

    def append(self, text: str) -> None:
        """Add a fragment to the item's text."""
        self.fragments.append(text)

    @abstractmethod
    def added(self) -> OutputItem:
        """Return the item as `output_item.added` shows it: empty, with its identity (RS-05)."""

    def finish(self, status: ItemStatus) -> None:
        """Set `text` and `finished`. All events that end the item show this text (RS-09)."""
        self.text = "".join(self.fragments)
        self.finished = self._finished(status)

    def last_steps(self) -> Iterator[Step]:
        """Yield the steps between `finish` and the step that ends the item."""
        return iter(())

    @abstractmethod
    def _finished(self, status: ItemStatus) -> OutputItem: ...


class ContentItem(OpenItem):
    """An item that consists of one content part."""

    part: OutputTextContent | ReasoningTextContent
    """The whole part; set by `finish`."""

    @abstractmethod
    def empty_part(self) -> OutputTextContent | ReasoningTextContent:
        """Return the part as `content_part.added` shows it."""


ItemKind = TypeVar("ItemKind", bound=ContentItem)


class TextItem(ContentItem):
    """A message of the assistant."""

    machine = "message"
    prefix = "msg_"

    def __init__(self) -> None:
        super().__init__()
        self.logprobs: list[Logprob] = []
        self.last_logprobs: Sequence[Logprob] = ()
        """Those of the last fragment."""

    def append(self, text: str, logprobs: Sequence[Logprob] = ()) -> None:
        """Add a fragment with the logprobs of its tokens."""
        self.fragments.append(text)
        self.last_logprobs = logprobs
        if logprobs:
            self.logprobs += logprobs

    def added(self) -> OutputItem:
        return OutputMessage(id=self.id, content=[], status="in_progress")

    def empty_part(self) -> OutputTextContent:
        return OutputTextContent(text="", annotations=[], logprobs=[])

    def _finished(self, status: ItemStatus) -> OutputItem:
        self.part = OutputTextContent(text=self.text, annotations=[], logprobs=_part_logprobs(self.logprobs))
        return OutputMessage(id=self.id, content=[self.part], status=status)


class ReasoningTextItem(ContentItem):
    """The model's reasoning as plain text, in the events that OpenAI's clients know (RS-12).

    There is no second model that could write a summary, so by default there is none.
    """

    machine: Machine = "reasoning"
    prefix = "rs_"

    sealed: str | UnsetType = UNSET
    """The text in sealed form, if the client asked for it; set before `finish`."""

    def added(self) -> OutputItem:
        return ReasoningItem(id=self.id, summary=[], content=[], status="in_progress")

    def empty_part(self) -> ReasoningTextContent:
        return ReasoningTextContent(text="")

    def summary_piece(self) -> str:
        """Return the text of an event by which the summary grows."""
        return self.text

    def _has_summary(self) -> bool:
        """Return whether the reasoning, which is whole, is its own summary."""
        return False

    def _finished(self, status: ItemStatus) -> OutputItem:
        self.part = part = ReasoningTextContent(text=self.text)
        return ReasoningItem(
            id=self.id,
            summary=[SummaryTextContent(text=self.text)] if self._has_summary() else [],
            content=[part],
            status=status,
            encrypted_content=self.sealed,
        )


class BriefReasoningItem(ReasoningTextItem):
    """Reasoning that is its own summary if it is short; some clients show nothing else."""

    def last_steps(self) -> Iterator[Step]:
        """Yield the step that writes the summary."""
        if self._has_summary():
            yield "summarise"

    def _has_summary(self) -> bool:
        return len(self.text) <= _SHORT


class SummarisedReasoningItem(ReasoningTextItem):
    """Reasoning that is its own summary whatever its length; both grow together."""

    machine = "summarised_reasoning"

    def summary_piece(self) -> str:
        """Return the last fragment."""
        return self.fragments[-1]

    def _has_summary(self) -> bool:
        return True


class CompactionItem(OpenItem):
    """A compaction of what came before the answer; it is written at once."""

    machine = "compaction"
    prefix = "cmp_"

    def added(self) -> OutputItem:
        return CompactionBody(id=self.id, encrypted_content="")

    def _finished(self, status: ItemStatus) -> OutputItem:
        return CompactionBody(id=self.id, encrypted_content=self.text)


class CallItem(OpenItem):
    """A call of a function; its text is the arguments."""

    machine: Machine = "function_call"
    prefix = "fc_"

    def __init__(self, start: ToolCallStart) -> None:
        super().__init__()
        namespace, self.name = start.member or (UNSET, start.name)
        self.namespace: str | UnsetType = namespace
        self.call_id = start.id

    def added(self) -> OutputItem:
        return self._item("", "in_progress")

    def _finished(self, status: ItemStatus) -> OutputItem:
        return self._item(self.text, status)

    def _item(self, text: str, status: ItemStatus) -> OutputItem:
        return FunctionToolCallResource(
            id=self.id,
            call_id=self.call_id,
            namespace=self.namespace,
            name=self.name,
            arguments=text,
            status=status,
        )


class CustomCallItem(CallItem):
    """A call of a custom tool (TOOL-14); its text is the input."""

    machine = "custom_tool_call"
    prefix = "ctc_"

    def _item(self, text: str, status: ItemStatus) -> OutputItem:
        return CustomToolCallResource(
            id=self.id,
            call_id=self.call_id,
            namespace=self.namespace,
            name=self.name,
            input=text,
            status=status,
        )


def _part_logprobs(entries: Iterable[Logprob]) -> list[LogProb]:
    """Write logprobs as content parts send them: with bytes."""
    found: list[LogProb] = []
    for entry in map(chat_logprob, entries):
        top = [TopLogProb(token=t.token, logprob=t.logprob, bytes=t.bytes or []) for t in entry.top_logprobs]
        found.append(
            LogProb(token=entry.token, logprob=entry.logprob, bytes=entry.bytes or [], top_logprobs=top)
        )
    return found


def delta_logprobs(entries: Iterable[Logprob]) -> list[ResponseLogProb]:
    """Write logprobs as delta and done events send them: without bytes."""
    return [
        ResponseLogProb(
            token=entry.token,
            logprob=entry.logprob,
            top_logprobs=[ResponseTopLogProb(token=t.token, logprob=t.logprob) for t in entry.top_logprobs],
        )
        for entry in map(chat_logprob, entries)
    ]
