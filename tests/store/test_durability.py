"""What a store has acknowledged is kept: after a kill at any moment, every acknowledged response is there and whole."""

from __future__ import annotations

import asyncio
import random
import sys
from pathlib import Path

import pytest
import sqlalchemy as sa

from plumbline.server.store.open import open_store
from plumbline.server.store.sql.sql_store import SqlStore
from plumbline.server.store.sql.tables import responses

from .writing_child import record as written


async def killed_writers(url: str, kills: int) -> None:
    """Kill a writing process several times, and look for what it has acknowledged."""
    acknowledged: list[str] = []
    script = str(Path(__file__).parent / "writing_child.py")
    for kill in range(kills):
        child = await asyncio.create_subprocess_exec(
            sys.executable, script, url, f"k{kill}", stdout=asyncio.subprocess.PIPE
        )
        assert child.stdout is not None
        first = await child.stdout.readline()
        await asyncio.sleep(random.uniform(0.0, 0.1))
        child.kill()
        rest = (await child.communicate())[0]
        # A line that the kill cut was not read by anybody.
        lines = (first + rest).decode().split("\n")[:-1]
        assert lines
        acknowledged += lines
    store = open_store(url)
    assert isinstance(store, SqlStore)
    await store.start()
    for name in acknowledged:
        assert await store.response("a", name) == written(name)
    async with asyncio.timeout(10):
        rows = await store._database.run(lambda c: c.execute(sa.select(responses.c.id)).all())
    for (name,) in rows:
        assert await store.response("a", name) == written(name), "half written"
    await store.stop()


@pytest.mark.long
async def test_what_was_acknowledged_survives_kills(url: str) -> None:
    await killed_writers(url, 5)


@pytest.mark.long
async def test_what_was_acknowledged_survives_many_kills(url: str) -> None:
    await killed_writers(url, 200)
