"""A store in a database keeps what it was given, for its owner only.

- A response comes back as it was stored; so do its chain, its items and its unfinished states.
- Another owner sees nothing. What is deleted leaves nothing behind.
- Pages joined are the whole list, in both orders.
- A second store on the same database sees the same records.
"""

from __future__ import annotations

import asyncio

import pytest
import sqlalchemy as sa
from support.stores.store_records import chat, item, record

from plumbline.server.store.interface import (
    StoreFullError,
    TooLargeError,
    UnknownCursorError,
)
from plumbline.server.store.open import BadStoreUrlError, open_store
from plumbline.server.store.records import ConversationRecord, ItemRecord, Page
from plumbline.server.store.sql import response_rows
from plumbline.server.store.sql.sweep import Retention
from plumbline.server.store.sql.tables import event_parts

from .conftest import opened


async def test_a_response_comes_back_as_it_was_stored(url: str) -> None:
    async with opened(url) as store:
        await store.save_response(record("r1"))

        assert await store.response("a", "r1") == record("r1")
        assert await store.response("b", "r1") is None
        assert await store.response("a", "r2") is None


async def test_a_chain_is_the_response_and_what_it_continues(url: str) -> None:
    async with opened(url) as store:
        await store.save_response(record("r1"))
        await store.save_response(record("r2", parent="r1"))
        await store.save_response(record("r3", parent="r2"))
        await store.save_response(record("other", parent="r1"))

        assert [one.id for one in await store.chain("a", "r3", 10, 9_999)] == ["r1", "r2", "r3"]
        assert [one.id for one in await store.chain("a", "r3", 2, 9_999)] == ["r2", "r3"]
        assert await store.chain("b", "r3", 10, 9_999) == []
        await store.delete_response("a", "r1")
        assert next((one.id, one.parent) for one in await store.chain("a", "r3", 10, 9_999)) == ("r2", "r1")


async def test_items_are_found_where_the_newest_record_has_them(url: str) -> None:
    async with opened(url) as store:
        await store.save_response(record("r1"))
        newer = ItemRecord("in_r1", b'{"type":"message","id":"in_r1","newer":true}')
        await store.save_response(record("r2", input=(newer,)))
        wanted = ["in_r1", "out_r1", "out_r2", "unknown"]

        found = await store.items("a", wanted, 9_999)
        assert found == {"in_r1": newer.body, "out_r1": item("out_r1").body, "out_r2": item("out_r2").body}
        assert await store.items("b", wanted, 9_999) == {}
        assert await store.delete_response("a", "r2")
        assert set(await store.items("a", wanted, 9_999)) == {"in_r1", "out_r1"}


async def test_a_response_that_ends_replaces_its_unfinished_self_once(url: str) -> None:
    async with opened(url) as store:
        await store.save_response(record("r1", status="queued"))
        await store.save_response(record("r1", status="in_progress"))
        await store.save_response(record("r1", status="completed"))

        found = await store.response("a", "r1")
        assert found is not None
        assert found.status == "completed"


async def test_a_deleted_response_does_not_come_back(url: str) -> None:
    async with opened(url) as store:
        await store.save_response(record("r1", status="queued"))
        assert await store.delete_response("a", "r1")
        await store.save_response(record("r1", status="completed"))

        assert await store.response("a", "r1") is None
        assert await store.items("a", ["in_r1"], 9_999) == {}


async def test_what_is_too_large_is_not_read(url: str) -> None:
    async with opened(url) as store:
        large = ItemRecord("large", b"x" * 10_000)
        await store.save_response(record("r1", input=(large,)))
        await store.save_response(record("r2", parent="r1"))
        await store.save_conversation(ConversationRecord(id="c1", owner="a", created_at=1), [large])

        for work in (
            store.chain("a", "r2", 10, 9_999),
            store.items("a", ["in_r2", "large"], 9_999),
            store.conversation_items("a", "c1", most_bytes=9_999),
        ):
            with pytest.raises(TooLargeError):
                await work
        assert len(await store.chain("a", "r2", 10, 20_000)) == 2


