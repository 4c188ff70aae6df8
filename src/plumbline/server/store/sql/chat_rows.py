"""Store chat completions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import sqlalchemy as sa

from plumbline.server.store.interface import UnknownCursorError
from plumbline.server.store.records import ChatRecord, Order, Page
from plumbline.server.store.sql.rows import Rows, decode_items, decode_pairs, encode_items, encode_pairs
from plumbline.server.store.sql.tables import chat_metadata, chats

__all__ = ["ChatRows"]

_WITHOUT_MESSAGES = [column for column in chats.c if column.name != "messages"]


class ChatRows(Rows):
    """The tables of chat completions."""

    async def save_chat(self, record: ChatRecord) -> None:
        def work(connection: sa.Connection) -> None:
            messages = encode_items(record.messages)
            pairs = encode_pairs(record.metadata)
            insert = self._insert(chats).values(
                id=record.id,
                owner=record.owner,
                created_at=record.created_at,
                size=len(record.completion) + len(messages),
                model=record.model,
                metadata=pairs,
                completion=record.completion,
                messages=messages,
            )
            connection.execute(
                insert.on_conflict_do_update(
                    index_elements=["id"], set_={"metadata": pairs}, where=chats.c.owner == record.owner
                )
            )
            connection.execute(sa.delete(chat_metadata).where(chat_metadata.c.chat == record.id))
            if record.metadata:
                rows = [{"chat": record.id, "key": k, "value": v} for k, v in record.metadata.items()]
                connection.execute(sa.insert(chat_metadata), rows)

        await self._writer.write(
            work, lambda _: self._grown(record.owner, len(record.completion), record.messages)
        )

    async def chat(self, owner: str, completion_id: str) -> ChatRecord | None:
        def work(connection: sa.Connection) -> ChatRecord | None:
            row = (connection.execute(sa.select(chats).where(_mine(owner, completion_id)))).first()
            return None if row is None else _record(row)

        return await self._database.run(work)

    async def chats(
        self,
        owner: str,
        *,
        model: str | None = None,
        metadata: Mapping[str, str] = {},
        limit: int = 20,
        order: Order = "asc",
        after: str | None = None,
    ) -> Page[ChatRecord]:
        def work(connection: sa.Connection) -> Page[ChatRecord] | None:
            query = sa.select(*_WITHOUT_MESSAGES).where(chats.c.owner == owner)
            if model is not None:
                query = query.where(chats.c.model == model)
            for key, value in metadata.items():
                pair = sa.select(chat_metadata.c.chat).where(
                    chat_metadata.c.key == key, chat_metadata.c.value == value
                )
                query = query.where(chats.c.id.in_(pair))
            if after is not None:
                at = sa.select(chats.c.position).where(_mine(owner, after))
                position = (connection.execute(at)).scalar()
                if position is None:
                    return None
                later = chats.c.position > position if order == "asc" else chats.c.position < position
                query = query.where(later)
            query = query.order_by(chats.c.position if order == "asc" else chats.c.position.desc())
            rows = (connection.execute(query.limit(limit + 1))).all()
            return Page(tuple(_record(row) for row in rows[:limit]), len(rows) > limit)

        found = await self._database.run(work)
        if found is None:
            raise UnknownCursorError(after)
        return found

    async def delete_chat(self, owner: str, completion_id: str) -> bool:
        def work(connection: sa.Connection) -> bool:
            found = connection.execute(sa.delete(chats).where(_mine(owner, completion_id)))
            if found.rowcount:
                connection.execute(sa.delete(chat_metadata).where(chat_metadata.c.chat == completion_id))
            return bool(found.rowcount)

        return await self._writer.write(work, lambda _: self._freed(owner))


def _mine(owner: str, completion_id: str) -> sa.ColumnElement[bool]:
    return sa.and_(chats.c.id == completion_id, chats.c.owner == owner)


def _record(row: Any) -> ChatRecord:
    messages = row._mapping.get("messages")
    return ChatRecord(
        id=row.id,
        owner=row.owner,
        created_at=row.created_at,
        model=row.model,
        metadata=decode_pairs(row.metadata),
        completion=row.completion,
        messages=() if messages is None else decode_items(messages),
    )
