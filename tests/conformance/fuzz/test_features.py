"""Test the shares of features in generated requests, and that the fuzzer finds a broken stream."""

from __future__ import annotations

import json
from collections import Counter
from functools import cache
from typing import Any

import pytest
from example_servers.good_server import MODEL, app, serving
from hypothesis import HealthCheck, Phase, given, seed, settings

from plumbline_conformance.cli import main
from plumbline_conformance.fuzz.claims import claims
from plumbline_conformance.fuzz.strategies import operations, requests
from plumbline_conformance.transcript.exchange import Exchange

DRAWN, SEEDS = 150, range(4)
"""Requests of one run, and the runs: examples of one run resemble each other, so the share varies from run to run."""
CHAT, COMPLETION, RESPONSE = "createChatCompletion", "createCompletion", "createResponse"
LEAST = {
    CHAT: {
        "stream": 30,
        "stream_options": 4,
        "tools": 10,
        "stream with tools": 4,
        "tool_choice": 5,
        "stop": 8,
        "n": 8,
        "parts": 8,
        "form": 5,
        "logprobs": 5,
    },
    COMPLETION: {"stream": 30, "stream_options": 4, "stop": 8, "n": 8, "parts": 8, "logprobs": 5},
    RESPONSE: {
        "stream": 30,
        "stream_options": 2,
        "tools": 10,
        "stream with tools": 4,
        "tool_choice": 5,
        "stop": 8,
        "parts": 8,
        "form": 2,
        "logprobs": 8,
    },
}
"""Minimum percentage of requests with a feature, by operation: about half of its share."""


def features(body: Any) -> list[str]:
    """Return the features of a request, named as above."""
    if not isinstance(body, dict):
        return []
    streams = body.get("stream") is True
    text = body.get("text")
    turns = body.get("messages", body.get("input"))
    parts = any(
        isinstance(turn, dict) and isinstance(turn.get("content"), list)
        for turn in (turns if isinstance(turns, list) else [])
    )
    found = {
        "stream": streams,
        "stream_options": streams and bool(body.get("stream_options")),
        "tools": bool(body.get("tools")),
        "stream with tools": streams and bool(body.get("tools")),
        "tool_choice": bool(body.get("tool_choice")),
        "stop": bool(body.get("stop")),
        "n": isinstance(body.get("n"), int),
        "parts": parts or isinstance(body.get("prompt"), list),
        "form": bool(body.get("response_format")) or (isinstance(text, dict) and bool(text.get("format"))),
        "logprobs": bool(body.get("logprobs")) or bool(body.get("include")),
    }
    return [name for name, there in found.items() if there]


@cache
def drawn(operation: str, mode: str) -> list[Any]:
    """Return request bodies of all runs."""
    return [body for number in SEEDS for body in _run(operation, mode, number)]