async def test_an_owner_has_no_more_than_allowed(url: str) -> None:
    store = open_store(url, Retention(max_responses_per_owner=1))
    await store.start()
    await store.save_response(record("r1"))
    with pytest.raises(StoreFullError):
        await store.check_room("a", responses=True)
    await store.check_room("a")
    await store.check_room("b", responses=True)
    assert await store.delete_response("a", "r1")
    await store.check_room("a", responses=True)
    await store.stop()


async def test_an_owner_has_no_more_bytes_than_allowed(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of all kinds of records together; what other processes store counts within a second."""
    async with opened(url) as store, opened(url) as other:
        await store.check_room("a", most_bytes=1)
        large = ItemRecord("large", b"x" * 500)
        await store.save_response(record("r1", input=(large,)))
        await store.save_conversation(ConversationRecord(id="c1", owner="a", created_at=1), [large])
        await store.save_chat(chat("x1", messages=(large,)))
        for most in (1000, 1500):
            for each in (store, other):
                with pytest.raises(StoreFullError, match=f"{most} stored bytes"):
                    await each.check_room("a", most_bytes=most)
        await store.check_room("b", most_bytes=1)
        await store.delete_chat("a", "x1")
        await store.check_room("a", most_bytes=1500)
        monkeypatch.setattr(response_rows, "_SUM_SECONDS", 0.0)
        await other.check_room("a", most_bytes=1500)


async def test_parts_are_read_until_the_response_ends(postgres_url: str) -> None:
    async with opened(postgres_url) as runner, opened(postgres_url) as other:
        await runner.save_response(record("r1", status="queued"))
        assert await other.parts("r1", 0) == []
        for number in range(3):
            assert await runner.append_part("r1", number, b"%d" % number)
        assert await runner.append_part("r1", 2, b"2"), "a commit that was not reported is repeated"
        assert not await other.append_part("r1", 3, b"x"), "only the runner adds parts"
        assert [await other.parts("r1", first) for first in (0, 2, 3)] == [[b"0", b"1", b"2"], [b"2"], []]
        await runner.save_response(record("r1"))
        assert await other.parts("r1", 0) is None
        assert await other.parts("unknown", 0) is None
        count = sa.select(sa.func.count()).select_from(event_parts)
        assert await other._database.run(lambda connection: connection.scalar(count)) == 0  # type: ignore[attr-defined]


async def test_metadata_of_a_conversation_count_for_its_owner(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise conversations without items would be free. Metadata that replace others count once."""
    monkeypatch.setattr(response_rows, "_SUM_SECONDS", 0.0)
    async with opened(url) as store:
        for size in (400, 500, 300):
            metadata = {"k": "v" * size}
            await store.save_conversation(
                ConversationRecord(id="c1", owner="a", created_at=1, metadata=metadata)
            )
            await store.check_room("a", most_bytes=size + 50)
            with pytest.raises(StoreFullError, match="stored bytes"):
                await store.check_room("a", most_bytes=size)


async def test_a_conversation_keeps_its_items_in_order(url: str) -> None:
    async with opened(url) as store:
        conversation = ConversationRecord(id="c1", owner="a", created_at=1, metadata={"k": "v"})
        await store.save_conversation(conversation, [item("i1"), item("i2")])
        assert await store.append_items("a", "c1", [item("i3")])
        await store.save_response(record("r1", conversation="c1"))
        names = ["i1", "i2", "i3", "in_r1", "out_r1"]

        assert await store.conversation("a", "c1") == conversation
        assert await store.conversation("b", "c1") is None
        assert [one.id for one in (await store.conversation_items("a", "c1")).entries] == names
        for order, expected in (("asc", names), ("desc", names[::-1])):
            seen: list[str] = []
            page: Page[ItemRecord] | None = None
            while page is None or page.has_more:
                after = seen[-1] if seen else None
                page = await store.conversation_items("a", "c1", limit=2, order=order, after=after)  # type: ignore[arg-type]
                seen += [one.id for one in page.entries]
            assert seen == expected
        with pytest.raises(UnknownCursorError):
            await store.conversation_items("a", "c1", after="unknown")
        assert not await store.append_items("b", "c1", [item("x")])


async def test_a_conversation_loses_single_items_and_all(url: str) -> None:
    async with opened(url) as store:
        await store.save_conversation(
            ConversationRecord(id="c1", owner="a", created_at=1), [item("i1"), item("i2")]
        )

        assert await store.conversation_item("a", "c1", "i1") == item("i1")
        assert await store.conversation_item("b", "c1", "i1") is None
        assert not await store.delete_conversation_item("b", "c1", "i1")
        assert await store.delete_conversation_item("a", "c1", "i1")
        assert await store.items("a", ["i1", "i2"], 9_999) == {"i2": item("i2").body}
        assert await store.delete_conversation("a", "c1")
        assert await store.items("a", ["i2"], 9_999) == {}
        assert not await store.delete_conversation("a", "c1")


async def test_chat_completions_are_listed_by_model_and_metadata(url: str) -> None:
    async with opened(url) as store:
        await store.save_chat(chat("x1", metadata={"k": "v", "n": "1"}, messages=(item("m1"),)))
        await store.save_chat(chat("x2", metadata={"k": "v"}))
        await store.save_chat(chat("x3", model="n"))
        await store.save_chat(chat("x4", owner="b", metadata={"k": "v"}))

        async def names(**filters: object) -> list[str]:
            return [one.id for one in (await store.chats("a", **filters)).entries]  # type: ignore[arg-type]

        assert await names() == ["x1", "x2", "x3"]
        assert await names(order="desc", limit=2) == ["x3", "x2"]
        assert await names(metadata={"k": "v"}) == ["x1", "x2"]
        assert await names(metadata={"k": "v", "n": "1"}) == ["x1"]
        assert await names(model="n", after="x1") == ["x3"]
        found = await store.chat("a", "x1")
        assert found is not None
        assert found.messages == (item("m1"),)
        await store.save_chat(chat("x1", metadata={"new": "pair"}))
        assert await names(metadata={"k": "v"}) == ["x2"]
        assert await names(metadata={"new": "pair"}) == ["x1"]
        assert await store.delete_chat("a", "x1")
        assert await store.chat("a", "x1") is None


async def test_a_secret_stays_the_same(url: str) -> None:
    found = []
    for _ in range(2):
        store = open_store(url)
        await store.start()
        found += [await store.secret("seal"), await store.secret("other")]
        await store.stop()

    assert found[:2] == found[2:]
    assert found[0] != found[1]


@pytest.mark.parametrize("url", ["mysql://u:hidden@h/db", "sqlite://", "postgresql://u:hidden@h:port/db"])
def test_a_bad_url_is_refused_without_its_password(url: str) -> None:
    with pytest.raises(BadStoreUrlError) as refused:
        open_store(url)

    assert "hidden" not in str(refused.value)


async def test_any_text_may_be_an_id_or_a_value(url: str) -> None:
    """JSON strings may have NUL, which PostgreSQL's text may not."""
    odd = "\x00a\x01\x02b\x01\x03\x01\U0001f600"
    async with opened(url) as store:
        assert await store.response("a", odd) is None
        assert await store.chat("a", odd) is None
        await store.save_chat(chat("x1", metadata={odd: odd}))
        await store.save_response(record("r1", input=(item(odd),)))

        assert [one.id for one in (await store.chats("a", metadata={odd: odd})).entries] == ["x1"]
        assert (await store.chats("a", metadata={odd: odd[:-1]})).entries == ()
        assert set(await store.items("a", [odd], 9_999)) == {odd}


async def test_servers_may_start_at_once(url: str) -> None:
    stores = [open_store(url) for _ in range(8)]
    await asyncio.gather(*(store.start() for store in stores))
    await stores[0].save_response(record("r1"))
    assert [await store.response("a", "r1") for store in stores] == [record("r1")] * 8
    for store in stores:
        await store.stop()
