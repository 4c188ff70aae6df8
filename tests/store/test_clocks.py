"""Clocks that are set, and machines that sleep.

Laws:
    1. When the clock of the database jumps, no response of a process that lives is ended, and one that was abandoned
       is, later by no more than the step.
    2. Nor does another process get the conversation that one works on; one that was abandoned it gets a little later.
    3. No module measures time by a clock that can be set: those that read one show it, or keep it with a record.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Sequence
from pathlib import Path

import msgspec
import pytest
import sqlalchemy as sa
from support.stores.store_records import record

from plumbline.server.store.records import ConversationRecord, Renewed, ResponseRecord
from plumbline.server.store.sql.database import Database
from plumbline.server.store.sql.lease_rows import SURE_SECONDS, ExpiredLeases
from plumbline.server.store.sql.response_rows import LEASE_SECONDS

from .conftest import opened

SOURCE = Path(__file__).parents[2] / "src"
START = 1_795_000_000.0
LOOK = 1.0
"""Seconds between two renewals, and between two looks for what was abandoned."""
SHOWN = {
    "plumbline/server/protocols/common/ids.py": "`created_at` of answers",
    "plumbline/server/loading/served_model.py": "`created` of a model",
    "plumbline/server/observe/recent.py": "the page shows when a request came",
    "plumbline/server/observe/traces.py": "times of spans, from one reading for each request",
    "plumbline/server/store/sql/response_rows.py": "which of two records with one item is the newer one",
    "plumbline/server/store/sql/rows.py": "when a record was used; those of weeks ago are deleted",
    "plumbline/answer/text/prompts/harmony.py": "the date in a prompt",
    "plumbline/answer/text/templates/sandbox.py": "the date in a prompt",
    "plumbline/answer/text/templates/template.py": "the date in a prompt",
}
"""The modules that may read a clock that can be set, and why a step of it costs no more than itself."""
_SETTABLE = re.compile(r"\b(time\.(time|time_ns|localtime|gmtime)|datetime\.(now|utcnow)|date\.today)\(")


class Clocks:
    """The two clocks, which tests turn."""

    def __init__(self) -> None:
        self.now = 0.0
        """By the clock that is never set."""
        self.offset = START
        """What the clock of the database adds."""

    def of_database(self) -> sa.ColumnElement[float]:
        """Return the time of the database, read when a statement runs."""
        return sa.bindparam(None, callable_=lambda: self.now + self.offset, type_=sa.Double)


@pytest.fixture
def clocks(monkeypatch: pytest.MonkeyPatch) -> Clocks:
    found = Clocks()
    monkeypatch.setattr(Database, "clock", property(lambda _: found.of_database()))
    return found


def failed(found: ResponseRecord, parts: Sequence[bytes], is_cancelled: bool) -> ResponseRecord:
    return msgspec.structs.replace(found, status="failed")


@pytest.mark.parametrize("step", [-3600.0, 5.0, 3600.0])
async def test_a_clock_that_is_set_ends_nothing_that_runs(url: str, clocks: Clocks, step: float) -> None:
    async with opened(url) as runner, opened(url) as gone, opened(url) as other:
        other._expired = ExpiredLeases(lambda: clocks.now)  # type: ignore[attr-defined]
        await runner.save_response(record("runs", status="in_progress"))
        await gone.save_response(record("abandoned", status="in_progress"))
        ended_at: float | None = None

        async def look() -> None:
            nonlocal ended_at
            if await other.end_abandoned(failed):
                assert ended_at is None, "it was ended before"
                ended_at = clocks.now

        for tick in range(25):
            if tick == 5:
                clocks.offset += step
                await look()  # Before anybody has renewed a lease.
            assert await runner.renew_leases(["runs"]) == Renewed()
            await look()
            clocks.now += LOOK
        if ended_at is None:
            clocks.now += max(0.0, -step)
            await runner.renew_leases(["runs"])
            await look()
            clocks.now += SURE_SECONDS
            await runner.renew_leases(["runs"])
            await look()
        assert ended_at is not None
        latest = LEASE_SECONDS + SURE_SECONDS + 2 * LOOK + max(0.0, -step)
        assert min(5.0, LEASE_SECONDS - step) <= ended_at <= max(latest, 25 + max(0.0, -step) + SURE_SECONDS)
        for name, status in (("runs", "in_progress"), ("abandoned", "failed")):
            found = await other.response("a", name)
            assert found is not None
            assert found.status == status


@pytest.mark.parametrize("step", [-3600.0, 15.0, 3600.0])
async def test_a_clock_that_is_set_gives_no_conversation_away(
    postgres_url: str, clocks: Clocks, step: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("plumbline.server.store.sql.lease_rows.SURE_SECONDS", 0.2)
    async with opened(postgres_url) as busy, opened(postgres_url) as gone, opened(postgres_url) as other:
        for store, name in ((busy, "held"), (gone, "abandoned")):
            await store.save_conversation(ConversationRecord(id=name, owner="a", created_at=1))
            assert await store.lease_conversation("a", name)
        clocks.offset += step
        wanted = asyncio.create_task(other.lease_conversation("a", "held"))
        await asyncio.sleep(0.1)
        await busy.renew_leases([])
        assert not await wanted
        clocks.now += LEASE_SECONDS + max(0.0, -step) + 1
        await busy.renew_leases([])
        assert not await other.lease_conversation("a", "held")
        assert await other.lease_conversation("a", "abandoned")


def test_no_module_measures_time_by_a_clock_that_can_be_set() -> None:
    every = (SOURCE / "plumbline").rglob("*.py")
    found = {
        path.relative_to(SOURCE).as_posix() for path in every if _SETTABLE.search(path.read_text("utf-8"))
    }
    assert found == set(SHOWN)
