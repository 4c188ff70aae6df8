"""The sweep deletes what is too old or too much.

- Old chains go as a whole, and the newest response keeps the others.
- Where there is no room, the oldest go first.
"""

from __future__ import annotations

import time

from plumbline.store.open import open_store
from plumbline.store.records import ConversationRecord
from plumbline.store.sql.sql_store import SqlStore
from plumbline.store.sql.sweep import Retention

from .test_sql_store import chat, item, record


def opened_sql(url: str, retention: Retention) -> SqlStore:
    store = open_store(url, retention)
    assert isinstance(store, SqlStore)
    return store


async def test_old_chains_go_as_a_whole(url: str) -> None:
    store = opened_sql(url, Retention(max_age=None))
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


async def test_the_oldest_go_where_there_is_no_room(url: str) -> None:
    store = opened_sql(url, Retention(max_age=None, max_bytes=50_000))
    await store.start()
    for number in range(30):
        await store.save_response(record(f"r{number}", created_at=number, events=b"x" * 10_000))
    await store._sweep()

    assert store.stats().bytes <= 50_000
    assert await store.response("a", "r29") is not None or store.stats().responses == 0
    assert await store.response("a", "r0") is None
    await store.stop()
