"""Start our server with the pocket model in a separate process."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

__all__ = ["KEY", "MODEL", "DidNotStart", "free_port", "launched_server"]

MODEL = "plumbline-pocket"
KEY = "sk-of-nobody-but-this-run"


class DidNotStart(Exception):  # noqa: N818 - the name describes the event
    """The server exited, or was not healthy within ten minutes."""


@contextmanager
def launched_server(key: str | None = None, *options: str, program: Sequence[str] = ()) -> Iterator[str]:
    """Run our server with the pocket model on a free port until the block ends; yield the base URL.

    Args:
        key: the API key that the server requires; None means no key.
        options: further options of `plumbline serve`.
        program: the command to run instead; the port and the path of the store are appended.

    Raises:
        DidNotStart: the server exited or was not healthy in time.
    """
    port = free_port()
    command = [sys.executable, "-m", "plumbline", "serve", "--port", str(port)]
    folder = tempfile.TemporaryDirectory()
    command += ["--store", f"{folder.name}/responses.db", *options]
    if program:
        command = [*program, str(port), f"{folder.name}/responses.db"]
    process = subprocess.Popen(command, env={**os.environ, "PLUMBLINE_API_KEY": key or ""})
    try:
        # vLLM's processes take up to two minutes, and on a loaded machine each engine takes several times as long.
        deadline = time.monotonic() + 600
        while not _healthy(port):
            if process.poll() is not None or time.monotonic() > deadline:
                raise DidNotStart
            time.sleep(0.1)
        yield f"http://127.0.0.1:{port}/v1"
    finally:
        process.terminate()
        try:
            process.wait(60)
        except subprocess.TimeoutExpired:  # A server with a fault may not end by itself.
            process.kill()
            process.wait()
        folder.cleanup()


def free_port() -> int:
    """Return a port of loopback that nothing uses now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _healthy(port: int) -> bool:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=2) as answer:
            return bool(answer.status == 200)
    except (urllib.error.URLError, OSError):
        return False
