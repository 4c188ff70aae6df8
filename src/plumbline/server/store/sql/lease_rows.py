"""Lease what a process works on: unfinished responses, and conversations.

A lease is two columns of the row itself: `runner`, the process, and `lease_until`, by the clock of the database. The
runner renews its leases; when it is gone they expire, and others end what it left.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from typing import Any

import sqlalchemy as sa

from plumbline.server.store.interface import StoreUnavailableError
from plumbline.server.store.records import UNFINISHED, Renewed, ResponseRecord
from plumbline.server.store.sql.conversation_rows import ConversationRows
from plumbline.server.store.sql.response_rows import LEASE_SECONDS, response_record
from plumbline.server.store.sql.tables import conversations, event_parts, responses

__all__ = ["ExpiredLeases", "LeaseRows"]

_BATCH = 32
"""Abandoned responses that end in one transaction."""
_SEEN = 1_000
"""Expired leases that are watched at a time, when there are some. For so many PostgreSQL would not take the index."""
SURE_SECONDS = 2.0
"""Seconds for which a lease must be seen expired: twice the time between two renewals."""
_NAMES = 500
"""Values in one statement."""


class ExpiredLeases:
    """Leases that have been seen expired.

    When the clock of the database is set forward, or the machine has slept, all leases expire at once, and processes
    that live renew theirs a moment later. So a lease counts only if it stays as it is for a while, by a clock that is
    never set.

    Args:
        clock: that clock, in seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._since: dict[tuple[str, float], float] = {}

    def __bool__(self) -> bool:
        """Whether any was seen the last time."""
        return bool(self._since)

    def sure(self, seen: Iterable[tuple[str, float]]) -> list[str]:
        """Note the leases that are expired now, by their name and end; return the names that have been for long."""
        now = self._clock()
        self._since = {each: self._since.get(each, now) for each in seen}
        return [name for (name, _), since in self._since.items() if now - since >= SURE_SECONDS]


