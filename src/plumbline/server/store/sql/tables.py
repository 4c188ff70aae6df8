"""Define the tables. Payloads are bytes; searchable values have their own columns."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa

__all__ = [
    "chat_metadata",
    "chats",
    "conversation_items",
    "conversations",
    "event_parts",
    "items",
    "metadata",
    "responses",
    "secrets",
]

metadata = sa.MetaData()


class _AnyText(sa.types.TypeDecorator[str]):
    """Text that may contain NUL, as in JSON. PostgreSQL cannot store NUL, so there it becomes two characters."""

    impl = sa.Text
    cache_ok = True

    def process_bind_param(self, value: str | None, dialect: Any) -> str | None:
        if value is None or dialect.name != "postgresql":
            return value
        return value.replace("\x01", "\x01\x02").replace("\x00", "\x01\x03")

    def process_result_value(self, value: str | None, dialect: Any) -> str | None:
        if value is None or dialect.name != "postgresql":
            return value
        return value.replace("\x01\x03", "\x00").replace("\x01\x02", "\x01")


_TEXT = _AnyText()


# A sequence, not only an id: lists are ordered by it, and several records may be made in one second.
_SEQUENCE = sa.BigInteger().with_variant(sa.Integer, "sqlite")

# Indices end with the sizes that a sweep adds up, so that it reads no row.
# Small columns come first: SQLite reads a row up to the last column that it needs.
responses = sa.Table(
    "responses",
    metadata,
    sa.Column("id", _TEXT, primary_key=True),
    sa.Column("owner", _TEXT, nullable=False),
    sa.Column("thread", _TEXT, nullable=False, comment="the id of the response that its chain began with"),
    sa.Column("created_at", sa.BigInteger, nullable=False),
    sa.Column("size", sa.BigInteger, nullable=False, comment="bytes of the payloads"),
    sa.Column("status", _TEXT, nullable=False),
    sa.Column("parent", _TEXT),
    sa.Column("compacts", sa.Boolean, nullable=False),
    sa.Column("conversation", _TEXT),
    sa.Column("runner", _TEXT, comment="the process that generates it; null when it has ended"),
    sa.Column("lease_until", sa.Double, comment="Unix time at which the runner counts as gone"),
    sa.Column("response", sa.LargeBinary, nullable=False),
    sa.Column("input", sa.LargeBinary, nullable=False),
    sa.Column("events", sa.LargeBinary, nullable=False),
    sa.Column("cancel_requested", sa.Boolean, comment="another process asks its runner to stop"),
    sa.Index("responses_by_thread", "thread", "created_at", "size"),
    sa.Index("responses_by_owner", "owner", "size"),
    sa.Index("responses_by_runner", "runner"),
)

# Deleted with its response, also by a server of an older version, which does not know the table.
event_parts = sa.Table(
    "event_parts",
    metadata,
    sa.Column("response", _TEXT, sa.ForeignKey("responses.id", ondelete="CASCADE"), primary_key=True),
    sa.Column("number", sa.Integer, primary_key=True, comment="0, 1, 2, … in the order of the events"),
    sa.Column("body", sa.LargeBinary, nullable=False),
)

items = sa.Table(
    "items",
    metadata,
    sa.Column("owner", _TEXT, primary_key=True),
    sa.Column("id", _TEXT, primary_key=True),
    sa.Column("holder", _TEXT, primary_key=True, comment="a response or conversation that has it"),
    sa.Column(
        "noted_at", sa.BigInteger, nullable=False, comment="Unix time in nanoseconds; the newest is read"
    ),
    sa.Index("items_by_holder", "holder"),
)

conversations = sa.Table(
    "conversations",
    metadata,
    sa.Column("id", _TEXT, primary_key=True),
    sa.Column("owner", _TEXT, nullable=False),
    sa.Column("created_at", sa.BigInteger, nullable=False),
    sa.Column("used_at", sa.BigInteger, nullable=False),
    sa.Column(
        "size",
        sa.BigInteger,
        nullable=False,
        comment="bytes of metadata and items; an item sent again counts again",
    ),
    sa.Column("metadata", sa.LargeBinary, nullable=False),
    sa.Column("runner", _TEXT, comment="the process with a request that works on it"),
    sa.Column("lease_until", sa.Double, comment="Unix time at which the runner counts as gone"),
    sa.Index("conversations_by_use", "used_at", "size"),
    sa.Index("conversations_by_owner", "owner", "size"),
)

conversation_items = sa.Table(
    "conversation_items",
    metadata,
    sa.Column("position", _SEQUENCE, primary_key=True, autoincrement=True),
    sa.Column("conversation", _TEXT, nullable=False),
    sa.Column("id", _TEXT, nullable=False),
    sa.Column("body", sa.LargeBinary, nullable=False),
    sa.Index("conversation_items_in_order", "conversation", "position"),
    sa.Index("conversation_items_by_id", "conversation", "id", unique=True),
)

chats = sa.Table(
    "chats",
    metadata,
    sa.Column("position", _SEQUENCE, primary_key=True, autoincrement=True),
    sa.Column("id", _TEXT, nullable=False, unique=True),
    sa.Column("owner", _TEXT, nullable=False),
    sa.Column("created_at", sa.BigInteger, nullable=False),
    sa.Column("size", sa.BigInteger, nullable=False),
    sa.Column("model", _TEXT, nullable=False),
    sa.Column("metadata", sa.LargeBinary, nullable=False),
    sa.Column("completion", sa.LargeBinary, nullable=False),
    sa.Column("messages", sa.LargeBinary, nullable=False),
    sa.Index("chats_by_owner", "owner", "position"),
    sa.Index("chats_by_time", "created_at", "size"),
    sa.Index("chats_by_size", "owner", "size"),
)

chat_metadata = sa.Table(
    "chat_metadata",
    metadata,
    sa.Column("chat", _TEXT, primary_key=True),
    sa.Column("key", _TEXT, primary_key=True),
    sa.Column("value", _TEXT, nullable=False),
    sa.Index("chat_metadata_by_pair", "key", "value"),
)

secrets = sa.Table(
    "secrets",
    metadata,
    sa.Column("name", _TEXT, primary_key=True),
    sa.Column("value", sa.LargeBinary, nullable=False),
)
