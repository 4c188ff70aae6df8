"""Commit writes in groups: those that arrive while one transaction is committed share the next."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from sqlalchemy.ext.asyncio import AsyncConnection

from plumbline.store.interface import StoreUnavailableError
from plumbline.store.sql.database import Database

__all__ = ["GroupWriter"]

T = TypeVar("T")
Work = Callable[[AsyncConnection], Awaitable[Any]]

_GROUP = 64
"""Writes in one transaction."""
_MAX_PENDING = 4096
"""Writes that may wait. Further ones fail at once."""


class GroupWriter:
    """Runs writes one after the other, several in a transaction."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._pending: asyncio.Queue[tuple[Work, asyncio.Future[Any]]] = asyncio.Queue(_MAX_PENDING)
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

    async def write(self, work: Callable[[AsyncConnection], Awaitable[T]]) -> T:
        """Run statements, and return when they are committed.

        Raises:
            StoreUnavailableError: they failed, or too many writes wait.
        """
        if self._task is None:
            raise StoreUnavailableError("it is closed")
        future: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        try:
            self._pending.put_nowait((work, future))
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
                await self._commit([(work, future) for work, future in group if not future.done()])
            finally:
                for _ in group:
                    self._pending.task_done()

    async def _commit(self, group: list[tuple[Work, asyncio.Future[Any]]]) -> None:
        async def run(connection: AsyncConnection) -> list[Any]:
            return [await work(connection) for work, _ in group]

        try:
            found = await self._database.run(run, write=True)
        except Exception as error:
            if len(group) > 1:
                # One of them may be at fault: each gets a transaction of its own.
                for one in group:
                    await self._commit([one])
            else:
                self.failed += 1
                _settle(group[0][1], error=error)
            return
        for (_, future), value in zip(group, found, strict=True):
            _settle(future, value)


def _settle(future: asyncio.Future[Any], value: Any = None, error: Exception | None = None) -> None:
    if future.done():  # Its caller has gone.
        return
    if error is None:
        future.set_result(value)
    else:
        future.set_exception(error)
