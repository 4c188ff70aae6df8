"""Serve a model for one conversation: `plumbline serve` as a child on a private Unix socket."""

from __future__ import annotations

import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx2

from plumbline_conformance.console.options import UnusableInput

__all__ = ["own_server"]

_EVERY = 0.05
"""Seconds between two questions whether it is ready."""
_SHOWN = 5
"""Lines of its log that an error shows."""
_STOP = 10.0
"""Seconds for it to end."""


@contextmanager
def own_server(model: str, options: tuple[str, ...] = ()) -> Iterator[httpx2.Client]:
    """Start a server of a model, yield a client of it, and stop it afterwards.

    Args:
        model: what `--model` takes; empty for the pocket model.
        options: further options of `plumbline serve`.

    Raises:
        UnusableInput: it did not start; the message ends with the last lines of its log.
    """
    with tempfile.TemporaryDirectory(prefix="plumbline-run-") as folder:
        socket, log = Path(folder) / "socket", Path(folder) / "log"
        command = [sys.executable, "-m", "plumbline", "serve", "--uds", str(socket), "--store", "none"]
        command += ["--model", model] if model else []
        with log.open("wb") as written:
            # Ctrl-C at the terminal stops an answer, not the server.
            child = subprocess.Popen(
                [*command, *options],
                stdin=subprocess.DEVNULL,
                stdout=written,
                stderr=written,
                start_new_session=True,
            )
        for number in (
            signal.SIGTERM,
            signal.SIGHUP,
        ):  # The terminal's window was closed: also stop the server.
            signal.signal(number, lambda number, _: sys.exit(128 + number))
        try:
            with httpx2.Client(
                base_url="http://localhost/v1/", transport=httpx2.HTTPTransport(uds=str(socket))
            ) as client:
                _wait(client, child, log)
                yield client
        finally:
            _stop(child)


def _wait(client: httpx2.Client, child: subprocess.Popen[bytes], log: Path) -> None:
    while child.poll() is None:
        try:
            if client.get("models", timeout=5).is_success:
                return
        except httpx2.HTTPError:
            pass
        time.sleep(_EVERY)
    last = log.read_text("utf-8", "replace").splitlines()[-_SHOWN:]
    # `plumbline run` names a model by NAME where `plumbline serve` has --model.
    reason = "\n".join(last).removeprefix("plumbline: ").replace("--model cannot", "NAME cannot", 1)
    raise UnusableInput(reason or f"plumbline serve ended with {child.returncode}")


def _stop(child: subprocess.Popen[bytes]) -> None:
    child.terminate()
    try:
        child.wait(_STOP)
    except subprocess.TimeoutExpired:
        child.kill()
        child.wait()
