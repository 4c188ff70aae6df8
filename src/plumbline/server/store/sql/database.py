"""Open a database, bring its tables up to date, and translate its errors."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import shutil
import sqlite3
import threading
import time
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from secrets import token_hex
from typing import Any, TypeVar

import sqlalchemy as sa
from sqlalchemy.exc import DBAPIError, SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine

from plumbline.server.store.interface import StoreUnavailableError
from plumbline.server.store.sql.failures import Failures
from plumbline.server.store.sql.postgres_address import PostgresAddress
from plumbline.server.store.sql.tables import secrets
from plumbline.server.store.sql.upgrade import upgrade

__all__ = ["Database", "UnresponsiveError"]

T = TypeVar("T")
_log = logging.getLogger("plumbline.store")

_CONNECTIONS = 5
"""Connections of one process: one writes, the others read."""

_URGENT_SECONDS = 3.0
"""How long an urgent transaction waits for an answer on one connection. Two of them are shorter than a lease."""
_LOW_DISK = 256 << 20
"""Free bytes of a disk below which the health of the server is degraded."""
_PROBE_BYTES = 8192
"""What a probe writes: more than a page."""
_BUSY_SHARE = 0.5
"""The share of the timeout that SQLite waits for another process' lock; the rest is for reporting the error."""
_START_SECONDS = 60.0
"""How long a transaction of the start may take. It creates or changes tables, perhaps after another server that starts.
No client waits for it, and on a loaded machine the work alone takes longer than an operation may."""


class UnresponsiveError(StoreUnavailableError):
    """The database took too long, or the connection is lost; the next operation would wait as well."""


