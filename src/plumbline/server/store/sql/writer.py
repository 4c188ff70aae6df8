"""Commit writes in groups: those that arrive while one transaction is committed share the next."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeVar

import sqlalchemy as sa

from plumbline.server.store.interface import StoreUnavailableError
from plumbline.server.store.sql.database import Database, UnresponsiveError

__all__ = ["GroupWriter"]

T = TypeVar("T")
Work = Callable[[sa.Connection], Any]

_GROUP = 64
"""Writes in one transaction."""
_MAX_PENDING = 4096
"""Writes that may wait. Further ones fail at once."""


@dataclass(eq=False, slots=True)
class _Write:
    work: Work
    future: asyncio.Future[Any]
    committed: Callable[[Any], None] | None
    since: float = field(default_factory=time.monotonic)

    def succeed(self, value: Any) -> None:
        # Noted even where the caller has gone: the record is in the database all the same.
        if self.committed is not None:
            self.committed(value)
        if not self.future.done():
            self.future.set_result(value)

    def fail(self, error: Exception) -> None:
        if not self.future.done():
            self.future.set_exception(error)


class GroupWriter:
    """Runs writes one after the other, several in a transaction."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._pending: asyncio.Queue[_Write] = asyncio.Queue(_MAX_PENDING)
        self._task: asyncio.Task[None] | None = None
        self.failed = 0
        """Writes that were reported as failed."""

    @property
    def pending(self) -> int:
        """Writes that wait."""
        return self._pending.qsize()

    def start(self) -> None:
        """Begin to write."""
        self._task = asyncio.create_task(self._run())

    async def stop(self) -> None:
        """Finish the writes that wait, and end. Idempotent."""
        task, self._task = self._task, None
        if task is not None:
            await self._pending.join()
            task.cancel()
            await asyncio.wait({task})

    async def write(
        self,
        work: Callable[[sa.Connection], T],
        committed: Callable[[T], None] | None = None,
    ) -> T:
        """Run statements, and return when they are committed.

        Args:
            work: runs the statements; once more if another write of its group failed.
            committed: called after the commit with what `work` returned, even if the caller was cancelled.

        Raises:
            StoreUnavailableError: the statements failed, or too many writes wait.
        """
        if self._task is None:
            raise StoreUnavailableError("it is closed")
        future: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        try:
            self._pending.put_nowait(_Write(work, future, committed))
        except asyncio.QueueFull:
            self.failed += 1
            raise StoreUnavailableError(f"{_MAX_PENDING} writes wait for it") from None
        return await future

    async def _run(self) -> None:
        while True:
            group = [await self._pending.get()]
            while len(group) < _GROUP and not self._pending.empty():
                group.append(self._pending.get_nowait())
            try:
                await self._commit([write for write in group if self._is_wanted(write)])
            finally:
                for _ in group:
                    self._pending.task_done()

    def _is_wanted(self, write: _Write) -> bool:
        """Return whether a caller still waits for a write; fail a write that has waited too long."""
        if write.future.done():
            return False
        if time.monotonic() - write.since > self._database.timeout:
            self._fail(write, StoreUnavailableError("too many writes wait for it"))
            return False
        return True

    async def _commit(self, group: list[_Write]) -> None:
        def run(connection: sa.Connection) -> list[Any]:
            return [write.work(connection) for write in group]

        if not group:
            return
        try:
            found = await self._database.run(run, write=True)
        except UnresponsiveError as error:
            # Another attempt would take as long: 64 writes that each wait for a lock would block for minutes.
            for write in group:
                self._fail(write, error)
        except Exception as error:
            if len(group) == 1:
                self._fail(group[0], error)
            else:
                await self._commit_singly(group)
        else:
            for write, value in zip(group, found, strict=True):
                write.succeed(value)

    async def _commit_singly(self, group: list[_Write]) -> None:
        """Give each write a transaction of its own: one of them may be at fault, and fails alone."""
        waiting = list(group)
        while waiting:
            write = waiting.pop(0)
            await self._commit([write])
            error = None
            with contextlib.suppress(asyncio.CancelledError, asyncio.InvalidStateError):
                error = write.future.exception()
            if isinstance(error, UnresponsiveError):
                for other in waiting:
                    self._fail(other, error)
                return

    def _fail(self, write: _Write, error: Exception) -> None:
        self.failed += 1
        write.fail(error)