def _run(operation: str, mode: str, number: int) -> list[Any]:
    bodies: list[Any] = []

    @seed(number)
    @settings(
        max_examples=DRAWN,
        database=None,
        deadline=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(requests(operations()[operation], mode, "m"))
    def draw(request: Any) -> None:
        bodies.append(json.loads(request.content))

    draw()
    return bodies


@pytest.mark.long
@pytest.mark.parametrize("mode", ["valid", "nearly"])
@pytest.mark.parametrize("operation", LEAST)
def test_every_feature_comes_often_enough(operation: str, mode: str) -> None:
    bodies = drawn(operation, mode)
    counted = Counter(name for body in bodies for name in features(body))
    # A fault often removes a field.
    least = {name: share / (1 if mode == "valid" else 2) for name, share in LEAST[operation].items()}

    assert {name: counted[name] for name in least if counted[name] < least[name] * len(bodies) / 100} == {}


@pytest.mark.long
@pytest.mark.parametrize("operation", LEAST)
def test_most_valid_requests_ask_for_a_short_answer(operation: str) -> None:
    limits = [
        [value for name, value in body.items() if name.startswith("max_") and name.endswith("_tokens")]
        for body in drawn(operation, "valid")
    ]

    assert {len(found) for found in limits} == {1}
    assert sum(found[0] <= 21 for found in limits) > 0.6 * len(limits)
    assert max(found[0] for found in limits) <= 56


def unfinished(inner: Any) -> Any:
    """Return the server with streams that lack the last event."""

    async def serve(scope: Any, receive: Any, send: Any) -> None:
        streams = False

        async def passed(message: Any) -> None:
            nonlocal streams
            if message["type"] == "http.response.start":
                streams = any(b"event-stream" in value for _, value in message["headers"])
            body = message.get("body", b"")
            ends = b"data: [DONE]" in body or b"event: response.completed" in body or b"incomplete\n" in body
            if streams and ends:
                message = {**message, "body": b""}
            await send(message)

        await inner(scope, receive, passed)

    return serve


@pytest.mark.parametrize(
    "operation", [CHAT, *(pytest.param(other, marks=pytest.mark.long) for other in (COMPLETION, RESPONSE))]
)
def test_a_broken_stream_is_found_in_a_short_run(
    operation: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    # Stop after one fault, because shrinking takes long.
    monkeypatch.setattr("plumbline_conformance.fuzz.campaign._KINDS", 1)
    with serving(unfinished(app())) as base_url:
        command = ["fuzz", base_url, operation, "--model", MODEL, "--examples", "80"]
        status = main(command)

    out = capsys.readouterr().out
    assert status == 1, out
    assert '"stream": true' in out or '"stream":true' in out


def streamed(*chunks: dict[str, Any]) -> Exchange:
    """Return a stream of legacy completions with these choices."""
    head = {"id": "cmpl-1", "object": "text_completion", "created": 1, "model": "m"}
    events = [b"data: " + json.dumps({**head, "choices": [one]}).encode() + b"\n\n" for one in chunks]
    return Exchange(
        method="POST",
        url="http://h/v1/completions",
        request_headers={},
        request_body=b'{"model": "m", "prompt": ["a", "b"], "logprobs": 1, "stream": true}',
        status=200,
        headers=[("content-type", "text/event-stream"), ("x-request-id", "1")],
        frames=[(0.0, b"".join(events) + b"data: [DONE]\n\n")],
    )


def chunk(index: int, offset: int) -> dict[str, Any]:
    lists = {
        "tokens": ["a"],
        "token_logprobs": [-1.0],
        "top_logprobs": [{"a": -1.0}],
        "text_offset": [offset],
    }
    return {"index": index, "text": "a", "logprobs": lists, "finish_reason": None}


def test_offsets_count_for_each_choice() -> None:
    name = "completions/logprobs/stream-offsets"
    beside = claims(operations()[COMPLETION], streamed(chunk(0, 0), chunk(0, 1), chunk(1, 0), chunk(1, 1)))
    back = claims(operations()[COMPLETION], streamed(chunk(0, 1), chunk(1, 1), chunk(0, 0)))

    assert name not in [claim.name for claim in beside]
    assert name in [claim.name for claim in back]


def limited(kind: str) -> Exchange:
    """Return a response that ended by the limit, with a complete item."""
    response = {
        "status": "incomplete",
        "incomplete_details": {"reason": "max_output_tokens"},
        "output": [{"type": kind, "status": "completed", "name": "f", "arguments": "{}"}],
    }
    return Exchange(
        method="POST",
        url="http://h/v1/responses",
        request_headers={},
        request_body=b'{"model": "m", "input": "Hi", "max_output_tokens": 16}',
        status=200,
        headers=[("content-type", "application/json"), ("x-request-id", "1")],
        frames=[(0.0, json.dumps(response).encode())],
    )


def test_a_limit_behind_a_whole_call_cuts_no_item() -> None:
    name = "responses/limits/last-item"

    assert name not in [claim.name for claim in claims(operations()[RESPONSE], limited("function_call"))]
    assert name in [claim.name for claim in claims(operations()[RESPONSE], limited("message"))]
