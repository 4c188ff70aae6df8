"""The events of a response can be written again from its log (RS-20).

- The repeated events are the same bytes, however the answer ended, also after a round trip of the log.
- A reader that follows a log while it grows gets the same events as the writer.
- A terminal event that was not sent is taken back: the failure has its number.
"""

from __future__ import annotations

from typing import Any

import msgspec
from hypothesis import given
from hypothesis import strategies as st
from support.judges import fold_response
from support.parsing.answers import answers

from plumbline.answer.events import OutputEvent
from plumbline.contract._generated.events import ResponseStreamEvent
from plumbline.contract._generated.responses import CreateResponse, Response
from plumbline.contract.wire.decode import decode, encode
from plumbline.contract.wire.errors import ApiError, server_error
from plumbline.server.protocols.common.sampling.parameters import Defaults
from plumbline.server.protocols.common.sealing import Sealer
from plumbline.server.protocols.responses.event_log import EventLog, Failure, begun, replayed, written
from plumbline.server.protocols.responses.identity import Fresh, Repeated
from plumbline.server.protocols.responses.initial_response import initial_response
from plumbline.server.protocols.responses.reader import Context, read_response
from plumbline.server.protocols.responses.writer import CANCELLED, ResponsesWriter

DEFAULTS = Defaults(vocab_size=100)
WEATHER = {"type": "function", "name": "ather", "parameters": {}}
NAMESPACE = {"type": "namespace", "name": "we__", "tools": [WEATHER]}
requests = st.fixed_dictionaries(
    {},
    optional={
        "include": st.just(["reasoning.encrypted_content", "message.output_text.logprobs"]),
        "background": st.just(True),
        "tools": st.just([NAMESPACE]),
        "metadata": st.just({"a": "b"}),
    },
)
failures = st.sampled_from(
    [server_error("It broke."), ApiError(400, "no", param="input", code="c"), CANCELLED]
)


class Recorded:
    """Writes an answer, logs it, and keeps what a client gets."""

    def __init__(self, fields: dict[str, Any]) -> None:
        request = decode(CreateResponse, encode({"model": "m", "input": "hi", **fields}))
        turn = read_response(request, DEFAULTS, None, Context(own="hi"))
        self.identity = Fresh(Sealer("a secret of sixteen") if "include" in fields else None)
        logprobs = turn.sampling.logprobs is not None
        self.writer = ResponsesWriter(
            initial_response(request, turn, "m", store=True), self.identity, logprobs=logprobs
        )
        self.log = EventLog(logprobs=logprobs, background="background" in fields)
        first = self.writer.queue() if self.log.background else self.writer.start()
        self.sent = [encode(event) for event in first]

    def add(self, event: OutputEvent | Failure) -> None:
        self.log.append(event)
        self.sent += [encode(out) for out in written(self.writer, event)]


def again(stored: bytes, log: bytes) -> list[bytes]:
    response = msgspec.json.decode(stored, type=Response)
    return [encode(event) for event in replayed(response, EventLog.decode(log))]


@given(requests, answers())
def test_the_events_of_a_stored_response_are_the_same_again(
    fields: dict[str, Any], events: list[OutputEvent]
) -> None:
    recorded = Recorded(fields)
    for event in events:
        recorded.add(event)

    assert again(encode(recorded.writer.response), recorded.log.encode()) == recorded.sent


@given(requests, answers(), failures, st.data())
def test_so_are_those_of_one_that_failed_or_was_cancelled(
    fields: dict[str, Any], events: list[OutputEvent], failure: ApiError, data: st.DataObject
) -> None:
    recorded = Recorded(fields)
    for event in events[: data.draw(st.integers(0, len(events) - 1))]:
        recorded.add(event)
    recorded.add(Failure.of(failure))

    assert again(encode(recorded.writer.response), recorded.log.encode()) == recorded.sent
    assert recorded.writer.response.status == ("cancelled" if failure is CANCELLED else "failed")


@given(requests, answers(), st.data())
def test_a_reader_that_follows_gets_the_same_events(
    fields: dict[str, Any], events: list[OutputEvent], data: st.DataObject
) -> None:
    recorded = Recorded(fields)
    follower = ResponsesWriter(
        begun(recorded.writer.response),
        Repeated(recorded.writer.response, recorded.identity.item_ids),
        logprobs=recorded.log.logprobs,
    )
    first: list[ResponseStreamEvent] = follower.queue() if recorded.log.background else follower.start()
    read = [encode(event) for event in first]
    seen = 0
    for event in events:
        recorded.add(event)
        if event is events[-1] or data.draw(st.booleans()):
            for later in recorded.log.events[seen:]:
                read += [encode(out) for out in written(follower, later)]
            seen = len(recorded.log.events)

    assert read == recorded.sent


@given(answers())
def test_a_terminal_event_that_was_not_sent_is_taken_back(events: list[OutputEvent]) -> None:
    recorded = Recorded({})
    for event in events:
        recorded.add(event)
    del recorded.sent[-1]
    recorded.sent += [encode(out) for out in recorded.writer.fail(server_error("not stored"))]
    final = fold_response([msgspec.json.decode(event) for event in recorded.sent])

    assert (final["status"], final["completed_at"], final["error"]["message"]) == (
        "failed",
        None,
        "not stored",
    )
