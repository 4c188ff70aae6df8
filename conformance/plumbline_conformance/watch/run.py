"""`plumbline watch`: the proxy in its process, the judge in this one, the picture, and the reports at the end.

Traffic never waits for a verdict: what the proxy has seen comes through a pipe, and is judged on a thread that gives
way to everybody else on the machine. If it cannot keep up, exchanges pass without a verdict, and their number is said.
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

from plumbline_conformance.judge.verdicts import Finding
from plumbline_conformance.recording.file import Header, Recorder
from plumbline_conformance.recording.redaction import redacted_url
from plumbline_conformance.reports.baseline import UnreadableBaseline
from plumbline_conformance.reports.conclude import Outputs, conclude
from plumbline_conformance.transcript.model import Exchange, Transcript
from plumbline_conformance.watch.display import picture, print_violation
from plumbline_conformance.watch.live import Tally, judge_live, kind_of
from plumbline_conformance.watch.process import Inbox, Listening, Passing, ProxyProcess, Seen, Unable

__all__ = ["Watcher", "run_watch"]

_REFRESH = 0.25
"""Seconds between pictures."""
_POLITE = 19
"""The niceness of judging: where a processor is short, traffic has it."""


class Watcher:
    """Judging beside the traffic; a context manager, whose end waits until everything that comes is judged.

    Args:
        inbox: what the proxy's process says, to the end.
        recorder: where exchanges are written, if they are; it is finished in the end.
        wrong: called on the judging thread with each exchange that broke a rule.
        failed: called there with what goes wrong beside the traffic, once.
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
        """What went wrong beside the traffic, if something did."""
        self.over = threading.Event()
        """The proxy's process says nothing more."""
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
            self._thread.join(_REFRESH)  # Not every system interrupts somebody who waits for ever.
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
            self._fails("The process of the proxy ended before it was told to.")
        finally:
            self.over.set()

    def _judge(self, exchange: Exchange) -> None:
        """Whatever goes wrong here is said, and ends neither the traffic nor the judging of what follows."""
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
            self._fails(f"The recording could not be written on, and is cut: {error}")

    def _fails(self, why: str) -> None:
        if self.failure is None:
            self.failure = why
            if self._failed is not None:
                with suppress(OSError):
                    self._failed(why)


def _give_way() -> None:
    """To every other thread of the machine; only Linux has a niceness for each."""
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
    """Serve until interrupted (or until `stop`), then report. `ready` is told the port."""
    host, _, port = listen.rpartition(":")
    host = host.strip("[]") or "127.0.0.1"
    header = Header.of(upstream, "whatever was asked for", by="watch")
    began = time.monotonic()
    try:
        if not port.isdigit() or int(port) > 65535:
            raise ValueError(f"{listen} is no [HOST]:PORT")
        if said := outputs.unwritable(record=recording):
            raise ValueError(said)
        baseline = outputs.read_baseline()
        with _interrupts() as interrupted, _serving(upstream, host, int(port), connections) as (apart, found):
            # Not before there is a proxy: a recording that nobody could add to is cut.
            recorder = Recorder(recording, header) if recording else None
            live = Live(console=out, refresh_per_second=4, transient=True) if out.is_terminal else None
            told = None if live else lambda exchange, wrong: print_violation(out, exchange, wrong)
            failed = partial(out.print, markup=False)
            place = f"[{host}]:{found}" if ":" in host else f"{host}:{found}"
            out.print(f"Listening on http://{place}, towards {redacted_url(upstream)}", markup=False)
            with Watcher(apart.inbox, recorder, told, failed) as watcher:
                try:
                    if ready is not None:
                        ready(found)
                    _wait(watcher, live, [interrupted, *([stop] if stop else [])])
                finally:
                    apart.stop()
    except (ValueError, UnreadableBaseline, OSError) as error:
        out.print(str(error), markup=False)
        return 2
    tally = watcher.tally
    unjudged = f", {tally.unjudged} of them not judged: there was no time" if tally.unjudged else ""
    out.print(f"{tally.exchanges + tally.unjudged} exchanges{unjudged}")
    seconds = time.monotonic() - began
    findings = tally.findings()
    status = conclude(out, outputs, header, tally.transcripts(), findings, seconds=seconds, baseline=baseline)
    return 2 if watcher.failure is not None else status


@contextmanager
def _serving(upstream: str, host: str, port: int, connections: int) -> Iterator[tuple[ProxyProcess, int]]:
    """The proxy's process and its port.

    Raises:
        ValueError: there cannot be one, with the reason.
    """
    apart = ProxyProcess(upstream, host, port, connections)
    try:
        try:
            said = apart.inbox.read()
        except (EOFError, OSError):
            said = Unable("The process of the proxy ended before it listened")
        if not isinstance(said, Listening):
            raise ValueError(said.why if isinstance(said, Unable) else f"The proxy said {said}")
        yield apart, said.port
    finally:
        apart.close()


def _wait(watcher: Watcher, live: Live | None, ends: Sequence[threading.Event]) -> None:
    """Show what passes until somebody ends it."""
    with live or nullcontext():
        while not watcher.over.is_set() and not any(end.is_set() for end in ends):
            if live is not None:
                live.update(picture(watcher.tally, watcher.under_way))
            ends[-1].wait(_REFRESH)


@contextmanager
def _interrupts() -> Iterator[threading.Event]:
    """Set by the first interruption; the second one is not waited for. Only the main thread has signals."""
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
