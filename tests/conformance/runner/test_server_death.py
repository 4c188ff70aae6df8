"""Test that a server which dies is accused of it once, with the request that killed it.

- The accused scenario has one failure, of HTTP-16 or HTTP-17; no other rule is judged by a dead server.
- If the server does not return, the run stops, and the rest is skipped with the reason.
- If it returns, the run goes on: other scenarios in flight are repeated, and keep their verdicts.
- Requests that a server has to refuse come last, one at a time.
- An answer that never ends, asked for twice, is accused if the server meanwhile answers others.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from example_servers.good_server import KEY, MODEL, serving
from example_servers.mortal_servers import mortal
from example_servers.reference import application
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import plumbline_conformance.checks  # noqa: F401 - registers the suite
from plumbline_conformance.cli import main
from plumbline_conformance.judge.verdicts import Finding, judge
from plumbline_conformance.runner.budget import Budget
from plumbline_conformance.runner.run import record
from plumbline_conformance.suite.scenario import DIED, MUTE, SCENARIOS, Target
from plumbline_conformance.transcript.exchange import Transcript

AWAY = 0.6
"""Seconds that a server is away: longer than the judge takes to look twice whether it lives."""
SOME = [
    "chat/text",
    "chat/stream-text",
    "models/list",
    "completions/text",
    "errors/hostile",
    "errors/no-model",
]


def run(
    base_url: str,
    names: Sequence[str],
    *,
    concurrency: int = 4,
    restart_wait: float = 0.0,
    patience: float = 60.0,
    declared: dict[str, bool] | None = None,
) -> dict[str, Transcript]:
    target = Target(base_url=base_url, model=MODEL, api_key=KEY)
    scenarios = [SCENARIOS[name] for name in names]
    found = asyncio.run(
        record(
            scenarios,
            target,
            concurrency=concurrency,
            restart_wait=restart_wait,
            patience=patience,
            declared=declared,
        )
    )
    return {seen.scenario: seen for seen in found}


def violations(seen: dict[str, Transcript]) -> list[Finding]:
    found = [finding for one in seen.values() for finding in judge(one)]
    return [finding for finding in found if finding.verdict not in ("pass", "inconclusive", "skipped")]


def once(test: Callable[[bytes], bool]) -> Callable[[bytes], bool]:
    """Let only the first fatal request kill."""
    killed: list[bytes] = []

    def fatal(request: bytes) -> bool:
        if killed or not test(request):
            return False
        killed.append(request)
        return True

    return fatal


@pytest.mark.parametrize("concurrency", [1, 4])
def test_a_dead_server_is_accused_once_and_the_run_stops(concurrency: int) -> None:
    with mortal(lambda request: b'"stream": true' in request) as (base_url, _):
        seen = run(base_url, SOME, concurrency=concurrency)

    [death] = violations(seen)
    accused = death.check.rpartition("/")[0]
    assert accused == "chat/stream-text" or (
        concurrency > 1 and " of chat/stream-text" in death.problems[0].actual
    )
    assert accused != "models/list"
    assert death.broken == ["HTTP-17"]
    assert seen["errors/hostile"].skipped == f"{DIED} in {accused}"


def test_a_living_server_that_drops_a_request_twice_is_accused_of_it() -> None:
    with mortal(lambda request: b'{"model":{"model":' in request, survives=True) as (base_url, _):
        seen = run(base_url, SOME)

    [dropped] = violations(seen)
    assert dropped.check == "errors/hostile/refused"
    assert dropped.broken == ["HTTP-17"]
    assert dropped.problems[0].exchange == "deep_object"
    assert dropped.problems[0].actual.startswith("twice a closed connection: ")


@pytest.mark.parametrize("text", [b"/v1/models", b'"stream": true', b'{"model":{"model":'])
def test_a_connection_that_breaks_once_is_an_accident(text: bytes) -> None:
    with mortal(once(lambda request: text in request), survives=True) as (base_url, _):
        seen = run(base_url, SOME)

    assert violations(seen) == []
    assert all(exchange.error is None for one in seen.values() for exchange in one.exchanges)


@pytest.mark.long
@pytest.mark.parametrize(
    ("text", "name", "count"),
    [(b'"messages": [[[', "huge_temperature", 8), (b'{"model":{"model":', "zeros", 6)],
)
def test_a_server_that_lives_and_stops_serving_is_accused_of_it_alone(
    text: bytes, name: str, count: int
) -> None:
    """The answers after the fatal request are no evidence; the first of them is the last one in the report."""
    with mortal(lambda request: text in request, survives=True, mutes=True) as (base_url, _):
        seen = run(base_url, [*SOME, "errors/window"])

    [silenced] = violations(seen)
    assert silenced.check == "errors/hostile/refused"
    assert silenced.broken == ["HTTP-16"]
    assert silenced.problems[0].exchange == name
    assert "the server stopped serving" in silenced.problems[0].actual
    assert "the model's thread has ended" in silenced.problems[0].actual
    assert len(seen["errors/hostile"].exchanges) == count
    assert all(one.skipped is None for one in seen.values())


def test_after_a_server_has_stopped_serving_nothing_is_judged() -> None:
    with mortal(lambda request: b'"top_p": -0.1' in request, survives=True, mutes=True) as (base_url, _):
        seen = run(base_url, [*SOME, "errors/out-of-range", "errors/window"])

    [silenced] = violations(seen)
    assert silenced.check == "errors/out-of-range/refused"
    assert seen["errors/hostile"].skipped == f"{MUTE} in errors/out-of-range"


def test_a_server_that_answers_nothing_any_more_is_accused_of_it() -> None:
    """Late answers are inconclusive as long as the server answers what it had answered before in time."""
    names = ["chat/text", "models/list", "chat/stream-text", "errors/hostile"]
    with mortal(lambda request: b'"stream": true' in request, hangs=True) as (base_url, _):
        seen = run(base_url, names, concurrency=1, patience=3.0)

    [silenced] = violations(seen)
    assert silenced.check.startswith("chat/stream-text/")
    assert silenced.broken == ["HTTP-17"]
    assert "the server stopped serving" in silenced.problems[0].actual
    assert seen["errors/hostile"].skipped == f"{MUTE} in chat/stream-text"


def test_a_server_that_accepts_connections_and_answers_nothing_is_accused_of_it() -> None:
    with mortal(lambda request: True, hangs=True) as (base_url, _):
        seen = run(base_url, ["chat/text", "models/list"], patience=1.0)

    [silenced] = violations(seen)
    assert silenced.check.startswith("chat/text/")
    assert silenced.broken == ["HTTP-17"]


def test_an_answer_that_is_late_once_accuses_nobody() -> None:
    late = once(lambda request: b'"stream": true' in request)
    with mortal(late, hangs=True, recovers=True) as (base_url, _):
        seen = run(base_url, ["chat/text", "models/list", "chat/stream-text"], concurrency=1, patience=2.0)

    assert violations(seen) == []


@pytest.mark.parametrize(
    ("name", "text", "concurrency", "others"),
    [
        ("chat/stream-text", rb'"stream": true', 1, ["chat/text"]),
        ("chat/stream-text", rb'"stream": true', 4, ["chat/text"]),
        ("websocket/turn", rb"(?i)upgrade: websocket", 1, ["chat/text"]),
        ("websocket/turn", rb"(?i)upgrade: websocket", 1, []),
    ],
)
def test_an_answer_that_never_ends_is_accused_while_others_do(
    name: str, text: bytes, concurrency: int, others: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """If no other scenario shows that the server answers, a simple request does."""
    monkeypatch.setattr("plumbline_conformance.runner.endless._FACTOR", 0)  # The machine may be slow.
    names = [*others, "models/list", name, "errors/no-model"]
    endless = re.compile(text)
    with mortal(lambda request: endless.search(request) is not None, hangs=True, recovers=True) as (
        base_url,
        _,
    ):
        seen = run(
            base_url,
            names,
            concurrency=concurrency,
            patience=2.0,
            declared={"responses": True, "websocket": True},
        )

    [accused] = violations(seen)
    assert accused.check.startswith(f"{name}/")
    assert accused.broken == ["HTTP-17"]
    assert accused.problems[0].actual.startswith("twice no end: nothing came for ")
    assert seen["errors/no-model"].skipped is None


def test_a_refusal_that_kills_breaks_the_rule_of_refusals() -> None:
    with mortal(lambda request: b'{"model":{"model":' in request) as (base_url, _):
        seen = run(base_url, SOME)

    [death] = violations(seen)
    assert death.check == "errors/hostile/refused"
    assert death.broken == ["HTTP-16"]
    assert death.problems[0].exchange == "deep_object"
    assert "RemoteProtocolError" in death.problems[0].actual or "ReadError" in death.problems[0].actual


@pytest.mark.long
@settings(
    max_examples=6, deadline=None, database=None, derandomize=True, suppress_health_check=list(HealthCheck)
)
@given(
    st.sampled_from(["/v1/models", "/v1/completions", '"stream": true', '"temperature": 10000']),
    st.booleans(),
)
def test_a_server_that_returns_is_judged_to_the_end(text: str, always: bool) -> None:
    def kills(request: bytes) -> bool:
        return text.encode() in request

    with mortal(kills if always else once(kills), returns_after=AWAY) as (base_url, relay):
        seen = run(base_url, SOME, restart_wait=5)

    found = violations(seen)
    assert relay.deaths >= 1
    assert {rule for finding in found for rule in finding.broken} <= {"HTTP-16", "HTTP-17"}
    assert len(found) <= relay.deaths
    if not always:
        assert [one.scenario for one in seen.values() if one.skipped] == []


def test_of_several_in_flight_the_one_that_kills_again_is_accused() -> None:
    """Repeated one at a time, only the fatal request kills."""
    with mortal(lambda request: b"/v1/completions" in request, returns_after=AWAY) as (base_url, relay):
        seen = run(base_url, ["chat/text", "completions/text", "models/list"], restart_wait=5)

    assert {finding.check.rsplit("/", 1)[0] for finding in violations(seen)} == {"completions/text"}
    assert relay.deaths <= 3


def test_a_server_that_dies_forever_is_not_awaited_forever() -> None:
    with mortal(lambda request: b"/v1/chat" in request, returns_after=AWAY) as (base_url, relay):
        seen = run(base_url, [name for name in SCENARIOS if name.startswith("chat/")], restart_wait=5)

    assert relay.deaths <= 6
    # If it dies before it has answered anything, it may also count as one that answers nothing.
    reasons = [one.skipped for one in seen.values() if one.skipped is not None]
    assert any(reason.startswith(DIED) or "answered none of the first" in reason for reason in reasons)


def test_a_probe_that_kills_is_accused() -> None:
    with mortal(lambda request: b'"input": "Hi"' in request) as (base_url, _):
        seen = run(base_url, ["models/list", "responses/inputs", "responses/stream-text"])

    [death] = violations(seen)
    assert death.check.startswith("responses/")


def test_the_report_of_a_death_is_short_and_replays(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page, recording = tmp_path / "page.html", tmp_path / "run.jsonl"
    with mortal(lambda request: b'"stream": true' in request) as (base_url, _):
        common = (base_url, "--model", MODEL, "--api-key", KEY, "--restart-wait", "0")
        status = main(["check", *common, "--record", str(recording), "--html", str(page), "chat", "errors"])
    printed = capsys.readouterr().out

    assert status == 1
    assert printed.count("HTTP-17") == 1
    assert "The server died in " in printed
    assert len(printed.splitlines()) < 60
    assert main(["judge", str(recording)]) == 1
    assert "The server died in " in capsys.readouterr().out
    assert "also in flight" in page.read_text() or DIED in page.read_text()


@pytest.mark.long
def test_what_has_to_be_refused_comes_last_and_alone() -> None:
    target_requests: list[str] = []
    with serving(application()) as base_url:
        target = Target(base_url=base_url, model=MODEL, api_key=KEY)
        found = asyncio.run(
            record(list(SCENARIOS.values()), target, ended=lambda seen: target_requests.append(seen.scenario))
        )

    first = next(place for place, name in enumerate(target_requests) if SCENARIOS[name].hostile)
    assert all(SCENARIOS[name].hostile for name in target_requests[first:])
    assert [seen.scenario for seen in found] == list(SCENARIOS)


def test_the_time_of_a_run_ends_requests_in_flight() -> None:
    async def slow(scope: dict[str, object], receive: object, send: object) -> None:
        if scope["type"] == "lifespan":
            await application()(scope, receive, send)
            return None
        return await asyncio.sleep(3)

    with serving(slow) as base_url:
        target = Target(base_url=base_url, model=MODEL)
        found = asyncio.run(record([SCENARIOS["chat/text"]], target, budget=Budget(seconds=0.5)))

    assert found[0].skipped == "budget: the 0.5 seconds are over"


@pytest.mark.parametrize(
    ("count", "headers", "others", "accused"),
    [
        (1, [], ["chat/text"], []),
        (1000, [], ["chat/text"], ["HTTP-17"]),
        (1000, [], [], ["HTTP-17"]),
        (1, [], [], []),
        (1000, [(b"retry-after", b"1")], ["chat/text"], ["HTTP-17"]),
        (1000, [(b"retry-after", b"30")], ["chat/text"], []),
        (1000, [(b"retry-after", b"3600")], ["chat/text"], []),
    ],
)
def test_a_request_that_is_unavailable_even_alone_is_accused(
    count: int, headers: list[Any], others: list[str], accused: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server that asks for more time than it had is not."""
    monkeypatch.setattr("plumbline_conformance.client.busy_retry._PAUSES", ())
    inner, refusals = application(), 0

    async def unavailable(scope: Any, receive: Any, send: Any) -> None:
        nonlocal refusals
        if scope["type"] != "http" or scope["path"] != "/v1/completions" or refusals == count:
            await inner(scope, receive, send)
            return
        refusals += 1
        await send({"type": "http.response.start", "status": 503, "headers": headers})
        await send({"type": "http.response.body", "body": b"{}"})

    with serving(unavailable) as base_url:
        seen = run(base_url, [*others, "completions/text"], declared={"completions": True})

    assert sorted({rule for one in violations(seen) for rule in one.broken}) == accused
