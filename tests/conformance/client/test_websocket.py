"""Test the WebSocket client: every message is a frame, and every end is recorded."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from example_servers.asgi import live_and_end
from example_servers.good_server import KEY, MODEL, app, serving
from example_servers.reference import application

import plumbline_conformance.checks  # noqa: F401 - registers the suite
from plumbline_conformance.cli import main
from plumbline_conformance.client.http import sender
from plumbline_conformance.judge.verdicts import judge
from plumbline_conformance.reports.curl import curl
from plumbline_conformance.reports.timeline import moments
from plumbline_conformance.runner.run import record
from plumbline_conformance.suite.scenario import SCENARIOS, Request, Target
from plumbline_conformance.transcript.exchange import Exchange, Transcript

Talk = Callable[[Any, Any], Awaitable[None]]
SOCKETS = [found for name, found in SCENARIOS.items() if name.startswith("websocket/")]
COMPLETED = json.dumps({"type": "response.completed"})


@contextmanager
def talking(talk: Talk) -> Iterator[str]:
    """Run a server with this WebSocket handler."""

    async def serve(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "lifespan":
            await live_and_end(receive, send)
        elif scope["type"] == "websocket":
            await receive()
            await send({"type": "websocket.accept"})
            await talk(receive, send)

    with serving(serve) as base_url:
        yield base_url


def exchanges_of(base_url: str, *requests: Request, patience: float = 5.0) -> list[Exchange]:
    async def go() -> list[Exchange]:
        async with sender(Target(base_url=base_url, model=MODEL), patience) as send:
            return [await send(request) for request in requests]

    return asyncio.run(go())


def turn(**fields: Any) -> Request:
    return Request(path="/responses", method="WEBSOCKET", **{"json": {"type": "x"}, **fields})


async def answers(receive: Any, send: Any) -> None:
    while (message := await receive())["type"] == "websocket.receive":
        for text in (json.dumps({"echo": message["text"]}), COMPLETED):
            await send({"type": "websocket.send", "text": text})


def test_turns_share_a_connection_by_its_name_and_each_message_is_a_frame() -> None:
    with talking(answers) as base_url:
        first, second, both = exchanges_of(
            base_url, turn(), turn(content=b"{"), turn(json=[{"n": 1}, {"n": 2}], turns=2)
        )

    assert [len(found.frames) for found in (first, second, both)] == [2, 2, 4]
    assert second.chunks[0] == {"echo": "{"}
    assert [json.loads(chunk["echo"])["n"] for chunk in both.chunks[::2]] == [1, 2]
    assert {found.status for found in (first, second, both)} == {101}
    assert [m.kind for m in moments(both)] == ["event"] * 4
    assert [m.number for m in moments(both)] == [0, 1, 2, 3]


def test_a_connection_that_ends_within_a_turn_is_reported_and_opened_again() -> None:
    async def leaves(receive: Any, send: Any) -> None:
        await receive()
        await send({"type": "websocket.send", "text": "{}"})
        await send({"type": "websocket.close", "code": 1011})

    with talking(leaves) as base_url:
        found = exchanges_of(base_url, turn(), turn())

    assert [exchange.error for exchange in found] == ["closed in the middle of a turn, with code 1011"] * 2
    assert [exchange.frames[0][1] for exchange in found] == [b"{}"] * 2


def test_a_turn_without_an_end_is_given_up() -> None:
    async def silent(receive: Any, send: Any) -> None:
        while (await receive())["type"] == "websocket.receive":
            pass

    with talking(silent) as base_url:
        [found] = exchanges_of(base_url, turn(), patience=0.3)

    assert "no end after 0.3 seconds" in str(found.error)


def test_messages_without_end_are_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    async def endless(receive: Any, send: Any) -> None:
        await receive()
        for _ in range(200):
            await send({"type": "websocket.send", "text": "x" * 1000})
        await receive()

    monkeypatch.setattr("plumbline_conformance.client.http._MAX_BODY", 20_000)
    with talking(endless) as base_url:
        [found] = exchanges_of(base_url, turn())

    assert found.error
    assert len(found.body) < 25_000


def test_a_refused_handshake_has_its_status_and_its_body() -> None:
    with serving(application()) as base_url:
        [found] = exchanges_of(base_url, turn())

    assert found.status == 401
    assert found.json["error"]["code"] == "invalid_api_key"


@pytest.mark.long
@pytest.mark.parametrize("talk", ["silent", "garbage", "leaves"])
def test_hostile_connections_get_verdicts(talk: str) -> None:
    async def behave(receive: Any, send: Any) -> None:
        await receive()
        if talk == "garbage":
            for text in ("", "[]", '"x"', "{", '{"type": 5}', '{"type": "error"}'):
                await send({"type": "websocket.send", "text": text})
        if talk != "leaves":
            await receive()

    with talking(behave) as base_url:
        seen = asyncio.run(record(SOCKETS, Target(base_url=base_url, model=MODEL), patience=0.3))

    found = [finding for transcript in seen for finding in judge(transcript)]
    assert found
    assert "error" not in {finding.verdict for finding in found}
    assert "pass" not in {f.verdict for f in found if f.check.startswith("websocket/turn")}


def test_a_server_without_a_websocket_is_not_judged_by_its_turns() -> None:
    async def refuse(scope: Any, receive: Any, send: Any) -> None:
        await (turn_away if scope["type"] == "websocket" else app())(scope, receive, send)

    async def turn_away(scope: Any, receive: Any, send: Any) -> None:
        await receive()
        await send({"type": "websocket.close"})

    with serving(refuse) as base_url:
        [seen] = asyncio.run(record([SCENARIOS["websocket/turn"]], Target(base_url=base_url, model=MODEL)))

    assert "status 40" in str(seen.skipped)


def test_our_server_without_a_store_skips_only_what_needs_one() -> None:
    wanted = [SCENARIOS[name] for name in ("websocket/turn", "responses/compact", "responses/background")]
    with serving(app()) as base_url:
        turned, compacted, background = asyncio.run(record(wanted, Target(base_url=base_url, model=MODEL)))

    assert (turned.skipped, compacted.skipped) == (None, None)
    assert "--store none" in str(background.skipped)


def test_what_was_recorded_is_judged_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = tmp_path / "run.jsonl"
    with serving(application()) as base_url:
        options = [base_url, "--model", MODEL, "--api-key", KEY, "--record", str(run)]
        assert main(["check", *options, "websocket", "responses/background"]) == 0
    printed = capsys.readouterr().out

    assert main(["judge", str(run)]) == 0
    assert capsys.readouterr().out == printed
    assert KEY not in run.read_text("utf-8")


def test_a_turn_is_shown_as_a_command() -> None:
    exchange = Exchange(
        method="WEBSOCKET", url="ws://127.0.0.1:1/v1/responses", request_headers={}, request_body=b'{"a"}\n{}'
    )

    assert curl(exchange, key=True) == (
        'printf -- \'{"a"}\\n{}\\n\' | websocat -n -H="authorization: Bearer $OPENAI_API_KEY" '
        "ws://127.0.0.1:1/v1/responses"
    )


def test_capabilities_of_one_transcript_are_evidence() -> None:
    with serving(app()) as base_url:
        [seen] = asyncio.run(record([SCENARIOS["websocket/turn"]], Target(base_url=base_url, model=MODEL)))

    assert isinstance(seen, Transcript)
    assert {exchange.method for exchange in seen.exchanges} == {"WEBSOCKET"}
