"""Test waiting for busy servers: as long as they say, within bounds, and never a pass for being busy."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from example_servers.good_server import KEY, MODEL, serving, transcripts
from example_servers.odd_servers import answering, error, limited

from plumbline_conformance.cli import main
from plumbline_conformance.client import busy_retry
from plumbline_conformance.client.busy_retry import BusyRetry
from plumbline_conformance.recording.file import read_recording
from plumbline_conformance.runner.run import record
from plumbline_conformance.suite.scenario import SCENARIOS, Target
from plumbline_conformance.transcript.exchange import Exchange


def answer(status: int, after: str | None = None, failed: str | None = None) -> Exchange:
    headers = [] if after is None else [("Retry-After", after)]
    return Exchange(
        method="POST",
        url="",
        request_headers={},
        request_body=b"",
        status=status,
        headers=headers,
        error=failed,
    )


def replace_sleep(monkeypatch: pytest.MonkeyPatch, sleep: Callable[[float], Awaitable[None]]) -> None:
    """Replace `asyncio.sleep` in the module under test only: servers of other tests may run in this process."""
    monkeypatch.setattr(busy_retry, "asyncio", SimpleNamespace(**{**vars(asyncio), "sleep": sleep}))


class Server:
    """Send given answers, and record the pauses between requests."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *answers: Exchange) -> None:
        self.answers = list(answers)
        self.waits: list[float] = []
        self.asked = 0
        monkeypatch.setattr(busy_retry, "_PAUSES", (1.0, 2.0, 4.0))
        replace_sleep(monkeypatch, self._slept)

    async def _slept(self, seconds: float) -> None:
        self.waits.append(seconds)

    async def ask(self) -> Exchange:
        self.asked += 1
        return self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]


def passed(server: Server, gate: BusyRetry | None = None, path: str = "/chat/completions") -> Exchange:
    return asyncio.run((gate or BusyRetry()).send(path, server.ask))


