"""Run `plumbline watch`: start the proxy process, judge its exchanges, show them, and write reports.

Traffic never waits for a verdict: exchanges arrive through a pipe and are judged on a low-priority thread. If it cannot
keep up, exchanges pass unjudged, and the report has their number.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from functools import partial
from pathlib import Path
from types import FrameType

from rich.console import Console
from rich.live import Live

from plumbline_conformance.console.options import OptionError, UnusableInput
from plumbline_conformance.judge.verdicts import Finding
from plumbline_conformance.recording.file import Recorder, RecordingHeader
from plumbline_conformance.recording.redaction import redacted_url
from plumbline_conformance.reports.conclude import Outputs, conclude
from plumbline_conformance.transcript.exchange import Exchange, Transcript
from plumbline_conformance.watch.display import picture, print_violation
from plumbline_conformance.watch.live import Tally, judge_live, kind_of
from plumbline_conformance.watch.process import Inbox, Listening, Passing, ProxyProcess, Seen, Unable

__all__ = ["Watcher", "run_watch"]

_REFRESH = 0.25
"""Seconds between updates of the display."""
_POLITE = 19
"""Niceness of the judging thread, so that traffic has priority."""


class Watcher:
    """Judge exchanges on a thread; a context manager that at its end waits for all of them.

    Args:
        inbox: the messages of the proxy process.
        recorder: records the exchanges, if given; it is finished at the end.
        wrong: called on the judging thread with each exchange that broke a rule.
        failed: called there once with the first failure of judging or recording.
    """

    def __init__(
        self,
        inbox: Inbox,
        recorder: Recorder | None = None,
        wrong: Callable[[Exchange, list[Finding]], None] | None = None,
        failed: Callable[[str], None] | None = None,
    ) -> None:
        self.tally = Tally()
        self.under_way = 0
        self.failure: str | None = None
        """The first failure of judging or recording."""
        self.over = threading.Event()
        """Set when the proxy process sends nothing more."""
        self._inbox = inbox
        self._recorder = recorder
        self._wrong = wrong
        self._failed = failed
        self._thread = threading.Thread(target=self._run, name="judge")

    def __enter__(self) -> Watcher:
        self._thread.start()
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        while self._thread.is_alive():
            self._thread.join(_REFRESH)  # Some systems do not interrupt a join without a timeout.
        if self._recorder is not None and kind is None:
            self._record(self._recorder.finish)

    def _run(self) -> None:
        _give_way()
        try:
            while True:
                match self._inbox.read():
                    case Seen(exchange):
                        self._judge(exchange)
                    case Passing(under_way, unjudged, last):
                        self.under_way, self.tally.unjudged = under_way, unjudged
                        if last:
                            break
        except (EOFError, OSError):
            self._fails("The proxy process ended unexpectedly.")
        finally:
            self.over.set()

    def _judge(self, exchange: Exchange) -> None:
        """Judge and record an exchange; a failure is reported, and does not stop traffic or judging."""
        seen = Transcript(scenario=kind_of(exchange), exchanges=[exchange])
        try:
            wrong = self.tally.add(seen, judge_live(exchange))
            if wrong and self._wrong is not None:
                self._wrong(exchange, wrong)
        except Exception as error:
            self._fails(f"An exchange could not be judged, or its verdict not printed: {error}")
        if self._recorder is not None:
            self._record(partial(self._recorder.add, seen))

    def _record(self, act: Callable[[], None]) -> None:
        try:
            act()
        except OSError as error:
            if self._recorder is not None:
                self._recorder.abandon()
            self._recorder = None
            self._fails(f"Writing the recording failed, and it is incomplete: {error}")

    def _fails(self, why: str) -> None:
        if self.failure is None:
            self.failure = why
            if self._failed is not None:
                with suppress(OSError):
                    self._failed(why)


def _give_way() -> None:
    """Lower the priority of this thread; only Linux has a niceness per thread."""
    if sys.platform == "linux":
        with suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _POLITE)


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
        UnusableInput: the proxy cannot listen, or not towards this server.
    """
    host, _, port = listen.rpartition(":")
    host = host.strip("[]") or "127.0.0.1"
    header = RecordingHeader.of(upstream, "whatever was asked for", by="watch")
    began = time.monotonic()
    try:
        if not port.isdigit() or int(port) > 65535:
            raise OptionError("--listen", f"must be [HOST]:PORT, got {listen!r}")
        baseline = outputs.read_baseline()
        with _interrupts() as interrupted, _serving(upstream, host, int(port), connections) as (proxy, found):
            # Create the recording only after the proxy started, because an empty one is invalid.
            recorder = Recorder(recording, header) if recording else None
            live = Live(console=out, refresh_per_second=4, transient=True) if out.is_terminal else None
            on_wrong = None if live else lambda exchange, wrong: print_violation(out, exchange, wrong)
            failed = partial(out.print, markup=False)
            place = f"[{host}]:{found}" if ":" in host else f"{host}:{found}"
            out.print(f"Listening on http://{place}, towards {redacted_url(upstream)}", markup=False)
            with Watcher(proxy.inbox, recorder, on_wrong, failed) as watcher:
                try:
                    if ready is not None:
                        ready(found)
                    _wait(watcher, live, [interrupted, *([stop] if stop else [])])
                finally:
                    proxy.stop()
    except ValueError as error:
        raise UnusableInput(str(error)) from None
    tally = watcher.tally
    unjudged = f", {tally.unjudged} of them not judged for lack of time" if tally.unjudged else ""
    out.print(f"{tally.exchanges + tally.unjudged} exchanges{unjudged}")
    seconds = time.monotonic() - began
    findings = tally.findings()
    status = conclude(out, outputs, header, tally.transcripts(), findings, seconds=seconds, baseline=baseline)
    return 2 if watcher.failure is not None else status


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
