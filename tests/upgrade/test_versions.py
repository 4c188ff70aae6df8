"""Servers of two versions, one after the other and side by side.

- A server reads, continues, changes and deletes everything that the released version has stored.
- Both go on beside each other on PostgreSQL, with the same responses.
- A store of a version that changed more than that is refused with a sentence.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import sqlalchemy as sa
from support.stores.postgres import running_postgres

from plumbline.server.store.open import open_store

from .filling import Client
from .versions import FIRST, RELEASED, ROOT, serving, source_of

pytestmark = pytest.mark.long


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """The URL of a new database."""
    if request.param == "sqlite":
        yield str(tmp_path / "store.db")
        return
    with running_postgres() as server:
        if server is None:
            pytest.skip("not installed: postgresql")
        yield server.url("postgres")


def test_everything_that_the_released_version_has_stored_is_read(url: str, tmp_path: Path) -> None:
    log = tmp_path / "log"
    with serving(source_of(RELEASED, tmp_path), url, log) as (address, process):
        filled = Client(address).fill()
        unfinished = Client(address).begin()
        process.kill()  # The new version also has to repair.
        process.wait(60)
    with serving(ROOT, url, log) as (address, _):
        new = Client(address)
        assert new.read(filled.seen) == filled.seen
        assert new.ended(unfinished) == "failed"
        new.go_on(filled)


async def test_a_store_of_a_newer_version_is_refused_with_a_sentence(url: str, tmp_path: Path) -> None:
    """A downgrade, of this version and of the released one; tables that were only added to are used."""
    for revision in ("0099", "0100"):
        store = open_store(url)
        await store.start()
        statement = sa.text(f"UPDATE alembic_version SET version_num = '{revision}'")
        await store._writer.write(lambda connection, what=statement: connection.execute(what))  # type: ignore[attr-defined]
        await store.stop()
        for source in (ROOT, source_of(RELEASED, tmp_path)):
            log = tmp_path / f"log{revision}"
            log.write_text("")
            allowed = revision == "0099"
            refused = contextlib.nullcontext() if allowed else pytest.raises(AssertionError)
            with refused, serving(source, url, log):
                pass
            *_, said = [line for line in log.read_text().splitlines() if "newer version" in line]
            assert "Traceback" not in log.read_text()
            assert allowed or said.startswith("plumbline: --store cannot be used: its tables were written")


@pytest.mark.parametrize("commit", [FIRST, RELEASED])
def test_an_older_server_goes_on_beside_a_newer_one(commit: str, tmp_path: Path) -> None:
    log = tmp_path / "log"
    source = source_of(commit, tmp_path)
    with contextlib.ExitStack() as stack:
        database = stack.enter_context(running_postgres())
        if database is None:
            pytest.skip("not installed: postgresql")
        url = database.url("postgres")
        at_old, old_process = stack.enter_context(serving(source, url, log))
        old = Client(at_old)
        conversation = old.post("/v1/conversations")["id"]
        before = old.respond()["id"]
        waiting = old.begin()
        at_new, new_process = stack.enter_context(serving(ROOT, url, log))
        new = Client(at_new)
        # Both read, continue and converse, whichever of them wrote.
        for writer, reader in ((old, new), (new, old), (old, new)):
            made = writer.respond(previous_response_id=before)
            assert reader.get(f"/v1/responses/{made['id']}") == made
            before = reader.respond(previous_response_id=made["id"])["id"]
            writer.respond(conversation=conversation)
            assert reader.ended(writer.respond(background=True)["id"]) in ("completed", "incomplete")
        assert len(new.get(f"/v1/conversations/{conversation}/items?limit=100")["data"]) == 6
        if commit == RELEASED:
            for writer, reader in ((old, new), (new, old)):
                filled = writer.fill()
                assert reader.read(filled.seen) == filled.seen
                reader.go_on(filled)
        # Neither takes what the other runs; a deletion at either is seen by both.
        of_new = new.begin()
        time.sleep(12)  # Longer than a lease.
        for each in (old, new):
            for name in (waiting, of_new):
                assert each.get(f"/v1/responses/{name}")["status"] in ("queued", "in_progress")
        old.delete(f"/v1/responses/{of_new}")
        assert new.get(f"/v1/responses/{of_new}") == 404
        # What either leaves behind fails at the other.
        old_process.kill()
        assert new.ended(waiting) == "failed"
        if commit == FIRST:  # It does not know yet that newer ones only add.
            refused = pytest.raises(AssertionError, match="written by a newer version of Plumbline")
            with refused, serving(source, url, log):
                pass
        assert new_process.poll() is None
