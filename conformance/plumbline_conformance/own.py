"""`nox -s conformance`: judge our own server, started as a process of its own, or any other one by its URL."""

from __future__ import annotations

import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

from plumbline_conformance.case import Target
from plumbline_conformance.cli import check, main

MODEL = "plumbline-pocket"


def run() -> int:
    """With arguments, the same as `plumbline check`; without, our server with the pocket model."""
    if len(sys.argv) > 1:
        return main(["check", *sys.argv[1:]])
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [str(Path(sys.executable).parent / "plumbline"), "serve", "--port", str(port)]
    process = subprocess.Popen(command)
    try:
        deadline = time.monotonic() + 60
        while not _healthy(port):
            if process.poll() is not None or time.monotonic() > deadline:
                print("the server did not come up", file=sys.stderr)
                return 2
            time.sleep(0.1)
        return check(Target(base_url=f"http://127.0.0.1:{port}/v1", model=MODEL))
    finally:
        process.terminate()
        process.wait()


def _healthy(port: int) -> bool:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=2) as answer:
            return bool(answer.status == 200)
    except (urllib.error.URLError, OSError):
        return False


if __name__ == "__main__":
    sys.exit(run())
