"""A connection to PostgreSQL that falls silent costs a live server no lease (R-04).

- A renewal has a connection of its own; when that is silent, a new one renews in time.
- Other transactions that hang hold no renewal up, nor does a search for abandoned responses.
- Nor does one that has locked a row: that lease is renewed the next time, and others at once.
"""

from __future__ import annotations

import asyncio
import re
import tempfile
from collections.abc import AsyncIterator, Collection
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import asyncpg
import pytest
from support.servers.silent_proxy import SilentProxy, silent_proxy
from support.stores.store_records import record

from plumbline.server.limits.claims.names import LocalClaims
from plumbline.server.limits.draining import Draining
from plumbline.server.responses import leases
from plumbline.server.responses.background import BackgroundRuns
from plumbline.server.store.interface import Store, StoreUnavailableError
from plumbline.server.store.open import open_store
from plumbline.server.store.records import Renewed
from plumbline.server.store.sql import database, lease_rows, response_rows


@pytest.fixture(autouse=True)
def short_times(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (response_rows, lease_rows):
        monkeypatch.setattr(module, "LEASE_SECONDS", 1.0)
    monkeypatch.setattr(lease_rows, "SURE_SECONDS", 0.0)
    monkeypatch.setattr(database, "_URGENT_SECONDS", 0.2)


@asynccontextmanager
async def proxied(url: str) -> AsyncIterator[tuple[SilentProxy, Store, Store]]:
    """Open a store by way of a proxy, and another one that has a connection of its own."""
    folder = Path(url.partition("host=")[2])
    with tempfile.TemporaryDirectory(prefix="plumbline-pg-") as other:
        name = ".s.PGSQL.5432"
        async with silent_proxy(folder / name, Path(other) / name) as proxy:
            near = open_store(re.sub("host=.*", f"host={other}", url), timeout=2.0)
            far = open_store(url)
            await near.start()
            await far.start()
            try:
                yield proxy, near, far
            finally:
                await near.stop()
                await far.stop()


def ended(found: Any, parts: Any, is_cancelled: bool) -> Any:
    raise AssertionError(f"{found.id} counts as abandoned")


@pytest.mark.long
async def test_a_renewal_on_a_silent_connection_is_repeated_on_a_new_one(postgres_url: str) -> None:
    async with proxied(postgres_url) as (proxy, store, other):
        await store.save_response(record("r1", status="in_progress"))
        assert await store.renew_leases(["r1"]) == Renewed()
        proxy.silence()
        saving = asyncio.create_task(store.save_response(record("r2")))
        opened = proxy.num_opened
        for _ in range(4):  # Longer than a lease, and all the time with a write that hangs.
            assert await store.renew_leases(["r1"]) == Renewed()
            assert await other.end_abandoned(ended) == 0
            await asyncio.sleep(0.3)
        assert proxy.num_opened == opened + 1
        with pytest.raises(StoreUnavailableError):
            await saving


@pytest.mark.long
async def test_a_renewal_waits_for_no_lock(postgres_url: str) -> None:
    async with proxied(postgres_url) as (_, store, other):
        for name in ("r1", "r2"):
            await store.save_response(record(name, status="in_progress"))
        connection = await asyncpg.connect(postgres_url)
        try:
            async with connection.transaction():
                await connection.execute("SELECT 1 FROM responses WHERE id = 'r1' FOR SHARE")
                for _ in range(4):
                    assert await store.renew_leases(["r1", "r2"]) == Renewed()
                    assert await other.end_abandoned(ended) == 0
                    await asyncio.sleep(0.3)
        finally:
            await connection.close()
        assert await store.renew_leases(["r1", "r2"]) == Renewed()
        assert await other.end_abandoned(ended) == 0


class Hanging:
    """A store whose search for abandoned responses never ends."""

    is_shared = True
    renewals = 0

    async def start(self) -> None:
        pass

    async def stop(self) -> None:
        pass

    async def renew_leases(self, running: Collection[str]) -> Renewed:
        self.renewals += 1
        return Renewed()

    async def end_abandoned(self, _: object) -> int:
        await asyncio.Event().wait()
        return 0


async def test_a_search_that_hangs_holds_no_renewal_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leases, "_SHARED_SECONDS", 0.001)
    store: Any = Hanging()
    async with leases.leasing(store, BackgroundRuns(1, LocalClaims(), Draining())):
        async with asyncio.timeout(20):
            while store.renewals < 5:
                await asyncio.sleep(0.001)
