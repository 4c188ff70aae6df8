"""Keep a core running on a thread: watch it, and start a new core when its thread dies or hangs.

When the thread dies, or does not end a step in time, the requests in flight end with an error, and a new core with the
same weights goes on. The core counts as dead when there can be no new one, or when several fail in a row.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable
from functools import partial
from typing import Any, Protocol

import msgspec

from plumbline.engines.threaded.core_thread import CoreThread, Ending, Message
from plumbline.engines.threaded.request_core import Output, RequestCore
from plumbline.port.engine import EngineClosedError, EngineStats

__all__ = ["CoreKeeper", "Renew", "settle"]

_log = logging.getLogger("plumbline.engines")

_MOST_RESTARTS = 3
"""New cores in a row that do not finish a step, after which there is no other."""
_HANGS = 3.0
"""A step hangs when it takes this many times the seconds after which the engine counts as stuck."""
_LONGEST_LOOK = 1.0
"""Seconds between two looks at the thread."""
_LAST_STEP = 30.0
"""Seconds that `stop` waits for the step that runs."""
_DEAD_RETRY = 10
"""Seconds for `Retry-After` when only a new process helps."""


class Renew(Protocol):
    """Makes a new core with the same weights; returns None if that is not possible."""

    def __call__(self, *, abandoned: bool) -> RequestCore | None:
        """Args: abandoned: whether a thread may still use the memory of the present core."""


class CoreKeeper:
    """The threads of a core and of those that replace it. Use it from one event loop.

    Args:
        core: the first core.
        name: of the engine.
        stuck_after: seconds after which a step counts as stuck; it is abandoned after three times as long.
        renew: makes the next core; called on a thread.
        deliver: takes the chunks of a step.
        failed: called when the present core is lost, with all that it was given.
        mark: called on the thread when a request begins to run, and when it stops.
    """

    def __init__(
        self,
        core: RequestCore,
        name: str,
        *,
        stuck_after: float,
        renew: Renew,
        deliver: Callable[[list[Output]], None],
        failed: Callable[[], None],
        mark: Callable[[str, bool], None],
    ) -> None:
        self.core = core
        self.thread: CoreThread | None = None
        self.restarting: asyncio.Task[None] | None = None
        self._name = name
        self._renew = renew
        self._deliver = deliver
        self._lose = failed
        self._mark = mark
        self._hangs_after = _HANGS * stuck_after
        self._loop: asyncio.AbstractEventLoop | None = None
        self._closed = False
        self._failed: str | None = None
        """Why there is no other core."""
        self._watching: asyncio.Task[None] | None = None
        self._abandoned: list[CoreThread] = []
        """Threads that were in a step that did not end; they may still use their core."""
        self._num_restarts = 0
        self._restarts_in_vain = 0
        self._failed_steps = 0
        """Of earlier threads."""

    def start(self) -> None:
        """Start the thread of the first core."""
        self._loop = asyncio.get_running_loop()
        self.thread = self._start_thread(self.core)
        self._watching = asyncio.create_task(self._watch())

    async def stop(self) -> None:
        """End the thread after its current step. Idempotent."""
        self._closed = True
        for task in (self._watching, self.restarting):
            if task is not None:
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)
        thread, self.thread = self.thread, None
        if thread is not None:
            thread.put(None)
            if not await asyncio.to_thread(thread.join, _LAST_STEP):
                _log.error("the engine is stopped while a step still runs")
                self._abandon(thread)

    def put(self, message: Message) -> None:
        """Hand a message to the thread; without one nothing is left to abort or to pause."""
        if self.thread is not None:
            self.thread.put(message)

    def check_open(self) -> None:
        """Raise `EngineClosedError` unless a core takes requests."""
        if self._closed or self.thread is None:
            raise EngineClosedError("The engine is shutting down.")
        if self._failed is not None:
            raise EngineClosedError(f"The engine has failed: {self._failed}", _DEAD_RETRY)
        if self.restarting is not None:
            raise EngineClosedError("The engine starts again after a failure. Send the request again.")

    @property
    def has_hanging_thread(self) -> bool:
        """Whether a thread is in a step that did not end."""
        return any(thread.is_alive for thread in self._abandoned)

    def stats(self) -> EngineStats:
        """Return the numbers of the core, with those of its threads."""
        thread = self.thread
        busy_since = None if thread is None else thread.busy_since
        counted = self.core.stats()
        return msgspec.structs.replace(
            counted,
            alive=self._failed is None and thread is not None,
            failure=self._failed or "",
            seconds_since_step=0.0 if busy_since is None else max(0.0, time.monotonic() - busy_since),
            num_waiting=counted.num_waiting + (0 if thread is None else thread.num_unread),
            num_failed_steps=self._failed_steps + (0 if thread is None else thread.num_failed),
            num_restarts=self._num_restarts,
        )

    def _start_thread(self, core: RequestCore) -> CoreThread:
        core.queues.mark = self._mark
        thread = CoreThread(
            core,
            f"{self._name}-engine",
            deliver=lambda outputs: self._call_loop(self._pass_on, thread, outputs),
            settle=partial(self._call_loop, settle),
            ended=lambda ending: self._call_loop(self._thread_ended, thread, ending),
        )
        thread.start()
        return thread

    def _call_loop(self, function: Callable[..., None], *arguments: object) -> None:
        loop = self._loop
        if loop is not None:
            # A closed event loop raises; no client reads any more then.
            with contextlib.suppress(RuntimeError):
                loop.call_soon_threadsafe(function, *arguments)

    def _pass_on(self, thread: CoreThread, outputs: list[Output]) -> None:
        if thread is self.thread:
            self._deliver(outputs)

    async def _watch(self) -> None:
        """Abandon a thread that hangs in a step.

        Looks are counted rather than seconds: a process that was stopped for an hour has not hung for an hour.
        """
        look = min(_LONGEST_LOOK, self._hangs_after / 10)
        looks, seen = 0, None
        while True:
            await asyncio.sleep(look)
            thread = self.thread
            mark = None if thread is None else thread.busy_since
            looks = looks + 1 if mark is not None and mark == seen else 0
            seen = mark
            if thread is not None and looks * look >= self._hangs_after:
                self._abandon(thread)
                self._thread_ended(thread, Ending(f"a step did not end within {self._hangs_after:.0f} s"))

    def _abandon(self, thread: CoreThread) -> None:
        thread.abandon()
        self._abandoned.append(thread)

    def _thread_ended(self, thread: CoreThread, ending: Ending) -> None:
        """Fail the requests in flight, and start a new core."""
        if (
            thread is not self.thread
            or self._closed
            or self._failed is not None
            or self.restarting is not None
        ):
            return
        self._failed_steps += thread.num_failed
        thread.num_failed = 0
        thread.busy_since = None
        self._lose()
        reason = ending.reason
        self._restarts_in_vain = 0 if thread.num_finished else self._restarts_in_vain + 1
        self._abandoned = [each for each in self._abandoned if each.is_alive]
        if ending.is_final:
            self._die(reason)
        elif self._restarts_in_vain > _MOST_RESTARTS:
            self._die(f"{reason}, and so did {_MOST_RESTARTS} cores after it")
        elif len(self._abandoned) > 1:
            self._die(f"{reason}, for the second time")
        else:
            _log.error("the engine starts again: %s", reason)
            self.restarting = asyncio.create_task(self._restart(thread, reason))

    async def _restart(self, thread: CoreThread, reason: str) -> None:
        try:
            core = await asyncio.to_thread(self._renew, abandoned=thread in self._abandoned)
            if core is None:
                self._die(f"{reason}, and the {self._name} engine cannot start again in this process")
            else:
                self.core = core
                self.thread = self._start_thread(core)
                self._num_restarts += 1
                _log.warning("the engine has started again")
        except Exception as error:
            _log.exception("the engine could not start again")
            self._die(f"{reason}, and a new start failed with {type(error).__name__}")
        finally:
            self.restarting = None

    def _die(self, reason: str) -> None:
        """Refuse all requests from here on: only a new process helps."""
        self._failed = reason
        _log.error("the engine has failed: %s; only a new process helps", reason)


def settle(future: asyncio.Future[Any], result: object, error: Exception | None) -> None:
    """Give a future its result, unless nothing waits for it any more."""
    if future.done():
        return
    if error is None:
        future.set_result(result)
    else:
        future.set_exception(error)