class Database:
    """Connections to one database: one for writes, several for reads.

    A transaction is a plain function of a connection. For SQLite, the whole function runs in one thread: asynchronous
    drivers change threads for each statement, which takes several times as long as the statements. For PostgreSQL it
    runs on the event loop, where the asynchronous driver waits for the server.
    """

    def __init__(self, where: sa.URL | PostgresAddress, *, timeout: float = 10.0) -> None:
        """Describe the database; nothing is opened yet.

        Args:
            where: the URL of a SQLite database, or the address of PostgreSQL.
            timeout: seconds after which an operation fails.
        """
        self._where = where
        self.timeout = timeout
        self._patience = max(timeout, _START_SECONDS)
        """Seconds that a transaction of the start may take."""
        self._busy = self._patience * _BUSY_SHARE
        """Seconds that a new connection of SQLite waits for another process' lock."""
        self.is_sqlite = isinstance(where, sa.URL)
        self.engine: sa.Engine | None = None
        """None while the database is closed. For PostgreSQL, the engine that `_asynchronous` wraps."""
        self._asynchronous: AsyncEngine | None = None
        self._apart: AsyncEngine | None = None
        """For PostgreSQL, one connection more, for urgent transactions."""
        self._threads: ThreadPoolExecutor | None = None
        self._file: Path | None = None
        """The file of SQLite; None for PostgreSQL and for a database in memory."""
        self._identity: tuple[int, int] | None = None
        """The identity of the open file in the file system."""
        self._failures = Failures(self._probe)
        self.transactions: dict[str, tuple[int, float]] = {}
        """By kind (read, write, renew), how many transactions there were, and the sum of their seconds."""

    async def open(self) -> None:
        """Connect, and create or upgrade the tables.

        Raises:
            StoreUnavailableError: the database cannot be opened, or was written by a newer version.
        """
        limits: dict[str, Any] = {
            "pool_size": _CONNECTIONS,
            "max_overflow": 0,
            "pool_timeout": self.timeout,
        }
        if isinstance(self._where, sa.URL):
            if self._where.database and self._where.database != ":memory:":
                self._file = Path(self._where.database)
                _make_private(self._file)
                self._identity = _identity(self._file)
            self.engine = sa.create_engine(self._where, poolclass=sa.QueuePool, **limits)
            # SQLite would make an empty database in the place of a file that was moved away.
            sa.event.listen(self.engine, "do_connect", lambda *_: self._check_file())
            sa.event.listen(self.engine, "connect", self._set_up_sqlite)
            self._threads = ThreadPoolExecutor(_CONNECTIONS, "plumbline-store")
        else:
            # After a restart of the database server, connections are replaced before they are used.
            self._asynchronous = _engine(self._where, pool_pre_ping=True, **limits)
            self.engine = self._asynchronous.sync_engine
            self._apart = _engine(self._where, pool_size=1, max_overflow=0)
        try:
            await self.run_at_start(self._open)
        except StoreUnavailableError:
            await self._failures.stop()  # Without tables there is nothing to try.
            raise

    def _open(self, connection: sa.Connection) -> None:
        upgrade(connection, self.is_sqlite)
        self._busy = self.timeout * _BUSY_SHARE
        if self.is_sqlite:
            connection.exec_driver_sql(f"PRAGMA busy_timeout = {self._busy * 1000:.0f}")

    @property
    def description(self) -> str:
        """Where it is, without a password."""
        return str(self._where.database) if isinstance(self._where, sa.URL) else self._where.shown

    @property
    def clock(self) -> sa.ColumnElement[float]:
        """Unix time of the database, the one clock that all servers agree on."""
        if self.is_sqlite:
            return (sa.func.julianday("now", type_=sa.Double) - 2_440_587.5) * 86_400.0
        return sa.cast(sa.extract("epoch", sa.func.clock_timestamp()), sa.Double)

    async def close(self) -> None:
        """Close all connections. Idempotent."""
        await self._failures.stop()
        engine, self.engine = self.engine, None
        if self._asynchronous is not None and self._apart is not None:
            # It says goodbye on each connection, and one that is silent would not answer.
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self.timeout):
                    await self._apart.dispose()
                    await self._asynchronous.dispose()
        elif engine is not None and self._threads is not None:
            # Work whose caller timed out may still run, until SQLite's own timeout.
            await asyncio.to_thread(self._threads.shutdown)
            engine.dispose()
        self._asynchronous = self._apart = self._threads = None

    async def run(self, work: Callable[[sa.Connection], T], *, write: bool = False) -> T:
        """Run statements in one transaction, which is committed if they write.

        Raises:
            StoreUnavailableError: the database failed, or took longer than the timeout.
        """
        return await self._noted(
            "write" if write else "read", lambda: self._transaction(work, write), self.timeout
        )

    async def run_at_start(self, work: Callable[[sa.Connection], T]) -> T:
        """Run a writing transaction of the start of the server, which may take longer; log that it does.

        Raises:
            StoreUnavailableError: the database failed, or took longer than a minute.
        """
        text = "the store has not answered for %g seconds; the start waits for it, %g seconds at most"
        slow = asyncio.get_running_loop().call_later(
            self.timeout, _log.warning, text, self.timeout, self._patience
        )
        try:
            return await self._noted("write", lambda: self._transaction(work, True), self._patience)
        finally:
            slow.cancel()

    async def _transaction(self, work: Callable[[sa.Connection], T], write: bool) -> T:
        return await (self._in_thread if self.is_sqlite else self._on_loop)(work, write)

    async def renew(self, work: Callable[[sa.Connection], T]) -> T:
        """Run a short write of PostgreSQL that no other transaction may hold up, and commit it.

        It has a connection of its own, and gets a new one if that does not answer: a connection whose other end has
        gone without a word may be silent for minutes.

        Raises:
            StoreUnavailableError: the database failed, or took longer than 6 seconds.
        """

        async def run() -> T:
            try:
                return await self._apart_from_others(work)
            except DBAPIError as error:
                if not error.connection_invalidated:
                    raise
            return await self._apart_from_others(work)

        return await self._noted("renew", run, self.timeout)

    async def _noted(self, kind: str, run: Callable[[], Awaitable[T]], seconds: float) -> T:
        """Run a transaction, translate its errors, and keep count of it."""
        if self.engine is None:
            raise StoreUnavailableError("it is closed")
        began = time.perf_counter()
        try:
            found = await self._translated(run, seconds)
        except StoreUnavailableError as error:
            self._failures.failed(kind, str(error))
            raise
        finally:
            number, seconds = self.transactions.get(kind, (0, 0.0))
            self.transactions[kind] = number + 1, seconds + time.perf_counter() - began
        self._failures.worked(kind)
        return found

    async def _probe(self, kind: str) -> None:
        """Try a transaction of a kind. One that writes fills a page, which a full disk has no room for."""
        if kind == "renew":
            await self.renew(lambda connection: connection.execute(sa.select(1)))
        elif kind == "read":
            await self.run(lambda connection: connection.execute(sa.select(1)))
        else:
            name = f"probe {token_hex(8)}"
            added = sa.insert(secrets).values(name=name, value=bytes(_PROBE_BYTES))
            removed = sa.delete(secrets).where(secrets.c.name == name)
            await self.run(
                lambda connection: (connection.execute(added), connection.execute(removed)), write=True
            )

    @property
    def is_failing(self) -> bool:
        """Whether the last read or the last write failed."""
        return bool(self._failures)

    @property
    def problems(self) -> list[str]:
        """Why the database does not work, or soon will not, in words. It asks the file system, not the database.

        Probes need no key, so the reason, which may have a path or an address, is in the log only.
        """
        found = [f"the store does not {kind}: see the log" for kind in self._failures.kinds]
        if self._file is not None:
            with contextlib.suppress(OSError):
                free = shutil.disk_usage(self._file.parent).free
                if free < _LOW_DISK:
                    found.append(f"the disk of the store has {free >> 20} MiB left")
        return found

    async def _translated(self, run: Callable[[], Awaitable[T]], seconds: float) -> T:
        try:
            async with asyncio.timeout(seconds):
                return await run()
        except TimeoutError:
            raise UnresponsiveError(f"it did not answer within {seconds:g} seconds") from None
        except DBAPIError as error:
            raise _translated(error.orig or error, lost=error.connection_invalidated) from error
        except sa.exc.TimeoutError as error:
            raise UnresponsiveError(f"no connection was free within {self.timeout:g} seconds") from error
        except OSError as error:
            raise UnresponsiveError(f"it cannot be reached: {_reason(error)}") from error
        except SQLAlchemyError as error:
            raise StoreUnavailableError(_reason(error)) from error

    async def _on_loop(self, work: Callable[[sa.Connection], T], write: bool) -> T:
        assert self._asynchronous is not None
        async with self._asynchronous.connect() as connection, connection.begin() as transaction:
            found = await connection.run_sync(work)
            if not write:
                await transaction.rollback()
        return found

    async def _apart_from_others(self, work: Callable[[sa.Connection], T]) -> T:
        assert self._apart is not None
        async with self._apart.connect() as connection:
            driver = (await connection.get_raw_connection()).driver_connection
            assert driver is not None, "it has just been opened"
            # Unlike a cancellation, which says goodbye to the other end first, this ends the wait at once.
            silent = asyncio.get_running_loop().call_later(_URGENT_SECONDS, driver.terminate)
            try:
                async with connection.begin():
                    return await connection.run_sync(work)
            finally:
                silent.cancel()

    async def _in_thread(self, work: Callable[[sa.Connection], T], write: bool) -> T:
        engine = self.engine
        assert engine is not None
        given_up = threading.Event()

        def run() -> T:
            with engine.connect() as connection, connection.begin() as transaction:
                if write:
                    # With the lock from the start: a write that finds nothing to change must fail as the others do
                    # while somebody else has it, and one that reads first must not see an older state.
                    connection.execute(sa.text("BEGIN IMMEDIATE"))
                found = work(connection)
                if write:
                    self._check_file()
                # A write that was reported as failed must not be stored later.
                if not write or given_up.is_set():
                    transaction.rollback()
            return found

        try:
            return await asyncio.get_running_loop().run_in_executor(self._threads, run)
        except asyncio.CancelledError:
            given_up.set()
            raise

    def _check_file(self) -> None:
        """Check that the open file is still the one at its path: writes to a deleted file are lost."""
        if self._file is not None and _identity(self._file) != self._identity:
            raise StoreUnavailableError(
                f"{self._file} was deleted or replaced while it was open; put it back, or restart the server"
            )

    def _set_up_sqlite(self, connection: Any, _: Any) -> None:
        cursor = connection.cursor()
        for pragma in (
            f"busy_timeout = {self._busy * 1000:.0f}",
            # This has no effect once there is a table.
            "auto_vacuum = INCREMENTAL",
            "synchronous = NORMAL",
        ):
            cursor.execute(f"PRAGMA {pragma}")
        _use_write_ahead_log(cursor, self._busy)
        cursor.close()


