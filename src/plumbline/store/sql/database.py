"""Open a database, bring its tables up to date, and translate its errors."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, TypeVar

import sqlalchemy as sa
from sqlalchemy.exc import DBAPIError, SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, create_async_engine

from plumbline.store.interface import StoreUnavailableError

__all__ = ["HEAD", "Database", "UnresponsiveError"]

HEAD = "0001"
"""The revision of the tables that this version reads and writes."""

T = TypeVar("T")

_MIGRATION_LOCK = 0x706C756D  # "plum"
"""The number of PostgreSQL's lock that a migration holds."""

_BUSY_SHARE = 0.5
"""The share of the timeout that SQLite waits for another process' lock; then it can say so."""


class UnresponsiveError(StoreUnavailableError):
    """The database took too long, or the connection is lost; the next operation would wait as well."""


class Database:
    """Connections to one database: one for writes, several for reads."""

    def __init__(self, url: sa.URL, *, timeout: float = 10.0) -> None:
        """Describe the database; nothing is opened yet.

        Args:
            url: of SQLite or PostgreSQL, with an asynchronous driver.
            timeout: seconds after which an operation has failed.
        """
        self.url = url
        self.timeout = timeout
        self.is_sqlite = url.get_backend_name() == "sqlite"
        self._engine: AsyncEngine | None = None

    async def open(self) -> None:
        """Connect, and create or upgrade the tables.

        Raises:
            StoreUnavailableError: the database cannot be opened, or was written by a newer version.
        """
        if self.is_sqlite and self.url.database and self.url.database != ":memory:":
            _make_private(Path(self.url.database))
        self._engine = create_async_engine(
            self.url,
            pool_size=5,
            max_overflow=0,
            pool_timeout=self.timeout,
            # A connection whose server has restarted is replaced before it is used.
            pool_pre_ping=not self.is_sqlite,
        )
        if self.is_sqlite:
            sa.event.listen(self._engine.sync_engine, "connect", self._set_up_sqlite)
        await self.run(self._upgrade, write=True)

    async def close(self) -> None:
        """Close all connections. Idempotent."""
        engine, self._engine = self._engine, None
        if engine is not None:
            await engine.dispose()

    async def run(self, work: Callable[[AsyncConnection], Awaitable[T]], *, write: bool = False) -> T:
        """Run statements in one transaction, which is committed if they write.

        Raises:
            StoreUnavailableError: the database failed, or took longer than the timeout.
        """
        try:
            async with asyncio.timeout(self.timeout), self._connection() as connection:
                async with connection.begin() as transaction:
                    found = await work(connection)
                    if not write:
                        await transaction.rollback()
                return found
        except TimeoutError:
            raise UnresponsiveError(f"it did not answer within {self.timeout:g} seconds") from None
        except DBAPIError as error:
            raise _translated(error.orig or error, lost=error.connection_invalidated) from error
        except sa.exc.TimeoutError as error:
            raise UnresponsiveError(f"no connection was free within {self.timeout:g} seconds") from error
        except OSError as error:
            raise UnresponsiveError(f"it cannot be reached: {_reason(error)}") from error
        except (SQLAlchemyError, ValueError) as error:
            # aiosqlite raises ValueError where its connection is closed.
            raise StoreUnavailableError(_reason(error)) from error

    @asynccontextmanager
    async def _connection(self) -> AsyncIterator[AsyncConnection]:
        if self._engine is None:
            raise StoreUnavailableError("it is closed")
        async with self._engine.connect() as connection:
            yield connection

    def _set_up_sqlite(self, connection: Any, _: Any) -> None:
        cursor = connection.cursor()
        for pragma in (
            f"busy_timeout = {self.timeout * _BUSY_SHARE * 1000:.0f}",
            # Before the first table, or it has no effect.
            "auto_vacuum = INCREMENTAL",
            "journal_mode = WAL",
            "synchronous = NORMAL",
        ):
            cursor.execute(f"PRAGMA {pragma}")
        cursor.close()

    async def _upgrade(self, connection: AsyncConnection) -> None:
        # Of several servers that start at once, one creates the tables and the others wait.
        if self.is_sqlite:
            await connection.execute(sa.text("BEGIN IMMEDIATE"))
        else:
            await connection.execute(sa.select(sa.func.pg_advisory_xact_lock(_MIGRATION_LOCK)))
        if await connection.run_sync(_revision) != HEAD:
            await connection.run_sync(_migrate)


def _revision(connection: sa.Connection) -> str | None:
    if not sa.inspect(connection).has_table("alembic_version"):
        return None
    found = connection.execute(sa.text("SELECT version_num FROM alembic_version")).scalar()
    return None if found is None else str(found)


def _migrate(connection: sa.Connection) -> None:
    # Imported here: a start with current tables does without it.
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
            f"its tables were written by a newer version of Plumbline ({error}); use that one, or another --store"
        ) from error


def _make_private(path: Path) -> None:
    """Create the folder and the file so that only this user reads them."""
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        path.touch(mode=0o600, exist_ok=True)
    except OSError as error:
        raise StoreUnavailableError(f"{path} cannot be opened: {error.strerror}") from error


def _reason(error: BaseException) -> str:
    return str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__


_NEXT_STEPS = (
    ("database is locked", "another process keeps it locked; end that process, or give another --store"),
    ("database or disk is full", "the disk is full; free space, or keep less (--store-max-bytes)"),
    ("disk i/o error", "the disk fails or is full; free space, or give another --store"),
    ("readonly database", "the file may not be written; change its permissions, or give another --store"),
    ("unable to open", "the file cannot be opened; check its path and permissions"),
    ("not a database", "the file is no SQLite database; give another --store"),
    ("malformed", "the file is damaged; restore a backup, or give another --store"),
)
"""What SQLite says, in small letters, and what an operator can do."""


def _translated(error: BaseException, *, lost: bool) -> StoreUnavailableError:
    """Return the error of a store for one of a driver."""
    reason = _reason(error)
    if "database is locked" in reason:
        lost = True
    step = next((step for words, step in _NEXT_STEPS if words in reason.lower()), None)
    message = reason if step is None else f"{reason}: {step}"
    return UnresponsiveError(message) if lost else StoreUnavailableError(message)
