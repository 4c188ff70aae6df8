"""Start the measured servers on loopback, and end the processes."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

__all__ = [
    "RunningServer",
    "available",
    "cpu_seconds",
    "free_port",
    "peak_memory",
    "posted",
    "serve",
    "started",
]

THREADS = {
    "OMP_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "HF_HUB_OFFLINE": "1",
    "TOKENIZERS_PARALLELISM": "false",
}
"""One compute thread for every server: on two cores the client needs the other one."""


@dataclass(frozen=True, slots=True)
class RunningServer:
    """A running server."""

    name: str
    base_url: str
    model: str
    pid: int
    seconds_to_ready: float


def posted(path: str, body: dict[str, Any], *, closes: bool = True) -> bytes:
    """Return a POST request with a JSON body, as bytes of HTTP/1.1.

    Args:
        path: the path of the URL.
        body: what is sent as JSON.
        closes: whether the server closes the connection after its answer.
    """
    content = json.dumps(body).encode()
    # Servers without keys answer to names of loopback only.
    head = f"POST {path} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
    head += "connection: close\r\n" if closes else ""
    return f"{head}content-length: {len(content)}\r\n\r\n".encode() + content


def available(name: str) -> bool:
    """Return whether this server is installed."""
    if name == "plumbline":
        return True
    return shutil.which("transformers") is not None and _importable("fastapi") and _importable("accelerate")


@contextmanager
def serve(name: str, folder: Path) -> Iterator[RunningServer]:
    """Run a server on a model folder until the block ends."""
    port = free_port()
    binary = Path(sys.executable).parent
    command = {
        "plumbline": [
            str(binary / "plumbline"), "serve", "--model", str(folder), "--port", str(port),
            "--served-model-name", "bench",
        ],
        "transformers": [
            str(binary / "transformers"), "serve", str(folder), "--port", str(port), "--host", "127.0.0.1",
            "--device", "cpu", "--log-level", "error",
        ],
        "transformers-cb": [
            str(binary / "transformers"), "serve", str(folder), "--port", str(port), "--host", "127.0.0.1",
            "--device", "cpu", "--log-level", "error", "--continuous-batching",
        ],
    }[name]  # fmt: skip
    began = time.perf_counter()
    with started(command, port, **THREADS) as process:
        yield RunningServer(
            name,
            f"http://127.0.0.1:{port}/v1",
            "bench" if name == "plumbline" else str(folder),
            process.pid,
            time.perf_counter() - began,
        )


@contextmanager
def started(
    command: Sequence[str],
    port: int,
    *,
    ready: str = "/health",
    patience: float = 120,
    folder: Path | None = None,
    **variables: str,
) -> Iterator[subprocess.Popen[bytes]]:
    """Run a server process and yield it once it answers; end it when the block ends.

    Args:
        command: the command line.
        port: the loopback port that it listens on.
        ready: the path that answers 200 once it serves.
        patience: seconds to wait for that.
        folder: its working directory; the current one by default.
        variables: additional environment variables.

    Raises:
        RuntimeError: it ended or did not answer in time; its last output is printed.
    """
    with tempfile.TemporaryFile() as log:
        process = subprocess.Popen(
            command, stdout=log, stderr=log, cwd=folder, env={**os.environ, **variables}
        )
        try:
            _wait(process, f"http://127.0.0.1:{port}{ready}", patience)
            yield process
        except RuntimeError:
            log.seek(0)
            sys.stderr.write(log.read().decode(errors="replace")[-4000:])
            raise
        finally:
            process.terminate()
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def cpu_seconds(pid: int) -> float:
    """Return user and system time of a process so far in seconds, all threads (Linux)."""
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def peak_memory(pid: int) -> int:
    """Return the largest resident size of a process, in bytes (Linux)."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    return 0


def _wait(process: subprocess.Popen[bytes], address: str, patience: float) -> None:
    deadline = time.monotonic() + patience
    while time.monotonic() < deadline:
        if process.poll() is not None:
            raise RuntimeError(f"the server ended with status {process.returncode} before it answered")
        try:
            with urllib.request.urlopen(address, timeout=2) as answer:
                if answer.status == 200:
                    return
        except (urllib.error.URLError, OSError):
            time.sleep(0.02)
    raise RuntimeError(f"the server did not answer within {patience:g} seconds")


def free_port() -> int:
    """Return a free loopback port."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _importable(name: str) -> bool:
    from importlib.util import find_spec

    return find_spec(name) is not None
