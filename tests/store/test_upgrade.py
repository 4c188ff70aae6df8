"""Servers of two versions share one database during an upgrade.

- Tables of an older version gain what is missing, and keep what they have; the next start finishes a killed
  upgrade.
- Tables of a newer version are used as they are if it only added to them, and refused if it did more.
- A server of an older version goes on beside a newer one that has upgraded its tables, with the same responses.
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import tarfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
import sqlalchemy as sa
from support.stores.store_records import item, record

from plumbline.store.interface import Store, StoreUnavailableError
from plumbline.store.open import open_store
from plumbline.store.records import ConversationRecord

ROOT = Path(__file__).parents[2]
OLD = "88b2e5f4"
"""The last commit whose tables have the revision 0001."""
ADDED = (
    "DROP TABLE event_parts",
    "ALTER TABLE responses DROP COLUMN cancel_requested",
    "ALTER TABLE conversations DROP COLUMN runner",
    "ALTER TABLE conversations DROP COLUMN lease_until",
)
"""What turns tables of this version into those of revision 0001."""


async def change(url: str, *statements: str, revision: str) -> None:
    """Change the tables as another version would have left them."""
    store = open_store(url)
    await store.start()

    def work(connection: sa.Connection) -> None:
        for statement in statements:
            connection.execute(sa.text(statement))
        connection.execute(sa.text(f"UPDATE alembic_version SET version_num = '{revision}'"))

    await store._writer.write(work)  # type: ignore[attr-defined]
    await store.stop()


async def check(store: Store, *, response: str) -> None:
    """Use what the revisions have added, and what was there before."""
    await store.save_response(record(response, conversation="c1"))
    await store.save_response(record(f"{response}-running", status="queued"))
    await store.request_cancel("a", f"{response}-running")
    assert (await store.renew_leases([f"{response}-running"])).cancelled == [f"{response}-running"]
    assert await store.lease_conversation("a", "c1")
    store.release_conversation("c1")


@pytest.mark.parametrize("done", range(len(ADDED) + 1))
async def test_older_tables_gain_what_is_missing(url: str, done: int) -> None:
    store = open_store(url)
    await store.start()
    await store.save_conversation(ConversationRecord(id="c1", owner="a", created_at=1), [item("i1")])
    await store.stop()
    await change(url, *ADDED[: len(ADDED) - done], revision="0001")

    store = open_store(url)
    await store.start()
    await check(store, response="r1")
    kept = (await store.conversation_items("a", "c1")).entries
    assert [one.id for one in kept] == ["i1", "in_r1", "out_r1"]
    await store.stop()


async def test_newer_tables_are_used_if_the_newer_version_only_added(
    url: str, caplog: pytest.LogCaptureFixture
) -> None:
    store = open_store(url)
    await store.start()
    await store.save_conversation(ConversationRecord(id="c1", owner="a", created_at=1))
    await store.stop()
    added = ("ALTER TABLE responses ADD COLUMN future TEXT", "CREATE TABLE futures (id TEXT PRIMARY KEY)")
    await change(url, *added, revision="0099")

    store = open_store(url)
    await store.start()
    await check(store, response="r1")
    await store.stop()
    assert "newer version (0099)" in caplog.text


async def test_newer_tables_are_refused_if_the_newer_version_changed_them(url: str) -> None:
    await change(url, revision="0100")
    with pytest.raises(StoreUnavailableError, match="newer version of Plumbline"):
        await open_store(url).start()


# A server of an older version beside one of this version


@contextmanager
def serving(source: Path, url: str, log: Path) -> Iterator[tuple[str, subprocess.Popen[bytes]]]:
    """Run the server of a source tree; yields its address and its process."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = int(probe.getsockname()[1])
    path = os.pathsep.join(str(source / name) for name in ("src", "kernels", "conformance"))
    command = [sys.executable, "-m", "plumbline", "serve", f"--port={port}", f"--store={url}"]
    with log.open("ab") as file:
        process = subprocess.Popen(
            [*command, "--served-model-name=m", "--shutdown-timeout=1"],
            env={**os.environ, "PYTHONPATH": path},
            stdout=file,
            stderr=file,
        )
    address = f"http://127.0.0.1:{port}"
    try:
        end = time.monotonic() + 120
        while not _is_ready(address):
            assert process.poll() is None, log.read_text()
            assert time.monotonic() < end
            time.sleep(0.1)
        yield address, process
    finally:
        process.terminate()
        process.wait(60)


