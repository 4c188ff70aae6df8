"""Start a PostgreSQL server of the machine's own packages, for one run of tests."""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

__all__ = ["PostgresServer", "running_postgres"]


@contextmanager
def running_postgres() -> Iterator[PostgresServer | None]:
    """Run a server on a Unix socket in a temporary folder; None if the machine has no PostgreSQL."""
    programs = _programs()
    if programs is None:
        yield None
        return
    # The path of a socket has 107 bytes at most, so pytest's long folders do not do.
    with tempfile.TemporaryDirectory(prefix="plumbline-pg-", ignore_cleanup_errors=True) as folder:
        server = PostgresServer(programs, Path(folder))
        server.create()
        try:
            yield server
        finally:
            server.stop()


class PostgresServer:
    """A server whose data nobody keeps. PostgreSQL refuses to run as root, so there it runs as `nobody`."""

    def __init__(self, programs: Path, folder: Path) -> None:
        self._programs = programs
        self._folder = folder
        self._user = "nobody" if os.geteuid() == 0 else None

    def url(self, name: str) -> str:
        """Return the URL of a database."""
        return f"postgresql://postgres:hidden@/{name}?host={self._folder}"

    def create(self) -> None:
        """Make an empty cluster, and start."""
        if self._user is not None:
            shutil.chown(self._folder, self._user, pwd.getpwnam(self._user).pw_gid)
        self._run(
            "initdb", "-D", "data", "-U", "postgres", "-A", "trust", "-E", "UTF8", "--no-sync", "--locale=C"
        )
        self.start()

    def start(self) -> None:
        """Start, and wait until it answers."""
        options = f"-c listen_addresses='' -c unix_socket_directories='{self._folder}' -c fsync=off"
        self._run("pg_ctl", "start", "-w", "-D", "data", "-l", "log", "-o", options)

    def stop(self) -> None:
        """End at once, as a crash would."""
        self._run("pg_ctl", "stop", "-m", "immediate", "-D", "data")

    def _run(self, program: str, *arguments: str) -> None:
        subprocess.run(
            [str(self._programs / program), *arguments],
            cwd=self._folder,
            user=self._user,
            check=True,
            stdout=subprocess.DEVNULL,
            stdin=subprocess.DEVNULL,
            timeout=60,
        )


def _programs() -> Path | None:
    """Return the folder with `initdb`; Debian has one for each release."""
    found = shutil.which("initdb")
    folders = [Path(found).parent] if found else []
    folders += sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)
    return next((folder for folder in folders if (folder / "initdb").exists()), None)
