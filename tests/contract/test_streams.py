"""The contract describes streams so that an independent judge can check every event of them."""

from __future__ import annotations

import json
from typing import Any

import httpx2
import pytest
import schemathesis
from support.contract import CONTRACT, EXAMPLES

from plumbline.contract.wire import sse

SCHEMA = schemathesis.openapi.from_dict(CONTRACT)
CHUNKS = EXAMPLES["CreateChatCompletionStreamResponse"]
EVENTS, MESSAGES = (
    [
        example
        for one in CONTRACT["components"]["schemas"][union]["anyOf"]
        for example in EXAMPLES[one["$ref"].rsplit("/")[-1]]
    ]
    for union in ("ResponseStreamEvent", "MessageStreamEvent")
)


def judge(path: str, frames: list[bytes]) -> None:
    headers = {"content-type": "text/event-stream", "x-request-id": "req_1"}
    body = httpx2.ByteStream(b"".join(frames))
    served = httpx2.MockTransport(lambda _: httpx2.Response(200, headers=headers, stream=body))
    with httpx2.Client(transport=served) as client:
        SCHEMA[path]["POST"].validate_response(client.post(f"http://server{path}"))


def framed(documents: list[Any], named: bool = False) -> list[bytes]:
    return [sse.frame(json.dumps(d).encode(), d["type"] if named else None) for d in documents]


def test_whole_streams_pass() -> None:
    judge("/v1/chat/completions", [*framed(CHUNKS), sse.DONE])
    judge("/v1/completions", [*framed(EXAMPLES["CreateCompletionStreamResponse"]), sse.DONE])
    for event in EVENTS:
        judge("/v1/responses", [*framed([event], named=True), sse.DONE])
    judge("/v1/messages", framed(MESSAGES, named=True))


def test_a_failure_in_mid_stream_passes() -> None:
    """ERR-12."""
    judge("/v1/chat/completions", framed([CHUNKS[0], EXAMPLES["ErrorResponse"][0]]))


@pytest.mark.parametrize(
    ("path", "broken"),
    [
        ("/v1/chat/completions", {**CHUNKS[0], "object": "chat.completion"}),
        ("/v1/chat/completions", {**CHUNKS[0], "choices": [{"index": 0, "delta": {}}]}),
        ("/v1/responses", {**EVENTS[0], "sequence_number": "0"}),
        ("/v1/responses", {**EVENTS[0], "type": "response.unheard_of"}),
        ("/v1/messages", {**MESSAGES[0], "type": "message_unheard_of"}),
    ],
)
def test_one_broken_event_is_found(path: str, broken: Any) -> None:
    good = {"/v1/responses": EVENTS[:1], "/v1/messages": MESSAGES[:1]}.get(path, CHUNKS[:1])
    with pytest.raises(Exception, match=r"(?i)event"):
        judge(path, [*framed(good), *framed([broken])])


def test_an_event_that_is_not_json_is_found() -> None:
    with pytest.raises(Exception, match=r"(?i)event"):
        judge("/v1/chat/completions", [sse.frame(b"[FINISHED]")])
