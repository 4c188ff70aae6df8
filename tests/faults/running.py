"""Run a server as a process, and bystanders whose answers no fault may change."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import httpx2
from support.servers.ports import free_port

CHAT: dict[str, Any] = {
    "model": "pocket",
    "messages": [{"role": "user", "content": "Tell me a story."}],
    "temperature": 0,
    "ignore_eos": True,
    "max_tokens": 80,
}
"""A request with one possible answer: a greedy draw has the same bits in any batch."""


class Running:
    """A server that this process has started."""

    def __init__(self, process: subprocess.Popen[bytes], port: int, log: Path) -> None:
        self.process = process
        self.port = port
        self.url = f"http://127.0.0.1:{port}"
        self._log = log

    @property
    def log(self) -> str:
        """What the server has written so far."""
        return self._log.read_text("utf-8", "replace")

    def is_ready(self) -> bool:
        """Whether it takes requests."""
        status = self.process.poll()
        assert status is None, f"the server has ended with status {status}:\n{self.log}"
        try:
            return httpx2.get(f"{self.url}/health/ready", timeout=5).status_code == 200
        except httpx2.HTTPError:
            return False

    def signal(self, what: signal.Signals) -> None:
        """Send a signal to the first process."""
        os.kill(self.process.pid, what)

    def metric(self, name: str) -> float:
        """Return the sum of the samples of a metric."""
        lines = httpx2.get(f"{self.url}/metrics", timeout=30).text.splitlines()
        values = [line.rpartition(" ")[2] for line in lines if line.startswith((f"{name}{{", f"{name} "))]
        assert values, name
        return sum(map(float, values))

    def is_idle(self) -> bool:
        """Whether no request runs or waits, and no block of the cache is held."""
        names = ("num_requests_running", "num_requests_waiting", "kv_cache_usage_ratio")
        return not any(self.metric(f"plumbline_{name}") for name in names)


def wait_for(condition: Callable[[], object], seconds: float = 120, log: Running | None = None) -> None:
    """Wait until something is true."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not happen" + ("" if log is None else f":\n{log.log}")
        time.sleep(0.05)


@contextmanager
def running(
    folder: Path,
    *options: str,
    port: int | None = None,
    output: IO[bytes] | None = None,
    before: Callable[[], None] | None = None,
    settings: Sequence[str] = ("--shutdown-timeout=5", "--served-model-name=pocket"),
    patience: float = 120,
) -> Iterator[Running]:
    """Run a server with the pocket model, and kill it afterwards if it has not ended.

    Args:
        folder: for its store and its log.
        options: of `plumbline serve`.
        port: to listen on; a free one by default.
        output: where its output goes instead of the log.
        before: called in the process before the server starts.
        settings: options that a test may replace.
        patience: seconds until it must be ready.
    """
    port = port or free_port()
    log = folder / "server.log"
    command = [sys.executable, "-m", "plumbline", "serve", f"--port={port}", *settings, *options]
    if not any(option.startswith("--store") for option in options):
        command.append(f"--store={folder / 'store.db'}")
    with log.open("ab") as file:
        process = subprocess.Popen(
            command, stdout=output or file, stderr=output or file, stdin=subprocess.DEVNULL, preexec_fn=before
        )
        found = Running(process, port, log)
        try:
            wait_for(found.is_ready, patience, log=found)
            yield found
        finally:
            if process.poll() is None:
                process.send_signal(signal.SIGCONT)
                process.terminate()
                try:
                    process.wait(60)
                except subprocess.TimeoutExpired:
                    process.kill()
            process.wait(60)


def streamed(url: str, client: httpx2.Client | None = None) -> str:
    """Return the text of a chat that is streamed to its end."""
    stream = httpx2.stream if client is None else client.stream
    with stream("POST", f"{url}/v1/chat/completions", json={**CHAT, "stream": True}, timeout=120) as answer:
        lines = [line.removeprefix("data: ") for line in answer.iter_lines() if line.startswith("data: ")]
    assert answer.status_code == 200, answer.status_code
    assert lines[-1] == "[DONE]", lines[-1]
    chunks = [json.loads(line) for line in lines[:-1]]
    assert all("error" not in chunk for chunk in chunks), chunks[-1]
    return "".join(chunk["choices"][0]["delta"].get("content") or "" for chunk in chunks)


class Bystander:
    """A client that streams the same answer again and again."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._expected = streamed(url)
        self._stopping = threading.Event()
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._read, daemon=True)
        self.answers = 0
        """Whole answers so far."""

    def _read(self) -> None:
        try:
            with httpx2.Client() as client:  # It keeps its connection.
                while not self._stopping.is_set():
                    assert streamed(self._url, client) == self._expected, "the answer has changed"
                    self.answers += 1
        except BaseException as error:
            self._error = error

    def another(self) -> None:
        """Wait for an answer that has begun after this call."""
        goal = self.answers + 2
        wait_for(lambda: self._error or self.answers >= goal)
        self.check()

    def check(self) -> None:
        """Raise what the bystander met."""
        if self._error is not None:
            raise AssertionError("the bystander's answer failed") from self._error


@contextmanager
def bystander(server: Running) -> Iterator[Bystander]:
    """Stream beside a fault; at the end another whole answer must come, and none may differ."""
    found = Bystander(server.url)
    found._thread.start()
    try:
        yield found
        found.another()
    finally:
        found._stopping.set()
        found._thread.join(120)
    found.check()
