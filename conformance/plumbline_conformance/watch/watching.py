"""Run `plumbline watch`: start the proxy process, judge its exchanges, show them, and write reports.

Traffic never waits for a verdict: exchanges arrive through a pipe and are judged on a low-priority thread. If it cannot
keep up, exchanges pass unjudged, and the report has their number.
"""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from functools import partial
from pathlib import Path
from types import FrameType

from rich.console import Console
from rich.live import Live

from plumbline_conformance.console.options import OptionError, UnusableInput
from plumbline_conformance.recording.file import Recorder, RecordingHeader
from plumbline_conformance.recording.redaction import redacted_url
from plumbline_conformance.reports.conclude import Outputs, conclude
from plumbline_conformance.watch.display import picture, print_violation
from plumbline_conformance.watch.live import Tally
from plumbline_conformance.watch.process import Listening, ProxyProcess, Unable
from plumbline_conformance.watch.watcher import Watcher

__all__ = ["run_watch"]

_REFRESH = 0.25
"""Seconds between updates of the display."""


def run_watch(
    upstream: str,
    listen: str,
    outputs: Outputs,
    *,
    out: Console,
    recording: Path | None = None,
    connections: int = 512,
    stop: threading.Event | None = None,
    ready: Callable[[int], None] | None = None,
) -> int:
    """Serve until interrupted (or until `stop`), then report; return the exit status.

    Args:
        upstream: the URL of the server.
        listen: `[HOST]:PORT` to listen on.
        outputs: the report files.
        out: the console.
        recording: the file to record into, if any.
        connections: maximum number of connections to the upstream.
        stop: ends the run when set.
        ready: called with the port when the proxy listens.

    Raises:
        UnusableInput: the proxy cannot listen, or cannot forward to this server.
    """
    header = RecordingHeader.of(upstream, "whatever was asked for", by="watch")
    began = time.monotonic()
    try:
        host, port = _address(listen)
        baseline = outputs.read_baseline()
        with _interrupts() as interrupted, _serving(upstream, host, port, connections) as (proxy, bound_port):
            # Create the recording only after the proxy started, because an empty one is invalid.
            recorder = Recorder(recording, header) if recording else None
            live = Live(console=out, refresh_per_second=4, transient=True) if out.is_terminal else None
            on_wrong = None if live else lambda exchange, wrong: print_violation(out, exchange, wrong)
            failed = partial(out.print, markup=False)
            place = f"[{host}]:{bound_port}" if ":" in host else f"{host}:{bound_port}"
            out.print(f"Listening on http://{place}, towards {redacted_url(upstream)}", markup=False)
            with Watcher(proxy.inbox, recorder, on_wrong, failed) as watcher:
                try:
                    if ready is not None:
                        ready(bound_port)
                    _wait(watcher, live, [interrupted, *([stop] if stop else [])])
                finally:
                    proxy.stop()
    except ValueError as error:
        raise UnusableInput(str(error)) from None
    tally = watcher.tally
    out.print(_count_line(tally))
    seconds = time.monotonic() - began
    findings = tally.findings()
    status = conclude(out, outputs, header, tally.transcripts(), findings, seconds=seconds, baseline=baseline)
    return 2 if watcher.failure is not None else status


def _address(listen: str) -> tuple[str, int]:
    """Return the host, by default loopback, and the port of `[HOST]:PORT`.

    Raises:
        OptionError: the text has another form.
    """
    host, _, port = listen.rpartition(":")
    if not port.isdigit() or int(port) > 65535:
        raise OptionError("--listen", f"must be [HOST]:PORT, got {listen!r}")
    return host.strip("[]") or "127.0.0.1", int(port)


def _count_line(tally: Tally) -> str:
    unjudged = f", {tally.unjudged} of them not judged for lack of time" if tally.unjudged else ""
    return f"{tally.exchanges + tally.unjudged} exchanges{unjudged}"


@contextmanager
def _serving(upstream: str, host: str, port: int, connections: int) -> Iterator[tuple[ProxyProcess, int]]:
    """Start the proxy process; yield it and its port.

    Raises:
        ValueError: the proxy cannot listen.
    """
    proxy = ProxyProcess(upstream, host, port, connections)
    try:
        try:
            message = proxy.inbox.read()
        except (EOFError, OSError):
            message = Unable("The proxy process ended before it listened")
        if not isinstance(message, Listening):
            raise ValueError(message.why if isinstance(message, Unable) else f"The proxy sent {message}")
        yield proxy, message.port
    finally:
        proxy.close()


def _wait(watcher: Watcher, live: Live | None, ends: Sequence[threading.Event]) -> None:
    """Show the traffic until the end."""
    with live or nullcontext():
        while not watcher.over.is_set() and not any(end.is_set() for end in ends):
            if live is not None:
                live.update(picture(watcher.tally, watcher.under_way))
            ends[-1].wait(_REFRESH)


@contextmanager
def _interrupts() -> Iterator[threading.Event]:
    """Yield an event that the first interruption sets; the second one has its default effect. Main thread only."""
    interrupted = threading.Event()
    names = [signal.SIGINT, signal.SIGTERM] if threading.current_thread() is threading.main_thread() else []
    before = {name: signal.getsignal(name) for name in names}

    def restore() -> None:
        for name, handler in before.items():
            signal.signal(name, handler)

    def interrupt(number: int, frame: FrameType | None) -> None:
        interrupted.set()
        restore()

    for name in names:
        signal.signal(name, interrupt)
    try:
        yield interrupted
    finally:
        restore()
