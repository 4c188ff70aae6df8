"""Run a server in a process of its own, and measure what a request costs it."""

from __future__ import annotations

import http.client
import json
import os
import re
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .processor import lasting, own_time

__all__ = ["Cost", "Target", "running"]

_LATEST_WAIT = 30.0
"""Seconds after which a bystander that shows nothing counts as cut off."""


_MAKERS: dict[str, tuple[str, dict[str, Any]]] = {
    "{conversation_id}": ("/v1/conversations", {}),
    "{completion_id}": (
        "/v1/chat/completions",
        {"model": "pocket", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 2, "store": True},
    ),
}
"""For each placeholder of a path what makes such a thing."""


Report = tuple[float, float, int]
"""When the last piece came, the longest wait before, and how many events came."""


@dataclass(frozen=True)
class Cost:
    """What one request cost.

    Attributes:
        status: of the answer.
        seconds: from the last byte of the request to the last byte of the answer, as far as the server ran meanwhile.
        megabytes: by which the server's memory has grown at its peak.
        silence: the longest wait of the bystander meanwhile, in seconds.
        rate: the bystander's events a second meanwhile, as a part of what it had alone; 1 for a short request.
        body: the beginning of the answer.
    """

    status: int
    seconds: float
    megabytes: float
    silence: float
    rate: float
    body: bytes


_SHORT = 1.0
"""Seconds of a request below which a rate is a matter of chance; then the silence says enough."""


class Target:
    """A server, and a bystander that reads a stream from it."""

    def __init__(self, port: int, pid: int, reports: list[Report], key: str = "") -> None:
        self.port = port
        self._alone = 0.0
        """Events a second of the bystander while nothing else happened."""
        self._headers = {"content-type": "application/json"}
        if key:
            self._headers["authorization"] = f"Bearer {key}"
        self._pid = pid
        self._reports = reports
        self._made: dict[str, str] = {}

    def send(
        self, method: str, path: str, body: bytes, headers: dict[str, str], timeout: float = 60.0
    ) -> tuple[int, bytes, float]:
        """Send one request; returns the status, the body and the seconds that the answer took.

        In place of `{conversation_id}` or `{completion_id}` a path gets the id of one that exists.
        """
        for name, (maker, body_of_one) in _MAKERS.items():
            if name in path:
                if name not in self._made:
                    made = self.send("POST", maker, json.dumps(body_of_one).encode(), {})[1]
                    self._made[name] = str(json.loads(made)["id"])
                path = path.replace(name, self._made[name])
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=timeout)
        try:
            # A refusal may come before the whole body is sent; the answer counts all the same.
            with suppress(BrokenPipeError, ConnectionResetError):
                connection.request(method, path, body, {**self._headers, **headers})
            sent = time.monotonic()
            answer = connection.getresponse()
            return answer.status, answer.read(), time.monotonic() - sent
        finally:
            connection.close()

    def cost(self, method: str, path: str, body: bytes, headers: dict[str, str]) -> Cost:
        """Send one request and measure."""
        before = self._memory("VmRSS")
        self._forget_peak()
        began, ran = time.monotonic(), own_time(self._pid)
        status, answer, seconds = self.send(method, path, body, headers)
        seconds = min(seconds, own_time(self._pid) - ran)
        silence = self.silence_since(began)
        rate = self.rate_since(began)
        return Cost(status, seconds, self._memory("VmHWM") - before, silence, rate, answer[:600])

    def rate_since(self, began: float) -> float:
        """Return the bystander's events a second since a time, as a part of what it had alone; 1 if that is short."""
        seconds = time.monotonic() - began
        if seconds < _SHORT or not self._alone:
            return 1.0
        return self._events_since(began) / seconds / self._alone

    def _events_since(self, began: float) -> int:
        return sum(events for at, _, events in self._reports if at >= began)

    def silence_since(self, began: float) -> float:
        """Return the bystander's longest silence since a time, once it has received something again."""
        now = time.monotonic()
        while not self._reports or self._reports[-1][0] < now:
            if time.monotonic() - now > _LATEST_WAIT:
                return _LATEST_WAIT
            time.sleep(0.01)
        return max((gap for at, gap, _ in self._reports if at >= began), default=0.0)

    def rate(self, began: float, ended: float) -> float:
        """Return the events a second that the bystander received between two times."""
        return sum(events for at, _, events in self._reports if began < at <= ended) / (ended - began)

    def now(self) -> float:
        """Return the time on the clock of `silence_since`."""
        return time.monotonic()

    def control(self, seconds: float = 1.0) -> float:
        """Return the bystander's longest silence while nothing else happens: the machine's own delay.

        It also measures the rate that the bystander has alone.
        """
        began = time.monotonic()
        time.sleep(seconds)
        self._alone = self._events_since(began) / seconds
        return self.silence_since(began)

    def memory(self) -> float:
        """Return the megabytes of memory that the server's processes have."""
        return self._memory("VmRSS")

    def at_rest(self) -> float:
        """Return the same while nothing happens."""
        time.sleep(0.5)
        return self._memory("VmRSS")

    def _memory(self, field: str) -> float:
        """Return the sum of a field of the status of the server and its engine, in megabytes; 0 without /proc.

        Workers are left out: they share their memory, have bounds of their own, and end.
        """
        total = 0
        for process in lasting(self._pid):
            with suppress(OSError):
                status = Path(f"/proc/{process}/status").read_text("utf-8")
                found = re.search(rf"{field}:\s+(\d+) kB", status)
                total += int(found[1]) if found else 0
        return total / 1024

    def _forget_peak(self) -> None:
        for process in lasting(self._pid):
            with suppress(OSError):
                Path(f"/proc/{process}/clear_refs").write_text("5", "utf-8")


