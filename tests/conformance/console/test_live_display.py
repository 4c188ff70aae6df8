"""Test the live display on a terminal: progress, and live traffic."""

from __future__ import annotations

import os
import re
import select
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from example_servers.good_server import KEY, MODEL, serving
from example_servers.reference import application

pty = pytest.importorskip("pty")

CONTROL = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
PATIENCE = 60.0


class Screen:
    """Read the output of a terminal, without control sequences."""

    def __init__(self, terminal: int) -> None:
        self._terminal = terminal
        self.raw = ""

    @property
    def text(self) -> str:
        return CONTROL.sub("", self.raw)

    def until(self, pattern: str) -> str:
        """Read until this text; return the match."""
        last = time.monotonic() + PATIENCE
        while (found := re.search(pattern, self.text)) is None:
            assert time.monotonic() < last, self.text
            assert self._more(1.0) is not None, self.text
        return found.group()

    def rest(self) -> str:
        """Read until the end."""
        while self._more(PATIENCE):
            pass
        return self.text

    def _more(self, seconds: float) -> str | None:
        if not select.select([self._terminal], [], [], seconds)[0]:
            return ""
        try:
            piece = os.read(self._terminal, 65536).decode("utf-8", "replace")
        except OSError:  # The other end of the terminal is closed.
            return None
        self.raw += piece
        return piece or None


@contextmanager
def on_a_terminal(*words: str) -> Iterator[tuple[subprocess.Popen[bytes], Screen]]:
    ours, theirs = pty.openpty()
    path = os.pathsep.join(place for place in sys.path if place)
    variables = {"PYTHONPATH": path, "OPENAI_API_KEY": KEY, "TERM": "xterm", "COLUMNS": "160", "LINES": "50"}
    process = subprocess.Popen(
        [sys.executable, "-m", "plumbline_conformance.cli", *words],
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        env={**{name: value for name, value in os.environ.items() if name != "NO_COLOR"}, **variables},
    )
    os.close(theirs)
    try:
        yield process, Screen(ours)
    finally:
        if process.poll() is None:
            process.kill()
        process.wait()
        os.close(ours)


def test_a_run_shows_how_far_it_is_and_what_was_found() -> None:
    with (
        serving(application()) as base_url,
        on_a_terminal("check", base_url, "models/*", "errors/*", "--model", MODEL) as (
            run,
            screen,
        ),
    ):
        found = screen.until(r"(\d+)/(\d+) +\d+:\d+:\d+ +\d+ pass")
        shown = screen.rest()

        assert run.wait(PATIENCE) == 0
    done, count = map(int, re.findall(r"\d+", found)[:2])
    assert 0 < done <= count
    assert "\x1b[" in screen.raw
    assert re.search(r"\d+ checks: \d+ pass", shown)


def test_live_traffic_is_counted_while_it_passes() -> None:
    with (
        serving(application()) as base_url,
        on_a_terminal("watch", base_url.removesuffix("/v1"), "--listen", ":0") as (run, screen),
    ):
        port = int(screen.until(r"Listening on http://127\.0\.0\.1:\d+,").rstrip(",").rpartition(":")[2])
        screen.until("0 exchanges, 0 under way")
        request = urllib.request.Request(
            f"http://127.0.0.1:{port}/v1/models", headers={"authorization": f"Bearer {KEY}"}
        )
        with urllib.request.urlopen(request, timeout=20) as answer:
            assert answer.status == 200
        screen.until("1 exchanges, 0 under way")
        screen.until(r"models/list/\S+ +1")
        run.send_signal(signal.SIGINT)
        shown = screen.rest()

        assert run.wait(PATIENCE) == 0
    assert re.search(r"\d+ checks?: \d+ pass", shown)
    assert KEY not in screen.raw
