"""A store whose database fails says so in bounded time, and works again after the fault.

- Locked by another process, full, not writable, damaged, closed: `StoreUnavailableError` with the cause and a next step.
- Of writes that share a transaction, only the one that is at fault fails; the others are committed.
"""  # noqa: E501

from __future__ import annotations

import asyncio
import os
import sqlite3
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import sqlalchemy as sa
from hypothesis import given, settings
from hypothesis import strategies as st
from support.laws import EXPLORED
from support.stores.store_records import record

from plumbline.server.store.interface import StoreUnavailableError
from plumbline.server.store.open import open_store
from plumbline.server.store.sql import failures
from plumbline.server.store.sql.sql_store import SqlStore
from plumbline.server.store.sql.sweep import Retention

_LOCK = """
import sqlite3, sys
connection = sqlite3.connect(sys.argv[1], isolation_level=None)
connection.execute("BEGIN EXCLUSIVE")
print("locked", flush=True)
sys.stdin.read()
"""


@asynccontextmanager
async def opened(path: Path, timeout: float = 10.0) -> AsyncIterator[SqlStore]:  # noqa: ASYNC109
    store = open_store(str(path), Retention(max_age=None), timeout=timeout)
    assert isinstance(store, SqlStore)
    await store.start()
    try:
        yield store
    finally:
        await store.stop()


