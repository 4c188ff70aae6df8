"""A store in a database keeps what it was given, for its owner only.

- A response comes back as it was stored; so do its chain, its items and its unfinished states.
- Another owner sees nothing. What is deleted leaves nothing behind.
- Pages joined are the whole list, in both orders.
- A second store on the same database sees the same records.
- One process at a time has the lease on an unfinished response, and, on PostgreSQL, on a conversation. An expired lease
  goes to another, and its former owner can then store nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import msgspec
import pytest
import sqlalchemy as sa
from sqlalchemy.dialects import postgresql
from support.stores.store_records import chat, item, record

from plumbline.store.interface import (
    Store,
    StoreFullError,
    StoreUnavailableError,
    TooLargeError,
    UnknownCursorError,
)
from plumbline.store.open import BadStoreUrlError, open_store
from plumbline.store.records import ConversationRecord, ItemRecord, Page, Renewed, ResponseRecord
from plumbline.store.sql import response_rows
from plumbline.store.sql.sweep import Retention
from plumbline.store.sql.tables import conversations, event_parts, responses


@asynccontextmanager
async def opened(url: str) -> AsyncIterator[Store]:
    store = open_store(url, Retention(max_age=None))
    await store.start()
    try:
        yield store
    finally:
        await store.stop()


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


def failed(found: ResponseRecord, parts: Sequence[bytes], is_cancelled: bool) -> ResponseRecord:
    """End a response with its parts as events, to see them."""
    status = "cancelled" if is_cancelled else "failed"
    return msgspec.structs.replace(found, status=status, events=b"".join(parts))


async def test_what_a_process_left_unfinished_is_ended_once(url: str) -> None:
    async with opened(url) as first, opened(url) as second, opened(url) as third:
        await first.save_response(record("r1", status="in_progress"))
        if first.is_shared:
            assert await first.append_part("r1", 0, b"a")
        assert await first.renew_leases(["r1"]) == Renewed()
        assert await second.end_abandoned(failed) == 0

        await _expire(first)
        assert [await store.end_abandoned(failed) for store in (second, third)] == [1, 0]
        found = await third.response("a", "r1")
        assert found is not None
        assert (found.status, found.events) == ("failed", b"a" if first.is_shared else b"")
        assert await first.renew_leases(["r1"]) == Renewed(lost=["r1"])
        if first.is_shared:
            assert not await first.append_part("r1", 1, b"b")


async def test_a_response_that_is_not_run_loses_its_lease(url: str) -> None:
    """Its request may have ended between the commit and the start of the run."""
    async with opened(url) as store:
        await store.save_response(record("r1", status="queued"))
        await _expire(store)
        assert await store.renew_leases([]) == Renewed()
        assert await store.end_abandoned(failed) == 1


async def test_any_process_asks_to_cancel_and_the_runner_learns_of_it(url: str) -> None:
    async with opened(url) as runner, opened(url) as other:
        await runner.save_response(record("r1", status="queued"))
        await other.request_cancel("b", "r1")
        assert await runner.renew_leases(["r1"]) == Renewed()
        await other.request_cancel("a", "r1")
        assert await runner.renew_leases(["r1"]) == Renewed(cancelled=["r1"])
        await runner.save_response(record("r1", status="cancelled"))
        assert await runner.renew_leases(["r1"]) == Renewed()


async def _expire(store: Store) -> None:
    for table in (responses, conversations):
        await store._writer.write(  # type: ignore[attr-defined]
            lambda connection, table=table: connection.execute(sa.update(table).values(lease_until=0.0))
        )


async def test_abandoned_responses_are_found_by_an_index(postgres_url: str) -> None:
    """All servers look for them each second, so they must not read the responses that have ended."""
    async with opened(postgres_url) as store:
        await store.save_response(record("r1"))
        columns = ", ".join(column.name for column in responses.c if column.name != "id")
        copies = f"INSERT INTO responses (id, {columns}) SELECT 'c' || n, {columns} FROM responses"
        copies += ", generate_series(1, 999) n"
        statement = store._abandoned()  # type: ignore[attr-defined]
        query = statement.compile(dialect=postgresql.dialect(), compile_kwargs={"literal_binds": True})

        def work(connection: sa.Connection) -> str:
            connection.execute(sa.text(copies))
            return "\n".join(connection.scalars(sa.text(f"EXPLAIN {query}")))

        plan = await store._writer.write(work)  # type: ignore[attr-defined]
        assert "Index Scan using responses_by_runner" in plan, plan


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


async def test_no_part_is_added_to_a_response_while_another_process_ends_it(postgres_url: str) -> None:
    """The other one has read the parts; one more would be lost, or be all that a follower finds."""
    async with opened(postgres_url) as first, opened(postgres_url) as second:
        await first.save_response(record("r1", status="queued"))
        assert await first.append_part("r1", 0, b"0")
        await _expire(first)
        ending, may_end = asyncio.Event(), asyncio.Event()

        async def end() -> None:
            database = second._database  # type: ignore[attr-defined]
            async with database._asynchronous.connect() as connection, connection.begin():
                await connection.run_sync(lambda c: c.execute(second._abandoned()).all())  # type: ignore[attr-defined]
                ending.set()
                await may_end.wait()
                change = sa.update(responses).values(status="failed", runner=None, lease_until=None)
                await connection.run_sync(lambda c: c.execute(change))

        task = asyncio.create_task(end())
        await ending.wait()
        adding = asyncio.create_task(first.append_part("r1", 1, b"1"))
        await asyncio.sleep(0.2)
        assert not adding.done()
        may_end.set()
        await task
        assert not await adding


async def test_one_process_works_on_a_conversation(postgres_url: str) -> None:
    async with opened(postgres_url) as first, opened(postgres_url) as second:
        for name in ("c1", "c2"):
            await first.save_conversation(ConversationRecord(id=name, owner="a", created_at=1))
        assert await first.lease_conversation("a", "c1")
        assert not await second.lease_conversation("a", "c1")
        assert await second.lease_conversation("a", "c2")
        assert await second.lease_conversation("a", "unknown"), "whoever reads it finds that out"

        await first.save_response(record("r1", conversation="c1"))
        assert await second.lease_conversation("a", "c1"), "storing the answer ended the lease"
        second.release_conversation("c1")
        await second.save_chat(chat("x1"))  # It is written after the release.
        assert await first.lease_conversation("a", "c1")


async def test_a_process_whose_lease_expired_adds_nothing(postgres_url: str) -> None:
    async with opened(postgres_url) as first, opened(postgres_url) as second:
        await first.save_conversation(ConversationRecord(id="c1", owner="a", created_at=1))
        assert await first.lease_conversation("a", "c1")
        await _expire(first)
        assert await second.lease_conversation("a", "c1")

        with pytest.raises(StoreUnavailableError, match="another server"):
            await first.save_response(record("r1", conversation="c1"))
        await second.save_response(record("r2", conversation="c1"))
        kept = (await first.conversation_items("a", "c1")).entries
        assert [one.id for one in kept] == ["in_r2", "out_r2"]
        with pytest.raises(StoreUnavailableError, match="another server"):
            await first.save_response(record("r3", conversation="c1"))


async def test_an_abandoned_response_ends_in_its_conversation(postgres_url: str) -> None:
    """Its runner has the lease on the conversation, too, and both expire."""
    async with opened(postgres_url) as first, opened(postgres_url) as second:
        await first.save_conversation(ConversationRecord(id="c1", owner="a", created_at=1))
        assert await first.lease_conversation("a", "c1")
        await first.save_response(record("r1", status="queued", conversation="c1"))
        await second._writer.write(  # type: ignore[attr-defined]
            lambda connection: connection.execute(sa.update(responses).values(lease_until=0.0))
        )
        assert await second.end_abandoned(failed) == 1
        assert [one.id for one in (await second.conversation_items("a", "c1")).entries] == ["in_r1", "out_r1"]
        assert await second.lease_conversation("a", "c1")


async def test_an_abandoned_response_does_not_wait_for_its_conversation(postgres_url: str) -> None:
    """A conversation that another process works on stops neither this response nor the others of its batch."""
    async with opened(postgres_url) as gone, opened(postgres_url) as busy, opened(postgres_url) as third:
        await gone.save_conversation(ConversationRecord(id="c1", owner="a", created_at=1))
        assert await gone.lease_conversation("a", "c1")
        for name, conversation in (("r1", "c1"), ("r2", None)):
            await gone.save_response(record(name, status="queued", conversation=conversation))
        await _expire(gone)
        assert await busy.lease_conversation("a", "c1")

        assert await third.end_abandoned(failed) == 2
        assert [one.id for one in (await third.conversation_items("a", "c1")).entries] == ["in_r1", "out_r1"]
        assert not await third.lease_conversation("a", "c1"), "the process that is busy keeps its lease"


async def test_new_metadata_do_not_end_a_lease(postgres_url: str) -> None:
    changed = ConversationRecord(id="c1", owner="a", created_at=1, metadata={"k": "v"})
    async with opened(postgres_url) as first, opened(postgres_url) as second:
        await first.save_conversation(ConversationRecord(id="c1", owner="a", created_at=1))
        assert await first.lease_conversation("a", "c1")
        for store in (first, second):
            await store.save_conversation(changed)
        assert await second.conversation("a", "c1") == changed
        assert not await second.lease_conversation("a", "c1")


async def test_a_client_that_leaves_while_a_lease_is_granted_keeps_none(postgres_url: str) -> None:
    async with opened(postgres_url) as first, opened(postgres_url) as second:
        await first.save_conversation(ConversationRecord(id="c1", owner="a", created_at=1))
        async with second._database._asynchronous.begin() as other:  # type: ignore[attr-defined]
            await other.execute(sa.select(conversations).with_for_update())
            leaving = asyncio.create_task(first.lease_conversation("a", "c1"))
            await asyncio.sleep(0.1)
            leaving.cancel()
            await asyncio.gather(leaving, return_exceptions=True)
            first.release_conversation("c1")
        for _ in range(2):  # The lease, and its release.
            await first.save_chat(chat("x1"))
        assert await second.lease_conversation("a", "c1")


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
