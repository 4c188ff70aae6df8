"""Judge the exchanges of the proxy process on a low-priority thread, and record them."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from functools import partial

from plumbline_conformance.judge.verdicts import Finding
from plumbline_conformance.recording.file import Recorder
from plumbline_conformance.transcript.exchange import Exchange, Transcript
from plumbline_conformance.watch.live import Tally, judge_live, kind_of
from plumbline_conformance.watch.process import Inbox, Passing, Seen

__all__ = ["Watcher"]

_JOIN_SECONDS = 0.25
"""Seconds after which waiting for the thread looks for an interruption."""
_NICENESS = 19
"""Of the judging thread, so that traffic has priority."""


class Watcher:
    """Judge exchanges on a thread. A context manager, which waits for all exchanges at its end.

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
            self._thread.join(_JOIN_SECONDS)  # Some systems do not interrupt a join without a timeout.
        if self._recorder is not None and kind is None:
            self._record(self._recorder.finish)

    def _run(self) -> None:
        _lower_priority()
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


def _lower_priority() -> None:
    """Lower the priority of this thread; only Linux has a niceness per thread."""
    if sys.platform == "linux":
        with suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _NICENESS)