class LeaseRows(ConversationRows):
    """The leases in the tables of responses and conversations."""

    _expired: ExpiredLeases
    _releasing: set[asyncio.Task[None]]

    @property
    def is_shared(self) -> bool:
        return not self._database.is_sqlite

    async def renew_leases(self, running: Collection[str]) -> Renewed:
        # What has been stored, but is not run because its request ended meanwhile, expires.
        mine = [name for name in running if name in self._unfinished]
        leased = list(self._leased)
        renewed = Renewed()
        if not mine and not leased:
            return renewed

        def work(connection: sa.Connection) -> dict[str, bool]:
            until = {"lease_until": self._database.clock + LEASE_SECONDS}
            found: dict[str, bool] = {}
            columns = responses.c.id, responses.c.cancel_requested
            for names in _batches(mine):
                update = self._renewal(responses, names).values(until).returning(*columns)
                rows = list(connection.execute(update).all())
                # Those that a write has locked are renewed the next time.
                left = set(names).difference(row.id for row in rows)
                held = responses.c.id.in_(sorted(left)), responses.c.runner == self._runner
                rows += connection.execute(sa.select(*columns).where(*held)).all() if left else ()
                found |= {row.id: bool(row.cancel_requested) for row in rows}
            for names in _batches(leased):
                connection.execute(self._renewal(conversations, names).values(until))
            return found

        def committed(found: dict[str, bool]) -> None:
            # Here, because a response that ends in the same transaction is not lost.
            renewed.cancelled.extend(name for name, is_cancelled in found.items() if is_cancelled)
            renewed.lost.extend(name for name in mine if name not in found and name in self._unfinished)

        if self.is_shared:
            committed(await self._database.renew(work))
        else:
            await self._writer.write(work, committed)
        return renewed

    def _renewal(self, table: sa.Table, names: Sequence[str]) -> sa.Update:
        """Return an update of leases of this process. It waits for no write, and so cannot deadlock with one."""
        held = table.c.id.in_(names), table.c.runner == self._runner
        free = sa.select(table.c.id).where(*held).with_for_update(skip_locked=True)
        return sa.update(table).where(table.c.id.in_(free))

    async def end_abandoned(
        self, ended: Callable[[ResponseRecord, Sequence[bytes], bool], ResponseRecord]
    ) -> int:
        def work(connection: sa.Connection) -> int:
            query = self._abandoned(responses.c.id, responses.c.lease_until)
            seen = connection.execute(query.limit(_SEEN if self._expired else _BATCH)).all()
            sure = self._expired.sure((row.id, row.lease_until) for row in seen)
            if not sure:
                return 0
            query = self._abandoned(responses).where(responses.c.id.in_(sure[:_BATCH]))
            rows = connection.execute(query.with_for_update(skip_locked=True)).all()
            for row in rows:
                parts = self._parts(connection, row.id, 0)
                record = ended(response_record(row), parts, bool(row.cancel_requested))
                self._save(connection, record, taken_from=row.runner)
            return len(rows)

        return await self._writer.write(work)

    def _abandoned(self, *columns: Any) -> sa.Select[Any]:
        # The order makes PostgreSQL take the index, also before it has statistics: it is looked at each second.
        query = sa.select(*columns).where(
            responses.c.runner.is_not(None), responses.c.lease_until < self._database.clock
        )
        return query.order_by(responses.c.runner)

    async def request_cancel(self, owner: str, response_id: str) -> None:
        def work(connection: sa.Connection) -> None:
            mine = (responses.c.id == response_id, responses.c.owner == owner)
            update = sa.update(responses).where(*mine, responses.c.status.in_(UNFINISHED))
            connection.execute(update.values(cancel_requested=True))

        await self._writer.write(work)

    async def append_part(self, response_id: str, number: int, body: bytes) -> bool:
        assert self.is_shared, "parts are for other machines"

        def work(connection: sa.Connection) -> bool:
            values = (sa.literal(response_id), sa.literal(number), sa.literal(body, sa.LargeBinary))
            mine = sa.select(*values).where(responses.c.id == response_id, responses.c.runner == self._runner)
            # Without the lock, a part could be added after another process has ended the response.
            mine = mine.with_for_update(read=True)
            insert = self._insert(event_parts).from_select(["response", "number", "body"], mine)
            # An attempt whose commit was not reported may have stored it.
            insert = insert.on_conflict_do_update(
                index_elements=["response", "number"], set_={"body": insert.excluded.body}
            )
            return bool(connection.execute(insert).rowcount)

        return await self._writer.write(work)

    async def parts(self, response_id: str, first: int) -> Sequence[bytes] | None:
        def work(connection: sa.Connection) -> Sequence[bytes] | None:
            # The status comes last: then no part had been deleted when they were read.
            found = self._parts(connection, response_id, first)
            query = sa.select(responses.c.status).where(responses.c.id == response_id)
            return found if connection.scalar(query) in UNFINISHED else None

        return await self._database.run(work)

    async def lease_conversation(self, owner: str, conversation_id: str) -> bool:
        if not self.is_shared:
            return True
        mine = (conversations.c.id == conversation_id, conversations.c.owner == owner)

        lease = conversations.c.runner, conversations.c.lease_until
        free: sa.ColumnElement[bool] = conversations.c.runner.is_(None)
        has_left = False

        def work(connection: sa.Connection) -> Any:
            """Return whether it is leased, or the expired lease of another process; None if it does not exist."""
            clock = self._database.clock
            values = {"runner": self._runner, "lease_until": clock + LEASE_SECONDS}
            if connection.execute(sa.update(conversations).where(*mine, free).values(values)).rowcount:
                return True
            row = connection.execute(
                sa.select(*lease, conversations.c.lease_until < clock).where(*mine)
            ).first()
            return None if row is None else bool(row[2]) and tuple(row[:2])

        def committed(granted: Any) -> None:
            if granted is True:
                self._leased.add(conversation_id)
                if has_left:  # Nobody else would end it, and `renew_leases` would keep it for ever.
                    self.release_conversation(conversation_id)

        try:
            seen = await self._writer.write(work, committed)
            if isinstance(seen, tuple):
                # As in `ExpiredLeases`: a process that lives renews it, whatever clock was set.
                await asyncio.sleep(SURE_SECONDS)
                clock = self._database.clock
                unchanged = (column == value for column, value in zip(lease, seen, strict=True))
                free = sa.or_(free, sa.and_(*unchanged, conversations.c.lease_until < clock))
                seen = await self._writer.write(work, committed)
            # One that does not exist needs no lease: whoever reads it finds that out.
            return seen in (True, None)
        except asyncio.CancelledError:
            has_left = True
            raise

    def release_conversation(self, conversation_id: str) -> None:
        if conversation_id in self._leased:
            self._leased.discard(conversation_id)
            task = asyncio.create_task(self._release(conversation_id))
            self._releasing.add(task)
            task.add_done_callback(self._releasing.discard)

    async def _release(self, conversation_id: str) -> None:
        held = (conversations.c.id == conversation_id, conversations.c.runner == self._runner)
        update = sa.update(conversations).where(*held).values(runner=None, lease_until=None)
        with contextlib.suppress(StoreUnavailableError):  # It expires.
            await self._writer.write(lambda connection: connection.execute(update))

    def _parts(self, connection: sa.Connection, response_id: str, first: int) -> list[bytes]:
        if not self.is_shared:
            return []
        query = sa.select(event_parts.c.body).where(
            event_parts.c.response == response_id, event_parts.c.number >= first
        )
        return list(connection.scalars(query.order_by(event_parts.c.number)).all())


def _batches(names: Sequence[str]) -> Iterator[Sequence[str]]:
    """Yield names in numbers that fit into one statement."""
    for start in range(0, len(names), _NAMES):
        yield names[start : start + _NAMES]
