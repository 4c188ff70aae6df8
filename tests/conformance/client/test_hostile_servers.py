"""Test hostile servers: the judge ends in bounded time, with verdicts and an exit status."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from example_servers import hostile_servers as servers
from example_servers.hostile_servers import Behaviour, hostile

import plumbline_conformance.checks  # noqa: F401 - registers the suite
from plumbline_conformance.cli.check import check
from plumbline_conformance.client.http import conversations
from plumbline_conformance.judge.verdicts import judge
from plumbline_conformance.runner.run import record
from plumbline_conformance.suite.scenario import SCENARIOS, Request, Target

UNREACHABLE = [servers.closes_at_once, servers.speaks_no_http, servers.never_answers]
TRUNCATING = [servers.closes_in_the_middle, servers.closes_in_a_chunk]
WRONG = [servers.sends_more_than_its_length, servers.sends_an_endless_line, servers.sends_control_characters]


SOON = 30
"""Seconds; much more than these runs take, and much less than a time-out per scenario."""


def judged(behave: Behaviour, *ids: str, timeout: float = 0.4) -> tuple[int, float]:
    with hostile(behave) as base_url:
        began = time.monotonic()
        status = check(Target(base_url=base_url, model="m"), ids, timeout=timeout)
        return status, time.monotonic() - began


@pytest.mark.long
@pytest.mark.parametrize("behave", UNREACHABLE)
def test_a_server_without_answers_cannot_be_judged(
    behave: Behaviour, capsys: pytest.CaptureFixture[str]
) -> None:
    """The run of the complete suite ends after a few time-outs."""
    status, seconds = judged(behave)

    assert status == 2
    assert "cannot be reached" in capsys.readouterr().err
    assert seconds < SOON


@pytest.mark.parametrize("connection", ["", "kept"])
async def test_a_server_that_is_asked_once_more_has_a_minute(
    connection: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """HTTP-17 has no time: an answer later than `--timeout` is no silence, on no kind of connection."""
    monkeypatch.setattr("plumbline_conformance.client.http._LEAST_PATIENCE", 60.0)

    async def slow(writer: asyncio.StreamWriter) -> None:
        await asyncio.sleep(0.3)
        writer.write(servers.JSON + b"content-length: 2\r\n\r\n{}")

    request = Request(name="x", path="/models", method="GET", socket=connection)
    with hostile(slow) as base_url:
        async with conversations(Target(base_url=base_url, model="m"), 0.1) as begin, begin() as asked:
            late = await asked.send(request)
            asked.insist()
            found = await asked.send(request)
    assert "no end after 0.1 seconds" in (late.error or "")
    assert (found.status, found.error) == (200, None)


def test_an_answer_that_is_only_late_accuses_nobody(capsys: pytest.CaptureFixture[str]) -> None:
    status, seconds = judged(servers.never_ends, "chat/stream-text", "errors/broken-json")

    assert status == 2
    assert "inconclusive" in capsys.readouterr().out
    assert seconds < SOON


def test_a_body_that_no_client_can_read_is_named_once_a_scenario(capsys: pytest.CaptureFixture[str]) -> None:
    """The other checks of a scenario look at nothing, and say which one reports it."""
    status, seconds = judged(servers.sends_what_is_not_gzip, "chat/stream-text", "errors/broken-json")
    said = capsys.readouterr().out

    assert status == 1
    assert "packed as gzip, and cannot be unpacked" in said
    assert said.count("\nfail ") + said.startswith("fail ") <= 2
    assert seconds < SOON


@pytest.mark.long
@pytest.mark.parametrize("behave", TRUNCATING)
def test_a_server_that_truncates_every_answer_is_accused(
    behave: Behaviour, capsys: pytest.CaptureFixture[str]
) -> None:
    status, seconds = judged(behave, "chat/stream-text", "errors/broken-json")

    assert status == 1
    assert "twice a closed connection" in capsys.readouterr().out
    assert seconds < SOON


@pytest.mark.parametrize("behave", WRONG)
def test_wrong_answers_are_violations(behave: Behaviour, capsys: pytest.CaptureFixture[str]) -> None:
    # These servers do end, so allow more time on a busy machine.
    status, seconds = judged(behave, "chat/stream-text", "models", timeout=SOON)

    assert status == 1
    assert "\x1b[31m" not in capsys.readouterr().out
    assert seconds < SOON


@pytest.mark.parametrize("url", ["http://127.0.0.1:1/v1", "nonsense", "http://", "http://[/v1", "ftp://x/"])
def test_a_wrong_address_cannot_be_judged(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert check(Target(base_url=url, model="m"), ["chat"], timeout=1) == 2
    assert "cannot be reached" in capsys.readouterr().err


def test_a_body_without_end_is_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("plumbline_conformance.client.http._MAX_BODY", 1_000_000)
    with hostile(servers.sends_an_endless_line) as base_url:
        [seen] = asyncio.run(record([SCENARIOS["chat/text"]], Target(base_url=base_url, model="m")))

    assert "longer than" in str(seen.exchanges[0].error)


EVERY = [
    behave
    for behave in vars(servers).values()
    if callable(behave) and getattr(behave, "__module__", "") == servers.__name__ and behave is not hostile
]


@pytest.mark.long
@pytest.mark.parametrize("side_by_side", [EVERY[place::3] for place in range(3)], ids=["0", "1", "2"])
def test_the_whole_suite_comes_to_an_end(
    side_by_side: list[Behaviour], capsys: pytest.CaptureFixture[str]
) -> None:
    """The exit status is neither success nor a fault of the suite; several at once, because each run mostly waits."""

    def status(behave: Behaviour) -> int:
        with hostile(behave) as base_url:
            return check(Target(base_url=base_url, model="m"), timeout=0.3)

    with ThreadPoolExecutor(len(side_by_side)) as pool:
        found = dict(zip(map(str, side_by_side), pool.map(status, side_by_side), strict=True))

    assert set(found.values()) <= {1, 2}, found
    assert "Traceback" not in capsys.readouterr().err


_WITHIN = """
import resource, sys
resource.setrlimit(resource.RLIMIT_AS, (int(sys.argv[1]),) * 2)
from plumbline_conformance.cli import main
sys.exit(main(sys.argv[2:]))
"""
_ROOM = 2 * 1024**3
"""Limit of the address space in bytes: several times the maximum of all bodies, plus the interpreter."""


@pytest.mark.long
@pytest.mark.skipif(sys.platform != "linux", reason="other systems do not keep a process from memory")
@pytest.mark.parametrize("behave", [servers.sends_an_endless_line, servers.sends_a_bomb])
def test_the_whole_suite_stays_within_its_memory(behave: Behaviour, tmp_path: Path) -> None:
    """Also when recording and writing two reports."""
    files = [("--record", "run.jsonl"), ("--json", "report.json"), ("--html", "report.html")]
    outputs = [word for option, name in files for word in (option, str(tmp_path / name))]
    path = os.pathsep.join(place for place in sys.path if place)
    with hostile(behave) as base_url:
        # On a busy machine the first answer of a bomb takes half a second, and without one there are no reports.
        words = ["check", base_url, "--model", "m", "--timeout", "1", *outputs]
        done = subprocess.run(
            [sys.executable, "-c", _WITHIN, str(_ROOM), *words],
            env={**os.environ, "PYTHONPATH": path},
            capture_output=True,
            text=True,
            check=False,
        )

    assert done.returncode in (1, 2), done.stdout[-2000:] + done.stderr[-2000:]
    assert "Traceback" not in done.stderr
    assert all((tmp_path / name).stat().st_size for _, name in files)


def test_problems_without_end_are_not_all_reported() -> None:
    with hostile(servers.sends_events_of_nothing) as base_url:
        [seen] = asyncio.run(record([SCENARIOS["chat/stream-choices"]], Target(base_url=base_url, model="m")))

    counts = {finding.check: len(finding.problems) for finding in judge(seen)}
    assert counts["chat/stream-choices/shape"] == 50


@pytest.mark.long
@pytest.mark.parametrize("behave", [servers.never_ends, servers.drips, servers.repeats_continue])
def test_answers_without_end_are_not_requested_forever(behave: Behaviour) -> None:
    """After a dozen time-outs, twice, the remaining scenarios are skipped."""
    asked = 0

    async def counting(writer: asyncio.StreamWriter) -> None:
        nonlocal asked
        asked += 1
        await behave(writer)

    with hostile(counting) as base_url:
        target = Target(base_url=base_url, model="m")
        seen = asyncio.run(record(list(SCENARIOS.values()), target, patience=0.2))

    # A dozen and those under way; then the simple requests are insisted on, as often.
    assert asked <= 2 * (12 + 4) + 1
    assert {finding.verdict for one in seen for finding in judge(one)} == {"inconclusive", "skipped"}


def test_all_bodies_together_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("plumbline_conformance.client.http._MAX_TOTAL", 20 * 1024 * 1024)
    with hostile(servers.sends_an_endless_line) as base_url:
        target = Target(base_url=base_url, model="m")
        seen = asyncio.run(record([SCENARIOS["errors/hostile"]], target))

    sizes = [len(exchange.body) for one in seen for exchange in one.exchanges]
    assert sum(sizes) < 24 * 1024 * 1024
    assert "all bodies together" in str(seen[0].exchanges[-1].error)


def test_a_bomb_is_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("plumbline_conformance.client.http._MAX_BODY", 1_000_000)
    with hostile(servers.sends_a_bomb) as base_url:
        [seen] = asyncio.run(record([SCENARIOS["chat/text"]], Target(base_url=base_url, model="m")))

    assert "longer than" in str(seen.exchanges[0].error)
