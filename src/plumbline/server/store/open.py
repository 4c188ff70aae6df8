"""Open the store that an operator names."""

from __future__ import annotations

import re

import sqlalchemy as sa
from sqlalchemy.exc import ArgumentError

from plumbline.server.store.interface import Store
from plumbline.server.store.sql.database import Database
from plumbline.server.store.sql.postgres_address import BadAddressError, PostgresAddress
from plumbline.server.store.sql.sql_store import SqlStore
from plumbline.server.store.sql.sweep import Retention

__all__ = ["BadStoreUrlError", "open_store"]

_POSTGRES = re.compile(r"(?:postgresql|postgres)(?:\+\w+)?://", re.ASCII)
"""SQLAlchemy's addresses name a driver."""


class BadStoreUrlError(ValueError):
    """The store's URL cannot be used; the message states why, without the password."""


def open_store(url: str, retention: Retention | None = None, *, timeout: float = 10.0) -> Store:
    """Return a store; `start` opens it.

    Args:
        url: `sqlite:///PATH`, a plain path, or an address of PostgreSQL, see `PostgresAddress`.
        retention: how long and how much is kept; None for the defaults.
        timeout: seconds after which an operation has failed.

    Raises:
        BadStoreUrlError: the URL cannot be parsed, or names another kind of database.
    """
    if not url:
        raise BadStoreUrlError("this user has no home directory; set HOME or XDG_DATA_HOME, or give a path")
    if "://" not in url:
        url = f"sqlite:///{url}"
    where = _postgres(url) if _POSTGRES.match(url) else _sqlite(url)
    return SqlStore(Database(where, timeout=timeout), retention or Retention())


def _postgres(url: str) -> PostgresAddress:
    try:
        return PostgresAddress(url)
    except BadAddressError as error:
        raise BadStoreUrlError(str(error)) from None


def _sqlite(url: str) -> sa.URL:
    try:
        parsed = sa.make_url(url)
    except (ArgumentError, ValueError):
        raise BadStoreUrlError("the URL of the store cannot be parsed") from None
    backend = parsed.get_backend_name()
    if backend != "sqlite":
        raise BadStoreUrlError(f"{backend!r} is not a supported store; give sqlite:///PATH or postgresql://…")
    if not parsed.database:
        raise BadStoreUrlError("sqlite:/// needs the path of a file")
    return parsed.set(drivername="sqlite")
