"""What a store has acknowledged is kept, and what fails does so soon.

- After the process is killed at any moment, every acknowledged response is there and whole.
- While another process holds the database, writes fail within the timeout; then they succeed again.
- A write that fails alone does not fail the others of its group.
- Old chains go as a whole, and the newest response keeps the others.
"""

from __future__ import annotations

import asyncio
import random
import sqlite3
import sys
import time
from pathlib import Path

import pytest
import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection

from plumbline.store.interface import StoreUnavailableError
from plumbline.store.open import open_store
from plumbline.store.records import ConversationRecord
from plumbline.store.sql.sql_store import SqlStore
from plumbline.store.sql.sweep import Retention
from plumbline.store.sql.tables import responses

from .test_sql_store import chat, item, opened, record
from .writing_child import record as written


def opened_sql(path: Path, retention: Retention | None = None, timeout: float = 10.0) -> SqlStore:
    store = open_store(str(path), retention, timeout=timeout)
    assert isinstance(store, SqlStore)
    return store


async def killed_writers(folder: Path, kills: int) -> None:
    """Kill a writing process several times, and look for what it has acknowledged."""
    path = folder / "s.db"
    acknowledged: list[str] = []
    script = str(Path(__file__).parent / "writing_child.py")
    for kill in range(kills):
        child = await asyncio.create_subprocess_exec(
            sys.executable, script, str(path), f"k{kill}", stdout=asyncio.subprocess.PIPE
        )
        assert child.stdout is not None
        first = await child.stdout.readline()
        await asyncio.sleep(random.uniform(0.0, 0.1))
        child.kill()
        rest = (await child.communicate())[0]
        # A line that the kill cut was not read by anybody.
        lines = (first + rest).decode().split("\n")[:-1]
        assert lines
        acknowledged += lines
    store = opened_sql(path)
    await store.start()
    for name in acknowledged:
        assert await store.response("a", name) == written(name)
    async with asyncio.timeout(10):
        rows = await store._database.run(
            lambda c: c.execute(sa.select(responses.c.id))  # type: ignore[arg-type,return-value]
        )
    for (name,) in rows.all():
        assert await store.response("a", name) == written(name), "half written"
    await store.stop()


async def test_what_was_acknowledged_survives_kills(tmp_path: Path) -> None:
    await killed_writers(tmp_path, 5)


@pytest.mark.long
async def test_what_was_acknowledged_survives_many_kills(tmp_path: Path) -> None:
    await killed_writers(tmp_path, 200)


async def test_a_locked_database_fails_soon_and_recovers(tmp_path: Path) -> None:
    store = opened_sql(tmp_path / "s.db", timeout=0.5)
    await store.start()
    await store.save_response(record("r1"))
    other = sqlite3.connect(tmp_path / "s.db", isolation_level=None)
    other.execute("BEGIN EXCLUSIVE")
    async with asyncio.timeout(5):
        with pytest.raises(StoreUnavailableError):
            await store.save_response(record("r2"))
        # WAL: readers do not wait for writers.
        assert await store.response("a", "r1") == record("r1")
    other.execute("ROLLBACK")
    other.close()
    async with asyncio.timeout(20):
        while True:
            try:
                await store.save_response(record("r3"))
                break
            except StoreUnavailableError:
                await asyncio.sleep(0.1)
    assert store.stats().failed_writes >= 1
    await store.stop()


async def test_a_full_disk_fails_writes_and_keeps_the_rest(tmp_path: Path) -> None:
    store = opened_sql(tmp_path / "s.db")
    await store.start()
    await store.save_response(record("r1"))
    engine = store._database._engine
    assert engine is not None

    def limit(connection: object, *_: object) -> None:
        connection.execute("PRAGMA max_page_count = 40")  # type: ignore[attr-defined]

    sa.event.listen(engine.sync_engine, "checkout", limit)
    large = record("r2", events=b"x" * 1_000_000)
    with pytest.raises(StoreUnavailableError, match="full"):
        await store.save_response(large)
    assert await store.response("a", "r1") == record("r1")
    assert await store.response("a", "r2") is None
    await store.stop()


async def test_a_write_that_fails_alone_fails_alone(tmp_path: Path) -> None:
    async def fail(connection: AsyncConnection) -> None:
        await connection.execute(sa.insert(responses).values(id="taken"))

    async with opened(tmp_path) as store:
        assert isinstance(store, SqlStore)
        names = [f"r{n}" for n in range(10)]
        results = await asyncio.gather(
            *(store.save_response(record(name)) for name in names),
            store._writer.write(fail),
            return_exceptions=True,
        )

        assert results[:-1] == [None] * 10
        assert isinstance(results[-1], StoreUnavailableError)
        assert [await store.response("a", name) for name in names] == [record(name) for name in names]


async def test_a_store_of_a_newer_version_is_not_opened(tmp_path: Path) -> None:
    async with opened(tmp_path):
        pass
    other = sqlite3.connect(tmp_path / "folder" / "s.db")
    other.execute("UPDATE alembic_version SET version_num = '9999'")
    other.commit()
    other.close()
    with pytest.raises(StoreUnavailableError, match="newer version"):
        async with opened(tmp_path):
            pass


async def test_a_store_that_cannot_be_opened_says_why(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreUnavailableError, match="cannot be opened"):
        await open_store(str(tmp_path / "file" / "s.db")).start()


async def test_a_store_is_private_to_its_user(tmp_path: Path) -> None:
    async with opened(tmp_path):
        assert (tmp_path / "folder").stat().st_mode & 0o777 == 0o700
        assert (tmp_path / "folder" / "s.db").stat().st_mode & 0o777 == 0o600


async def test_old_chains_go_as_a_whole(tmp_path: Path) -> None:
    store = opened_sql(tmp_path / "s.db", Retention(max_age=None))
    await store.start()
    now = int(time.time())
    for name, parent, age in (
        ("old", None, 9_000),
        ("older child", "old", 8_000),
        ("kept", None, 9_000),
        ("fresh child", "kept", 10),
    ):
        await store.save_response(record(name, parent=parent, created_at=now - age))
    await store.save_conversation(ConversationRecord(id="c1", owner="a", created_at=1), [item("i1")])
    await store.save_chat(chat("x1", created_at=now - 9_000))
    store._retention = Retention(max_age=3_600)
    await store._sweep()

    assert [
        await store.response("a", name) is None for name in ("old", "older child", "kept", "fresh child")
    ] == [
        True,
        True,
        False,
        False,
    ]
    assert set(await store.items("a", ["in_old", "out_old", "in_kept"], 9_999)) == {"in_kept"}
    assert await store.conversation("a", "c1") is not None
    assert await store.chat("a", "x1") is None
    assert store.stats().responses == 2
    await store.stop()


async def test_the_oldest_go_where_there_is_no_room(tmp_path: Path) -> None:
    store = opened_sql(tmp_path / "s.db", Retention(max_age=None, max_bytes=50_000))
    await store.start()
    for number in range(30):
        await store.save_response(record(f"r{number}", created_at=number, events=b"x" * 10_000))
    await store._sweep()

    assert store.stats().bytes <= 50_000
    assert await store.response("a", "r29") is not None or store.stats().responses == 0
    assert await store.response("a", "r0") is None
    await store.stop()
