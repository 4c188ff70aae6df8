"""Delete records beyond the age or size that the operator keeps."""

from __future__ import annotations

from collections import Counter

import msgspec
import sqlalchemy as sa

from plumbline.server.store.sql.rows import now
from plumbline.server.store.sql.tables import (
    chat_metadata,
    chats,
    conversation_items,
    conversations,
    items,
    responses,
)

__all__ = ["ExpiredBatch", "Retention", "Sizes", "bytes_of", "delete_expired", "find_expired", "sizes"]

_BATCH = 200
"""Chains, conversations or completions that are deleted in one transaction."""
_DAY = 86_400


class Retention(msgspec.Struct, frozen=True, kw_only=True):
    """How long and how much is kept."""

    max_age: int | None = 30 * _DAY
    """Seconds since the newest response of a chain, or since the last use of a conversation; None means no limit."""
    max_bytes: int | None = None
    """Bytes of all payloads; above, the oldest of the owner with the most bytes go first. None means no limit."""
    max_responses_per_owner: int | None = None
    """Responses of one API key; further ones are refused. None means no limit."""

    @property
    def description(self) -> str:
        """The limits in words, for the line that the server prints at its start."""
        age = "for ever" if self.max_age is None else f"for {self.max_age / _DAY:g} days"
        return age if self.max_bytes is None else f"{age}, {self.max_bytes / 1024**3:.3g} GiB at most"


class Sizes(msgspec.Struct, frozen=True):
    """The numbers and bytes of stored records."""

    responses: int = 0
    conversations: int = 0
    chats: int = 0
    bytes: int = 0


class ExpiredBatch(msgspec.Struct, frozen=True):
    """A batch of expired records; false if empty."""

    threads: tuple[str, ...] = ()
    conversations: tuple[str, ...] = ()
    chats: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.threads or self.conversations or self.chats)


def find_expired(connection: sa.Connection, retention: Retention) -> ExpiredBatch:
    """Find a batch of expired records, without deleting them.

    A chain of responses is kept or deleted as a whole, by the time of its newest one: without its beginning it could
    not go on.
    """
    newest = sa.func.max(responses.c.created_at)
    threads = sa.select(responses.c.thread).group_by(responses.c.thread)
    expired = ExpiredBatch()
    if retention.max_age is not None:
        before = now() - retention.max_age
        expired = ExpiredBatch(
            _names(connection, threads.having(newest < before).limit(_BATCH)),
            _names(
                connection,
                sa.select(conversations.c.id).where(conversations.c.used_at < before).limit(_BATCH),
            ),
            _names(connection, sa.select(chats.c.id).where(chats.c.created_at < before).limit(_BATCH)),
        )
    if not expired and retention.max_bytes is not None:
        excess = (sizes(connection)).bytes - retention.max_bytes
        if excess > 0:
            expired = _oldest(connection, *_share_of_most(connection, excess))
    return expired


def sizes(connection: sa.Connection) -> Sizes:
    """Count records and bytes. It reads indices only."""
    counts: list[int] = []
    total = 0
    for table in (responses, conversations, chats):
        query = sa.select(sa.func.count(), sa.func.coalesce(sa.func.sum(table.c.size), 0)).select_from(table)
        count, size = (connection.execute(query)).one()
        counts.append(int(count))
        total += int(size)
    return Sizes(counts[0], counts[1], counts[2], total)


def bytes_of(connection: sa.Connection, owner: str) -> int:
    """Return the bytes of all records of an owner. It reads indices only."""
    total = 0
    for table in (responses, conversations, chats):
        query = sa.select(sa.func.coalesce(sa.func.sum(table.c.size), 0)).where(table.c.owner == owner)
        total += int(connection.execute(query).scalar_one())
    return total


def _share_of_most(connection: sa.Connection, excess: int) -> tuple[str, int]:
    """Return the owner with the most bytes, and how many of them go; so nobody pays for what others store."""
    found: Counter[str] = Counter()
    for table in (responses, conversations, chats):
        query = sa.select(table.c.owner, sa.func.sum(table.c.size)).group_by(table.c.owner)
        for owner, size in connection.execute(query):
            found[owner] += int(size)
    (owner, most), *others = found.most_common(2)
    ahead = most - others[0][1] if others else excess
    return owner, min(excess, max(ahead, excess // len(found), 1))


def _oldest(connection: sa.Connection, owner: str, excess: int) -> ExpiredBatch:
    """Select the oldest records of an owner that make up so many bytes, or a batch of them."""
    thread, newest = responses.c.thread, sa.func.max(responses.c.created_at)
    of_kinds = (
        sa.select(thread, newest, sa.func.sum(responses.c.size))
        .where(responses.c.owner == owner)
        .group_by(thread)
        .order_by(newest),
        sa.select(conversations.c.id, conversations.c.used_at, conversations.c.size)
        .where(conversations.c.owner == owner)
        .order_by(conversations.c.used_at),
        sa.select(chats.c.id, chats.c.created_at, chats.c.size)
        .where(chats.c.owner == owner)
        .order_by(chats.c.created_at),
    )
    candidates: list[tuple[int, int, str, int]] = []
    for kind, query in enumerate(of_kinds):
        rows = (connection.execute(query.limit(_BATCH))).all()
        candidates += [(int(row[1]), kind, str(row[0]), int(row[2])) for row in rows]
    names: tuple[list[str], list[str], list[str]] = ([], [], [])
    for _, kind, name, size in sorted(candidates)[:_BATCH]:
        if excess <= 0:
            break
        names[kind].append(name)
        excess -= size
    return ExpiredBatch(*map(tuple, names))


def delete_expired(connection: sa.Connection, expired: ExpiredBatch) -> None:
    """Delete a batch, with its items, also a chain that was continued meanwhile."""
    gone = sa.select(responses.c.id).where(responses.c.thread.in_(expired.threads))
    connection.execute(sa.delete(items).where(items.c.holder.in_(gone)))
    connection.execute(sa.delete(responses).where(responses.c.thread.in_(expired.threads)))
    connection.execute(sa.delete(items).where(items.c.holder.in_(expired.conversations)))
    connection.execute(
        sa.delete(conversation_items).where(conversation_items.c.conversation.in_(expired.conversations))
    )
    connection.execute(sa.delete(conversations).where(conversations.c.id.in_(expired.conversations)))
    connection.execute(sa.delete(chat_metadata).where(chat_metadata.c.chat.in_(expired.chats)))
    connection.execute(sa.delete(chats).where(chats.c.id.in_(expired.chats)))


def _names(connection: sa.Connection, query: sa.Select[tuple[str]]) -> tuple[str, ...]:
    return tuple(str(row[0]) for row in (connection.execute(query)).all())