@contextmanager
def running(*options: str, name: str = "pocket", key: str = "") -> Iterator[Target]:
    """Serve the pocket model under a name while the block runs, with a bystander that reads from "pocket".

    Args:
        options: of `plumbline serve`.
        name: of the model.
        key: what all requests send, if the options have keys.
    """
    port = _free_port()
    command = [
        sys.executable,
        "-m",
        "plumbline",
        "serve",
        "--port",
        str(port),
        "--served-model-name",
        name,
    ]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    folder = tempfile.TemporaryDirectory()
    # Computing a long prompt costs what the model costs; what the server makes of a request is tried here.
    command += ["--max-model-len", "4096"]
    command += ["--store", f"{folder.name}/responses.db", "--prompts", str(_prompts(Path(folder.name)))]
    server = subprocess.Popen([*command, *options], env=environment, stderr=subprocess.DEVNULL)
    try:
        _await_server(port, server)
        reader = subprocess.Popen(
            [sys.executable, str(Path(__file__).parent / "bystander.py"), str(port), str(server.pid), key],
            stdout=subprocess.PIPE,
        )
        try:
            reports: list[Report] = []
            threading.Thread(target=_collect, args=(reader, reports), daemon=True).start()
            target = Target(port, server.pid, reports, key)
            target.control()
            yield target
        finally:
            reader.kill()
            reader.wait()
    finally:
        server.kill()
        server.wait()
        folder.cleanup()


def _prompts(folder: Path) -> Path:
    """Write a prompt template with a variable in a hundred places, and return the folder of templates."""
    path = folder / "prompts" / "repeated" / "1.json"
    path.parent.mkdir(parents=True)
    path.write_text(json.dumps({"instructions": "{{text}} " * 100, "input": "{{word}}"}), "utf-8")
    return folder / "prompts"


def _collect(reader: subprocess.Popen[bytes], reports: list[Report]) -> None:
    assert reader.stdout is not None
    for line in reader.stdout:
        at, gap, events = line.split()
        reports.append((float(at), float(gap), int(events)))


def _free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def _await_server(port: int, server: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline and server.poll() is None:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
        with suppress(OSError, http.client.HTTPException):
            connection.request("GET", "/health")
            if connection.getresponse().status == 200:  # While the model loads it is 503.
                return
        connection.close()
        time.sleep(0.05)
    raise RuntimeError("the server did not start")
