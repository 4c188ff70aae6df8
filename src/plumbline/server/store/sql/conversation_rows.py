"""Store conversations and their items."""

from __future__ import annotations

from collections.abc import Sequence

import sqlalchemy as sa

from plumbline.server.store.interface import TooLargeError, UnknownCursorError
from plumbline.server.store.records import ConversationRecord, ItemRecord, Order, Page
from plumbline.server.store.sql.response_rows import ResponseRows
from plumbline.server.store.sql.rows import decode_pairs, encode_pairs, now
from plumbline.server.store.sql.tables import conversation_items, conversations, items

__all__ = ["ConversationRows"]


class ConversationRows(ResponseRows):
    """The tables of conversations."""

    async def save_conversation(self, record: ConversationRecord, items: Sequence[ItemRecord] = ()) -> None:
        def work(connection: sa.Connection) -> None:
            values = {"metadata": pairs, "used_at": now()}
            insert = self._insert(conversations).values(
                id=record.id, owner=record.owner, created_at=record.created_at, size=len(pairs), **values
            )
            own = conversations.c.owner == record.owner
            changed = {**values, "size": _resized(len(pairs))}
            connection.execute(insert.on_conflict_do_update(index_elements=["id"], set_=changed, where=own))
            if items:  # Metadata alone leave the lease of a request that works on it.
                self._append(connection, record.owner, record.id, items)

        pairs = encode_pairs(record.metadata)
        await self._writer.write(work, lambda _: self._grown(record.owner, len(pairs), items))

    async def conversation(self, owner: str, conversation_id: str) -> ConversationRecord | None:
        def work(connection: sa.Connection) -> ConversationRecord | None:
            query = sa.select(conversations).where(_mine(owner, conversation_id))
            row = (connection.execute(query)).first()
            if row is None:
                return None
            return ConversationRecord(
                id=row.id, owner=row.owner, created_at=row.created_at, metadata=decode_pairs(row.metadata)
            )

        return await self._database.run(work)

    async def delete_conversation(self, owner: str, conversation_id: str) -> bool:
        def work(connection: sa.Connection) -> bool:
            found = connection.execute(sa.delete(conversations).where(_mine(owner, conversation_id)))
            if found.rowcount:
                connection.execute(
                    sa.delete(conversation_items).where(conversation_items.c.conversation == conversation_id)
                )
                connection.execute(sa.delete(items).where(items.c.holder == conversation_id))
            return bool(found.rowcount)

        return await self._writer.write(work, lambda _: self._freed(owner))

    async def append_items(self, owner: str, conversation_id: str, items: Sequence[ItemRecord]) -> bool:
        def work(connection: sa.Connection) -> bool:
            return self._append(connection, owner, conversation_id, items)

        def committed(_: bool) -> None:
            self._leased.discard(conversation_id)
            self._grown(owner, 0, items)

        return await self._writer.write(work, committed)

    async def conversation_items(
        self,
        owner: str,
        conversation_id: str,
        *,
        limit: int | None = None,
        order: Order = "asc",
        after: str | None = None,
        most_bytes: int | None = None,
    ) -> Page[ItemRecord]:
        def work(connection: sa.Connection) -> Page[ItemRecord] | None:
            table = conversation_items.c
            if most_bytes is not None:
                total = sa.select(sa.func.sum(sa.func.length(table.body)))
                size = (connection.execute(total.where(table.conversation == conversation_id))).scalar()
                if (size or 0) > most_bytes:
                    raise TooLargeError
            query = sa.select(table.id, table.body).where(table.conversation == conversation_id)
            if after is not None:
                at = sa.select(table.position).where(table.conversation == conversation_id, table.id == after)
                position = (connection.execute(at.order_by(table.position))).scalar()
                if position is None:
                    return None
                query = query.where(
                    table.position > position if order == "asc" else table.position < position
                )
            query = query.order_by(table.position if order == "asc" else table.position.desc())
            if limit is not None:
                query = query.limit(limit + 1)
            rows = (connection.execute(query)).all()
            kept = rows if limit is None else rows[:limit]
            return Page(tuple(ItemRecord(row.id, row.body) for row in kept), len(rows) > len(kept))

        found = await self._database.run(work)
        if found is None:
            raise UnknownCursorError(after)
        return found

    async def conversation_item(self, owner: str, conversation_id: str, item_id: str) -> ItemRecord | None:
        def work(connection: sa.Connection) -> ItemRecord | None:
            query = sa.select(conversation_items.c.body).where(_item(owner, conversation_id, item_id))
            body = (connection.execute(query)).scalar()
            return None if body is None else ItemRecord(item_id, body)

        return await self._database.run(work)

    async def delete_conversation_item(self, owner: str, conversation_id: str, item_id: str) -> bool:
        def work(connection: sa.Connection) -> bool:
            found = connection.execute(
                sa.delete(conversation_items).where(_item(owner, conversation_id, item_id))
            )
            if found.rowcount:
                connection.execute(
                    sa.delete(items).where(
                        items.c.owner == owner, items.c.id == item_id, items.c.holder == conversation_id
                    )
                )
            return bool(found.rowcount)

        return await self._writer.write(work)


def _resized(new: int) -> sa.ColumnElement[int]:
    """Return the size of a conversation whose metadata are replaced; older versions did not count them."""
    others = conversations.c.size - sa.func.length(conversations.c.metadata)
    return sa.case((others > 0, others), else_=0) + new


def _mine(owner: str, conversation_id: str) -> sa.ColumnElement[bool]:
    return sa.and_(conversations.c.id == conversation_id, conversations.c.owner == owner)


def _item(owner: str, conversation_id: str, item_id: str) -> sa.ColumnElement[bool]:
    return sa.and_(
        conversation_items.c.conversation == conversation_id,
        conversation_items.c.id == item_id,
        sa.exists().where(_mine(owner, conversation_id)),
    )
