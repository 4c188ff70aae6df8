"""Test that a server is accused of a doubtful answer only if the second one and another request confirm it.

- A server that limits the rate of all requests is not accused of a 503.
- A WebSocket is accused of two broken handshakes, and not of one.
- The other request shows the speed of tokens, unless a cache answered it, and every server accepts it.
"""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from example_servers.good_server import KEY, MODEL, serving
from example_servers.reference import application

import plumbline_conformance.checks  # noqa: F401 - registers the suite
from plumbline_conformance.judge.verdicts import judge
from plumbline_conformance.runner.budget import Budget, BudgetTracker
from plumbline_conformance.runner.preflight import simple_requests
from plumbline_conformance.runner.run import record
from plumbline_conformance.runner.server_watch import ServerWatch
from plumbline_conformance.runner.session import Session
from plumbline_conformance.suite.scenario import SCENARIOS, Target
from plumbline_conformance.transcript.exchange import NO_HANDSHAKE, Exchange


def broken(base_url: str, name: str, *capabilities: str) -> list[str]:
    """Return the rules that a server breaks in a scenario."""
    target = Target(base_url=base_url, model=MODEL, api_key=KEY)
    [seen] = asyncio.run(
        record([SCENARIOS[name]], target, patience=60.0, declared=dict.fromkeys(capabilities, True))
    )
    return sorted({rule for finding in judge(seen) if finding.verdict == "fail" for rule in finding.broken})


def test_a_server_that_limits_the_rate_of_all_requests_is_not_accused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its 503 has no `Retry-After`, and the request that shows whether it answers is refused at first, too."""
    monkeypatch.setattr("plumbline_conformance.client.busy_retry._PAUSES", (0.0,))
    inner, paths = application(), [""]

    async def limits(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            await inner(scope, receive, send)
            return
        paths.append(scope["path"])
        if scope["path"] == "/v1/chat/completions" and paths[-2] == scope["path"]:
            await inner(scope, receive, send)
            return
        await send({"type": "http.response.start", "status": 503, "headers": []})
        await send({"type": "http.response.body", "body": b"{}"})

    with serving(limits) as base_url:
        found = broken(base_url, "completions/text", "completions")

    assert paths.count("/v1/chat/completions") == 4  # It was answered twice, each time at the second try.
    assert found == []


@pytest.mark.parametrize(
    ("errors", "accused"),
    [
        ([NO_HANDSHAKE, NO_HANDSHAKE, NO_HANDSHAKE], ["HTTP-17"]),
        (["TimeoutError: no end", NO_HANDSHAKE, NO_HANDSHAKE], []),
        ([NO_HANDSHAKE, NO_HANDSHAKE, "TimeoutError: no end"], []),
    ],
)
def test_a_websocket_is_accused_only_of_two_handshakes_that_broke(
    errors: list[str], accused: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The scenario has two turns; the first is sent again. A slow server may lose one connection."""
    left = list(errors)

    async def fails(_: object, exchange: Exchange, *__: object) -> None:
        exchange.error = left.pop(0)

    monkeypatch.setattr("plumbline_conformance.client.websocket.Sockets.exchange", fails)
    with serving(application()) as base_url:
        found = broken(base_url, "websocket/turn", "responses", "websocket")

    assert left == []
    assert found == accused


def test_a_cached_answer_does_not_show_how_long_tokens_take() -> None:
    begin: Any = None  # Nothing is sent.
    tracker = BudgetTracker(Budget())
    session = Session(
        Target(base_url="", model=MODEL), asyncio.Semaphore(), begin, tracker, ServerWatch("", 0)
    )

    def answer(seconds: float, body: bytes) -> Exchange:
        return Exchange(
            method="POST",
            url="",
            request_headers={},
            request_body=b"",
            status=200,
            frames=[(seconds, body)],
        )

    session._proven = answer(20.0, b'{"id": "a"}')
    assert session._seconds_of(answer(0.1, b'{"id": "a"}'), 0.1) == 20.0
    assert session._seconds_of(answer(0.1, b'{"id": "b"}'), 0.1) == 0.1


def test_the_simple_requests_have_the_limit_that_the_server_accepts() -> None:
    target = Target(base_url="", model=MODEL, limit="max_completion_tokens")
    chat, *_ = simple_requests(target)
    assert "max_tokens" not in chat.json
    assert chat.json["max_completion_tokens"] == 16
