"""Processes that are killed, stopped or interrupted."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest
from support.servers.family import engine_of
from support.servers.recovery import recovering

from .running import CHAT, Running, bystander, running, streamed, wait_for

pytestmark = pytest.mark.long

LONG = {**CHAT, "max_tokens": 20_000, "stream": True}


@contextlib.contextmanager
def stream(server: Running) -> Iterator[Iterator[dict[str, Any]]]:
    """A long stream that has begun."""
    with httpx2.stream("POST", f"{server.url}/v1/chat/completions", json=LONG, timeout=120) as answer:
        events = (json.loads(line[6:]) for line in answer.iter_lines() if line.startswith("data: {"))
        next(events)
        yield events


def last(events: Iterator[dict[str, Any]]) -> dict[str, Any]:
    *_, found = events
    return found


def test_a_server_that_was_stopped_for_a_while_goes_on(tmp_path: Path) -> None:
    """SIGSTOP, or a laptop that sleeps: no step has hung, whatever the clock says."""
    with running(tmp_path, "--stuck-after=0.4") as server:
        whole = streamed(server.url)
        with bystander(server):
            server.signal(signal.SIGSTOP)
            time.sleep(3)  # More than three times as long as a step may take.
            server.signal(signal.SIGCONT)
            with recovering("The process is stopped and goes on (SIGSTOP, a laptop that sleeps)"):
                assert streamed(server.url) == whole
        assert server.metric("plumbline_engine_restarts_total") == 0


def test_an_engine_process_that_is_stopped_ends_streams_and_comes_back(tmp_path: Path) -> None:
    # The client's connection belongs to one API server; the other one sees the same a moment sooner or later.
    with (
        running(tmp_path, "--api-servers=2", "--stuck-after=2") as server,
        httpx2.Client(timeout=60) as client,
    ):
        whole = streamed(server.url)
        chat, ready = f"{server.url}/v1/chat/completions", f"{server.url}/health/ready"
        with stream(server) as events:
            engine = engine_of(server.process.pid)
            os.kill(engine, signal.SIGSTOP)
            try:
                assert last(events)["error"]["message"] == "The engine's process does not answer."
                assert client.post(chat, json=CHAT).status_code in (500, 503)
                wait_for(lambda: client.get(ready).status_code == 503)
                assert client.get(f"{server.url}/health/live").status_code == 200
                refused = client.post(chat, json=CHAT)
                assert (refused.status_code, refused.headers["retry-after"]) == (503, "1")
            finally:
                os.kill(engine, signal.SIGCONT)
        with recovering("The engine's process of several API servers is stopped"):
            wait_for(lambda: client.get(ready).status_code == 200)
        assert streamed(server.url, client) == whole
        wait_for(server.is_idle)
        assert "has sent nothing for" in server.log
        assert "answers again" in server.log


def test_a_first_process_that_is_killed_ends_streams_and_frees_its_port(tmp_path: Path) -> None:
    """It keeps the engine's process and has the hub of claims, so its API servers end as well."""
    body = {"model": "pocket", "input": "hi", "max_output_tokens": 16}
    with running(tmp_path, "--api-servers=2") as server:
        made = httpx2.post(f"{server.url}/v1/responses", json=body, timeout=60).json()
        with stream(server) as events:
            server.signal(signal.SIGKILL)
            assert last(events)["error"]["message"] == "The engine's process has ended."
        with recovering("The first process is killed, which keeps the engine and has the hub of claims"):
            server.process.wait(60)
            wait_for(lambda: not answers(server))
    with running(tmp_path, "--api-servers=2", port=server.port) as again:
        found = httpx2.get(f"{again.url}/v1/responses/{made['id']}", timeout=60)
        assert found.json() == made
        continued = {**body, "previous_response_id": made["id"]}
        assert httpx2.post(f"{again.url}/v1/responses", json=continued, timeout=60).status_code == 200


def answers(server: Running) -> bool:
    with contextlib.suppress(httpx2.HTTPError):
        httpx2.get(f"{server.url}/health/live", timeout=5)
        return True
    return False


def test_a_server_that_is_killed_has_what_it_acknowledged(tmp_path: Path) -> None:
    body = {"model": "pocket", "input": "hi", "max_output_tokens": 16}
    with running(tmp_path) as server:
        made = httpx2.post(f"{server.url}/v1/responses", json=body, timeout=60).json()
        late = {**body, "background": True, "max_output_tokens": 20_000, "ignore_eos": True}
        unfinished = httpx2.post(f"{server.url}/v1/responses", json=late, timeout=60).json()
        with stream(server):
            server.signal(signal.SIGKILL)
            server.process.wait(60)
    with contextlib.ExitStack() as stack, recovering("SIGKILL"):
        again = stack.enter_context(running(tmp_path, port=server.port))
        assert httpx2.get(f"{again.url}/v1/responses/{made['id']}", timeout=60).json() == made
        path = f"{again.url}/v1/responses/{unfinished['id']}"
        wait_for(lambda: httpx2.get(path, timeout=60).json()["status"] == "failed")


@pytest.mark.parametrize(
    "signals",
    [[signal.SIGTERM], [signal.SIGINT] * 2, [signal.SIGTERM] * 2],
    ids=["once", "SIGINT twice", "SIGTERM twice"],
)
@pytest.mark.parametrize("servers", [1, 2])
def test_a_signal_ends_streams_with_an_error_event(
    tmp_path: Path, signals: list[signal.Signals], servers: int
) -> None:
    grace = "--shutdown-timeout=1" if len(signals) == 1 else "--shutdown-timeout=600"
    with running(
        tmp_path, f"--api-servers={servers}", grace, settings=("--served-model-name=pocket",)
    ) as server:
        with stream(server) as events:
            for number, each in enumerate(signals):
                server.signal(each)
                if number == 0:
                    wait_for(lambda: "requests still run" in server.log)
                    time.sleep(0.6)  # Sooner it would be the same wish.
            assert "shutting down" in last(events)["error"]["message"]
        assert server.process.wait(60) in (0, -signal.SIGTERM)  # uvicorn ends by the signal


def test_a_log_on_a_full_disk_stops_no_answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PLUMBLINE_NO_OPTION", "1")  # The first line of a start is about it.
    with (
        Path("/dev/full").open("wb", buffering=0) as full,
        running(tmp_path, "--access-log", output=full) as server,
    ):
        with bystander(server):
            for _ in range(5):
                wrong = httpx2.post(f"{server.url}/v1/chat/completions", json={"model": "x"}, timeout=60)
                assert wrong.status_code in (400, 404)
        server.process.terminate()
        server.process.wait(60)
