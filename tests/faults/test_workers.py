"""One model on two workers of vLLM, as on two GPUs, here on cores of a CPU (`nox -s engines -- vllm_workers`).

1. There are two workers, and the answers are those of vLLM on one.
2. A worker that is killed ends what ran with an error, and the server goes on with two others.
3. A server that ends while workers start ends at once, and no process is left over.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import httpx2
import pytest
from support.servers.family import family

from .running import Running, running, wait_for

# Marked, and not skipped as a module: the table of faults names these tests, and pytest must find them.
pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(find_spec("vllm") is None, reason="vLLM is not installed"),
]

OPTIONS = ("--engine=vllm", f"--kv-cache-bytes={1 << 30}", "--engine-args", "enforce_eager=true")
START = 600.0
"""Seconds: vLLM takes half a minute on a free machine, and minutes on a loaded one."""
CHAT: dict[str, Any] = {
    "model": "pocket",
    "messages": [{"role": "user", "content": "Tell me a story."}],
    "temperature": 0,
    "ignore_eos": True,
}


@pytest.fixture
def two(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Running]:
    """A server whose model is on two workers, each with a core."""
    first, *_, last = sorted(os.sched_getaffinity(0))
    monkeypatch.setenv("VLLM_CPU_OMP_THREADS_BIND", f"{first}|{last}")
    with running(tmp_path, *OPTIONS, "tensor_parallel_size=2", patience=START) as server:
        yield server


def workers(server: Running) -> set[int]:
    """Return the processes that compute."""
    return {pid for pid in family(server.process.pid) if _name(pid).startswith("VLLM::Worker")}


def _name(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text("utf-8", "replace")
    except OSError:  # It has ended.
        return ""


def answer(server: Running) -> str:
    found = httpx2.post(f"{server.url}/v1/chat/completions", json={**CHAT, "max_tokens": 24}, timeout=120)
    assert found.status_code == 200, found.text
    return str(found.json()["choices"][0]["message"]["content"])


def test_two_workers_answer_as_one_and_a_killed_one_is_replaced(two: Running, tmp_path: Path) -> None:
    first = workers(two)
    assert len(first) == 2
    expected = answer(two)

    lines: list[str] = []

    def stream() -> None:
        body = {**CHAT, "max_tokens": 8000, "stream": True}
        with httpx2.stream("POST", f"{two.url}/v1/chat/completions", json=body, timeout=120) as found:
            lines.extend(line for line in found.iter_lines() if line.startswith("data: "))

    with ThreadPoolExecutor(1) as threads:
        ended = threads.submit(stream)
        wait_for(lambda: lines, log=two)
        os.kill(max(first), signal.SIGKILL)
        killed = time.monotonic()
        ended.result(120)
    assert any('"error"' in line for line in lines[-2:]), lines[-3:]
    wait_for(lambda: not two.is_ready(), 10, log=two)
    wait_for(two.is_ready, START, log=two)
    print(f"a killed worker: answers again after {time.monotonic() - killed:.0f} s")
    second = workers(two)
    assert len(second) == 2
    assert not first & second
    assert "vLLM has failed" in two.log
    assert answer(two) == expected
    assert two.metric("plumbline_engine_restarts_total") == 1
    two.signal(signal.SIGTERM)
    two.process.wait(60)
    with running(tmp_path, *OPTIONS, patience=START) as one:
        assert len(workers(one)) < 2
        assert answer(one) == expected


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGKILL])
def test_a_server_that_ends_while_workers_start_leaves_none(two: Running, how: signal.Signals) -> None:
    os.kill(max(workers(two)), signal.SIGKILL)
    wait_for(lambda: "it starts again" in two.log, 60, log=two)
    wait_for(lambda: two.log.count("Initializing a V1 LLM engine") == 2, START, log=two)
    members = family(two.process.pid)
    assert len(members) > 3
    two.signal(how)
    began = time.monotonic()
    two.process.wait(30)
    assert time.monotonic() - began < 20
    wait_for(lambda: not any(_name(pid) for pid in members), 20)