def _engine(address: PostgresAddress, **options: Any) -> AsyncEngine:
    how: dict[str, Any] = {"async_creator_fn": address.connect}
    if address.statement_cache is not None:
        how["prepared_statement_cache_size"] = address.statement_cache
    return create_async_engine("postgresql+asyncpg://", connect_args=how, **options)


def _use_write_ahead_log(cursor: Any, seconds: float) -> None:
    """Switch to a write-ahead log. SQLite itself does not wait here while another server that starts holds a lock."""
    end = time.monotonic() + seconds
    while True:
        try:
            cursor.execute("PRAGMA journal_mode = WAL")
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY or time.monotonic() > end:
                raise
            time.sleep(0.005)
        else:
            return


def _make_private(path: Path) -> None:
    """Create the folder and the file so that only this user can read them."""
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        path.touch(mode=0o600, exist_ok=True)
    except OSError as error:
        raise StoreUnavailableError(f"{path} cannot be opened: {error.strerror}") from error


def _identity(path: Path) -> tuple[int, int] | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino


def _reason(error: BaseException) -> str:
    return str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__


_NEXT_STEPS = (
    ("database is locked", "another process keeps it locked; end that process, or give another --store"),
    ("database or disk is full", "the disk is full; free space, or keep less (--store-max-bytes)"),
    ("disk i/o error", "the disk fails or is full; free space, or give another --store"),
    ("readonly database", "the file is not writable; change its permissions, or give another --store"),
    ("unable to open", "the file cannot be opened; check its path and permissions"),
    ("not a database", "the file is not a SQLite database; give another --store"),
    ("malformed", "the file is damaged; restore a backup, or give another --store"),
)
"""Parts of SQLite's messages in lower case, each with what an operator can do."""


def _translated(error: BaseException, *, lost: bool) -> StoreUnavailableError:
    """Translate a driver's error to a store's; `lost` says that the connection is lost."""
    reason = _reason(error)
    if "database is locked" in reason:
        lost = True
    step = next((step for words, step in _NEXT_STEPS if words in reason.lower()), None)
    message = reason if step is None else f"{reason}: {step}"
    return UnresponsiveError(message) if lost else StoreUnavailableError(message)
