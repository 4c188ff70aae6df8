"""Renew the leases of a server's work, and end what servers that have gone left unfinished (R-04).

A lease is a column of the row that it protects: the process that works on a response or a conversation, and until when,
by the database's clock. Two loops run beside each other: one renews the leases of this server, which also tells it what
was cancelled or deleted elsewhere; the other looks for leases that have expired and fails what they protected. A lease
counts as expired when the searcher has seen it expired for two seconds of its own monotonic clock, so that setting a
clock ends nothing; and after a failure of the store everybody first renews before anything counts as abandoned.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

from plumbline.server.responses.background import BackgroundRuns
from plumbline.server.responses.unfinished import interrupted
from plumbline.server.store.interface import Store, StoreUnavailableError

__all__ = ["leasing"]

_log = logging.getLogger("plumbline.server")

_SHARED_SECONDS = 1.0
"""Time between two renewals, which learn of cancellations, and between two searches for abandoned responses."""
_ALONE_SECONDS = 10 / 3
"""The same where only this machine has the store."""
_GRACE_SECONDS = 5.0
"""Time after a failure of the store in which nothing counts as abandoned: every server renews its leases first."""


@asynccontextmanager
async def leasing(store: Store, runs: BackgroundRuns) -> AsyncIterator[None]:
    """Open the store for a block, renew leases, and look for abandoned responses."""
    await store.start()
    watch = asyncio.create_task(_watch(store, runs))
    try:
        yield
    finally:
        watch.cancel()
        await asyncio.gather(watch, return_exceptions=True)
        await store.stop()


async def _watch(store: Store, runs: BackgroundRuns) -> None:
    loop = asyncio.get_running_loop()
    patient_until = 0.0

    async def search() -> None:
        if loop.time() > patient_until:
            await store.end_abandoned(interrupted)

    async def repeat(work: Callable[[], Awaitable[None]], failure: str) -> None:
        nonlocal patient_until
        while True:
            try:
                await work()
            except StoreUnavailableError:
                patient_until = loop.time() + _GRACE_SECONDS
            except Exception:  # The next one may succeed, whatever a record has.
                _log.exception("%s", failure)
            await asyncio.sleep(_SHARED_SECONDS if store.is_shared else _ALONE_SECONDS)

    async with asyncio.TaskGroup() as group:
        # Side by side: a search that hangs must not cost this server its leases.
        group.create_task(repeat(lambda: runs.renew(store), "the leases of this server could not be renewed"))
        group.create_task(repeat(search, "abandoned responses could not be ended"))
