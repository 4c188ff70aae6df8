"""Test proxy and judge processes: each ends with the other, and failures are reported without stopping traffic."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from example_servers.proxied_servers import GET, talk

from plumbline_conformance.console.options import UnusableInput
from plumbline_conformance.console.terminal import console
from plumbline_conformance.recording.file import (
    Recorder,
    RecordingHeader,
    UnreadableRecording,
    read_recording,
)
from plumbline_conformance.reports.conclude import Outputs
from plumbline_conformance.transcript.exchange import Exchange
from plumbline_conformance.watch import run_watch
from plumbline_conformance.watch import watching as run
from plumbline_conformance.watch.display import picture
from plumbline_conformance.watch.live import Tally
from plumbline_conformance.watch.process import Inbox, Passing, ProxyProcess, Seen, framed
from plumbline_conformance.watch.watcher import Watcher


def _watching(*more: str) -> tuple[subprocess.Popen[str], int]:
    command = [sys.executable, "-m", "plumbline_conformance.cli", "watch", "http://127.0.0.1:1"]
    variables = {**os.environ, "PYTHONUNBUFFERED": "1", "PYTHONPATH": os.pathsep.join(sys.path)}
    process = subprocess.Popen(
        [*command, "--listen", ":0", *more], stdout=subprocess.PIPE, text=True, env=variables
    )
    assert process.stdout is not None
    line = process.stdout.readline()
    return process, int(line.split(",")[0].rpartition(":")[2])


def test_the_proxy_does_not_outlive_the_judge() -> None:
    process, port = _watching()
    socket.create_connection(("127.0.0.1", port)).close()
    process.kill()
    process.communicate()

    late = time.monotonic() + 20
    while time.monotonic() < late:
        try:
            socket.create_connection(("127.0.0.1", port)).close()
        except ConnectionRefusedError:
            return
        time.sleep(0.05)
    raise AssertionError("the port is still open")


def test_an_interruption_writes_the_reports(tmp_path: Path) -> None:
    report = tmp_path / "report.json"
    process, port = _watching("--json", str(report))
    assert talk(port, GET).startswith(b"HTTP/1.1 502")
    process.send_signal(signal.SIGINT)

    out, _ = process.communicate(timeout=20)

    assert "0 exchanges" in out
    assert report.is_file()


def test_a_proxy_that_dies_or_cannot_listen_is_reported(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    started = []

    class Watched(ProxyProcess):
        def __init__(self, *arguments: Any) -> None:
            super().__init__(*arguments)
            started.append(self)

    monkeypatch.setattr(run, "ProxyProcess", Watched)

    def kill(port: int) -> None:
        started[0]._process.kill()

    assert (
        run_watch("http://127.0.0.1:1", ":0", Outputs(), out=console(), stop=threading.Event(), ready=kill)
        == 2
    )
    assert "ended unexpectedly" in capsys.readouterr().out

    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(UnusableInput, match="in use"):
            run_watch("http://127.0.0.1:1", f":{port}", Outputs(), out=console())


def exchange(number: int = 0) -> Exchange:
    return Exchange(
        method="GET", url=f"http://h/v1/models?{number}", request_headers={}, request_body=b"", status=200
    )


def watching(count: int, **options: object) -> Watcher:
    """Run a watcher on this many exchanges and the end message."""
    ours, theirs = socket.socketpair()
    with Watcher(Inbox(ours), **options) as watcher:  # type: ignore[arg-type]
        for number in range(count):
            theirs.sendall(framed(Seen(exchange(number))))
        theirs.sendall(framed(Passing(0, 0, last=True)))
    return watcher


def test_a_verdict_that_cannot_be_printed_stops_nothing() -> None:
    failures: list[str] = []

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    watcher = watching(3, wrong=full, failed=failures.append)

    assert watcher.tally.exchanges == 3
    assert watcher.failure is not None
    assert "No space left" in watcher.failure
    assert failures == [watcher.failure]


@pytest.mark.parametrize("broken", ["add", "finish"])
def test_a_recording_on_a_full_disk_is_cut_and_reported_at_once(
    broken: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Recorder, broken, full)
    failures: list[str] = []
    path = tmp_path / "run.jsonl"

    watcher = watching(
        3, recorder=Recorder(path, RecordingHeader.of("http://h", "m", by="watch")), failed=failures.append
    )

    assert watcher.tally.exchanges == 3
    assert [line.startswith("Writing the recording failed, and it is incomplete") for line in failures] == [
        True
    ]
    with pytest.raises(UnreadableRecording):
        read_recording(path)


def test_the_picture_may_be_drawn_while_exchanges_are_counted() -> None:
    tally, over, wrong = Tally(), threading.Event(), []

    def draw() -> None:
        while not over.is_set():
            try:
                picture(tally, 0)
            except RuntimeError as error:
                wrong.append(error)

    thread = threading.Thread(target=draw)
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    thread.start()
    try:
        for number in range(300):
            tally.recent.append((exchange(number), []))
    finally:
        over.set()
        thread.join()
        sys.setswitchinterval(before)

    assert wrong == []
