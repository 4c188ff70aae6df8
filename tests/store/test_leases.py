"""Leases: one process works on a response or a conversation, and what a dead one left is ended once.

One process at a time has the lease on an unfinished response, and, on PostgreSQL, on a conversation. An expired lease
goes to another, and its former owner can then store nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import msgspec
import pytest
import sqlalchemy as sa
from sqlalchemy.dialects import postgresql
from support.stores.store_records import chat, record

from plumbline.server.store.interface import (
    Store,
    StoreUnavailableError,
)
from plumbline.server.store.records import ConversationRecord, Renewed, ResponseRecord
from plumbline.server.store.sql import lease_rows
from plumbline.server.store.sql.tables import conversations, responses

from .conftest import opened


@pytest.fixture(autouse=True)
def _at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """An expired lease counts when it is seen; `test_clocks.py` is about the time until it does."""
    monkeypatch.setattr(lease_rows, "SURE_SECONDS", 0.0)


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
        statement = store._abandoned(responses.c.id, responses.c.lease_until).limit(32)  # type: ignore[attr-defined]
        query = statement.compile(dialect=postgresql.dialect(), compile_kwargs={"literal_binds": True})  # type: ignore[no-untyped-call]

        def work(connection: sa.Connection) -> str:
            connection.execute(sa.text(copies))
            return "\n".join(connection.scalars(sa.text(f"EXPLAIN {query}")))

        plan = await store._writer.write(work)  # type: ignore[attr-defined]
        assert "Index Scan using responses_by_runner" in plan, plan


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


async def test_no_part_is_added_to_a_response_while_another_process_ends_it(postgres_url: str) -> None:
    """The other one has read the parts; one more would be lost, or be all that a follower finds."""
    async with opened(postgres_url) as first, opened(postgres_url) as second:
        await first.save_response(record("r1", status="queued"))
        assert await first.append_part("r1", 0, b"0")
        await _expire(first)
        ending, may_end = asyncio.Event(), asyncio.Event()

        async def end() -> None:
            database = second._database  # type: ignore[attr-defined]
            query = second._abandoned(responses).with_for_update(skip_locked=True)  # type: ignore[attr-defined]
            async with database._asynchronous.connect() as connection, connection.begin():
                await connection.run_sync(lambda c: c.execute(query).all())
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
