"""Call a function in processes that may die, with bounds on the time, the memory and the result of each call."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from functools import partial

from plumbline.base.workers.process import Bounds, Setup
from plumbline.base.workers.turns import PlacesFullError, Turns
from plumbline.base.workers.worker import SlowCallError, TemplateProcess, Worker, WorkerError

__all__ = ["QUICK_SECONDS", "Bounds", "LentWorker", "WorkerError", "WorkerPool", "WorkersBusyError"]

QUICK_SECONDS = 0.25
"""Seconds of a CPU in which nearly every call ends. One that takes longer begins again among the slow ones, so that few
clients with slow calls, however many they make, do not occupy all workers."""


class WorkersBusyError(Exception):
    """As many calls wait for a worker as may wait."""


class WorkerPool:
    """Workers of one function. The processes start with the first call, or with `start`. One event loop at a
    time may use it; the next one has new processes.

    >>> pool = WorkerPool("plumbline.answer.text.templates.handler:handler", bounds=Bounds(10, 40, 2**28, 2**26))
    >>> async with pool.worker("client 1") as worker:  # doctest: +SKIP
    ...     text = await worker.call(payload)

    Quick and slow calls have places of their own, unless a client is alone, which leaves a place to the next one. A
    call may begin twice, so it must have no effect.

    Args:
        factory: `module:function`; the function takes `data` and returns the handler, which takes and returns bytes.
        data: what the handler needs for all calls.
        bounds: of each call.
        processes: quick calls at a time, of which one client has all but one at most; and as many slow ones.
        waiting: calls of each kind that may wait for a worker.
        niceness: how far the workers stand back for other processes, 0 to 19.
    """

    def __init__(
        self,
        factory: str,
        data: bytes = b"",
        *,
        bounds: Bounds,
        processes: int = 3,
        waiting: int = 64,
        niceness: int = 0,
    ) -> None:
        self.bounds = bounds
        self._setup = Setup(factory=factory, data=data, bounds=bounds, niceness=niceness)
        self._has_several = processes > 1
        self._new_turns = partial(Turns, processes, waiting)
        self.quick, self.slow = self._new_turns(), self._new_turns()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._template: TemplateProcess | None = None
        self._starting: asyncio.Task[TemplateProcess] | None = None
        self._idle: list[Worker] = []

    def is_alone(self, client: str) -> bool:
        """Return whether no other client has calls, and the next one finds a worker whatever this one does."""
        return self._has_several and self.quick.clients | self.slow.clients == {client}

    @property
    def num_waiting(self) -> int:
        """Calls that wait for a worker."""
        return self.quick.num_waiting + self.slow.num_waiting

    async def start(self) -> None:
        """Start the template process, so that the first call does not wait for its imports.

        Raises:
            WorkerError: it did not start.
        """
        await self._running()

    async def close(self) -> None:
        """End all processes. Idempotent; a later call starts them again."""
        self._follow_loop()
        if self._starting is not None:
            self._starting.cancel()
            await asyncio.gather(self._starting, return_exceptions=True)
            self._starting = None
        while self._idle:
            self._idle.pop().close()
        template, self._template = self._template, None
        if template is not None:
            await template.close()

    @contextlib.asynccontextmanager
    async def worker(self, client: str) -> AsyncIterator[LentWorker]:
        """Wait for a worker and keep it within the block; clients take turns.

        A worker that is in a call at the end of the block, because its caller was cancelled, is killed.

        Args:
            client: whose turn it is, such as the hash of a key.

        Raises:
            WorkersBusyError: too many calls wait, of this client or of all.
            WorkerError: no process could be started.
        """
        self._follow_loop()
        try:
            async with contextlib.AsyncExitStack() as stack:
                worker = await stack.enter_async_context(self.lend(self.quick, client))
                yield LentWorker(self, client, worker, stack)
        except PlacesFullError:
            raise WorkersBusyError from None

    @contextlib.asynccontextmanager
    async def lend(self, turns: Turns, client: str) -> AsyncIterator[Worker]:
        """Wait for a place, and keep a worker within the block; see `worker`.

        Args:
            turns: `quick` or `slow`.
            client: whose turn it is.

        Raises:
            PlacesFullError: too many calls wait.
            WorkerError: no process could be started.
        """
        async with turns.turn(client):
            worker = await self._take()
            try:
                yield worker
            finally:
                if worker.is_idle and worker.template is self._template:
                    self._idle.append(worker)
                else:
                    worker.kill()

    async def call(self, payload: bytes, client: str, cpu_seconds: float | None = None) -> bytes:
        """Return what the handler answers; see `worker` and `LentWorker.call`."""
        async with self.worker(client) as worker:
            return await worker.call(payload, cpu_seconds)

    async def _take(self) -> Worker:
        template = await self._running()
        while self._idle:
            worker = self._idle.pop()
            if worker.template is template and not worker.has_ended:
                return worker
            worker.close()
        return template.fork()

    def _follow_loop(self) -> None:
        """Leave behind what belongs to an event loop that has ended."""
        loop = asyncio.get_running_loop()
        if self._loop is loop:
            return
        if self._template is not None:
            self._template.kill_all()
        for worker in self._idle:
            worker.close()
        self._idle, self._template, self._starting = [], None, None
        self.quick, self.slow, self._loop = self._new_turns(), self._new_turns(), loop

    async def _running(self) -> TemplateProcess:
        self._follow_loop()
        if self._template is not None and not self._template.has_ended:
            return self._template
        if self._starting is None:
            self._starting = asyncio.create_task(TemplateProcess.started(self._setup))
            self._starting.add_done_callback(self._take_started)
        return await asyncio.shield(
            self._starting
        )  # A client that leaves must not stop the start for others.

    def _take_started(self, task: asyncio.Task[TemplateProcess]) -> None:
        self._starting = None
        if not task.cancelled() and task.exception() is None:
            self._template = task.result()


class LentWorker:
    """A worker as its caller has it: another one for slow calls.

    Args:
        pool: has lent it.
        client: whose calls it takes.
        worker: of the quick ones.
        stack: gives its place back.
    """

    def __init__(
        self, pool: WorkerPool, client: str, worker: Worker, stack: contextlib.AsyncExitStack
    ) -> None:
        self._pool = pool
        self._client = client
        self._worker = worker
        self._stack = stack
        self._is_slow = False

    async def call(self, payload: bytes, cpu_seconds: float | None = None) -> bytes:
        """Return what the handler answers.

        Args:
            payload: what the handler gets.
            cpu_seconds: of this call; by default those of the pool.

        Raises:
            WorkerError: the call exceeded a bound, or ended the worker.
            PlacesFullError: the call is slow, and too many slow ones wait; `WorkerPool.worker` makes it its own error.
        """
        seconds = self._pool.bounds.cpu_seconds if cpu_seconds is None else cpu_seconds
        if not self._is_slow and seconds > QUICK_SECONDS and not self._pool.is_alone(self._client):
            with contextlib.suppress(SlowCallError):
                return await self._worker.call(payload, QUICK_SECONDS)
            await self._stack.aclose()
            self._worker = await self._stack.enter_async_context(
                self._pool.lend(self._pool.slow, self._client)
            )
            self._is_slow = True
        return await self._worker.call(payload, seconds)
