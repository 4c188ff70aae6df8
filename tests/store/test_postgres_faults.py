"""A PostgreSQL server that restarts, is gone or refuses is an unavailable store, which works again afterwards."""

from __future__ import annotations

import asyncio

import pytest
from support.stores.postgres import PostgresServer
from support.stores.store_records import record

from plumbline.server.store.interface import Store, StoreUnavailableError
from plumbline.server.store.open import open_store


async def test_what_was_acknowledged_survives_a_crash_of_the_server(
    postgres: PostgresServer, postgres_url: str
) -> None:
    store = open_store(postgres_url, timeout=5.0)
    await store.start()
    await store.save_response(record("before"))
    postgres.stop()
    try:
        found = await asyncio.gather(
            *(store.save_response(record(f"r{number}")) for number in range(100)),
            store.response("a", "before"),
            return_exceptions=True,
        )
        assert {isinstance(one, StoreUnavailableError) for one in found} == {True}
        assert "hidden" not in str(found)
    finally:
        postgres.start()

    # No connection from before the crash is used.
    assert await asyncio.gather(*(store.response("a", "before") for _ in range(8))) == [record("before")] * 8
    await store.save_response(record("after"))
    assert await store.response("a", "after") == record("after")
    await store.stop()


async def test_a_database_that_is_not_there_is_named_at_the_start(postgres: PostgresServer) -> None:
    store: Store = open_store(postgres.url("nowhere"), timeout=5.0)
    with pytest.raises(StoreUnavailableError, match="nowhere") as refused:
        await store.start()
    assert "hidden" not in str(refused.value)
    await store.stop()
