"""Store responses and find their items."""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping, Sequence
from functools import cached_property, partial
from typing import Any

import sqlalchemy as sa

from plumbline.server.store.interface import StoreFullError, StoreUnavailableError, TooLargeError
from plumbline.server.store.records import UNFINISHED, ItemRecord, ResponseRecord, output_items
from plumbline.server.store.sql.rows import Rows, decode_items, encode_items, now
from plumbline.server.store.sql.sweep import bytes_of
from plumbline.server.store.sql.tables import conversation_items, conversations, event_parts, items, responses

__all__ = ["LEASE_SECONDS", "ResponseRows", "response_record"]

LEASE_SECONDS = 10.0
"""A process that has not renewed its lease for this long counts as gone."""

_SUM_SECONDS = 1.0
"""How old the sum of an owner's bytes may be: it reads an index with an entry for each record."""

_PAYLOAD_BYTES = sa.func.length(responses.c.response) + sa.func.length(responses.c.input)
_VARIABLES = 500
"""Values in one statement."""
_NOT_SAVED = frozenset({"lease_until", "cancel_requested"})
"""Columns that a record does not set: the database computes one, others write the other."""
_WITHOUT_EVENTS = [column for column in responses.c if column.name != "events"]


class ResponseRows(Rows):
    """The tables of responses and of items."""

    _runner: str
    """This store, as the runner of unfinished responses."""
    _max_responses_per_owner: int | None = None
    _unfinished: set[str]
    """Unfinished responses that this process has stored."""
    _leased: set[str]
    """Conversations that requests of this process work on."""

    async def save_response(self, record: ResponseRecord) -> None:
        def work(connection: sa.Connection) -> bool:
            return self._save(connection, record)

        def committed(is_saved: bool) -> None:
            if record.status in UNFINISHED:
                self._unfinished.add(record.id)
            else:
                self._unfinished.discard(record.id)
                if is_saved:
                    self._leased.discard(record.conversation or "")  # `_append` has ended the lease.
            self._grown(record.owner, len(record.response) + len(record.events), record.input)

        await self._writer.write(work, committed)

    async def check_room(self, owner: str, *, responses: bool = False, most_bytes: int | None = None) -> None:
        if most_bytes is not None and await self._bytes_of(owner) >= most_bytes:
            raise StoreFullError("bytes", most_bytes)
        if responses:
            await self._check_number(owner)

    async def _bytes_of(self, owner: str) -> int:
        """Return the bytes of all records of an owner, as of the last second."""
        moment = time.monotonic()
        known, size = self._owned.get(owner, (-1.0, 0))
        if known < 0 or moment - known > _SUM_SECONDS:
            size = await self._database.run(partial(bytes_of, owner=owner))
            self._owned[owner] = moment, size
        return size

    async def _check_number(self, owner: str) -> None:
        limit = self._max_responses_per_owner
        if limit is None:
            return
        counted = sa.select(responses.c.owner).where(responses.c.owner == owner).limit(limit).subquery()
        query = sa.select(sa.func.count()).select_from(counted)
        if (await self._database.run(lambda connection: connection.scalar(query)) or 0) >= limit:
            raise StoreFullError("responses", limit)

    async def response(self, owner: str, response_id: str) -> ResponseRecord | None:
        def work(connection: sa.Connection) -> ResponseRecord | None:
            query = sa.select(responses).where(responses.c.id == response_id, responses.c.owner == owner)
            row = (connection.execute(query)).first()
            return None if row is None else response_record(row)

        return await self._database.run(work)

    async def chain(
        self, owner: str, response_id: str, most: int, most_bytes: int
    ) -> Sequence[ResponseRecord]:
        def work(connection: sa.Connection) -> list[ResponseRecord] | None:
            names: list[str] = []
            size = 0
            wanted: str | None = response_id
            while wanted is not None and len(names) < most:
                query = sa.select(responses.c.parent, _PAYLOAD_BYTES, responses.c.compacts).where(
                    responses.c.id == wanted, responses.c.owner == owner
                )
                row = (connection.execute(query)).first()
                if row is None:
                    break
                names.append(wanted)
                size += row[1]
                if size > most_bytes:
                    return None
                wanted = None if row.compacts else row.parent
            rows: dict[str, Any] = {}
            for start in range(0, len(names), _VARIABLES):
                part = names[start : start + _VARIABLES]
                query = sa.select(*_WITHOUT_EVENTS).where(responses.c.id.in_(part))
                rows |= {row.id: row for row in (connection.execute(query)).all()}
            return [response_record(rows[name]) for name in reversed(names) if name in rows]

        found = await self._database.run(work)
        if found is None:
            raise TooLargeError
        return found

    async def delete_response(self, owner: str, response_id: str) -> bool:
        def work(connection: sa.Connection) -> bool:
            found = connection.execute(
                sa.delete(responses).where(responses.c.id == response_id, responses.c.owner == owner)
            )
            if found.rowcount:
                connection.execute(sa.delete(items).where(items.c.holder == response_id))
            return bool(found.rowcount)

        return await self._writer.write(work, lambda _: self._freed(owner))

    async def items(self, owner: str, item_ids: Collection[str], most_bytes: int) -> Mapping[str, bytes]:
        every = list(dict.fromkeys(item_ids))

        def work(connection: sa.Connection) -> dict[str, bytes] | None:
            wanted: dict[str, set[str]] = {}
            for start in range(0, len(every), _VARIABLES):
                newest = _newest_holders(owner, every[start : start + _VARIABLES])
                for row in (connection.execute(newest)).all():
                    wanted.setdefault(row.holder, set()).add(row.id)
            found: dict[str, bytes] = {}
            size = 0
            for holder, names in wanted.items():
                query = sa.select(_PAYLOAD_BYTES).where(responses.c.id == holder)
                size += (connection.execute(query)).scalar() or 0
                if size > most_bytes:
                    return None
                found |= self._items_of(connection, holder, names)
            return found

        found = await self._database.run(work)
        if found is None or sum(map(len, found.values())) > most_bytes:
            raise TooLargeError
        return found

    def _save(
        self, connection: sa.Connection, record: ResponseRecord, *, taken_from: str | None = None
    ) -> bool:
        """Write a record, and return True; return False if it was deleted, or has ended.

        `taken_from` is the process that has it now, if that is another one.
        """
        values = _values(record)
        is_unfinished = record.status in UNFINISHED
        values |= {"runner": self._runner, "seconds": LEASE_SECONDS} if is_unfinished else _NO_LEASE
        new = record.id not in self._unfinished and connection.execute(self._insert_response, values).rowcount
        if not new:
            mine = {"its_id": record.id, "its_owner": record.owner}
            if not connection.execute(self._replace_unfinished, values | mine).rowcount:
                return False
            connection.execute(sa.delete(items).where(items.c.holder == record.id))
            if self.is_shared:
                connection.execute(sa.delete(event_parts).where(event_parts.c.response == record.id))
        every = [*record.input, *record.output]
        self._note_items(connection, record.owner, record.id, every)
        if record.conversation is not None and not is_unfinished:
            self._append(connection, record.owner, record.conversation, every, taken_from=taken_from)
        return True

    @cached_property
    def _insert_response(self) -> Any:
        """Inserts a response that is not there yet, in the thread of its parent."""
        parents = responses.alias()
        thread = sa.select(parents.c.thread).where(parents.c.id == sa.bindparam("parent")).scalar_subquery()
        values = self._saved_values
        values["thread"] = sa.func.coalesce(thread, sa.bindparam("id"))
        return self._insert(responses).values(values).on_conflict_do_nothing(index_elements=["id"])

    @cached_property
    def _replace_unfinished(self) -> Any:
        values = self._saved_values
        del values["thread"]
        return (
            sa.update(responses)
            .where(
                responses.c.id == sa.bindparam("its_id"),
                responses.c.owner == sa.bindparam("its_owner"),
                responses.c.status.in_(UNFINISHED),
            )
            .values(values)
        )

    @property
    def _saved_values(self) -> dict[str, Any]:
        values: dict[str, Any] = {
            c.name: sa.bindparam(c.name) for c in responses.c if c.name not in _NOT_SAVED
        }
        # NULL seconds make it NULL.
        return values | {"lease_until": self._database.clock + sa.bindparam("seconds", type_=sa.Double)}

    def _note_items(
        self, connection: sa.Connection, owner: str, holder: str, every: Sequence[ItemRecord]
    ) -> None:
        moment = time.time_ns()
        rows = [{"owner": owner, "id": item.id, "holder": holder, "noted_at": moment} for item in every]
        if rows:
            connection.execute(self._upsert_items, rows)

    @cached_property
    def _upsert_items(self) -> Any:
        insert = self._insert(items)
        return insert.on_conflict_do_update(
            index_elements=["owner", "id", "holder"], set_={"noted_at": insert.excluded.noted_at}
        )

    def _items_of(self, connection: sa.Connection, holder: str, wanted: Collection[str]) -> dict[str, bytes]:
        query = sa.select(responses.c.response, responses.c.input).where(responses.c.id == holder)
        row = (connection.execute(query)).first()
        if row is not None:
            every = (*decode_items(row.input), *output_items(row.response))
            return {item.id: item.body for item in every if item.id in wanted}
        names = list(wanted)
        found: dict[str, bytes] = {}
        for start in range(0, len(names), _VARIABLES):
            listed = sa.select(conversation_items.c.id, conversation_items.c.body).where(
                conversation_items.c.conversation == holder,
                conversation_items.c.id.in_(names[start : start + _VARIABLES]),
            )
            found |= {row.id: row.body for row in (connection.execute(listed)).all()}
        return found

    def _append(
        self,
        connection: sa.Connection,
        owner: str,
        conversation: str,
        every: Sequence[ItemRecord],
        *,
        taken_from: str | None = None,
    ) -> bool:
        """Append items to a conversation, and end the lease on it; return whether it exists.

        An item that the conversation has already stays where it is: cursors are ids, so an id has one place.

        With `taken_from`, the items are of a process that has gone: only its own lease ends, and one that another
        process has meanwhile stays. Otherwise they, and their whole batch, would wait for that process.

        Raises:
            StoreUnavailableError: another process has the lease: this one was stopped for long, or could not renew it.
        """
        mine = (conversations.c.id == conversation, conversations.c.owner == owner)
        runner = conversations.c.runner
        if taken_from is None:
            # One that was leased, and has no runner now, was another process' meanwhile.
            is_leased = conversation in self._leased
            free = runner == self._runner if is_leased else sa.or_(runner.is_(None), runner == self._runner)
            left: dict[str, Any] = {"runner": None, "lease_until": None}
        else:
            free = sa.true()
            left = {"runner": sa.func.nullif(runner, taken_from)}
        touched = connection.execute(
            sa.update(conversations)
            .where(*mine, free)
            .values(
                used_at=now(),
                size=conversations.c.size + sum(len(item.body) for item in every),
                **left,
            )
        )
        if not touched.rowcount:
            if connection.scalar(sa.select(conversations.c.id).where(*mine)) is None:
                return False
            raise StoreUnavailableError("another server has begun to work on the conversation meanwhile")
        if every:
            rows = [{"conversation": conversation, "id": item.id, "body": item.body} for item in every]
            insert = self._insert(conversation_items)
            connection.execute(
                insert.on_conflict_do_update(
                    index_elements=["conversation", "id"], set_={"body": insert.excluded.body}
                ),
                rows,
            )
            self._note_items(connection, owner, conversation, every)
        return True


