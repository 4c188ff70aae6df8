"""Log the answer of a response, and write its stream events again from the log (RS-20).

The log has the events of the answer, not of the stream: with the response itself they determine every event of
the stream, byte by byte, at a tenth of the size.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator

import msgspec

from plumbline.answer.events import OutputEvent, Progress, TokenIds
from plumbline.contract._generated.events import ResponseStreamEvent
from plumbline.contract._generated.items import OutputItem
from plumbline.contract._generated.responses import Response
from plumbline.contract.wire.errors import ApiError
from plumbline.server.protocols.responses.compaction import Compacted
from plumbline.server.protocols.responses.identity import Repeated
from plumbline.server.protocols.responses.writer import CANCELLED, ResponsesWriter

__all__ = ["EventLog", "Failure", "Journal", "Unfinished", "begun", "replayed", "replayed_by", "written"]


class Failure(msgspec.Struct, frozen=True, array_like=True, tag_field="kind", tag=True):
    """The error that ended a response."""

    status: int
    message: str
    type: str
    param: str | None
    code: str | None

    @classmethod
    def of(cls, error: ApiError) -> Failure:
        """Describe an error."""
        return cls(error.status, error.message, error.type, error.param, error.code)

    def error(self) -> ApiError:
        """Return the error."""
        return ApiError(self.status, self.message, self.type, self.param, self.code)


class EventLog(msgspec.Struct, array_like=True):
    """The events of one answer."""

    logprobs: bool = False
    """Whether the client asked for logprobs."""
    background: bool = False
    """Whether the response began as `queued`."""
    events: list[OutputEvent | Compacted | Failure] = []

    def append(self, event: OutputEvent | Compacted | Failure) -> None:
        """Add an event, if the stream depends on it."""
        if not isinstance(event, TokenIds | Progress):
            self.events.append(event)

    def encode(self) -> bytes:
        """Return the log as bytes."""
        return _encoder.encode(self)

    @staticmethod
    def decode(body: bytes) -> EventLog:
        """Return the log that `encode` was given."""
        return _decoder.decode(body)


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(EventLog)


class _Part(msgspec.Struct, array_like=True):
    """What an answer has gained since the part before."""

    first_item: int
    """The output index of the first of `item_ids`."""
    item_ids: list[str]
    output: list[OutputItem]
    """Items that are done."""
    events: list[OutputEvent | Compacted | Failure]


_part_encoder = msgspec.msgpack.Encoder()
_part_decoder = msgspec.msgpack.Decoder(_Part)


class Journal:
    """Cuts a growing answer into parts, from which another server puts it together.

    Args:
        response: the response, which grows.
        item_ids: the ids of its items so far, which grow.
        log: the events of its answer, which grow.
    """

    def __init__(self, response: Response, item_ids: list[str], log: EventLog) -> None:
        self._response = response
        self._item_ids = item_ids
        self._log = log
        self._items = 0
        self.events = 0
        """Events in the parts so far."""

    def part(self) -> bytes:
        """Return what there is since the last part."""
        part = _Part(
            self._items,
            self._item_ids[self._items :],
            self._response.output[self._items :],
            self._log.events[self.events :],
        )
        self._items = len(self._response.output)
        self.events = len(self._log.events)
        return _part_encoder.encode(part)


class Unfinished:
    """An unfinished response, put together from its parts.

    Args:
        response: the response as it was stored first.
        log: the log as it was stored first.
    """

    def __init__(self, response: Response, log: EventLog) -> None:
        self.log = log
        self._known = begun(response)
        """Has the items that are done; the writer appends its own to another copy."""
        self._item_ids: list[str] = []
        identity = Repeated(self._known, self._item_ids)
        self.writer = ResponsesWriter(begun(response), identity, logprobs=log.logprobs)
        self._first: list[ResponseStreamEvent] = self.writer.queue()

    def add(self, parts: Iterable[bytes]) -> Iterator[ResponseStreamEvent]:
        """Write the events of further parts; the first call also those that every stream begins with."""
        first, self._first = self._first, []
        yield from first
        for body in parts:
            part = _part_decoder.decode(body)
            self._item_ids[part.first_item :] = part.item_ids
            self._known.output += part.output
            for event in part.events:
                self.log.append(event)
                yield from written(self.writer, event)

    def end(self, error: ApiError) -> Iterator[ResponseStreamEvent]:
        """End it with an error, or as cancelled."""
        failure = Failure.of(error)
        self.log.append(failure)
        yield from written(self.writer, failure)


def begun(response: Response) -> Response:
    """Return a response as it was before its answer began."""
    first = copy.copy(response)
    first.status = "in_progress"
    first.output = []
    first.usage = first.completed_at = first.error = first.incomplete_details = None
    return first


def replayed(response: Response, log: EventLog) -> Iterator[ResponseStreamEvent]:
    """Write the events of a response that has ended, the same as they were.

    Args:
        response: the response as it ended.
        log: what was logged of its answer.
    """
    writer = ResponsesWriter(begun(response), Repeated(response), logprobs=log.logprobs)
    yield from replayed_by(writer, log)


def replayed_by(writer: ResponsesWriter, log: EventLog) -> Iterator[ResponseStreamEvent]:
    """Write the events that a log has so far with a new writer; later ones may be added meanwhile."""
    if log.background:
        yield from writer.queue()
    else:
        yield from writer.start()
    for event in log.events:
        yield from written(writer, event)


def written(
    writer: ResponsesWriter, event: OutputEvent | Compacted | Failure
) -> Iterator[ResponseStreamEvent]:
    """Write one event of a log."""
    if isinstance(event, Failure):
        error = event.error()
        yield from writer.cancel() if error.code == CANCELLED.code else writer.fail(error)
        return
    if writer.queued:
        yield from writer.start()
    yield from writer.event(event)
