"""Define the tables. Payloads are bytes; what is searched for has columns of its own."""

from __future__ import annotations

import sqlalchemy as sa

__all__ = [
    "chat_metadata",
    "chats",
    "conversation_items",
    "conversations",
    "items",
    "metadata",
    "responses",
    "secrets",
]

metadata = sa.MetaData()

# A sequence, not only an id: lists are ordered by it, and several records may be made in one second.
_SEQUENCE = sa.BigInteger().with_variant(sa.Integer, "sqlite")

# Small columns come first: SQLite reads a row up to the last column that it needs.
responses = sa.Table(
    "responses",
    metadata,
    sa.Column("id", sa.Text, primary_key=True),
    sa.Column("owner", sa.Text, nullable=False),
    sa.Column("thread", sa.Text, nullable=False, comment="the id of the response that its chain began with"),
    sa.Column("created_at", sa.BigInteger, nullable=False),
    sa.Column("size", sa.BigInteger, nullable=False, comment="bytes of the payloads"),
    sa.Column("status", sa.Text, nullable=False),
    sa.Column("parent", sa.Text),
    sa.Column("conversation", sa.Text),
    sa.Column("runner", sa.Text, comment="the process that generates it; null when it has ended"),
    sa.Column("lease_until", sa.Double, comment="Unix time at which the runner counts as gone"),
    sa.Column("response", sa.LargeBinary, nullable=False),
    sa.Column("input", sa.LargeBinary, nullable=False),
    sa.Column("events", sa.LargeBinary, nullable=False),
    sa.Index("responses_by_thread", "thread", "created_at"),
    sa.Index("responses_by_owner", "owner"),
    sa.Index("responses_by_runner", "runner"),
)

items = sa.Table(
    "items",
    metadata,
    sa.Column("owner", sa.Text, primary_key=True),
    sa.Column("id", sa.Text, primary_key=True),
    sa.Column("holder", sa.Text, primary_key=True, comment="a response or conversation that has it"),
    sa.Column(
        "noted_at", sa.BigInteger, nullable=False, comment="Unix time in nanoseconds; the newest is read"
    ),
    sa.Index("items_by_holder", "holder"),
)

conversations = sa.Table(
    "conversations",
    metadata,
    sa.Column("id", sa.Text, primary_key=True),
    sa.Column("owner", sa.Text, nullable=False),
    sa.Column("created_at", sa.BigInteger, nullable=False),
    sa.Column("used_at", sa.BigInteger, nullable=False),
    sa.Column("metadata", sa.LargeBinary, nullable=False),
    sa.Index("conversations_by_use", "used_at"),
)

conversation_items = sa.Table(
    "conversation_items",
    metadata,
    sa.Column("position", _SEQUENCE, primary_key=True, autoincrement=True),
    sa.Column("conversation", sa.Text, nullable=False),
    sa.Column("id", sa.Text, nullable=False),
    sa.Column("body", sa.LargeBinary, nullable=False),
    sa.Index("conversation_items_in_order", "conversation", "position"),
    sa.Index("conversation_items_by_id", "conversation", "id", unique=True),
)

chats = sa.Table(
    "chats",
    metadata,
    sa.Column("position", _SEQUENCE, primary_key=True, autoincrement=True),
    sa.Column("id", sa.Text, nullable=False, unique=True),
    sa.Column("owner", sa.Text, nullable=False),
    sa.Column("created_at", sa.BigInteger, nullable=False),
    sa.Column("size", sa.BigInteger, nullable=False),
    sa.Column("model", sa.Text, nullable=False),
    sa.Column("metadata", sa.LargeBinary, nullable=False),
    sa.Column("completion", sa.LargeBinary, nullable=False),
    sa.Column("messages", sa.LargeBinary, nullable=False),
    sa.Index("chats_by_owner", "owner", "position"),
    sa.Index("chats_by_time", "created_at"),
)

chat_metadata = sa.Table(
    "chat_metadata",
    metadata,
    sa.Column("chat", sa.Text, primary_key=True),
    sa.Column("key", sa.Text, primary_key=True),
    sa.Column("value", sa.Text, nullable=False),
    sa.Index("chat_metadata_by_pair", "key", "value"),
)

secrets = sa.Table(
    "secrets",
    metadata,
    sa.Column("name", sa.Text, primary_key=True),
    sa.Column("value", sa.LargeBinary, nullable=False),
)
