"""Delete what is older, or more, than the operator keeps."""

from __future__ import annotations

import msgspec
import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection

from plumbline.store.sql.rows import now
from plumbline.store.sql.tables import (
    chat_metadata,
    chats,
    conversation_items,
    conversations,
    items,
    responses,
)

__all__ = ["Retention", "sweep"]

_BATCH = 200
"""Chains, conversations or completions that are deleted in one transaction."""
_DAY = 86_400


class Retention(msgspec.Struct, frozen=True, kw_only=True):
    """How long and how much is kept."""

    max_age: int | None = 30 * _DAY
    """Seconds since the newest response of a chain, or since the last use of a conversation; None is for ever."""
    max_bytes: int | None = None
    """Bytes of all responses; above, the oldest chains go first. None is any number."""
    max_responses_per_owner: int | None = None
    """Responses of one API key; further ones are refused. None is any number."""

    @property
    def description(self) -> str:
        """For the line that the server prints at its start."""
        age = "for ever" if self.max_age is None else f"for {self.max_age / _DAY:g} days"
        return f"kept {age}" + ("" if self.max_bytes is None else f", {self.max_bytes} bytes at most")


async def sweep(connection: AsyncConnection, retention: Retention) -> bool:
    """Delete a batch of what is not kept; return whether there may be more.

    A chain of responses is kept or deleted as a whole, by the time of its newest one: without its beginning it could
    not go on.
    """
    more = False
    if retention.max_age is not None:
        before = now() - retention.max_age
        threads = (
            sa.select(responses.c.thread)
            .group_by(responses.c.thread)
            .having(sa.func.max(responses.c.created_at) < before)
            .limit(_BATCH)
        )
        more |= await _delete_threads(connection, threads)
        more |= await _delete_conversations(connection, before)
        more |= await _delete_chats(connection, before)
    if retention.max_bytes is not None:
        total = (await connection.execute(sa.select(sa.func.sum(responses.c.size)))).scalar() or 0
        if total > retention.max_bytes:
            oldest = (
                sa.select(responses.c.thread)
                .group_by(responses.c.thread)
                .order_by(sa.func.max(responses.c.created_at))
                .limit(max(1, _BATCH // 20))
            )
            more |= await _delete_threads(connection, oldest)
    return more


async def _delete_threads(connection: AsyncConnection, threads: sa.Select[tuple[str]]) -> bool:
    names = [row.thread for row in (await connection.execute(threads)).all()]
    if not names:
        return False
    gone = sa.select(responses.c.id).where(responses.c.thread.in_(names))
    await connection.execute(sa.delete(items).where(items.c.holder.in_(gone)))
    await connection.execute(sa.delete(responses).where(responses.c.thread.in_(names)))
    return True


async def _delete_conversations(connection: AsyncConnection, before: int) -> bool:
    query = sa.select(conversations.c.id).where(conversations.c.used_at < before).limit(_BATCH)
    names = [row.id for row in (await connection.execute(query)).all()]
    if not names:
        return False
    await connection.execute(sa.delete(items).where(items.c.holder.in_(names)))
    await connection.execute(
        sa.delete(conversation_items).where(conversation_items.c.conversation.in_(names))
    )
    await connection.execute(sa.delete(conversations).where(conversations.c.id.in_(names)))
    return True


async def _delete_chats(connection: AsyncConnection, before: int) -> bool:
    query = sa.select(chats.c.id).where(chats.c.created_at < before).limit(_BATCH)
    names = [row.id for row in (await connection.execute(query)).all()]
    if not names:
        return False
    await connection.execute(sa.delete(chat_metadata).where(chat_metadata.c.chat.in_(names)))
    await connection.execute(sa.delete(chats).where(chats.c.id.in_(names)))
    return True