_NO_LEASE: dict[str, Any] = {"runner": None, "seconds": None}


def _newest_holders(owner: str, item_ids: Sequence[str]) -> sa.Select[tuple[str, str]]:
    """Select the newest record that has each item."""
    place = sa.func.row_number().over(partition_by=items.c.id, order_by=items.c.noted_at.desc())
    ranked = (
        sa.select(items.c.id, items.c.holder, place.label("place"))
        .where(items.c.owner == owner, items.c.id.in_(item_ids))
        .subquery()
    )
    return sa.select(ranked.c.id, ranked.c.holder).where(ranked.c.place == 1)


def _values(record: ResponseRecord) -> dict[str, Any]:
    given = encode_items(record.input)
    return {
        "id": record.id,
        "owner": record.owner,
        "created_at": record.created_at,
        "size": len(record.response) + len(given) + len(record.events),
        "status": record.status,
        "parent": record.parent,
        "compacts": record.compacts,
        "conversation": record.conversation,
        "response": record.response,
        "input": given,
        "events": record.events,
    }


def response_record(row: Any) -> ResponseRecord:
    fields = row._mapping
    return ResponseRecord(
        id=row.id,
        owner=row.owner,
        created_at=row.created_at,
        status=row.status,
        parent=row.parent,
        compacts=row.compacts,
        conversation=row.conversation,
        response=row.response,
        input=decode_items(row.input),
        output=output_items(row.response),
        events=fields.get("events", b""),
    )