async def test_a_lock_of_another_process_fails_all_waiting_writes_in_bounded_time(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(failures, "PAUSE", 0.05)
    path = tmp_path / "s.db"
    async with opened(path, timeout=1.0) as store:
        await store.save_response(record("before"))
        with subprocess.Popen(  # noqa: ASYNC220
            [sys.executable, "-c", _LOCK, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        ) as other:
            assert other.stdin is not None
            assert other.stdout is not None
            other.stdout.readline()
            began = time.monotonic()
            writes = [store.save_response(record(f"r{number}")) for number in range(100)]
            found = await asyncio.gather(*writes, return_exceptions=True)
            took = time.monotonic() - began
            # Readers do not wait for writers.
            assert await store.response("a", "before") is not None
            assert store.problems() == ["the store does not write: see the log"]
            other.stdin.close()
            other.wait()

        assert {type(one) for one in found} <= {
            StoreUnavailableError,
            *StoreUnavailableError.__subclasses__(),
        }
        assert "locked" in str(found[0])
        assert took < 3.0
        assert store.stats().failed_writes >= 100
        assert store.problems()
        async with asyncio.timeout(20):
            while store.problems():  # Nobody writes; the store finds out by itself.
                await asyncio.sleep(0.02)
        await store.save_response(record("after"))
        assert await store.response("a", "after") == record("after")
        assert store.problems() == []
        lines = [each.message for each in caplog.records if each.name == "plumbline.store"]
        assert ["does not write: " in line and "locked" in line for line in lines] == [True, False]
        assert "writes again" in lines[1]


async def test_a_full_disk_fails_what_does_not_fit(tmp_path: Path) -> None:
    async with opened(tmp_path / "s.db") as store:
        await store.save_response(record("before"))
        _at_every_begin(store, "PRAGMA max_page_count = 100")
        big, small = record("big", events=b"x" * 1_000_000), record("small")
        found = await asyncio.gather(
            store.save_response(big), store.save_response(small), return_exceptions=True
        )

        assert isinstance(found[0], StoreUnavailableError)
        assert "free space" in str(found[0])
        assert found[1] is None
        assert await store.response("a", "big") is None
        assert await store.response("a", "small") == small
        _at_every_begin(store, "PRAGMA max_page_count = 100000")
        await store.save_response(big)
        assert await store.response("a", "big") == big


def _at_every_begin(store: SqlStore, pragma: str) -> None:
    """Run a pragma in every transaction: it holds for one connection, and the store has several."""
    engine = store._database.engine
    assert engine is not None
    sa.event.listen(engine, "begin", lambda connection: connection.exec_driver_sql(pragma))


async def test_a_file_that_may_not_be_written_is_named_as_such(tmp_path: Path) -> None:
    async with opened(tmp_path / "s.db") as store:
        _at_every_begin(store, "PRAGMA query_only = ON")
        with pytest.raises(StoreUnavailableError, match="permissions"):
            await store.save_response(record("r1"))
        _at_every_begin(store, "PRAGMA query_only = OFF")
        await store.save_response(record("r1"))


@pytest.mark.parametrize("reconnects", [False, True])
@pytest.mark.parametrize("replaced", [False, True])
async def test_nothing_is_acknowledged_into_a_deleted_file(
    tmp_path: Path, replaced: bool, reconnects: bool
) -> None:
    path, aside = tmp_path / "s.db", tmp_path / "aside.db"
    async with opened(path) as store:
        await store.save_response(record("r1"))
        path.rename(aside)
        if replaced:
            path.touch()
        if reconnects:
            assert store._database.engine is not None
            store._database.engine.dispose()
        with pytest.raises(StoreUnavailableError, match="deleted or replaced"):
            await store.save_response(record("r2"))
        if reconnects:
            with pytest.raises(StoreUnavailableError, match="deleted or replaced"):
                await store.response("a", "r1")
        assert path.exists() == replaced
        aside.replace(path)
        await store.save_response(record("r3"))
        assert await store.response("a", "r2") is None
        assert await store.response("a", "r3") == record("r3")


async def test_a_path_that_cannot_be_opened_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreUnavailableError, match="cannot be opened"):
        await open_store(str(tmp_path / "file" / "s.db")).start()


@pytest.mark.parametrize("content", [b"no database at all" * 300, b"SQLite format 3\x00" + b"\xff" * 8192])
async def test_a_file_of_another_kind_is_refused_at_the_start(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "s.db"
    path.write_bytes(content)
    store = open_store(str(path))
    with pytest.raises(StoreUnavailableError, match="give another --store"):
        await store.start()
    await store.stop()
    assert path.read_bytes() == content


async def test_tables_of_a_newer_version_are_refused_at_the_start(tmp_path: Path) -> None:
    path = tmp_path / "s.db"
    async with opened(path):
        pass
    with sqlite3.connect(path) as connection:
        connection.execute("UPDATE alembic_version SET version_num = '9999'")
    connection.close()
    store = open_store(str(path))
    with pytest.raises(StoreUnavailableError, match="newer version"):
        await store.start()
    await store.stop()


async def test_a_closed_store_is_unavailable(tmp_path: Path) -> None:
    async with opened(tmp_path / "s.db") as store:
        pass
    with pytest.raises(StoreUnavailableError, match="closed"):
        await store.save_response(record("r1"))
    with pytest.raises(StoreUnavailableError, match="closed"):
        await store.response("a", "r1")
    await store.stop()


def test_a_new_store_is_readable_by_its_user_only(tmp_path: Path) -> None:
    async def scene() -> None:
        async with opened(tmp_path / "folder" / "s.db") as store:
            await store.save_response(record("r1"))
            modes = {one.name: one.stat().st_mode & 0o777 for one in (tmp_path / "folder").iterdir()}
            assert modes == dict.fromkeys(["s.db", "s.db-wal", "s.db-shm"], 0o600)
            assert (tmp_path / "folder").stat().st_mode & 0o777 == 0o700

    before = os.umask(0)
    try:
        asyncio.run(scene())
    finally:
        os.umask(before)


@settings(max_examples=EXPLORED or 6)
@given(bad=st.sets(st.integers(0, 19), max_size=4))
def test_only_writes_at_fault_fail_in_a_group(
    tmp_path_factory: pytest.TempPathFactory, bad: set[int]
) -> None:
    async def scene() -> None:
        path = tmp_path_factory.mktemp("group") / "s.db"
        async with opened(path) as store:
            # SQLite keeps no integer of more than 64 bits: such a record cannot be stored.
            records = [
                record(f"r{number}", created_at=2**70 if number in bad else number) for number in range(20)
            ]
            found = await asyncio.gather(*map(store.save_response, records), return_exceptions=True)
            assert {number for number, one in enumerate(found) if one is not None} == bad
        # Acknowledged means durable: another store finds them.
        async with opened(path) as store:
            for number, one in enumerate(records):
                assert await store.response("a", one.id) == (None if number in bad else one)

    asyncio.run(scene())
