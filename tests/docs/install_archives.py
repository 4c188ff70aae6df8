"""Install the wheel and the source archive of `dist` in empty environments, serve, and ask for an answer.

    python tests/docs/install_archives.py torch==VERSION CONSTRAINTS

`nox -s wheel` builds them first.
"""

from __future__ import annotations

import json
import re
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
import venv
from pathlib import Path
from urllib.parse import urljoin

DIST = Path(__file__).parents[2] / "dist"
PATIENCE = 120.0
"""Seconds for a server to be ready."""
NAMED = re.compile(r"""(?:src=|href=|from |import |import\(|URL\()"((?:page/|\./|vendor/)[\w./-]+)\"""")


def main(torch: str, constraints: str) -> None:
    """Try each archive, the newest of its kind."""
    for pattern in ("*.whl", "*.tar.gz"):
        archive = max(DIST.glob(pattern), key=lambda path: path.stat().st_mtime)
        with tempfile.TemporaryDirectory() as folder:
            try_archive(archive, torch, constraints, Path(folder))
        print(f"{archive.name} ({archive.stat().st_size / 1e6:.1f} MB) installs, serves and answers")


def try_archive(archive: Path, torch: str, constraints: str, folder: Path) -> None:
    """Install one archive and use it as a stranger would, in a folder that has nothing of the repository."""
    venv.create(folder / "venv", with_pip=True)
    program = folder / "venv" / "bin"

    def run(*command: str) -> None:
        subprocess.run([str(program / command[0]), *command[1:]], cwd=folder, check=True)

    pip = ("python", "-m", "pip", "install", "-qq", "--disable-pip-version-check")
    run(*pip, torch)
    run(*pip, "-c", constraints, f"{archive}[serve]")
    run("plumbline", "--version")
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    server = subprocess.Popen(
        [program / "plumbline", "serve", "--port", str(port), "--store", "none"], cwd=folder
    )
    try:
        wait(f"http://127.0.0.1:{port}/health/ready", server)
        body = {"messages": [{"role": "user", "content": "Who are you?"}], "temperature": 0}
        answer = fetch(f"http://127.0.0.1:{port}/v1/chat/completions", {"model": "plumbline-pocket", **body})
        assert "Pocket" in json.loads(answer)["choices"][0]["message"]["content"], answer
        for path in ("/docs", "/openapi.json"):
            assert fetch(f"http://127.0.0.1:{port}{path}"), path
        load_page(f"http://127.0.0.1:{port}/")
        run("plumbline", "checks", "chat/stream-text")
        run("plumbline", "vectors")
    finally:
        server.terminate()
        server.wait(60)


def load_page(url: str) -> None:
    """Load the page, and every file that it or one of its modules names."""
    seen: set[str] = set()
    waiting = [url]
    while waiting:
        path = waiting.pop()
        text = fetch(path).decode(errors="replace")
        assert text, path
        if "/vendor/" not in path:
            waiting += {urljoin(path, name) for name in NAMED.findall(text)} - seen
            seen.update(waiting)
    assert len(seen) > 30, seen


def wait(url: str, server: subprocess.Popen[bytes]) -> None:
    """Wait until the server is ready."""
    end = time.monotonic() + PATIENCE
    while time.monotonic() < end:
        assert server.poll() is None, f"the server ended with status {server.returncode}"
        try:
            fetch(url)
        except (OSError, urllib.error.HTTPError):
            time.sleep(0.2)
        else:
            return
    raise TimeoutError(f"{url} was not ready within {PATIENCE:g} s")


def fetch(url: str, body: dict[str, object] | None = None) -> bytes:
    """Send a request, with a JSON body if there is one."""
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data, {"content-type": "application/json"})
    with urllib.request.urlopen(request, timeout=60) as answer:
        found: bytes = answer.read()
        return found


if __name__ == "__main__":
    main(*sys.argv[1:])
