"""The sweep deletes what is too old or too much.

- Old chains go as a whole, and the newest response keeps the others.
- Where there is no room, the oldest go first, of the owner with the most bytes.
"""

from __future__ import annotations

import asyncio
import time

import msgspec
import pytest
import sqlalchemy as sa
from hypothesis import given, settings
from hypothesis import strategies as st
from support.laws import EXPLORED
from support.stores.store_records import chat, item, record

from plumbline.server.store.open import open_store
from plumbline.server.store.records import ConversationRecord, ItemRecord
from plumbline.server.store.sql.sql_store import SqlStore
from plumbline.server.store.sql.sweep import Retention
from plumbline.server.store.sql.tables import conversations


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

    names = ("old", "older child", "kept", "fresh child")
    assert [name for name in names if await store.response("a", name) is not None] == ["kept", "fresh child"]
    assert set(await store.items("a", ["in_old", "out_old", "in_kept"], 9_999)) == {"in_kept"}
    assert await store.conversation("a", "c1") is not None
    assert await store.chat("a", "x1") is None
    assert store.stats().responses == 2
    await store.stop()


async def test_no_owner_loses_what_another_has_stored_too_much(url: str) -> None:
    store = opened_sql(url, Retention(max_age=None))
    await store.start()
    for name in ("old", "older"):
        few = msgspec.structs.replace(record(name, created_at=1, events=b"x" * 3_000), owner="few")
        await store.save_response(few)
    await store.save_chat(
        msgspec.structs.replace(chat("c", created_at=1, completion=b"x" * 2_000), owner="few")
    )
    for number in range(30):
        await store.save_response(record(f"r{number}", created_at=100 + number, events=b"x" * 1_000))
    store._retention = Retention(max_age=None, max_bytes=20_000)
    await store._sweep()
    assert store.stats().bytes <= 20_000
    assert None not in [await store.response("few", name) for name in ("old", "older")]
    assert await store.chat("few", "c") is not None
    kept = [number for number in range(30) if await store.response("a", f"r{number}") is not None]
    assert kept == list(range(kept[0], 30)), "the newest of the other stay"

    # With room for less than each of them has, both give.
    store._retention = Retention(max_age=None, max_bytes=9_000)
    await store._sweep()
    assert 0 < store.stats().bytes <= 9_000
    assert await store.response("a", "r29") is not None
    await store.stop()


@given(
    ages=st.lists(st.tuples(st.sampled_from("rcx"), st.integers(0, 99), st.integers(0, 9)), max_size=12),
    room=st.integers(0, 60),
)
@settings(max_examples=EXPLORED or 10)
def test_the_oldest_go_where_there_is_no_room(
    ages: list[tuple[str, int, int]], room: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Responses, conversations (c) and chat completions (x) alike; what is kept is newer than what went, and fits."""

    async def law() -> None:
        store = opened_sql(str(tmp_path_factory.mktemp("sweep") / "s.db"), Retention(max_age=None))
        await store.start()
        sizes: dict[str, tuple[int, int]] = {}
        for number, (kind, moment, size) in enumerate(ages):
            name, filling = f"{kind}{number}", b"x" * size * 1_000
            before = store.stats().bytes
            if kind == "r":
                await store.save_response(record(name, created_at=moment, events=filling))
            elif kind == "x":
                await store.save_chat(chat(name, created_at=moment, completion=filling))
            else:
                conversation = ConversationRecord(id=name, owner="a", created_at=1)
                await store.save_conversation(conversation, [ItemRecord(f"i{number}", filling)])
                used = sa.update(conversations).where(conversations.c.id == name).values(used_at=moment)
                await store._writer.write(lambda c, used=used: c.execute(used))  # type: ignore[misc]
            await store._sweep()
            sizes[name] = (moment, store.stats().bytes - before)
        store._retention = Retention(max_age=None, max_bytes=room * 1_000)
        await store._sweep()

        found = {"r": store.response, "c": store.conversation, "x": store.chat}
        kept = {name for name in sizes if await found[name[0]]("a", name) is not None}
        total = sum(sizes[name][1] for name in kept)
        assert store.stats().bytes == total <= room * 1_000
        gone = sorted(sizes[name] for name in sizes.keys() - kept)
        assert all(gone[-1][0] <= sizes[name][0] for name in kept if gone)
        # No more went than had to.
        assert not gone or total + max(size for moment, size in gone if moment == gone[-1][0]) > room * 1_000
        await store.stop()

    asyncio.run(law())
