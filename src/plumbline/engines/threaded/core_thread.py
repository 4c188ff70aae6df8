"""Run a synchronous core on a thread: messages in at any time, the chunks of one step out at once.

put ──► inbox ──► core.step() ──► deliver        a step that fails: core.recover(), and go on
                      │
                      ├─► ended                  the core is broken, or its device lost: the thread ends
                      └─► (abandon)              the step does not end: the thread is left alone
"""

from __future__ import annotations

import asyncio
import logging
import queue
import threading
import time
from collections.abc import Callable
from typing import Any, NamedTuple

from plumbline.engines.constraints.grammar import Matcher
from plumbline.engines.filters.processors import RequestProcessors
from plumbline.engines.request import PlacedImage
from plumbline.engines.threaded.request_core import Output, RequestCore
from plumbline.port.engine import GenerateRequest

__all__ = ["CoreThread", "Ending", "Message", "Overdue", "Reading", "Submission", "Work"]

_log = logging.getLogger("plumbline.engines")

_FATAL_FAILURES = 5
"""After this many failed steps in a row a core counts as broken: one of several requests, then four of one each."""
_FAILED = "The engine failed while it computed this request."


class Ending(NamedTuple):
    """Why a thread ends by itself."""

    reason: str
    is_final: bool = False
    """Whether another core in this process would also fail."""


class Submission(NamedTuple):
    """A request on its way to the thread."""

    request: GenerateRequest
    matcher: Matcher | None
    images: tuple[PlacedImage, ...]
    processors: RequestProcessors | None


class Reading(NamedTuple):
    """Whether the reader of a request keeps up, on its way to the thread."""

    request_id: str
    keeps_up: bool


class Overdue(NamedTuple):
    """A request that has waited too long for its turn, on its way to the thread, where it may have begun."""

    request_id: str


class Work(NamedTuple):
    """A function to call between two steps, on its way to the thread."""

    function: Callable[[], Any]
    result: asyncio.Future[Any]


Message = Submission | Reading | Overdue | Work | str | None
"""A string aborts the request of that id; None ends the thread."""


class CoreThread:
    """The thread of a core.

    Args:
        core: the core; after `start` only the thread may use it, except for `stats`.
        name: of the thread.
        deliver: takes the chunks of a step; called on the thread.
        settle: takes the future of a work, its result and what it raised; called on the thread.
        ended: called on the thread when it ends by itself.
    """

    def __init__(
        self,
        core: RequestCore,
        name: str,
        *,
        deliver: Callable[[list[Output]], None],
        settle: Callable[[asyncio.Future[Any], object, Exception | None], None],
        ended: Callable[[Ending], None],
    ) -> None:
        self.core = core
        self.busy_since: float | None = None
        """When the last step ended, on the monotonic clock; None while there is nothing to do."""
        self.num_finished = 0
        """Steps that did not fail."""
        self.num_failed = 0
        self._deliver = deliver
        self._settle = settle
        self._ended = ended
        self._abandoned = False
        self._inbox: queue.SimpleQueue[Message] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def put(self, message: Message) -> None:
        """Hand a message to the thread."""
        self._inbox.put(message)

    def abandon(self) -> None:
        """Take nothing from the thread any more; it ends after the step that it is in, if that ever ends."""
        self._abandoned = True
        self.put(None)

    def join(self, seconds: float) -> bool:
        """Wait for the end of the thread; return whether it has ended."""
        self._thread.join(seconds)
        return not self._thread.is_alive()

    @property
    def is_alive(self) -> bool:
        """Whether the thread runs."""
        return self._thread.is_alive()

    @property
    def num_unread(self) -> int:
        """Messages that the thread has not read yet."""
        return self._inbox.qsize()

    def _run(self) -> None:
        try:
            ending = self._work()
        except BaseException as error:  # A library that ends the thread must not leave requests waiting.
            _log.exception("the engine thread has died")
            ending = Ending(f"its thread died of {type(error).__name__}")
        if ending is not None and not self._abandoned:
            self._ended(ending)

    def _work(self) -> Ending | None:
        """Step until the thread is asked to end; returns why it ends if it was not."""
        core = self.core
        failures = 0
        while True:
            outputs: list[Output] = []
            stopping = not self._drain(outputs)
            broken = None
            try:
                if core.has_work and not stopping:
                    outputs += core.step()
                    self.num_finished += 1
                    failures = 0
            except Exception as error:
                # One bad step must not take the server down: only the request that is at fault ends.
                _log.exception("a step failed")
                self.num_failed += 1
                if core.has_lost_device():
                    return Ending(
                        f"its device is lost to this process after {_first_line(error)}", is_final=True
                    )
                outputs += core.recover(_FAILED)
                failures += 1
                if failures >= _FATAL_FAILURES:
                    broken = Ending(f"{failures} steps failed in a row, the last with {type(error).__name__}")
            if self._abandoned:
                return None
            if outputs:
                self._deliver(outputs)
            if stopping or broken is not None:
                return broken
            self.busy_since = time.monotonic() if core.has_work else None

    def _drain(self, outputs: list[Output]) -> bool:
        """Take all messages from the inbox, waiting for one if there is no work. Returns False to stop."""
        core = self.core
        if not core.has_work:
            core.check_integrity()
        wait = not core.has_work
        while True:
            try:
                message = self._inbox.get(block=wait)
            except queue.Empty:
                return True
            wait = False
            match message:
                case Submission():
                    core.add(*message)
                    if self.busy_since is None:
                        self.busy_since = time.monotonic()
                case Reading(request_id, keeps_up):
                    core.resume(request_id) if keeps_up else core.pause(request_id)
                case Overdue(request_id):
                    outputs += core.abort_unbegun(request_id)
                case Work():
                    self._call(message)
                case str():
                    outputs += core.abort(message)
                case None:
                    return False

    def _call(self, work: Work) -> None:
        """Call a function and pass on its result, or what it raises."""
        try:
            result, error = work.function(), None
        except Exception as raised:
            result, error = None, raised
        self._settle(work.result, result, error)


def _first_line(error: Exception) -> str:
    """Return an error without the advice that CUDA gives to programmers."""
    return f"{type(error).__name__}: {error}".splitlines()[0]
