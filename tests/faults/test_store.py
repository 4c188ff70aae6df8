"""Faults of the store, as clients see them.

- A request that stores gets a 503, or an error in its stream, in bounded time; what is acknowledged is kept.
- Requests that store nothing are answered as before, and the server is degraded and not dead.
- After the fault requests store again, and what was acknowledged before it is there.
"""

from __future__ import annotations

import asyncio
import sqlite3
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from support.models import answer_with, scripted, served
from support.servers.asgi import Server, serving
from support.servers.recovery import recovering
from support.stores.postgres import PostgresServer, running_postgres

from plumbline.contract.wire.errors import store_unavailable
from plumbline.server.store.open import open_store
from plumbline.server.store.sql.database import Database

CHAT = {"model": "test-model", "messages": [{"role": "user", "content": "hi"}], "stream": True}
RESPONSE = {"model": "test-model", "input": "hi"}


async def stores(server: Server) -> str:
    """Return the id of a response that the server acknowledges."""
    answer = await server.post("/v1/responses", RESPONSE)
    assert answer.status == 200
    return str(answer.json["id"])


async def bystands(server: Server) -> bytes:
    """Return a stream that stores nothing, without what differs between two."""
    answer = await server.post("/v1/chat/completions", CHAT)
    assert answer.status == 200
    deltas = [event.json["choices"][0]["delta"] for event in answer.events if event.data != "[DONE]"]
    return repr(deltas).encode()


async def fails(server: Server) -> None:
    """Check that requests that store fail in the form of the API, beside one that stores nothing."""
    whole = await bystands(server)
    began = time.monotonic()
    refused, streamed, beside = await asyncio.gather(
        server.post("/v1/responses", RESPONSE),
        server.post("/v1/responses", {**RESPONSE, "stream": True}),
        bystands(server),
    )
    assert time.monotonic() - began < 30
    assert beside == whole
    assert (refused.status, refused.error["code"]) == (503, "store_unavailable")
    # Nothing of the database's or the system's own text, which has users, addresses and paths.
    assert refused.error["message"] == store_unavailable().message
    if streamed.status == 200:
        names = [event.name for event in streamed.events]
        assert "error" in names
        assert "response.completed" not in names
    else:
        assert (streamed.status, streamed.error["code"]) == (503, "store_unavailable")


async def is_degraded(server: Server) -> bool:
    health = await server.get("/health")
    assert health.status == 200
    assert (await server.get("/health/live")).status == 200
    return bool(health.json["status"] == "degraded")


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Another process writes and does not end its transaction."""
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute("BEGIN EXCLUSIVE")
    yield
    connection.close()


_PRAGMAS: list[str] = []
"""With which every transaction begins: a pragma holds for one connection, and the store has several."""


@pytest.fixture(autouse=True)
def pragmas() -> Iterator[None]:
    def begin(connection: sa.Connection) -> None:
        for pragma in _PRAGMAS:
            connection.exec_driver_sql(pragma)

    sa.event.listen(sa.Engine, "begin", begin)
    yield
    sa.event.remove(sa.Engine, "begin", begin)
    _PRAGMAS.clear()


@contextmanager
def read_only(path: Path) -> Iterator[None]:
    """No transaction may write."""
    _PRAGMAS[:] = ["PRAGMA query_only = ON"]
    yield
    _PRAGMAS[:] = ["PRAGMA query_only = OFF"]


@contextmanager
def gone(path: Path) -> Iterator[None]:
    """Somebody moves the file away, and back."""
    aside = path.with_name("aside.db")
    path.rename(aside)
    yield
    aside.rename(path)


FAULTS = {
    "locked": locked,
    "read-only": read_only,
    "gone": gone,
}


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A store that gives up after five seconds instead of ten."""
    monkeypatch.setattr(
        "plumbline.server.loading.storage.open_store", lambda *arguments: open_store(*arguments, timeout=5.0)
    )


@pytest.mark.parametrize("fault", FAULTS)
async def test_a_store_that_fails_costs_only_what_it_should_keep(
    fault: str, tmp_path: Path, impatient: None
) -> None:
    path = tmp_path / "s.db"
    async with serving(served(scripted(answer_with("one two three"))), store=str(path)) as server:
        before = await stores(server)
        with FAULTS[fault](path):
            await fails(server)
            assert await is_degraded(server)
        await works(server, before, "The database is locked, may not be written, or its file is moved away")


async def works(server: Server, before: str, fault: str) -> None:
    """Check that the server stores again, and has what it stored before."""
    with recovering(fault):
        after = await stores(server)
        for name in (before, after):
            assert (await server.get(f"/v1/responses/{name}")).status == 200
        assert not await is_degraded(server)


async def test_a_store_that_is_damaged_while_it_runs_is_reported_and_no_other_answer_changes(
    tmp_path: Path, impatient: None
) -> None:
    path = tmp_path / "s.db"
    async with serving(served(scripted(answer_with("one two three"))), store=str(path)) as server:
        name = await stores(server)
        whole = await bystands(server)
        connection = sqlite3.connect(path)
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        connection.close()
        size = path.stat().st_size
        with path.open("r+b") as file:
            file.seek(4096)
            file.write(b"\xff" * (size - 4096))
        answers = [await server.get(f"/v1/responses/{name}"), await server.post("/v1/responses", RESPONSE)]
        assert {answer.status for answer in answers} <= {200, 404, 503}
        assert 503 in {answer.status for answer in answers}
        assert await bystands(server) == whole
        assert (await server.get("/health/live")).status == 200


async def test_a_slow_store_delays_only_what_it_keeps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, slow = Database.run, asyncio.Event()

    async def slowly(database: Database, work: Any, *, write: bool = False) -> Any:
        await slow.wait()
        return await run(database, work, write=write)

    async with serving(
        served(scripted(answer_with("one two three"))), store=str(tmp_path / "s.db")
    ) as server:
        whole = await bystands(server)
        monkeypatch.setattr(Database, "run", slowly)
        kept = asyncio.ensure_future(stores(server))
        for _ in range(5):
            assert await bystands(server) == whole
        assert not kept.done()
        slow.set()
        with recovering("The database is slow"):
            assert (await server.get(f"/v1/responses/{await kept}")).status == 200


@pytest.mark.long
async def test_a_database_server_that_crashes_costs_only_what_it_should_keep() -> None:
    with running_postgres() as found:
        if found is None:
            pytest.skip("PostgreSQL is not installed")
        await crash(found)


async def crash(database: PostgresServer) -> None:
    async with serving(
        served(scripted(answer_with("one two three"))), store=database.url("postgres")
    ) as server:
        before = await stores(server)
        database.stop()
        try:
            await fails(server)
            assert await is_degraded(server)
        finally:
            database.start()
        await works(server, before, "PostgreSQL crashes or restarts")
