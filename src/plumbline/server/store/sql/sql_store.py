"""Combine the groups of tables into a store."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable
from functools import partial
from secrets import token_bytes, token_hex

import sqlalchemy as sa

from plumbline.server.store.interface import StoreUnavailableError
from plumbline.server.store.records import StoreStats
from plumbline.server.store.sql.chat_rows import ChatRows
from plumbline.server.store.sql.database import Database
from plumbline.server.store.sql.lease_rows import ExpiredLeases, LeaseRows
from plumbline.server.store.sql.sweep import Retention, Sizes, delete_expired, find_expired, sizes
from plumbline.server.store.sql.tables import secrets
from plumbline.server.store.sql.writer import GroupWriter

__all__ = ["SqlStore"]

_log = logging.getLogger("plumbline.store")

_SWEEP_SECONDS = 60.0
_PAGES = 2_000
"""Maximum number of free pages that a sweep gives back to the file system."""
_SECRET_BYTES = 32


class SqlStore(LeaseRows, ChatRows):
    """A store in a SQL database, with the tables of `ResponseRows`, `ConversationRows` and `ChatRows`."""

    def __init__(self, database: Database, retention: Retention) -> None:
        """Describe the store; nothing is opened yet."""
        self._database = database
        self._retention = retention
        self._max_responses_per_owner = retention.max_responses_per_owner
        self._owned = {}
        self._unfinished, self._leased, self._releasing = set(), set(), set()
        self._expired = ExpiredLeases()
        self._runner = token_hex(8)
        self._writer = GroupWriter(database)
        self._tasks: list[asyncio.Task[None]] = []
        self._sizes = Sizes()

    @property
    def description(self) -> str:
        return f"{self._database.description}, {self._retention.description}"

    async def start(self) -> None:
        await self._database.open()
        self._writer.start()
        self._tasks = [asyncio.create_task(self._every(_SWEEP_SECONDS, self._sweep))]

    async def stop(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._tasks = []
        await asyncio.gather(*self._releasing)
        await self._writer.stop()
        await self._database.close()

    def problems(self) -> list[str]:
        return self._database.problems

    def stats(self) -> StoreStats:
        return StoreStats(
            responses=self._sizes.responses,
            conversations=self._sizes.conversations,
            chats=self._sizes.chats,
            bytes=self._sizes.bytes,
            pending_writes=self._writer.pending,
            failed_writes=self._writer.failed,
            transactions=dict(self._database.transactions),
            failing=self._database.is_failing,
            max_responses_per_owner=self._max_responses_per_owner or 0,
        )

    async def secret(self, name: str) -> bytes:
        def work(connection: sa.Connection) -> bytes:
            fresh = token_bytes(_SECRET_BYTES)
            # Processes that share the store must get the same value: the first one to insert it wins.
            connection.execute(self._insert(secrets).values(name=name, value=fresh).on_conflict_do_nothing())
            query = sa.select(secrets.c.value).where(secrets.c.name == name)
            return bytes((connection.execute(query)).scalar_one())

        return await self._database.run_at_start(work)

    async def _sweep(self) -> None:
        # The search for expired rows does not block writes, and each batch of deletions is one write.
        while expired := await self._database.run(lambda c: find_expired(c, self._retention)):
            await self._writer.write(partial(delete_expired, expired=expired))
        if self._database.is_sqlite:
            await self._writer.write(lambda c: c.execute(sa.text(f"PRAGMA incremental_vacuum({_PAGES})")))
        self._sizes = await self._database.run(sizes)

    async def _every(self, seconds: float, work: Callable[[], Awaitable[None]]) -> None:
        while True:
            with contextlib.suppress(StoreUnavailableError):
                await work()
            await asyncio.sleep(seconds)
