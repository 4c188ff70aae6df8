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

__all__ = ["Expired", "Retention", "delete_expired", "find_expired"]

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


class Expired(msgspec.Struct, frozen=True):
    """A batch of what is not kept any more; false if there is nothing."""

    threads: tuple[str, ...] = ()
    conversations: tuple[str, ...] = ()
    chats: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.threads or self.conversations or self.chats)


async def find_expired(connection: AsyncConnection, retention: Retention) -> Expired:
    """Look for a batch of what is not kept. It only reads.

    A chain of responses is kept or deleted as a whole, by the time of its newest one: without its beginning it could
    not go on.
    """
    newest = sa.func.max(responses.c.created_at)
    threads = sa.select(responses.c.thread).group_by(responses.c.thread)
    expired = Expired()
    if retention.max_age is not None:
        before = now() - retention.max_age
        expired = Expired(
            await _names(connection, threads.having(newest < before).limit(_BATCH)),
            await _names(
                connection,
                sa.select(conversations.c.id).where(conversations.c.used_at < before).limit(_BATCH),
            ),
            await _names(connection, sa.select(chats.c.id).where(chats.c.created_at < before).limit(_BATCH)),
        )
    if not expired and retention.max_bytes is not None:
        total = (await connection.execute(sa.select(sa.func.sum(responses.c.size)))).scalar() or 0
        if total > retention.max_bytes:
            oldest = threads.order_by(newest).limit(max(1, _BATCH // 20))
            expired = Expired(await _names(connection, oldest))
    return expired


async def delete_expired(connection: AsyncConnection, expired: Expired) -> None:
    """Delete a batch, with its items. A chain that has gone on meanwhile goes, too."""
    gone = sa.select(responses.c.id).where(responses.c.thread.in_(expired.threads))
    await connection.execute(sa.delete(items).where(items.c.holder.in_(gone)))
    await connection.execute(sa.delete(responses).where(responses.c.thread.in_(expired.threads)))
    await connection.execute(sa.delete(items).where(items.c.holder.in_(expired.conversations)))
    await connection.execute(
        sa.delete(conversation_items).where(conversation_items.c.conversation.in_(expired.conversations))
    )
    await connection.execute(sa.delete(conversations).where(conversations.c.id.in_(expired.conversations)))
    await connection.execute(sa.delete(chat_metadata).where(chat_metadata.c.chat.in_(expired.chats)))
    await connection.execute(sa.delete(chats).where(chats.c.id.in_(expired.chats)))


async def _names(connection: AsyncConnection, query: sa.Select[tuple[str]]) -> tuple[str, ...]:
    return tuple(str(row[0]) for row in (await connection.execute(query)).all())
