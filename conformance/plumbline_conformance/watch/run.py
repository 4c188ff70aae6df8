"""`plumbline watch`: the proxy, the judge beside it, the picture, and the reports at the end.

Judging happens in a process of its own, with a bounded queue: if it cannot keep up, exchanges pass without being
judged, and their number is said. Traffic never waits for a verdict, nor for the interpreter that comes to it.
"""

from __future__ import annotations

import asyncio
import queue
import signal
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import nullcontext, suppress
from multiprocessing import get_context
from pathlib import Path

from rich.console import Console
from rich.live import Live

from plumbline_conformance.baseline import UnreadableBaseline
from plumbline_conformance.judge import Finding
from plumbline_conformance.outcome import Outputs, conclude
from plumbline_conformance.recording import Header, Recorder
from plumbline_conformance.transcript import Exchange, Transcript
from plumbline_conformance.watch.live import Tally, judge_live, kind_of
from plumbline_conformance.watch.proxy import Proxy
from plumbline_conformance.watch.view import picture, say

__all__ = ["Watcher", "run_watch"]

_WAITING = 256
"""Exchanges that may wait to be judged."""
_SWITCH = 0.0005
"""Seconds after which the judging thread gives way: the interpreter's five milliseconds would be felt per event."""
_REFRESH = 0.5
_NOTHING = Exchange(method="GET", url="", request_headers={}, request_body=b"", status=200)


def _quiet() -> None:
    """The judging process ends when the proxy does, and not when somebody interrupts both."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)


class Watcher:
    """Judging beside the traffic; a context manager, whose end waits until everything that was taken is judged.

    A thread hands exchanges to a process and counts what it says: checks are plain Python and would hold the
    interpreter for as long as several events take to pass.

    Args:
        recorder: where exchanges are written, if they are.
        wrong: called on the judging thread with each exchange that broke a rule.
    """

    def __init__(
        self, recorder: Recorder | None = None, wrong: Callable[[Exchange, list[Finding]], None] | None = None
    ) -> None:
        self.tally = Tally()
        self.failure: OSError | None = None
        """Why the recording could not be written on, if so."""
        self._recorder = recorder
        self._wrong = wrong
        self._queue: queue.Queue[Exchange | None] = queue.Queue(_WAITING)
        self._thread = threading.Thread(target=self._run, name="judge")
        # A new interpreter, because a copy of this one would have its threads' locks and none of its threads.
        self._judge = ProcessPoolExecutor(1, get_context("spawn"), initializer=_quiet)

    def take(self, exchange: Exchange) -> None:
        """Queue an exchange, or count it as not judged."""
        try:
            self._queue.put_nowait(exchange)
        except queue.Full:
            self.tally.unjudged += 1

    def __enter__(self) -> Watcher:
        self._before = sys.getswitchinterval()
        sys.setswitchinterval(_SWITCH)
        self._judge.submit(judge_live, _NOTHING)  # What it imports is there before the first exchange is.
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._queue.put(None)
        self._thread.join()
        self._judge.shutdown()
        sys.setswitchinterval(self._before)

    def _run(self) -> None:
        while (exchange := self._queue.get()) is not None:
            seen = Transcript(scenario=kind_of(exchange), exchanges=[exchange])
            try:
                found = self._judge.submit(judge_live, exchange).result()
            except BrokenProcessPool:
                self.tally.unjudged += 1
                continue
            wrong = self.tally.add(seen, found)
            if wrong and self._wrong is not None:
                self._wrong(exchange, wrong)
            if self._recorder is not None and self.failure is None:
                try:
                    self._recorder.add(seen)
                except OSError as error:
                    self.failure = error


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
        opened = Recorder(recording, header) if recording else nullcontext(None)
        live = Live(console=out, refresh_per_second=4, transient=True) if out.is_terminal else None
        with opened as recorder:
            told = None if live else lambda exchange, wrong: say(out, exchange, wrong)
            with Watcher(recorder, told) as watcher:
                proxy = Proxy(upstream, watcher.take, connections=connections)
                with asyncio.Runner(loop_factory=_loop_factory()) as runner:
                    runner.run(_serve(proxy, watcher, (host, int(port)), live, out, stop, ready))
    except (ValueError, UnreadableBaseline, OSError) as error:
        out.print(str(error), markup=False)
        return 2
    tally = watcher.tally
    if watcher.failure is not None:
        out.print(f"The recording could not be written on: {watcher.failure}", markup=False)
    unjudged = f", {tally.unjudged} of them not judged: there was no time" if tally.unjudged else ""
    out.print(f"{tally.exchanges + tally.unjudged} exchanges{unjudged}")
    seconds = time.monotonic() - began
    findings = tally.findings()
    status = conclude(out, outputs, header, tally.transcripts(), findings, seconds=seconds, baseline=baseline)
    return 2 if watcher.failure is not None else status


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """uvloop costs half as much for each event, and is taken where it is installed: `plumbline[watch]` has it."""
    try:
        import uvloop
    except ModuleNotFoundError:
        return None
    factory: Callable[[], asyncio.AbstractEventLoop] = uvloop.new_event_loop
    return factory


async def _serve(
    proxy: Proxy,
    watcher: Watcher,
    place: tuple[str, int],
    live: Live | None,
    out: Console,
    stop: threading.Event | None,
    ready: Callable[[int], None] | None,
) -> None:
    server = await proxy.start(*place)
    port = server.sockets[0].getsockname()[1]
    out.print(f"Listening on http://{place[0]}:{port}, towards {proxy.origin}", markup=False)
    if ready is not None:
        ready(port)
    ended = asyncio.Event()
    loop = asyncio.get_running_loop()
    for name in (signal.SIGINT, signal.SIGTERM):
        with suppress(NotImplementedError, RuntimeError, ValueError):  # Only the main thread has signals.
            loop.add_signal_handler(name, ended.set)
    with live or nullcontext():
        while not ended.is_set() and not (stop is not None and stop.is_set()):
            if live is not None:
                live.update(picture(watcher.tally, proxy.open))
            with suppress(TimeoutError):
                await asyncio.wait_for(ended.wait(), _REFRESH if stop is None else 0.02)
    server.close()
    await proxy.stop()
