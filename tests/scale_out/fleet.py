"""Run replicas behind a proxy, with the configurations of docs/deploy."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx2
import pytest
from support.servers.ports import free_port
from support.stores.postgres import running_postgres

__all__ = [
    "DEPLOY",
    "MESSAGES",
    "PROXIES",
    "Fleet",
    "Replica",
    "behind",
    "healthy",
    "proxied",
    "replica",
    "wait_for",
]

DEPLOY = Path(__file__).parents[2] / "docs" / "deploy"
PROXIES = {"haproxy": "haproxy.cfg", "nginx": "nginx.conf", "caddy": "Caddyfile", "envoy": "envoy.yaml"}
"""The configuration of each, which names replicas on ports 8001 and 8002 and listens on 8080."""
MESSAGES = [{"role": "user", "content": "Count to 3."}]


class Replica:
    """A server that runs, and may be started again on its port."""

    def __init__(self, port: int, options: tuple[str, ...]) -> None:
        self.port = port
        program = (sys.executable, "-m", "plumbline")
        self._command = [*program, "serve", f"--port={port}", "--served-model-name=m", *options]
        self.process = subprocess.Popen(self._command)

    def start_again(self) -> None:
        """Start a new process, which loads."""
        self.process = subprocess.Popen(self._command)

    def stop(self) -> int:
        """Stop as a service manager does; return the exit status."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(60)

    def answered(self) -> float:
        """How many chats it has answered."""
        text = httpx2.get(f"http://127.0.0.1:{self.port}/metrics").text
        found = re.findall(
            r'^plumbline_http_requests_total\{path="/v1/chat/completions".*\} (\S+)$', text, re.M
        )
        return sum(map(float, found))

    def runs(self) -> int:
        """How many requests run."""
        text = httpx2.get(f"http://127.0.0.1:{self.port}/metrics").text
        found = re.findall(r"^plumbline_num_requests_running\{.*\} (\S+)$", text, re.M)
        return round(sum(map(float, found)))


@dataclass
class Fleet:
    """Replicas, and the address that clients use."""

    url: str
    replicas: list[Replica]

    def chat(self, key: str | None = None) -> int:
        """Send a short chat; return the status."""
        body = {"model": "m", "messages": MESSAGES, "max_tokens": 4}
        if key is not None:
            body["prompt_cache_key"] = key
        return httpx2.post(f"{self.url}/v1/chat/completions", json=body, timeout=30).status_code


def wait_for(condition: Callable[[], object], seconds: float = 120) -> None:
    """Wait until something is true."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.05)


def healthy(port: int) -> bool:
    """Whether a server, or a replica behind a proxy, answers on a port."""
    try:
        return httpx2.get(f"http://127.0.0.1:{port}/health", timeout=2).status_code == 200
    except httpx2.HTTPError:
        return False


@contextmanager
def replica(port: int, options: tuple[str, ...]) -> Iterator[Replica]:
    """Run a server until the block ends."""
    found = Replica(port, options)
    try:
        yield found
    finally:
        found.process.terminate()
        found.process.wait(60)


@contextmanager
def proxied(proxy: str, folder: Path, ports: list[int], change: tuple[str, str] = ("", "")) -> Iterator[str]:
    """Run a proxy in front of two replicas, and yield its URL.

    Args:
        proxy: one of `PROXIES`.
        folder: for its configuration.
        ports: of the replicas, and the one that it listens on.
        change: a line of its configuration, and what takes its place.
    """
    program = shutil.which(proxy) or shutil.which(f"/usr/sbin/{proxy}")
    if program is None:
        pytest.skip(f"not installed: {proxy}")
    config = (DEPLOY / PROXIES[proxy]).read_text("utf-8")
    assert change[0] in config
    config = config.replace(*change) if change[0] else config
    for named, port in zip((8001, 8002, 8080), ports, strict=True):
        config, count = re.subn(rf"(?m)^([^#\n]*)\b{named}\b", rf"\g<1>{port}", config)
        assert count == 1
    if proxy == "haproxy":
        assert config.count("timeout http-request 30s") == 1
        config = config.replace("timeout http-request 30s", "timeout http-request 2s")
    if proxy == "nginx":
        kinds = ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
        folders = "".join(f" {kind}_temp_path {folder};" for kind in kinds)
        config = config.replace("http {", f"error_log stderr; pid {folder}/nginx.pid;\nhttp {{{folders}")
    path = folder / PROXIES[proxy]
    path.write_text(config)
    command = {
        "haproxy": ["-db", "-f", str(path)],
        "nginx": ["-e", "stderr", "-c", str(path), "-g", "daemon off;"],
        "caddy": ["run", "--config", str(path), "--adapter", "caddyfile"],
        # Several of them on a machine would share memory.
        "envoy": ["-c", str(path), "--log-level", "error", "--disable-hot-restart", "--concurrency", "2"],
    }[proxy]
    process = subprocess.Popen([program, *command], env={**os.environ, "HOME": str(folder)})
    try:
        wait_for(lambda: healthy(ports[2]))
        yield f"http://127.0.0.1:{ports[2]}"
    finally:
        process.terminate()
        process.wait(60)


@contextmanager
def behind(
    proxy: str, folder: Path, change: tuple[str, str] = ("", ""), options: tuple[str, ...] = ()
) -> Iterator[Fleet]:
    """Run two replicas that share PostgreSQL behind a proxy; see `proxied`."""
    ports = [free_port(), free_port(), free_port()]
    with ExitStack() as stack:
        database = stack.enter_context(running_postgres())
        if database is None:
            pytest.skip("not installed: postgresql")
        shared = (f"--store={database.url('postgres')}", "--shutdown-timeout=1", *options)
        replicas = [stack.enter_context(replica(port, shared)) for port in ports[:2]]
        wait_for(lambda: all(healthy(each.port) for each in replicas))
        yield Fleet(stack.enter_context(proxied(proxy, folder, ports, change)), replicas)
