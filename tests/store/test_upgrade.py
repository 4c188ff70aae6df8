"""Servers of two versions share one database during an upgrade.

- Tables of an older version gain what is missing, and keep what they have; the next start finishes a killed
  upgrade.
- The start waits for work on the tables longer than a request waits for an operation, and reports the wait.
- Tables of a newer version are used as they are if it only added to them, and refused if it did more.

`tests/upgrade` runs servers of two versions.
"""

from __future__ import annotations

import time

import pytest
import sqlalchemy as sa
from support.stores.store_records import item, record

from plumbline.server.store.interface import Store, StoreUnavailableError
from plumbline.server.store.open import open_store
from plumbline.server.store.records import ConversationRecord
from plumbline.server.store.sql.upgrade import upgrade

_BRIEF = 0.5
"""Seconds that an operation may take where a start takes longer."""
ADDED = (
    "DROP TABLE event_parts",
    "ALTER TABLE responses DROP COLUMN cancel_requested",
    "ALTER TABLE conversations DROP COLUMN runner",
    "ALTER TABLE conversations DROP COLUMN lease_until",
)
"""What turns tables of this version into those of revision 0001."""


async def change(url: str, *statements: str, revision: str) -> None:
    """Change the tables as another version would have left them."""
    store = open_store(url)
    await store.start()

    def work(connection: sa.Connection) -> None:
        for statement in statements:
            connection.execute(sa.text(statement))
        connection.execute(sa.text(f"UPDATE alembic_version SET version_num = '{revision}'"))

    await store._writer.write(work)  # type: ignore[attr-defined]
    await store.stop()


async def check(store: Store, *, response: str) -> None:
    """Use what the revisions have added, and what was there before."""
    await store.save_response(record(response, conversation="c1"))
    await store.save_response(record(f"{response}-running", status="queued"))
    await store.request_cancel("a", f"{response}-running")
    assert (await store.renew_leases([f"{response}-running"])).cancelled == [f"{response}-running"]
    assert await store.lease_conversation("a", "c1")
    store.release_conversation("c1")


@pytest.mark.parametrize("done", range(len(ADDED) + 1))
async def test_older_tables_gain_what_is_missing(url: str, done: int) -> None:
    store = open_store(url)
    await store.start()
    await store.save_conversation(ConversationRecord(id="c1", owner="a", created_at=1), [item("i1")])
    await store.stop()
    await change(url, *ADDED[: len(ADDED) - done], revision="0001")

    store = open_store(url)
    await store.start()
    await check(store, response="r1")
    kept = (await store.conversation_items("a", "c1")).entries
    assert [one.id for one in kept] == ["i1", "in_r1", "out_r1"]
    await store.stop()


async def test_a_start_waits_longer_than_an_operation_and_reports_it(
    url: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def slowly(connection: sa.Connection, is_sqlite: bool) -> None:
        time.sleep(3 * _BRIEF)
        upgrade(connection, is_sqlite)

    monkeypatch.setattr("plumbline.server.store.sql.database.upgrade", slowly)
    store = open_store(url, timeout=_BRIEF)
    await store.start()
    assert len(await store.secret("any")) == 32
    await store.stop()
    assert "the start waits" in caplog.text


async def test_newer_tables_are_used_if_the_newer_version_only_added(
    url: str, caplog: pytest.LogCaptureFixture
) -> None:
    store = open_store(url)
    await store.start()
    await store.save_conversation(ConversationRecord(id="c1", owner="a", created_at=1))
    await store.stop()
    added = ("ALTER TABLE responses ADD COLUMN future TEXT", "CREATE TABLE futures (id TEXT PRIMARY KEY)")
    await change(url, *added, revision="0099")

    store = open_store(url)
    await store.start()
    await check(store, response="r1")
    await store.stop()
    assert "newer version (0099)" in caplog.text


async def test_newer_tables_are_refused_if_the_newer_version_changed_them(url: str) -> None:
    await change(url, revision="0100")
    with pytest.raises(StoreUnavailableError, match="newer version of Plumbline"):
        await open_store(url).start()
