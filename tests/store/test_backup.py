"""A copy of the database, made while a server writes, is a whole store of its own (docs/guides/operate.md)."""

from __future__ import annotations

import asyncio
import re
import shlex
import subprocess
from pathlib import Path

from support.stores.postgres import PostgresServer
from support.stores.store_records import record

from plumbline.server.store.open import open_store

GUIDE = (Path(__file__).parents[2] / "docs" / "guides" / "operate.md").read_text("utf-8")


def commands(title: str) -> list[str]:
    """Return the commands of a section of the guide."""
    section = GUIDE.partition(f"## {title}\n")[2].partition("\n## ")[0]
    found = re.findall(r"^    (\S.*)$", section, re.M)
    assert found
    return found


def run(command: str) -> None:
    subprocess.run(["bash", "-ec", command], check=True, timeout=60)


async def test_a_backup_of_sqlite_has_what_was_acknowledged_before_it(tmp_path: Path) -> None:
    path, copy = tmp_path / "responses.db", tmp_path / "backup.db"
    store = open_store(str(path))
    await store.start()
    await store.save_response(record("before"))
    stopping = asyncio.Event()

    async def write() -> None:
        number = 0
        while not stopping.is_set():
            await store.save_response(record(f"during{number}"))
            number += 1

    writing = asyncio.create_task(write())
    (command,) = [each for each in commands("Backup and restore") if "VACUUM" in each]
    await asyncio.to_thread(run, command.replace("responses.db", str(path)).replace("backup.db", str(copy)))
    stopping.set()
    await writing
    await store.stop()

    restored = open_store(str(copy))
    await restored.start()
    assert await restored.response("a", "before") == record("before")
    await restored.save_response(record("after"))
    await restored.stop()


async def test_a_backup_of_postgresql_is_restored_into_a_new_database(
    postgres: PostgresServer, postgres_url: str, tmp_path: Path
) -> None:
    store = open_store(postgres_url)
    await store.start()
    await store.save_response(record("before"))
    name = re.search(r"/(store_\d+)\?", postgres_url)
    assert name is not None
    # A URI of libpq has the folder of the socket in its query, as ours has.
    new = postgres_url.replace(name[1], f"{name[1]}_restored")
    dump = tmp_path / "backup.dump"
    backup, create, restore = [each for each in commands("Backup and restore") if "VACUUM" not in each]
    admin = postgres_url.replace(name[1], "postgres")
    for command in (
        backup.replace("$URL", shlex.quote(postgres_url)),
        create.replace("$URL", shlex.quote(admin)).replace("NEW", f"{name[1]}_restored"),
        restore.replace("$NEW_URL", shlex.quote(new)),
    ):
        folder = postgres._programs
        run(f"export PATH={folder}:$PATH; " + command.replace("backup.dump", str(dump)))
    await store.save_response(record("after"))
    await store.stop()

    restored = open_store(new)
    await restored.start()
    assert await restored.response("a", "before") == record("before")
    assert await restored.response("a", "after") is None
    await restored.save_response(record("later"))
    await restored.stop()