def _is_ready(address: str) -> bool:
    try:
        return httpx.get(f"{address}/health/ready", timeout=5).status_code == 200
    except httpx.TransportError:
        return False


@pytest.fixture(scope="module")
def old_source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The source of the older version."""
    folder = tmp_path_factory.mktemp("old")
    archive = folder / "old.tar"
    git = shutil.which("git")
    if git is None:
        pytest.skip("not installed: git")
    made = subprocess.run(
        [git, "-C", str(ROOT), "archive", f"--output={archive}", OLD, "src", "kernels", "conformance"],
        capture_output=True,
        check=False,
    )
    if made.returncode:
        pytest.skip(f"the history of this checkout has no commit {OLD}")
    with tarfile.open(archive) as opened:
        opened.extractall(folder, filter="data")
    return folder


@pytest.mark.long
def test_an_older_server_goes_on_beside_a_newer_one(
    old_source: Path, postgres_url: str, tmp_path: Path
) -> None:
    answer: dict[str, Any] = {"model": "m", "input": "Hello", "max_output_tokens": 16}
    running = {**answer, "background": True, "max_output_tokens": 20_000, "ignore_eos": True}
    client = httpx.Client(timeout=60)

    def post(address: str, path: str, body: dict[str, Any]) -> dict[str, Any]:
        found = client.post(f"{address}{path}", json=body)
        assert found.status_code == 200, found.text
        read: dict[str, Any] = found.json()
        return read

    def ended(address: str, name: str) -> str:
        end = time.monotonic() + 60
        while True:
            status = client.get(f"{address}/v1/responses/{name}").json()["status"]
            if status not in ("queued", "in_progress"):
                return str(status)
            assert time.monotonic() < end
            time.sleep(0.1)

    log = tmp_path / "log"
    with serving(old_source, postgres_url, log) as (old, old_process):
        conversation = post(old, "/v1/conversations", {})["id"]
        talking = {**answer, "conversation": conversation}
        before = post(old, "/v1/responses", answer)
        waiting = post(old, "/v1/responses", running)["id"]
        with serving(ROOT, postgres_url, log) as (new, new_process):
            # Both read, continue and converse, whichever of them wrote.
            for writer, reader in ((old, new), (new, old), (old, new)):
                made = post(writer, "/v1/responses", {**answer, "previous_response_id": before["id"]})
                assert client.get(f"{reader}/v1/responses/{made['id']}").json() == made
                before = post(reader, "/v1/responses", {**answer, "previous_response_id": made["id"]})
                post(writer, "/v1/responses", talking)
                short = post(writer, "/v1/responses", {**running, "max_output_tokens": 16})["id"]
                assert ended(reader, short) == "incomplete"
            items = client.get(f"{new}/v1/conversations/{conversation}/items?limit=100").json()["data"]
            assert len(items) == 6
            # Neither takes what the other runs; a deletion at either is seen by both.
            of_new = post(new, "/v1/responses", running)["id"]
            time.sleep(12)  # Longer than a lease.
            for address in (old, new):
                for name in (waiting, of_new):
                    status = client.get(f"{address}/v1/responses/{name}").json()["status"]
                    assert status in ("queued", "in_progress")
            assert client.delete(f"{old}/v1/responses/{of_new}").status_code == 200
            assert client.get(f"{new}/v1/responses/{of_new}").status_code == 404
            # What either leaves behind fails at the other.
            old_process.kill()
            assert ended(new, waiting) == "failed"
            with (
                pytest.raises(AssertionError, match="written by a newer version of Plumbline"),
                serving(old_source, postgres_url, log),
            ):
                pass  # This old version does not know yet that newer ones only add.
            assert new_process.poll() is None
