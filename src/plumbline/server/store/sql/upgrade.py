"""Bring the tables of a database to the revision of this version."""

from __future__ import annotations

import logging
from pathlib import Path

import sqlalchemy as sa

from plumbline.server.store.interface import StoreUnavailableError

__all__ = ["HEAD", "upgrade"]

HEAD = "0003"
"""The revision of the tables that this version reads and writes.

Revisions with the same first two digits only add to the tables. So servers of an older and of a newer version work on
them side by side, and an older one may start again during an upgrade.
"""

_MIGRATION_LOCK = 0x706C756D  # "plum"
"""The number of PostgreSQL's lock that a migration holds."""
_log = logging.getLogger("plumbline.store")


def upgrade(connection: sa.Connection, is_sqlite: bool) -> None:
    """Create or change the tables, unless they are those of this version or of a newer one that it can use.

    Raises:
        StoreUnavailableError: a newer version has written them in another way.
    """
    # If several servers start at once, one creates the tables and the others wait, with SQLite for its lock.
    if not is_sqlite:
        connection.execute(sa.select(sa.func.pg_advisory_xact_lock(_MIGRATION_LOCK)))
    found = _revision(connection)
    if found is not None and found > HEAD and found[:2] == HEAD[:2]:
        _log.warning("the tables were written by a newer version (%s); this one reads what it knows", found)
    elif found != HEAD:
        _migrate(connection)


def _revision(connection: sa.Connection) -> str | None:
    if not sa.inspect(connection).has_table("alembic_version"):
        return None
    found = connection.execute(sa.text("SELECT version_num FROM alembic_version")).scalar()
    return None if found is None else str(found)


def _migrate(connection: sa.Connection) -> None:
    # Imported here, because a start with current tables does not need it.
    from alembic import command
    from alembic.config import Config
    from alembic.util import CommandError

    config = Config()
    config.set_main_option("script_location", str(Path(__file__).parent.parent / "migrations"))
    config.attributes["connection"] = connection
    try:
        command.upgrade(config, "head")
    except CommandError as error:
        raise StoreUnavailableError(
            f"its tables were written by a newer version of Plumbline (revision {_revision(connection)}), which must "
            "be used from then on"
        ) from error
