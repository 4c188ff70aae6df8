"""Run servers of older versions, from the history of this checkout."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tarfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx2
import pytest
from support.servers.ports import free_port

__all__ = ["FIRST", "RELEASED", "ROOT", "serving", "source_of"]

ROOT = Path(__file__).parents[2]
RELEASED = "92a78bd2"
"""The version that users have: until the first release, a commit of November 2026."""
FIRST = "88b2e5f4"
"""The last commit whose tables have the revision 0001. It does not know yet that newer versions only add to tables."""
_PARTS = ("src", "kernels", "conformance")


def source_of(commit: str, folder: Path) -> Path:
    """Return the source tree of a commit."""
    archive = folder / "old.tar"
    git = shutil.which("git")
    if git is None:
        pytest.skip("not installed: git")
    made = subprocess.run(
        [git, "-C", str(ROOT), "archive", f"--output={archive}", commit, *_PARTS],
        capture_output=True,
        check=False,
    )
    if made.returncode:
        pytest.skip(f"the history of this checkout has no commit {commit}")
    with tarfile.open(archive) as opened:
        opened.extractall(folder / commit, filter="data")
    return folder / commit


@contextmanager
def serving(source: Path, url: str, log: Path) -> Iterator[tuple[str, subprocess.Popen[bytes]]]:
    """Run the server of a source tree; yields its address and its process."""
    port = free_port()
    path = os.pathsep.join(str(source / name) for name in _PARTS)
    command = [sys.executable, "-m", "plumbline", "serve", f"--port={port}", f"--store={url}"]
    with log.open("ab") as file:
        process = subprocess.Popen(
            [*command, "--served-model-name=m", "--shutdown-timeout=1"],
            env={**os.environ, "PYTHONPATH": path},
            stdout=file,
            stderr=file,
        )
    address = f"http://127.0.0.1:{port}"
    try:
        end = time.monotonic() + 120
        while not _is_ready(address):
            assert process.poll() is None, log.read_text()
            assert time.monotonic() < end
            time.sleep(0.1)
        yield address, process
    finally:
        process.terminate()
        process.wait(60)


def _is_ready(address: str) -> bool:
    try:
        return httpx2.get(f"{address}/health/ready", timeout=5).status_code == 200
    except httpx2.TransportError:
        return False