@pytest.mark.parametrize("status", [429, 503])
def test_a_busy_server_is_retried_and_the_last_answer_counts(
    status: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = Server(monkeypatch, answer(status), answer(status, "7"), answer(200))

    found = passed(server)

    assert (found.status, found.busy) == (200, [status, status])
    assert server.waits == [1.0, 7.0]


def test_tries_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    server = Server(monkeypatch, answer(429))

    found = passed(server)

    assert (found.status, found.busy, server.asked) == (429, [429] * 3, 4)
    assert server.waits == [1.0, 2.0, 4.0]


def test_a_date_is_a_time_to_wait_as_well(monkeypatch: pytest.MonkeyPatch) -> None:
    soon = format_datetime(datetime.now(UTC) + timedelta(seconds=20), usegmt=True)
    server = Server(monkeypatch, answer(429, soon), answer(429, "Sun, 06 Nov 1994 08:49:37 GMT"), answer(200))

    passed(server)

    assert 15 < server.waits[0] <= 20
    assert server.waits[1] == 0


@pytest.mark.parametrize("after", ["3600", "inf", "nan", "1e9"])
def test_nobody_waits_longer_than_a_minute(after: str, monkeypatch: pytest.MonkeyPatch) -> None:
    server = Server(monkeypatch, answer(429, after))

    found = passed(server)

    assert (found.status, server.waits, server.asked) == (429, [], 1)
    assert not found.busy


@pytest.mark.parametrize("after", ["soon", "", "-5", "Mon, 01 Jan 99999999999999999999 00:00:00 GMT"])
def test_a_time_that_is_none_is_not_believed(after: str, monkeypatch: pytest.MonkeyPatch) -> None:
    server = Server(monkeypatch, answer(429, after), answer(200))

    assert passed(server).status == 200
    assert server.waits in ([1.0], [0.0])


@pytest.mark.parametrize("status", [200, 400, 404, 408, 500, 502, 504])
def test_other_failures_are_not_retried(status: int, monkeypatch: pytest.MonkeyPatch) -> None:
    server = Server(monkeypatch, answer(status, "1"))

    assert passed(server).busy is not None
    assert server.asked == 1


def test_a_connection_is_tried_again_where_the_server_was_there_before(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Do not wait for a server that never answered, or after a connection broke."""
    gate = BusyRetry()
    gone = answer(0, failed="ConnectError: refused")
    assert passed(Server(monkeypatch, gone), gate).busy is not None
    never = Server(monkeypatch, gone)
    assert (passed(never, gate).status, never.asked) == (0, 1)

    assert passed(Server(monkeypatch, answer(200)), gate).status == 200
    back = Server(monkeypatch, gone, answer(200))
    assert passed(back, gate).busy == [0]
    broken = Server(monkeypatch, answer(0, failed="RemoteProtocolError: closed"), answer(200))
    assert (passed(broken, gate).status, broken.asked) == (0, 1)


def test_an_api_that_stays_busy_is_not_waited_for_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    gate = BusyRetry()
    for asked in (4, 4, 1, 1):
        server = Server(monkeypatch, answer(503))
        passed(server, gate, "/responses/x")
        assert server.asked == asked

    other = Server(monkeypatch, answer(503))
    passed(other, gate, "/models")
    assert other.asked == 4


class Waits:
    """Return a sleep without delay, and the clock that it advances."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.all: list[float] = []
        replace_sleep(monkeypatch, self._slept)

    async def _slept(self, seconds: float) -> None:
        self.all.append(seconds)
        await asyncio.sleep(0)

    @property
    def now(self) -> float:
        return sum(self.all)


def side_by_side(
    gate: BusyRetry, number: int, *paths: str, answers: Callable[[], Exchange]
) -> list[Exchange]:
    """Send this many requests before any is answered."""

    async def ask() -> Exchange:
        await asyncio.sleep(0)
        return answers()

    async def all_of_them() -> list[Exchange]:
        found: list[Exchange] = []
        for path in paths or ("/chat/completions",):
            found += await asyncio.gather(*(gate.send(path, ask) for _ in range(number)))
        return found

    return asyncio.run(all_of_them())


@pytest.mark.parametrize("number", [1, 4, 64])
@pytest.mark.parametrize("after", ["60", "1", None])
def test_the_total_of_all_waits_is_bounded_however_many_ask_at_once(
    number: int, after: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    waits = Waits(monkeypatch)
    paths = ("/chat/completions", "/responses", "/completions", "/models")

    found = side_by_side(BusyRetry(), number, *paths, answers=lambda: answer(429, after))

    assert [exchange.status for exchange in found] == [429] * 4 * number
    assert 0 < waits.now <= 120
    # Two requests to each of four parts of the API, with three retries each.
    assert len(waits.all) <= 4 * 2 * 3


def test_a_limit_of_requests_that_is_kept_to_is_waited_for_ten_minutes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Every wait leads to an answer; the run ends nevertheless."""
    waits = Waits(monkeypatch)
    served = 0

    def answers() -> Exchange:
        nonlocal served
        if waits.now >= 50 * served:
            served += 1
            return answer(200)
        return answer(429, "50")

    found = side_by_side(BusyRetry(), 64, answers=answers)

    assert waits.now == 600
    assert sum(exchange.status == 200 for exchange in found) == 13


def test_no_server_is_waited_for_beyond_the_time_of_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    waits = Waits(monkeypatch)
    gate = BusyRetry(lambda: 10.0 - waits.now)

    side_by_side(gate, 4, answers=lambda: answer(503, "4"))

    assert waits.all == [4.0, 4.0]


def test_a_refusal_from_before_anothers_wait_is_retried_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """All of them share one wait."""
    waits = Waits(monkeypatch)
    refusals = [answer(429, "30") for _ in range(8)]

    found = side_by_side(BusyRetry(), 8, answers=lambda: refusals.pop() if refusals else answer(200))

    assert [(exchange.status, exchange.busy) for exchange in found] == [(200, [429])] * 8
    assert waits.all == [30.0]


def test_a_path_without_a_slash_is_waited_for_as_well(monkeypatch: pytest.MonkeyPatch) -> None:
    server = Server(monkeypatch, answer(429), answer(200))

    assert passed(server, path="models").status == 200


def test_while_one_waits_the_others_stand_behind_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise the others use up the capacity that the one waited for."""
    monkeypatch.setattr(busy_retry, "_PAUSES", (0.05, 0.05, 0.05))
    gate = BusyRetry()
    order: list[str] = []

    async def busy() -> Exchange:
        order.append("busy")
        return answer(429 if len(order) == 1 else 200)

    async def other() -> Exchange:
        order.append("other")
        return answer(200)

    async def both() -> None:
        first = asyncio.create_task(gate.send("/chat/completions", busy))
        await asyncio.sleep(0.01)
        await asyncio.gather(first, gate.send("/chat/completions", other))

    asyncio.run(both())
    assert order == ["busy", "busy", "other"]


@pytest.mark.long
def test_a_server_with_a_limit_of_requests_is_judged(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "run.jsonl"
    with serving(limited(0.05, "0.06")) as base_url:
        target = [base_url, "--model", MODEL, "--api-key", KEY, "--record", str(run)]
        assert main(["check", *target, "chat/stop", "chat/many", "chat/stream-text", "models"]) == 0
    out = capsys.readouterr().out

    assert " inconclusive" not in out
    assert "The server was busy: " in out
    waited = [e.busy for seen in read_recording(run).transcripts for e in seen.everything if e.busy]
    assert waited
    assert main(["judge", str(run)]) == 0
    assert capsys.readouterr().out == out


def test_a_server_that_stays_busy_cannot_be_judged(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with serving(answering(lambda *_: (429, {"retry-after": "3600"}, error("No.")))) as base_url:
        assert main(["check", base_url, "--model", "m"]) == 2

    assert "The server stays busy" in capsys.readouterr().err


def busy_at(*paths: str) -> Any:
    asked = 0

    def change(path: str, _: Any) -> Any:
        nonlocal asked
        asked += path in paths
        return (429, {"retry-after": "3600"}, error("No.")) if path in paths and asked > 1 else None

    return answering(change)


def test_without_a_verdict_on_what_is_core_nobody_conforms(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Chat completions are busy after the first request, but the list of models is not."""
    with serving(busy_at("/chat/completions")) as base_url:
        target = [base_url, "--model", MODEL, "--api-key", KEY]
        assert main(["check", *target, "models", "completions/stop"]) == 0
        assert main(["check", *target, "models", "completions/stop", "chat/text"]) == 2

    assert (
        "No check of chat/text reached a verdict, but every server requires the scenario."
        in capsys.readouterr().out
    )


def test_a_pause_that_a_request_wants_is_made_once() -> None:
    """Waiting for a busy server does not delay a timed poll further."""
    with serving(limited(0.02, "0.03")) as base_url:
        target = Target(base_url=base_url, model=MODEL, api_key=KEY)
        [seen] = asyncio.run(record([SCENARIOS["responses/background"]], target))

    statuses = [exchange.status for exchange in seen.exchanges]
    assert statuses == [exchange.status for exchange in transcripts()["responses/background"].exchanges]
