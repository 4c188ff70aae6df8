"""Databases for the tests of the store: SQLite in a new file, and PostgreSQL where the machine has it."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import asyncpg
import pytest
from support.stores.postgres import PostgresServer, running_postgres

from plumbline.server.store.interface import Store
from plumbline.server.store.open import open_store
from plumbline.server.store.sql.sweep import Retention

_numbers = itertools.count()


@pytest.fixture(scope="session")
def shared_postgres() -> Iterator[PostgresServer | None]:
    with running_postgres() as server:
        yield server


@pytest.fixture
def postgres(shared_postgres: PostgresServer | None) -> PostgresServer:
    if shared_postgres is None:
        pytest.skip("PostgreSQL is not installed here (Debian: apt-get install postgresql)")
    return shared_postgres


@pytest.fixture
def postgres_url(postgres: PostgresServer) -> str:
    """The URL of a new database."""
    name = f"store_{next(_numbers)}"

    async def create() -> None:
        connection = await asyncpg.connect(postgres.url("postgres"))
        await connection.execute(f"CREATE DATABASE {name}")
        await connection.close()

    asyncio.run(create())
    return postgres.url(name)


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The URL of a new database of each kind."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'folder' / 's.db'}"
    return str(request.getfixturevalue("postgres_url"))


@asynccontextmanager
async def opened(url: str) -> AsyncIterator[Store]:
    store = open_store(url, Retention(max_age=None))
    await store.start()
    try:
        yield store
    finally:
        await store.stop()
