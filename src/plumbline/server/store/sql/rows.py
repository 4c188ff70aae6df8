"""Give the groups of tables their database, and encode payloads."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from typing import Any

import msgspec
import sqlalchemy as sa
from sqlalchemy.dialects import postgresql, sqlite

from plumbline.server.store.interface import Store
from plumbline.server.store.records import ItemRecord
from plumbline.server.store.sql.database import Database
from plumbline.server.store.sql.writer import GroupWriter

__all__ = ["Rows", "decode_items", "decode_pairs", "encode_items", "encode_pairs", "now"]

_items = msgspec.msgpack.Decoder(tuple[ItemRecord, ...])
_pairs = msgspec.json.Decoder(dict[str, str])


class Rows(Store):
    """A group of tables."""

    _database: Database
    _writer: GroupWriter
    _owned: dict[str, tuple[float, int]]
    """The bytes of owners with a limit, and when they were added up."""

    def _grown(self, owner: str, size: int, items: Iterable[ItemRecord]) -> None:
        """Count what was stored since the bytes of an owner were added up."""
        if (known := self._owned.get(owner)) is not None:
            self._owned[owner] = known[0], known[1] + size + sum(len(item.body) for item in items)

    def _freed(self, owner: str) -> None:
        self._owned.pop(owner, None)

    def _insert(self, table: sa.Table) -> Any:
        """Return an insert that knows `on_conflict_do_…`, which every dialect has under its own name."""
        return (sqlite if self._database.is_sqlite else postgresql).insert(table)


def now() -> int:
    """Return Unix time in whole seconds."""
    return int(time.time())


def encode_items(items: Iterable[ItemRecord]) -> bytes:
    """Return items as one payload."""
    return msgspec.msgpack.encode(tuple(items))


def decode_items(payload: bytes) -> tuple[ItemRecord, ...]:
    """Return the items of a payload."""
    return _items.decode(payload)


def encode_pairs(pairs: Mapping[str, str]) -> bytes:
    """Return metadata as one payload."""
    return msgspec.json.encode(dict(pairs))


def decode_pairs(payload: bytes) -> dict[str, str]:
    """Return the metadata of a payload."""
    return _pairs.decode(payload)
